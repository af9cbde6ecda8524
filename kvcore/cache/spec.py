"""The engine's cache specs: what a layer of one rank stores in a block, and how many a request takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcore.cache.rules import PlannerRules, planner_rules
from kvcore.engine.resolved import Resolved
from kvcore.errors import EngineRefusalError
from kvcore.scenario import Parallel
from kvcore.units import ceil_div


class CacheKind(StrEnum):
    """The engine's names of cache spec kinds."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    MLA_ATTENTION = "mla_attention"
    SLIDING_WINDOW_MLA = "sliding_window_mla"
    MAMBA = "mamba"
    CROSS_ATTENTION = "cross_attention"


FULL_KINDS = frozenset({CacheKind.FULL_ATTENTION, CacheKind.MLA_ATTENTION})
WINDOW_KINDS = frozenset({CacheKind.SLIDING_WINDOW, CacheKind.SLIDING_WINDOW_MLA})


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    """`layers` layers of one rank that store the same thing. Order matters where groups are made in it.

    `page_size_bytes` is one layer's share of one block, padding included. Fields that do not apply are 0.
    """

    kind: CacheKind
    layers: int
    block_size: int
    """Tokens per block."""
    page_size_bytes: int
    num_kv_heads: int = 0
    head_size: int = 0
    head_size_v: int = 0
    dtype: str = ""
    sliding_window: int = 0
    attention_chunk_size: int = 0
    encoder_tokens: int = 0
    num_speculative_blocks: int = 0
    num_checkpoint_blocks: int = 0
    tokens_per_state: int = 1
    """Tokens that one stored vector stands for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What decides how many blocks a request takes, beside its length and the spec."""

    rules: PlannerRules
    in_flight_tokens: int
    """Tokens that are scheduled and not settled, at most."""
    batch_tokens: int
    """max_num_batched_tokens."""
    context_ranks: int
    """Ranks that share the tokens of one sequence (decode context parallelism)."""
    mamba_cache_mode: str


def demand_of(resolved: Resolved, parallel: Parallel) -> Demand:
    """The demand under these flags."""
    rules = planner_rules(resolved.version)
    batches = resolved.max_concurrent_batches if rules.in_flight_batches else 1
    return Demand(
        rules=rules,
        in_flight_tokens=resolved.max_num_batched_tokens * batches,
        batch_tokens=resolved.max_num_batched_tokens,
        context_ranks=parallel.decode_context_parallel_size if rules.context_parallel_divides else 1,
        mamba_cache_mode=resolved.mamba_cache_mode,
    )


def grows_with_length(spec: LayerSpec, demand: Demand) -> bool:
    """Whether every further token of a request, however long it is, takes more of this spec."""
    if spec.kind is CacheKind.MAMBA:
        return _keeps_every_state(demand)
    return spec.kind in FULL_KINDS


def blocks_per_request(spec: LayerSpec, length: int, demand: Demand) -> int:
    """Blocks that one request of `length` tokens may hold at once.

    full            ⌈⌈length / context ranks⌉ / block⌉
    window w        ⌈min(w − 1 + in flight, length) / block⌉ + 1
    chunk c         ⌈min(c + in flight, length) / block⌉
    cross           ⌈encoder tokens / block⌉
    recurrent       1, or by mamba_cache_mode: none 1 + s, align 2 + s + checkpoints, all ⌈length / block⌉

    Raises EngineRefusalError for a window under decode context parallelism.

    Source: vllm/v1/kv_cache_interface.py:max_memory_usage_bytes of each spec (0.8.5 to 0.33.0).

    Example:
        >>> from packaging.version import Version
        >>> demand = Demand(rules=planner_rules(Version("0.33.0")), in_flight_tokens=16384, batch_tokens=8192,
        ...                 context_ranks=1, mamba_cache_mode="none")
        >>> window = LayerSpec(kind=CacheKind.SLIDING_WINDOW, layers=1, block_size=16, page_size_bytes=65536,
        ...                    sliding_window=1024)
        >>> blocks_per_request(window, 131_072, demand)
        1089
    """
    kind = spec.kind
    if kind in FULL_KINDS:
        return ceil_div(ceil_div(length, demand.context_ranks), spec.block_size)
    if kind in WINDOW_KINDS:
        if demand.context_ranks > 1:
            raise EngineRefusalError("context-parallel-window", field="decode_context_parallel_size")
        held = min(spec.sliding_window - 1 + demand.in_flight_tokens, length)
        return ceil_div(held, spec.block_size) + 1
    if kind is CacheKind.CHUNKED_LOCAL_ATTENTION:
        return ceil_div(min(spec.attention_chunk_size + demand.in_flight_tokens, length), spec.block_size)
    if kind is CacheKind.CROSS_ATTENTION:
        encoder = spec.encoder_tokens if demand.rules.encoder_tokens == "encoder" else demand.batch_tokens
        return ceil_div(encoder, spec.block_size)
    return _state_blocks(spec, length, demand)


def _keeps_every_state(demand: Demand) -> bool:
    return demand.mamba_cache_mode == "all" and demand.rules.mamba_blocks not in ("one", "mode-without-all")


def _state_blocks(spec: LayerSpec, length: int, demand: Demand) -> int:
    rule = demand.rules.mamba_blocks
    if rule == "one":
        return 1
    if _keeps_every_state(demand):
        speculative = spec.num_speculative_blocks if rule == "mode-and-speculative" else 0
        return ceil_div(length, spec.block_size) + speculative
    if rule == "length":
        return 1
    if demand.mamba_cache_mode == "align":
        return 2 + spec.num_speculative_blocks + spec.num_checkpoint_blocks
    return 1 + spec.num_speculative_blocks
