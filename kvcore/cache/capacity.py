"""The pool of blocks: how many there are, tokens, concurrency, and whether one request of max_model_len fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError
from kvcore.base.quantity import Quantity, Unit, given
from kvcore.cache.fit import Trace, fit_checks, group_blocks, longest_within, shortest_check
from kvcore.cache.groups import StageGroup, StageSpecs, group_layers, v0_grouping
from kvcore.cache.kv_figures import (
    KvFigures,
    blocks_bytes,
    counted_blocks,
    fixed_bytes,
    further_token_bytes,
    requests_by_blocks,
    requests_by_tokens,
    stage_blocks,
    tokens_by_requests,
    tokens_of_blocks,
    tokens_of_groups,
)
from kvcore.cache.rules import ReportedConcurrency, ReportedTokens, planner_rules
from kvcore.cache.spec import CacheKind, LayerSpec, demand_of, growing_blocks
from kvcore.engine.protocol import Resolved
from kvcore.scenario import Parallel


class CacheGroup(Struct, frozen=True, kw_only=True):
    """Layers that share one block table."""

    kind: CacheKind
    layers: int
    block_size: int
    """Tokens of a block as the engine prints them."""
    block_tokens: int
    """Tokens of a block."""
    page_size_bytes: int
    """Bytes of one layer in one block; of all layers of the group where their pages differ."""
    blocks_per_request: int
    """Blocks that a request of max_model_len may take at once."""
    window_tokens: int = 0
    """Tokens of a sliding window, or of a chunk of local attention; 0 without either."""
    num_checkpoint_blocks: int = 0


class Pool(Struct, frozen=True, kw_only=True):
    """The capacity of one pool of blocks: the figures by which a start is judged."""

    num_blocks: int
    tokens: int
    """The figure behind "GPU KV cache size", by that version's own formula."""
    max_concurrency: float
    """The figure behind "Maximum concurrency", unrounded."""
    groups: tuple[CacheGroup, ...]
    bytes_per_block: int
    """Bytes of a block on a rank of the stage that is shown."""
    needed_bytes: int
    """Bytes that one request of max_model_len needs by the engine's start-up check, on the rank that has least to
    spare; on a rank of the stage that decides, where that is shown."""
    fits: bool
    """Whether the start-up check passes."""
    longest_request_tokens: int
    """The largest max_model_len that passes the check, at most the larger of the asked one and the model's
    own; 0 when none does."""

    @property
    def holds_one(self) -> bool:
        """Whether the pool has room for one request of max_model_len; the check of some versions counts less."""
        return not self.groups or self.max_concurrency >= 1

    @property
    def request_bytes(self) -> int:
        """Pool that one request of max_model_len takes, on a rank of the stage that is shown; 0 without a
        pool."""
        if not self.max_concurrency:
            return 0
        return math.ceil(self.num_blocks / self.max_concurrency) * self.bytes_per_block


class CachePlan(Pool, frozen=True, kw_only=True, dict=True):
    """The KV plan of one replica, as the engine's planner computes it; the smallest rank wins.

    Plain numbers, for those who plan thousands; `figures` are the same with the rules that gave them.
    """

    bytes_per_token: float
    """Slope: bytes per further token of one request, on that rank."""
    request_fixed_bytes: int
    """Bytes of a request of max_model_len that do not grow with its length, on that rank."""
    max_model_len: int
    """As planned: shrunk when max_model_len is auto."""
    trace: Trace

    @property
    def stage(self) -> int:
        """The pipeline stage that is shown: figures per rank are those of its ranks."""
        return self.trace.stage

    @cached_property
    def figures(self) -> KvFigures:
        """The figures as quantities, each with the rule that ran."""
        return KvFigures(self.max_model_len, self.trace)

    def concurrency_at(self, tokens: int) -> Quantity:
        """Requests of another length that the pool has room for at once."""
        return self.figures.concurrency_of(tokens)


def plan_cache(
    specs_per_rank: StageSpecs,
    available_bytes: Sequence[int],
    resolved: Resolved,
    parallel: Parallel,
    available_kv: Sequence[Quantity] = (),
    *,
    of_deciding_stage: bool = False,
) -> CachePlan:
    """Plans the KV memory of a rank of each pipeline stage as the engine's own start-up does.

    num_blocks = min over ranks of ⌊available / bytes per block⌋. A model without a cache has one block.
    `available_kv` says of `available_bytes` where they come from. What a rank stores is that of one on the stage with
    the largest blocks, or `of_deciding_stage`: where one request does not fit, the stage that misses most for it, else
    the one with memory for the fewest blocks.

    Raises EngineRefusalError where the engine cannot plan the model's mix of caches.

    Source: vllm/v1/core/kv_cache_utils.py:get_kv_cache_configs (0.8.5 to 0.32.0), for V0
    vllm/worker/worker.py:determine_num_available_blocks (0.8.5).
    """
    own_plan: CachePlan | None = resolved.engine.own_pool(available_bytes, resolved, available_kv)
    if own_plan is not None:
        return own_plan
    given_kv = available_kv or (given("available_kv", size, Unit.BYTES) for size in available_bytes)
    trace = replace(_trace(specs_per_rank, resolved, parallel), available=tuple(given_kv))
    if not trace.grouping.whole:
        return _plan_without_cache(trace)
    num_blocks = _num_blocks(available_bytes, trace)
    if resolved.is_v0:
        if of_deciding_stage:
            trace = replace(trace, stage=_fewest(num_blocks, available_bytes, trace))
        return _plan_v0(num_blocks, trace)
    demand, length = trace.demand, resolved.max_model_len
    checks = fit_checks(specs_per_rank, available_bytes, trace)
    limit = max(length, resolved.derived_max_model_len)
    needed = [check.needed_by_length(demand) for check in checks]
    shortest, longest = shortest_check(checks, needed, limit)
    if resolved.max_model_len_auto and longest:
        length = min(length, longest)
    needs = [needed_bytes(length) for needed_bytes in needed]
    missing = [need - check.budget_bytes for need, check in zip(needs, checks, strict=True)]
    tightest, fits = missing.index(max(missing)), length <= longest
    blocks = _group_blocks(length, trace)
    concurrency, tokens = _held(num_blocks, _counted(blocks, trace), length, trace)
    if of_deciding_stage:
        decides = _fewest(num_blocks, available_bytes, trace) if fits else checks[tightest].stage
        if decides != trace.stage:
            own = replace(trace, stage=decides)
            # A stage that lacks a group counts requests otherwise than the engine, which counts them once for all.
            own_blocks = _group_blocks(length, own)
            held, _ = _held(num_blocks, _counted(own_blocks, own), length, own)
            if held == concurrency and len(own.groups) == len(trace.groups):
                trace, blocks = own, own_blocks
        tightest = next((place for place, check in enumerate(checks) if check.stage == trace.stage), tightest)
    block_bytes = trace.grouping.bytes_per_block[trace.stage]
    groups = tuple(map(_cache_group, trace.groups, blocks))
    fixed = tuple(
        (made.blocks_per_request,)
        for made, group in zip(groups, trace.groups, strict=True)
        if not trace.grows(group.members)
    )
    growing = tuple((count, sizes) for sizes, count in trace.growing_sizes.items())
    return CachePlan(
        num_blocks=num_blocks,
        tokens=tokens,
        max_concurrency=concurrency,
        groups=groups,
        bytes_per_block=block_bytes,
        bytes_per_token=further_token_bytes(block_bytes, growing),
        request_fixed_bytes=fixed_bytes(fixed, block_bytes),
        needed_bytes=needs[tightest],
        fits=fits,
        longest_request_tokens=longest,
        max_model_len=length,
        trace=replace(trace, tightest=checks[tightest], shortest=shortest),
    )


def _fewest(num_blocks: int, available_bytes: Sequence[int], trace: Trace) -> int:
    """The stage with memory for the fewest blocks; of several, the one with the least memory left beside the pool."""

    def room(stage: int) -> tuple[float, int]:
        block_bytes, available = trace.grouping.bytes_per_block[stage], available_bytes[stage]
        blocks = available // block_bytes if block_bytes else math.inf
        return blocks, available - num_blocks * block_bytes

    return min(range(len(available_bytes)), key=room)


def _trace(specs_per_rank: StageSpecs, resolved: Resolved, parallel: Parallel) -> Trace:
    """The groups that this version makes of the specs."""
    demand = demand_of(resolved, parallel)
    if resolved.is_v0:
        grouping = v0_grouping(specs_per_rank)
    else:
        grouping = group_layers(specs_per_rank, demand.rules, resolved.hybrid_kv_cache_manager)
    largest = grouping.bytes_per_block.index(max(grouping.bytes_per_block))
    return Trace(resolved=resolved, demand=demand, grouping=grouping, stage=largest)


def check_state_blocks(cache: Pool, resolved: Resolved) -> None:
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
    checks = "FULL" in resolved.cudagraph_modes and CacheKind.MAMBA in kinds
    return resolved.max_num_seqs if checks and planner_rules(resolved.version).state_blocks_check else 0


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
    own: CachePlan | None = resolved.engine.own_pool(available_bytes, resolved, ())
    if own is not None:
        return tuple(own.concurrency_at(length).value for length in lengths)
    trace = _trace(specs_per_rank, resolved, parallel)
    if not trace.grouping.whole and not resolved.is_v0:
        return tuple(float("inf") for _ in lengths)
    num_blocks = _num_blocks(available_bytes, trace)
    return tuple(
        _concurrency(num_blocks, _counted(_group_blocks(length, trace), trace), length, trace)
        for length in lengths
    )


def pool_planner(
    specs: tuple[LayerSpec, ...], resolved: Resolved, parallel: Parallel
) -> Callable[[int], Pool]:
    """Plans the pool of a rank with `specs` in one KV memory after another, as `plan_cache` does but faster.

    For the V1 engine with a given length and no given number of blocks, whose groups depend on no memory.

    Raises EngineRefusalError as `plan_cache` does.
    """
    first = plan_cache((specs,), (1,), resolved, parallel)
    trace, check, length = first.trace, first.trace.tightest, resolved.max_model_len
    if check is None:
        return lambda available: plan_cache((specs,), (available,), resolved, parallel)
    overhead = check.budget_bytes - 1
    limit = max(length, resolved.derived_max_model_len)
    counted = _counted(_group_blocks(length, trace), trace)
    needed_bytes = cache(check.needed_by_length(trace.demand))

    def pool(available: int) -> Pool:
        num_blocks = max(0, available // first.bytes_per_block)
        concurrency, tokens = _held(num_blocks, counted, length, trace)
        longest = longest_within(needed_bytes, available + overhead, limit)
        return Pool(
            num_blocks=num_blocks,
            tokens=tokens,
            max_concurrency=concurrency,
            groups=first.groups,
            bytes_per_block=first.bytes_per_block,
            needed_bytes=first.needed_bytes,
            fits=length <= longest,
            longest_request_tokens=longest,
        )

    return pool


def _num_blocks(available_bytes: Sequence[int], trace: Trace) -> int:
    if trace.resolved.num_gpu_blocks_override is not None:
        return trace.resolved.num_gpu_blocks_override
    blocks = (
        stage_blocks(available, block_bytes)
        for available, block_bytes in zip(available_bytes, trace.grouping.bytes_per_block, strict=True)
        if block_bytes
    )
    return max(0, min(blocks, default=1))


def _cache_group(group: StageGroup, blocks_per_request: int) -> CacheGroup:
    return CacheGroup(
        kind=group.kind,
        layers=group.layers,
        block_size=group.members[0].stated_block_size or group.block_size,
        block_tokens=group.block_size,
        page_size_bytes=group.page_size_bytes,
        blocks_per_request=blocks_per_request,
        window_tokens=group.members[0].sliding_window or group.members[0].attention_chunk_size,
        num_checkpoint_blocks=group.members[0].num_checkpoint_blocks,
    )


def _held(num_blocks: int, counted: int, length: int, trace: Trace) -> tuple[float, int]:
    """Requests at once and tokens, by the rules of the version, where a request counts for `counted` blocks."""
    concurrency = _concurrency(num_blocks, counted, length, trace)
    return concurrency, _reported_tokens(num_blocks, counted, length, trace)


def _concurrency(num_blocks: int, counted: int, length: int, trace: Trace) -> float:
    if trace.concurrency_rule is ReportedConcurrency.TOKENS:
        return requests_by_tokens(num_blocks, trace.resolved.block_size, length)
    return requests_by_blocks(num_blocks, counted)


def _group_blocks(length: int, trace: Trace) -> list[int]:
    """Blocks of each group that a request of `length` tokens may take."""
    return [group_blocks(group.members, length, trace.demand) for group in trace.groups]


def _counted(blocks: list[int], trace: Trace) -> int:
    """Blocks that a request counts for which takes `blocks` of each group; 0 where it is not counted in blocks."""
    if trace.concurrency_rule is ReportedConcurrency.TOKENS:
        return 0
    if trace.concurrency_rule is ReportedConcurrency.BLOCKS:
        return sum(blocks)
    pages = [group.page_size_bytes for group in trace.groups]
    return counted_blocks(tuple(zip(blocks, pages, strict=True)), pages[0])


def _reported_tokens(num_blocks: int, counted: int, length: int, trace: Trace) -> int:
    match trace.tokens_rule:
        case ReportedTokens.CONCURRENCY:
            return tokens_by_requests(num_blocks, counted, length)
        case ReportedTokens.BLOCKS:
            return tokens_of_blocks(num_blocks, trace.resolved.block_size)
        case ReportedTokens.BLOCKS_PER_GROUP:
            size, ranks = trace.reported_block_size, trace.demand.context_ranks
            return tokens_of_groups(num_blocks, len(trace.groups), size, ranks)
        case other:
            assert_never(other)


def _plan_without_cache(trace: Trace) -> CachePlan:
    """The plan of a model without a cache: one block, the null block; any number of requests fits."""
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


def _plan_v0(num_blocks: int, trace: Trace) -> CachePlan:
    """The plan of V0: one pool of blocks that store all layers, and a check that it has max_model_len tokens."""
    resolved, length = trace.resolved, trace.resolved.max_model_len
    block_bytes = trace.grouping.bytes_per_block[trace.stage]
    tokens = tokens_of_blocks(num_blocks, resolved.block_size)
    per_request = growing_blocks(length, resolved.block_size)
    return CachePlan(
        num_blocks=num_blocks,
        tokens=tokens,
        max_concurrency=requests_by_tokens(num_blocks, resolved.block_size, length),
        groups=tuple(_cache_group(group, per_request) for group in trace.groups),
        bytes_per_block=block_bytes,
        bytes_per_token=further_token_bytes(block_bytes, ((1, (resolved.block_size,)),)),
        request_fixed_bytes=0,
        needed_bytes=blocks_bytes(per_request, block_bytes),
        fits=length <= tokens,
        longest_request_tokens=min(tokens, max(length, resolved.derived_max_model_len)),
        max_model_len=length,
        trace=trace,
    )
