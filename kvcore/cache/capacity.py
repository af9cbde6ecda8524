"""What fits in a pool: blocks, tokens, concurrency, and whether one request of max_model_len fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import assert_never

from kvcore.cache.fit import Trace, fit_checks, group_blocks, longest_within
from kvcore.cache.groups import (
    Grouping,
    StageGroup,
    StageSpecs,
    concurrency_rule,
    group_layers,
    reported_block_size,
    v0_grouping,
)
from kvcore.cache.kv_figures import KvFigures
from kvcore.cache.rules import ReportedConcurrency, ReportedTokens, planner_rules
from kvcore.cache.spec import CacheKind, Demand, LayerSpec, demand_of, grows_with_length
from kvcore.engine.resolved import Resolved
from kvcore.errors import EngineRefusalError
from kvcore.quantity import Quantity, Unit, given
from kvcore.scenario import Parallel
from kvcore.units import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheGroup:
    """Layers that share one block table."""

    kind: CacheKind
    layers: int
    block_size: int
    page_size_bytes: int
    """Of one layer, one block; of all its layers where their pages differ."""
    blocks_per_request: int
    """That a request of max_model_len may take at once."""


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """The KV plan of one replica, as the engine's planner computes it; the smallest rank wins.

    Plain numbers, for those who plan thousands; `figures` are the same with the rules that gave them.
    """

    num_blocks: int
    tokens: int
    """The figure behind "GPU KV cache size", by that version's own formula."""
    max_concurrency: float
    """The figure behind "Maximum concurrency", unrounded."""
    groups: tuple[CacheGroup, ...]
    bytes_per_block: int
    """On the rank with the largest blocks."""
    bytes_per_token: float
    """Slope: bytes per further token of one request, on that rank."""
    request_fixed_bytes: int
    """What a request of max_model_len takes whatever its further length, on that rank."""
    needed_bytes: int
    """What the engine's start-up check says one request of max_model_len needs, on the rank that has least to
    spare."""
    fits: bool
    """Whether that check passes."""
    longest_request_tokens: int
    """The largest max_model_len that passes the check, at most the larger of the asked one and the model's
    own; 0 when none does."""
    max_model_len: int
    """As planned: shrunk when max_model_len is auto."""
    trace: Trace = field(compare=False, repr=False)

    @cached_property
    def figures(self) -> KvFigures:
        """The figures as quantities, each with the formula of the rule that ran."""
        return KvFigures(self, self.trace)

    def concurrency_at(self, tokens: int) -> Quantity:
        """Requests of another length that the pool has room for at once."""
        trace = self.trace
        groups = trace.grouping.stages[trace.stage]
        held = self.num_blocks * trace.resolved.block_size / tokens
        if not trace.resolved.is_v0:
            held = _concurrency(self.num_blocks, groups, tokens, trace.resolved, trace.demand)
        return self.figures.concurrency_of(tokens, held)


def plan_cache(
    specs_per_rank: StageSpecs,
    available_bytes: Sequence[int],
    resolved: Resolved,
    parallel: Parallel,
    available_kv: Sequence[Quantity] = (),
) -> CachePlan:
    """What fits in the KV memory of a rank of each pipeline stage, planned as the engine's own start-up does.

    num_blocks = min over ranks of ⌊available / bytes per block⌋. A model without a cache has one block.
    `available_kv` says of `available_bytes` where they come from.

    Raises EngineRefusalError where the engine cannot plan the model's mix of caches.

    Source: vllm/v1/core/kv_cache_utils.py:get_kv_cache_configs (0.8.5 to 0.32.0), for V0
    vllm/worker/worker.py:determine_num_available_blocks (0.8.5).
    """
    demand = demand_of(resolved, parallel)
    if resolved.is_v0:
        grouping = v0_grouping(specs_per_rank)
    else:
        grouping = group_layers(specs_per_rank, demand.rules, resolved.hybrid_kv_cache_manager)
    stage = _largest_stage(grouping)
    traced = partial(
        Trace,
        resolved=resolved,
        demand=demand,
        grouping=grouping,
        stage=stage,
        available=tuple(
            available_kv or (given("available_kv", size, Unit.BYTES) for size in available_bytes)
        ),
    )
    if not grouping.whole:
        return _plan_without_cache(traced())
    if resolved.is_v0:
        return _plan_v0(available_bytes, traced())
    num_blocks = _num_blocks(grouping, available_bytes, resolved)
    checks = fit_checks(specs_per_rank, grouping, available_bytes, resolved, demand)
    limit = max(resolved.max_model_len, resolved.derived_max_model_len)
    lengths = [check.longest(limit, demand) for check in checks]
    longest = min(lengths)
    length = resolved.max_model_len
    if resolved.max_model_len_auto and longest:
        length = min(length, longest)
    needs = [check.needed_bytes(length, demand) for check in checks]
    missing = [need - check.budget_bytes for need, check in zip(needs, checks, strict=True)]
    tightest = missing.index(max(missing))
    block_bytes = max(grouping.bytes_per_block)
    largest = grouping.stages[stage]
    groups = tuple(_cache_group(group, length, demand) for group in largest)
    slope = [_blocks_per_token(group, demand) for group in largest]
    fixed = sum(group.blocks_per_request for group, grows in zip(groups, slope, strict=True) if not grows)
    concurrency = _concurrency(num_blocks, largest, length, resolved, demand)
    return CachePlan(
        num_blocks=num_blocks,
        tokens=_reported_tokens(num_blocks, concurrency, largest, length, resolved, demand),
        max_concurrency=concurrency,
        groups=groups,
        bytes_per_block=block_bytes,
        bytes_per_token=block_bytes * sum(slope),
        request_fixed_bytes=block_bytes * fixed,
        needed_bytes=needs[tightest],
        fits=length <= longest,
        longest_request_tokens=longest,
        max_model_len=length,
        trace=traced(tightest=checks[tightest], shortest=checks[lengths.index(longest)]),
    )


def check_state_blocks(cache: CachePlan, resolved: Resolved) -> None:
    """Refuses, as the engine does when it captures graphs, more sequences than there are state blocks.

    Raises EngineRefusalError in versions that check, where full graphs are captured for a model with
    recurrent states.

    Source: vllm/config/compilation.py:CompilationConfig.resolve_cudagraph_mode_and_sizes (0.32.0).
    """
    if cache.num_blocks < least_state_blocks((group.kind for group in cache.groups), resolved):
        raise EngineRefusalError(
            "state-blocks-too-few",
            field="max_num_seqs",
            value=resolved.max_num_seqs,
            blocks=cache.num_blocks,
        )


def least_state_blocks(kinds: Iterable[CacheKind], resolved: Resolved) -> int:
    """Blocks below which `check_state_blocks` refuses a model with groups of these kinds; 0 where it does not."""
    checks = planner_rules(resolved.version).state_blocks_check and "FULL" in resolved.cudagraph_modes
    return resolved.max_num_seqs if checks and CacheKind.MAMBA in kinds else 0


def max_concurrency_at(
    specs_per_rank: StageSpecs,
    available_bytes: int | Sequence[int],
    resolved: Resolved,
    parallel: Parallel,
    lengths: Sequence[int],
) -> tuple[float, ...]:
    """`max_concurrency` of `plan_cache` with each of `lengths` as max_model_len, in the same memory.

    `available_bytes` of every rank, or of a rank of each stage. Infinite where a request takes nothing.
    """
    if isinstance(available_bytes, int):
        available_bytes = (available_bytes,) * len(specs_per_rank)
    demand = demand_of(resolved, parallel)
    if resolved.is_v0:
        tokens = _num_blocks(v0_grouping(specs_per_rank), available_bytes, resolved) * resolved.block_size
        return tuple(tokens / length for length in lengths)
    grouping = group_layers(specs_per_rank, demand.rules, resolved.hybrid_kv_cache_manager)
    if not grouping.whole:
        return tuple(float("inf") for _ in lengths)
    num_blocks = _num_blocks(grouping, available_bytes, resolved)
    groups = grouping.stages[_largest_stage(grouping)]
    return tuple(_concurrency(num_blocks, groups, length, resolved, demand) for length in lengths)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The figures of a `CachePlan` that change with the memory."""

    num_blocks: int
    tokens: int
    max_concurrency: float
    longest_request_tokens: int
    fits: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Pools:
    """One rank's KV plan in each of several sizes of memory, and what does not change with them."""

    pools: tuple[Pool, ...]
    bytes_per_block: int
    needed_bytes: int
    budget_offset_bytes: int
    """What the start-up check adds to the available memory before it compares; at most 0."""
    least_blocks: int
    """Fewer blocks are refused, see `check_state_blocks`."""


def plan_pools(
    specs: tuple[LayerSpec, ...], available_bytes: Sequence[int], resolved: Resolved, parallel: Parallel
) -> Pools | None:
    """`plan_cache` of a rank with `specs` for each of `available_bytes`, at the cost of little more than one.

    None where that cannot be had so: V0, automatic lengths, a given number of blocks, a model without a cache.

    Raises EngineRefusalError as `plan_cache` does.
    """
    if resolved.is_v0 or resolved.max_model_len_auto or resolved.num_gpu_blocks_override is not None:
        return None
    demand = demand_of(resolved, parallel)
    stages = (specs,)
    grouping = group_layers(stages, demand.rules, resolved.hybrid_kv_cache_manager)
    if not grouping.whole:
        return None
    check = fit_checks(stages, grouping, (0,), resolved, demand)[0]
    groups, block_bytes = grouping.stages[0], grouping.bytes_per_block[0]
    length = resolved.max_model_len
    limit = max(length, resolved.derived_max_model_len)
    tokens_or_one, divisor = _share_of_block(groups, length, resolved, demand)

    @lru_cache(maxsize=4096)
    def needed(tokens: int) -> int:
        return check.needed_bytes(tokens, demand)

    pools = []
    for available in available_bytes:
        num_blocks = max(0, available // block_bytes)
        concurrency = num_blocks * tokens_or_one / divisor
        longest = longest_within(needed, available + check.budget_bytes, limit)
        pools.append(
            Pool(
                num_blocks=num_blocks,
                tokens=_reported_tokens(num_blocks, concurrency, groups, length, resolved, demand),
                max_concurrency=concurrency,
                longest_request_tokens=longest,
                fits=length <= longest,
            )
        )
    return Pools(
        pools=tuple(pools),
        bytes_per_block=block_bytes,
        needed_bytes=needed(length),
        budget_offset_bytes=check.budget_bytes,
        least_blocks=least_state_blocks((group.kind for group in groups), resolved),
    )


def _largest_stage(grouping: Grouping) -> int:
    """The stage with the largest blocks, the first of equals."""
    return grouping.bytes_per_block.index(max(grouping.bytes_per_block))


def _num_blocks(grouping: Grouping, available_bytes: Sequence[int], resolved: Resolved) -> int:
    if resolved.num_gpu_blocks_override is not None:
        return resolved.num_gpu_blocks_override
    blocks = (
        available // block_bytes
        for available, block_bytes in zip(available_bytes, grouping.bytes_per_block, strict=True)
        if block_bytes
    )
    return max(0, min(blocks, default=1))


def _cache_group(group: StageGroup, length: int, demand: Demand) -> CacheGroup:
    return CacheGroup(
        kind=group.kind,
        layers=group.layers,
        block_size=group.block_size,
        page_size_bytes=group.page_size_bytes,
        blocks_per_request=group_blocks(group.members, length, demand),
    )


def _blocks_per_token(group: StageGroup, demand: Demand) -> float:
    """Blocks per further token of one request; 0 where what it takes is bounded."""
    if not any(grows_with_length(spec, demand) for spec in group.members):
        return 0.0
    ranks = 1 if group.kind is CacheKind.MAMBA else demand.context_ranks
    return 1 / (group.block_size * ranks)


def _concurrency(
    num_blocks: int, groups: tuple[StageGroup, ...], length: int, resolved: Resolved, demand: Demand
) -> float:
    tokens_or_one, divisor = _share_of_block(groups, length, resolved, demand)
    return num_blocks * tokens_or_one / divisor


def _share_of_block(
    groups: tuple[StageGroup, ...], length: int, resolved: Resolved, demand: Demand
) -> tuple[int, int]:
    """How much of a request of `length` tokens fits in one block, as numerator and denominator."""
    rule = concurrency_rule(groups, demand)
    match rule:
        case ReportedConcurrency.TOKENS:
            return resolved.block_size, length
        case ReportedConcurrency.BLOCKS:
            return 1, sum(group_blocks(group.members, length, demand) for group in groups)
        case ReportedConcurrency.BYTES:
            taken = sum(
                group_blocks(group.members, length, demand) * group.page_size_bytes for group in groups
            )
            return 1, ceil_div(taken, groups[0].page_size_bytes)
        case other:
            assert_never(other)


def _reported_tokens(
    num_blocks: int,
    concurrency: float,
    groups: tuple[StageGroup, ...],
    length: int,
    resolved: Resolved,
    demand: Demand,
) -> int:
    match demand.rules.reported_tokens:
        case ReportedTokens.CONCURRENCY:
            return int(concurrency * length)
        case ReportedTokens.BLOCKS:
            return num_blocks * resolved.block_size
        case ReportedTokens.BLOCKS_PER_GROUP:
            block_size = reported_block_size(groups, resolved, demand)
            return num_blocks // len(groups) * block_size * demand.context_ranks
        case other:
            assert_never(other)


def _plan_without_cache(trace: Trace) -> CachePlan:
    """A model that keeps nothing: one block, the null block. A request takes nothing, so any number fits."""
    resolved = trace.resolved
    return CachePlan(
        num_blocks=1,
        tokens=0,
        max_concurrency=0.0,
        groups=(),
        bytes_per_block=0,
        bytes_per_token=0.0,
        request_fixed_bytes=0,
        needed_bytes=0,
        fits=True,
        longest_request_tokens=max(resolved.max_model_len, resolved.derived_max_model_len),
        max_model_len=resolved.max_model_len,
        trace=trace,
    )


def _plan_v0(available_bytes: Sequence[int], trace: Trace) -> CachePlan:
    """V0: one pool of blocks that store all layers; the check is whether the pool has max_model_len tokens."""
    resolved, grouping = trace.resolved, trace.grouping
    num_blocks = _num_blocks(grouping, available_bytes, resolved)
    block_bytes = max(grouping.bytes_per_block)
    tokens = num_blocks * resolved.block_size
    length = resolved.max_model_len
    per_request = ceil_div(length, resolved.block_size)
    return CachePlan(
        num_blocks=num_blocks,
        tokens=tokens,
        max_concurrency=tokens / length,
        groups=tuple(
            CacheGroup(
                kind=group.kind,
                layers=group.layers,
                block_size=group.block_size,
                page_size_bytes=group.page_size_bytes,
                blocks_per_request=per_request,
            )
            for group in grouping.stages[trace.stage]
        ),
        bytes_per_block=block_bytes,
        bytes_per_token=block_bytes / resolved.block_size,
        request_fixed_bytes=0,
        needed_bytes=per_request * block_bytes,
        fits=length <= tokens,
        longest_request_tokens=min(tokens, max(length, resolved.derived_max_model_len)),
        max_model_len=length,
        trace=trace,
    )
