"""Memory that a start takes once the KV cache is allocated, in addition to its graphs."""

import math
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import replace

from kvcore.base.quantity import Quantity, explained
from kvcore.base.term import added
from kvcore.base.units import GIB
from kvcore.engine.overheads import RunnerKind
from kvcore.engine.protocol import Setting
from kvcore.engine.records import TakenLater
from kvcore.scenario import Runner
from kvcore.tables import Amount, ReleaseRange, Reviewed, Source, TableFile

ALLOCATOR_VARIABLES: Final = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF",
)
Format = Annotated[str, Meta(pattern=r"^[a-z0-9_]{2,20}$")]
OPTION: Final = "expandable_segments"
EXPANDABLE: Final = "expandable_segments:true"


class WarmUp(ReleaseRange, frozen=True, kw_only=True):
    """Bytes for each logit of the sampler's warm-up."""

    source: Source
    runner: RunnerKind
    bytes_per_logit: Amount
    least: Amount
    most: Amount


class Taken(ReleaseRange, frozen=True, kw_only=True):
    """GiB that a start takes, with formats whose names have one of these on cards of one major compute capability."""

    source: Source
    gib: Amount
    least: Amount
    most: Amount
    major: Annotated[int, Meta(ge=0, le=99)] | None = None
    formats: tuple[Format, ...] = ()


class AfterPoolTables(Reviewed, frozen=True, kw_only=True):
    """after_pool.toml."""

    warm_up: tuple[WarmUp, ...]
    reserve: Taken
    tuning: tuple[Taken, ...]


AFTER_POOL: Final = TableFile("kvcore.memory", "after_pool.toml", AfterPoolTables)


def after_pool_bytes(setting: Setting, activations: Quantity, pool_bytes: float) -> Quantity:
    """Bytes that a rank takes after its KV cache: what of the warm-up the profile run did not see, and the reserve;
    where a hybrid model's cache of `pool_bytes` is allotted twice, it once more; a mask of all pairs of tokens;
    buffers of experts that move.

    The memory of `activations` is free again by then: only what is beyond it counts.

    Source: vllm/v1/worker/gpu_worker.py:Worker.compile_or_warm_up_model (0.12.0, 0.32.0).
    """
    version, table = setting.resolved.version, AFTER_POOL.load()
    parts = []
    samples = setting.is_last and setting.resolved.runner is not Runner.POOLING
    for row in table.warm_up:
        if samples and row.runner == setting.runner and row.covers(version):
            logits = warm_up_rows(setting) * setting.architecture.vocab_size
            rates = row.bytes_per_logit, row.least, row.most
            beyond = (max(0.0, rate * logits - activations.value) for rate in rates)
            parts.append(TakenLater("warm_up", row.source, *beyond))
    reserve = table.reserve
    most = reserve.least if expands_segments(setting) else reserve.most
    sizes = min(reserve.gib, most), min(reserve.least, most), most
    parts.append(TakenLater("reserve", reserve.source, *(GIB * size for size in sizes)))
    major = _major_capability(setting)
    parts += [
        TakenLater("tuning", one.source, *(GIB * size for size in (one.gib, one.least, one.most)))
        for one in table.tuning
        if one.major == major and one.covers(version) and any(name in setting.storage for name in one.formats)
    ]
    parts += setting.engine.taken_later(setting, pool_bytes)
    return _in_all(tuple(parts))


@lru_cache(maxsize=1024)
def _in_all(parts: tuple[TakenLater, ...]) -> Quantity:
    quantities = [part.quantity for part in parts]
    found = explained("after_pool", added, tuple(quantities), source="; ".join(part.source for part in parts))
    less, more = (math.hypot(*(part.value - part.bounds[end] for part in quantities)) for end in (0, 1))
    return replace(found, interval=(max(0.0, found.value - less), found.value + more))


def _major_capability(setting: Setting) -> int:
    return (setting.accelerator.compute_capability or (0,))[0]


def warm_up_rows(setting: Setting) -> int:
    """Rows of logits that the sampler's warm-up makes: of as many requests as run at once, with their drafts."""
    resolved = setting.resolved
    queries = 1 + resolved.num_speculative_tokens
    return min(resolved.max_num_seqs, resolved.max_num_batched_tokens // (1 + queries)) * queries


def expands_segments(setting: Setting) -> bool:
    """Whether the allocator grows its segments instead of adding new ones.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.14.0rc1, 0.23.0; not in 0.13.0).
    """
    written = " ".join(setting.scenario.env.get(name, "").lower() for name in ALLOCATOR_VARIABLES)
    if OPTION in written:
        return EXPANDABLE in written
    return setting.engine.expands_segments(setting.resolved.version)
