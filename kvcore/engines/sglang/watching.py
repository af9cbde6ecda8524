"""What a running SGLang exports and prints, and its load generator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from packaging.version import Version

from kvcore.engine.records import LoadGenerator, Metric
from kvcore.engines.sglang.arguments import Arguments
from kvcore.engines.sglang.pools import Pools
from kvcore.engines.sglang.shapes import Shape
from kvcore.engines.sglang.states import GIB
from kvcore.engines.sglang.tables import FACTS, sglang_release
from kvcore.tables import Reviewed, TableFile


class Watched(Reviewed, frozen=True, kw_only=True):
    """watching.toml."""

    metrics: tuple[Metric, ...]
    programs: tuple[LoadGenerator, ...]


WATCHED: Final = TableFile("kvcore.engines.sglang", "watching.toml", Watched)


def _own(host: Version) -> Version:
    """The newest release of its own whose loaders are those of `host`, or of a release before it."""
    return next(own for own, other in reversed(FACTS.load().releases.items()) if other <= host)


@lru_cache(maxsize=64)
def exported_metrics(version: Version, _is_v0: bool = False) -> Mapping[str, Metric]:
    """Role -> the metric that the release with the loaders of `version` exports for it.

    Example:
        >>> exported_metrics(Version("0.33.0"))["kv_cache_usage"].name
        'sglang:token_usage'
    """
    return {metric.role: metric for metric in WATCHED.load().metrics if metric.covers(_own(version))}


def load_generator(version: Version) -> LoadGenerator:
    """The load generator of the release with the loaders of `version`.

    Example:
        >>> " ".join(load_generator(Version("0.33.0")).words)
        'python -m sglang.benchmark.serving'
    """
    return next(program for program in WATCHED.load().programs if program.covers(_own(version)))


def expected_lines(pools: Pools, arguments: Arguments, shape: Shape, release: Version) -> tuple[str, ...]:
    """Lines of a start, in its order, with the figures of the plan.

    Source: mem_cache/memory_pool.py (0.5.9, 0.5.23), managers/scheduler.py:Scheduler.init_model_worker (0.5.9),
    managers/scheduler_components (0.5.23).
    """
    lines = []
    if pools.state_slots is not None:
        lines.append(f"Mamba Cache is allocated. max_mamba_cache_size: {pools.state_slots}")
    if pools.swa_tokens is not None and shape.compressed is None:
        said = "Use Sliding" if release < sglang_release("0.5.9") else "Use sliding"
        lines.append(
            f"{said} window memory pool. full_layer_tokens={pools.tokens}, swa_layer_tokens={pools.swa_tokens}"
        )
    elif shape.compressed is None and shape.latent is None:
        whole = shape.heads.key + shape.heads.value
        kept = pools.pool_bytes - pools.state_bytes
        key, value = (kept * part / whole / GIB for part in (shape.heads.key, shape.heads.value))
        lines.append(f"#tokens: {pools.tokens}, K size: {key:.2f} GB, V size: {value:.2f} GB")
    chunk, most = arguments.chunked_prefill_size, arguments.max_prefill_tokens
    lines.append(
        f"max_total_num_tokens={pools.tokens}, chunked_prefill_size={chunk}, max_prefill_tokens={most}, "
        f"max_running_requests={pools.requests}, context_len={arguments.context_length}"
    )
    return tuple(lines)
