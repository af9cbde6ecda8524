"""The start-up check: whether one request of max_model_len fits, the longest one that does, and what ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from msgspec import Struct

from kvcore.base.quantity import Quantity
from kvcore.base.term import left_of
from kvcore.cache.groups import Grouping, StageGroup, StageSpecs
from kvcore.cache.packing import BlockPages
from kvcore.cache.rules import FitRule, ReportedConcurrency, ReportedTokens
from kvcore.cache.spec import CacheKind, Demand, LayerSpec, block_rule, grows_with_length
from kvcore.engine.protocol import Resolved

Terms: TypeAlias = tuple[tuple[tuple[LayerSpec, ...], int], ...]


class FitCheck(Struct, frozen=True, kw_only=True):
    """One comparison the engine makes: Σ blocks of one request × bytes against a budget."""

    terms: Terms
    """Specs that share a block table, and the bytes that each of their blocks counts for."""
    budget_bytes: int
    stage: int = 0
    """The pipeline stage whose memory it looks at."""
    pages: BlockPages = ()
    """The pages that a block counts for; empty where layers are counted one by one."""
    keeps_null_block: bool = False
    """Whether one block is taken off the budget first."""

    def needed_by_length(self, demand: Demand) -> Callable[[int], int]:
        """Bytes that one request of a length counts for."""
        counted = [(group_by_length(members, demand), weight) for members, weight in self.terms]
        return lambda length: sum([blocks(length) * weight for blocks, weight in counted])

    def longest(self, limit: int, demand: Demand) -> int:
        """The largest length up to `limit` that passes; 0 when not even one token does.

        Source: vllm/v1/core/kv_cache_utils.py:estimate_max_model_len (0.9.2),
        _auto_fit_max_model_len (0.14.1).
        """
        return longest_within(self.needed_by_length(demand), self.budget_bytes, limit)


class Trace(Struct, frozen=True, kw_only=True):
    """The rules that ran for a plan, and their inputs."""

    resolved: Resolved
    demand: Demand
    grouping: Grouping
    stage: int
    """The stage whose ranks are shown: the one with the largest blocks, or the one that decides."""
    available: tuple[Quantity, ...] = ()
    """The KV memory of a rank of each stage."""
    tightest: FitCheck | None = None
    """The check behind `needed_bytes`; None in V0, which compares tokens."""
    shortest: FitCheck | None = None
    """The check that allows the shortest request."""

    @property
    def groups(self) -> tuple[StageGroup, ...]:
        """The groups of that stage."""
        return self.grouping.stages[self.stage]

    @property
    def concurrency_rule(self) -> ReportedConcurrency:
        """The rule by which the version counts requests; with one group, bytes are counted as its blocks."""
        rule = self.demand.rules.reported_concurrency
        if self.resolved.is_v0:
            return ReportedConcurrency.TOKENS
        is_one = rule is ReportedConcurrency.BYTES and len(self.groups) == 1
        return ReportedConcurrency.BLOCKS if is_one else rule

    @property
    def tokens_rule(self) -> ReportedTokens:
        """The rule by which the version counts tokens."""
        return ReportedTokens.BLOCKS if self.resolved.is_v0 else self.demand.rules.reported_tokens

    def grows(self, members: tuple[LayerSpec, ...]) -> bool:
        """Whether a group of these specs takes more blocks for every further token."""
        return self.resolved.is_v0 or any(grows_with_length(spec, self.demand) for spec in members)

    @property
    def growing_sizes(self) -> Counter[tuple[int, int]]:
        """The number of growing groups by the tokens of their blocks and the ranks that share these."""
        if self.resolved.is_v0:
            return Counter([(self.resolved.block_size, 1)])
        ranks = self.demand.context_ranks
        found: Counter[tuple[int, int]] = Counter()
        for group in self.groups:
            if self.grows(group.members):
                found[group.block_size, 1 if group.kind is CacheKind.MAMBA else ranks] += 1
        return found

    @property
    def reported_block_size(self) -> int:
        """Tokens of a block in versions that print tokens by groups."""
        if len(self.groups) == 1 and self.demand.rules.single_group_reports_default_block:
            return self.resolved.block_size
        return min(group.block_size for group in self.groups)


def longest_within(needed_bytes: Callable[[int], int], budget_bytes: int, limit: int) -> int:
    """The largest length up to `limit` whose `needed_bytes` are within the budget; 0 when not even one token's are.

    Example:
        >>> longest_within(lambda length: 10 * length, 1005, 4096)
        100
    """
    if budget_bytes <= 0 or needed_bytes(1) > budget_bytes:
        return 0
    if needed_bytes(limit) <= budget_bytes:
        return limit
    low, high = 1, limit
    while high - low > 1:
        middle = (low + high) // 2
        if needed_bytes(middle) <= budget_bytes:
            low = middle
        else:
            high = middle
    return low


def shortest_check(
    checks: Sequence[FitCheck], needed: Sequence[Callable[[int], int]], limit: int
) -> tuple[FitCheck, int]:
    """The first check that allows the shortest request, and the tokens of the largest that it allows, up to `limit`.

    `needed` has the `needed_by_length` of each.
    A check that passes at the length that the ones before it allow needs no search: stages of a pipeline are alike.
    """
    shortest, longest = checks[0], limit
    for check, needed_bytes in zip(checks, needed, strict=True):
        allowed = longest_within(needed_bytes, check.budget_bytes, longest)
        if allowed < longest:
            shortest, longest = check, allowed
    return shortest, longest


def group_blocks(members: tuple[LayerSpec, ...], length: int, demand: Demand) -> int:
    """Blocks that one request of `length` tokens may take of one group."""
    return group_by_length(members, demand)(length)


def group_by_length(members: tuple[LayerSpec, ...], demand: Demand) -> Callable[[int], int]:
    """`group_blocks` of a length: those of the member that takes most."""
    blocks = [block_rule(spec, demand).by_length(spec, demand) for spec in members]
    if len(blocks) == 1:
        return blocks[0]
    return lambda length: max([one(length) for one in blocks])


def fit_checks(
    specs_per_rank: StageSpecs, available_bytes: Sequence[int], trace: Trace
) -> tuple[FitCheck, ...]:
    """The comparisons that this version makes, by its `FitRule`; all of them have to pass.

    Source: vllm/v1/core/kv_cache_utils.py:check_enough_kv_cache_memory (0.13.0),
    _max_memory_usage_bytes_from_groups (0.14.1, 0.17.1, 0.19.1, 0.29.0).
    """
    grouping, rules = trace.grouping, trace.demand.rules
    rule = rules.fit_check
    budgets = tuple(available_bytes)
    override = trace.resolved.num_gpu_blocks_override
    if override is not None and rules.override_counts_in_check:
        budgets = tuple(check_budget((override, block), ()) for block in grouping.bytes_per_block)
    if rule is FitRule.FIRST_GROUP:
        least = budgets.index(min(budgets))
        return (_first_group(grouping.whole, budgets[least], least),)
    checks = []
    for stage, specs in enumerate(specs_per_rank):
        budget, groups = budgets[stage], grouping.stages[stage]
        if not specs:
            continue
        if rule is FitRule.LAYERS:
            terms = tuple(((spec,), spec.layers * spec.page_size_bytes) for spec in specs)
            checks.append(FitCheck(terms=terms, budget_bytes=budget, stage=stage))
        elif rule is FitRule.FIRST_GROUP_PROJECTED:
            checks.append(_first_group(groups, budget, stage))
        else:
            keeps = rule is FitRule.GROUPS_AND_NULL_BLOCK
            checks.append(
                FitCheck(
                    terms=_all_groups(groups, grouping.checked_bytes_per_block[stage]),
                    budget_bytes=check_budget((budget,), (grouping.bytes_per_block[stage],) if keeps else ()),
                    stage=stage,
                    pages=grouping.checked_pages[stage],
                    keeps_null_block=keeps,
                )
            )
    return tuple(checks)


def check_budget(factors: tuple[int, ...], null_block: tuple[int, ...]) -> int:
    """Bytes that a check compares with: KV memory, or blocks and their bytes, without a null block that is kept."""
    return left_of(prod(factors), null_block)


def _first_group(groups: tuple[StageGroup, ...], budget_bytes: int, stage: int) -> FitCheck:
    widest = max(groups, key=lambda group: group.pool_bytes)
    terms = ((groups[0].members, widest.pool_bytes),)
    return FitCheck(terms=terms, budget_bytes=budget_bytes, stage=stage, pages=widest.pages)


def _all_groups(groups: tuple[StageGroup, ...], block_bytes: int) -> Terms:
    weights: dict[tuple[LayerSpec, ...], int] = {}
    for group in groups:
        weights[group.members] = weights.get(group.members, 0) + block_bytes
    return tuple(weights.items())
