"""The rules of a pool of blocks, and its figures: the same rules, run on quantities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from math import floor, prod
from operator import truediv
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.quantity import Inline, Quantity, Scope, Unit, explained, figure, given
from kvcore.base.term import Sign, Term, least, most, same, sum_of_products
from kvcore.base.units import ceil_div
from kvcore.cache.fit import FitCheck, Trace, check_budget
from kvcore.cache.groups import StageGroup
from kvcore.cache.kv_formats import LAYER_TOKEN
from kvcore.cache.packing import BlockPages, pages_bytes
from kvcore.cache.rules import FitRule, ReportedConcurrency, ReportedTokens
from kvcore.cache.spec import (
    FULL_RULE,
    Demand,
    LayerSpec,
    block_rule,
    blocks_per_request,
    one_block,
    page_of,
)

_UTILS: Final = "vllm/v1/core/kv_cache_utils.py"
_PLANNING: Final = "vllm/v1/core/kv_cache_planning.py"
_WORKER: Final = "vllm/worker/worker.py:determine_num_available_blocks (0.8.5)"
_BLOCKS: Final = f"{_UTILS}:get_num_blocks (0.32.0)"
_PAGES: Final = f"{_PLANNING}:get_kv_cache_config_from_groups (0.33.0)"
_SPECS: Final = "vllm/v1/kv_cache_interface.py (0.33.0)"
_CONCURRENCY: Final = {
    ReportedConcurrency.TOKENS: f"{_UTILS}:get_kv_cache_config (0.8.5)",
    ReportedConcurrency.BYTES: f"{_UTILS}:get_max_concurrency_for_kv_cache_config (0.9.2)",
    ReportedConcurrency.BLOCKS: f"{_UTILS}:get_max_concurrency_for_kv_cache_config (0.28.0)",
}
_TOKENS: Final = {
    ReportedTokens.BLOCKS: f"{_UTILS}:get_kv_cache_config (0.8.5)",
    ReportedTokens.BLOCKS_PER_GROUP: f"{_UTILS}:_report_kv_cache_config (0.19.0)",
    ReportedTokens.CONCURRENCY: f"{_UTILS}:get_kv_cache_capacity (0.20.2)",
}
_CHECKS: Final = {
    FitRule.LAYERS: f"{_UTILS}:check_enough_kv_cache_memory (0.13.0)",
    FitRule.FIRST_GROUP: f"{_UTILS}:_max_memory_usage_bytes_from_groups (0.14.1)",
    FitRule.FIRST_GROUP_PROJECTED: f"{_UTILS}:_max_memory_usage_bytes_from_groups (0.17.1)",
    FitRule.GROUPS: f"{_UTILS}:_max_memory_usage_bytes_from_groups (0.19.1)",
    FitRule.GROUPS_AND_NULL_BLOCK: f"{_PLANNING}:check_enough_kv_cache_memory (0.33.0)",
}
_LONGEST: Final = f"{_PLANNING}:estimate_max_model_len (0.33.0)"

_Members: TypeAlias = tuple[LayerSpec, ...]
Products: TypeAlias = tuple[tuple[int, ...], ...]


def stage_blocks(available_kv: int, bytes_per_block: int) -> int:
    """Blocks that the KV memory of a rank of one stage has room for."""
    return available_kv // bytes_per_block


def fewest_blocks(stages: tuple[int, ...]) -> int:
    """Blocks of the pool: every rank has as many as the one with room for the fewest."""
    return least(*stages)


def fewest_blocks_or_none(stages: tuple[int, ...]) -> int:
    """The same where the KV memory is negative."""
    return most(0, least(*stages))


def blocks_bytes(blocks: int, bytes_per_block: int) -> int:
    """Bytes of so many blocks."""
    return blocks * bytes_per_block


def requests_by_tokens(blocks: int, block_size: int, max_model_len: int) -> float:
    """Requests at once, by the tokens of the pool."""
    return blocks * block_size / max_model_len


def requests_by_blocks(blocks: int, blocks_per_request: int) -> float:
    """Requests at once, by the blocks that each takes."""
    return blocks / blocks_per_request


def counted_blocks(groups: Products, first_page_bytes: int) -> int:
    """Blocks of one request as versions count them that divide its bytes by the page of the first group.

    `groups` has blocks and page bytes of each.
    """
    return ceil_div(sum_of_products(groups), first_page_bytes)


def tokens_by_requests(blocks: int, blocks_per_request: int, max_model_len: int) -> int:
    """Tokens of as many requests of full length as fit at once."""
    return floor(requests_by_blocks(blocks, blocks_per_request) * max_model_len)


def tokens_of_blocks(blocks: int, block_size: int, context_ranks: int = 1) -> int:
    """Tokens of all blocks, as if each stored every layer."""
    return blocks * block_size * context_ranks


def tokens_of_groups(blocks: int, group_count: int, block_size: int, context_ranks: int = 1) -> int:
    """Tokens of all blocks, which groups of layers share."""
    return blocks // group_count * block_size * context_ranks


def further_token_bytes(bytes_per_block: int, growing: tuple[tuple[int, tuple[int, ...]], ...]) -> float:
    """Bytes per further token of one request: how many groups grow, and the tokens of their blocks by their sizes."""
    return bytes_per_block * sum((groups * (1 / prod(sizes)) for groups, sizes in growing), 0.0)


def layered_token_bytes(factors: tuple[int, ...], divisors: tuple[int, ...]) -> float:
    """The same, counted in layers, where one token takes as much in each."""
    return reduce(truediv, divisors, prod(factors))


def fixed_bytes(groups: Products, bytes_per_block: int) -> int:
    """Bytes of one request that do not grow with its length: blocks of the groups that do not grow."""
    return sum_of_products(groups) * bytes_per_block


class LongestRequest(Struct, frozen=True):
    """The rule of the longest request that passes `check`: the engine searches for it."""

    check: FitCheck
    demand: Demand

    def __call__(self, length_limit: Any, check_budget: Any) -> Any:
        if isinstance(length_limit, Term):
            return Term(Sign.LONGEST, (length_limit, check_budget))
        return self.check.longest(length_limit, self.demand)


class KvFigures:
    """The figures of one KV plan, each made when it is first asked for, and kept."""

    def __init__(self, max_model_len: int, trace: Trace) -> None:
        self._length = given("max_model_len", max_model_len, Unit.TOKENS)
        self._trace = trace
        self._is_v0 = trace.resolved.is_v0
        self._groups = trace.groups
        self._pages = trace.grouping.block_pages[trace.stage]

    @cached_property
    def _growing(self) -> list[StageGroup]:
        return [group for group in self._groups if self._trace.grows(group.members)]

    @cached_property
    def _bounded(self) -> Mapping[_Members, int]:
        """The number of groups of each kind that does not grow with a request."""
        return Counter(group.members for group in self._groups if not self._trace.grows(group.members))

    @property
    def _layers(self) -> str:
        """Name of the layers of a block: all of the model's, or those of the widest group."""
        return "layers" if self._is_v0 or len(self._groups) == 1 else "group_layers"

    @cached_property
    def layer_token(self) -> Quantity | None:
        """One token in one layer on one rank; None where layers that keep every token differ."""
        growing = list(dict.fromkeys(spec for group in self._growing for spec in group.members))
        made = growing[0].made_of if len(growing) == 1 else None
        return made if made is not None and made.name == LAYER_TOKEN else None

    @cached_property
    def bytes_per_block(self) -> Quantity:
        """A page of each layer of the widest group, on a rank of the stage that is shown."""
        return self._trace.grouping.blocks[self._trace.stage]

    @cached_property
    def blocks(self) -> Quantity:
        """Blocks of the pool: of the stage that has memory for the fewest, or as a flag says."""
        override, stages = self._trace.resolved.num_gpu_blocks_override, self.stages
        rule: Callable[..., int] = one_block
        arguments: tuple[object, ...] = ()
        if self._groups and override is not None:
            rule, arguments = same, (given("num_gpu_blocks_override", override),)
        elif stages:
            rule = fewest_blocks_or_none if any(one.value < 0 for one in stages) else fewest_blocks
            arguments = (stages if len(stages) > 1 else (Inline(stages[0]),),)
        source = _WORKER if self._is_v0 else _BLOCKS
        return explained("blocks", rule, *arguments, unit=Unit.BLOCKS, scope=Scope.PER_REPLICA, source=source)

    @cached_property
    def pool(self) -> Quantity:
        """The pool in bytes, on a rank of the stage that is shown."""
        return explained("kv_cache", blocks_bytes, self.blocks, self.bytes_per_block, source=_PAGES)

    @cached_property
    def blocks_per_request(self) -> Quantity:
        """Blocks that one request of max_model_len may take at once."""
        return self._request_blocks(self._counted, self._length, "blocks_per_request")

    @cached_property
    def tokens(self) -> Quantity:
        """The figure behind "GPU KV cache size", by that version's own formula."""
        trace, kind = self._trace, self._trace.tokens_rule
        size = given("block_size", trace.resolved.block_size)
        rule: Callable[..., int] = tokens_of_blocks
        arguments: tuple[Quantity, ...] = (self.blocks, size)
        if kind is ReportedTokens.CONCURRENCY and self._groups:
            divisor = self._divisor(self._length, "blocks_per_request")
            rule, arguments = tokens_by_requests, (self.blocks, divisor, self._length)
        elif kind is ReportedTokens.BLOCKS_PER_GROUP and self._groups:
            arguments = (self.blocks, given("block_size", trace.reported_block_size))
            if len(self._groups) > 1:
                rule, groups = tokens_of_groups, given("group_count", len(self._groups))
                arguments = (self.blocks, groups, arguments[1])
            if trace.demand.context_ranks > 1:
                arguments = (*arguments, given("context_ranks", trace.demand.context_ranks))
        source = _WORKER if self._is_v0 else _TOKENS[kind]
        scope = Scope.PER_REPLICA
        if not self._groups:
            return figure("tokens", 0, unit=Unit.TOKENS, scope=scope, source=source)
        return explained("tokens", rule, *arguments, unit=Unit.TOKENS, scope=scope, source=source)

    @cached_property
    def concurrency(self) -> Quantity:
        """The figure behind "Maximum concurrency", unrounded."""
        return self._concurrency(self._length, "concurrency", "blocks_per_request")

    def concurrency_of(self, tokens: int) -> Quantity:
        """Requests of another length at once, by the rule of `concurrency`."""
        length = given("typical_length", tokens, Unit.TOKENS)
        return self._concurrency(length, "typical_concurrency", "typical_blocks")

    @cached_property
    def bytes_per_token(self) -> Quantity:
        """Bytes per further token of one request, on a rank of the stage that is shown."""
        rule, arguments = self._slope()
        return explained("bytes_per_token", rule, *arguments, source=_SPECS)

    @cached_property
    def bounded_blocks(self) -> tuple[Quantity, ...]:
        """Blocks of one group of each kind that does not grow with a request."""
        return tuple(self._group_blocks(members, self._length) for members in self._bounded)

    @cached_property
    def request_fixed(self) -> Quantity:
        """Bytes of a request of max_model_len that do not grow with its length."""
        groups = self._blocks_of(self._bounded, self._length) or ((given("fixed_blocks", 0, Unit.BLOCKS),),)
        return explained("request_fixed", fixed_bytes, groups, self.bytes_per_block, source=_SPECS)

    @cached_property
    def needed(self) -> Quantity:
        """Bytes that one request needs by the start-up check, on a rank of the stage that is shown."""
        check, source = self._trace.tightest, _WORKER
        terms: tuple[tuple[Quantity, ...], ...] = ((self.blocks_per_request, self.bytes_per_block),)
        if check is not None:
            terms, source = self._checked(check), _CHECKS[self._trace.demand.rules.fit_check]
        return explained("needed", sum_of_products, terms, source=source)

    @cached_property
    def longest(self) -> Quantity:
        """The largest max_model_len that passes the check, by bisection in the engine."""
        resolved, check = self._trace.resolved, self._trace.shortest
        most_tokens = max(resolved.max_model_len, resolved.derived_max_model_len)
        limit = given("length_limit", most_tokens, Unit.TOKENS)
        rule: Callable[..., Any] = same
        arguments: tuple[Quantity, ...] = (limit,)
        if check is not None:
            rule, arguments = LongestRequest(check, self._trace.demand), (limit, self._budget(check))
        elif self._groups:
            rule, arguments = least, (self.tokens, limit)
        source = _WORKER if self._is_v0 else _LONGEST
        return explained(
            "longest", rule, *arguments, unit=Unit.TOKENS, scope=Scope.PER_REPLICA, source=source
        )

    @property
    def _counted(self) -> Mapping[_Members, int]:
        """The groups of one request; V0 has one block table for all layers."""
        return Counter(group.members for group in self._groups[: 1 if self._is_v0 else None])

    def _concurrency(self, length: Quantity, name: str, blocks_name: str) -> Quantity:
        kind, scope = self._trace.concurrency_rule, Scope.PER_REPLICA
        source = _WORKER if self._is_v0 else _CONCURRENCY[kind]
        if not self._groups:
            return figure(name, 0.0, unit=Unit.REQUESTS, scope=scope, source=source)
        rule: Callable[..., float]
        arguments: tuple[Quantity, ...]
        if kind is ReportedConcurrency.TOKENS:
            size = given("block_size", self._trace.resolved.block_size)
            rule, arguments = requests_by_tokens, (self.blocks, size, length)
        else:
            rule, arguments = requests_by_blocks, (self.blocks, self._divisor(length, blocks_name))
        return explained(name, rule, *arguments, unit=Unit.REQUESTS, scope=scope, source=source)

    def _divisor(self, length: Quantity, name: str) -> Quantity:
        """Blocks of one request as the engine's concurrency counts them."""
        pages = [group.page_size_bytes for group in self._groups]
        kind = self._trace.concurrency_rule
        if kind is ReportedConcurrency.BLOCKS or len(set(pages)) == 1:
            is_full = length is self._length
            return self.blocks_per_request if is_full else self._request_blocks(self._counted, length, name)
        taken = tuple(
            (self._group_blocks(group.members, length), given("page_size_bytes", page, Unit.BYTES))
            for group, page in zip(self._groups, pages, strict=True)
        )
        first = given("first_page_bytes", pages[0], Unit.BYTES)
        return explained(
            f"counted_{name}", counted_blocks, taken, first, unit=Unit.BLOCKS, source=_CONCURRENCY[kind]
        )

    def _slope(self) -> tuple[Callable[..., float], tuple[Any, ...]]:
        """The rule of `bytes_per_token` and its arguments: in layers where one token takes as much in each."""
        sizes, token = self._trace.growing_sizes, self.layer_token
        if len(sizes) == 1 and token is not None:
            (((block_size, shared), count),) = sizes.items()
            if [page for _, page in self._pages] == [block_size * token.value]:
                groups = (given("growing_groups", count),) if count > 1 else ()
                layers = given(self._layers, self._pages[0][0])
                ranks = (given("context_ranks", shared),) if shared > 1 else ()
                return layered_token_bytes, ((*groups, layers, Inline(token)), ranks)
        growing = tuple(
            (
                given("growing_groups", count) if count > 1 else 1,
                (
                    given("block_size", size),
                    *((given("context_ranks", shared),) if shared > 1 else ()),
                ),
            )
            for (size, shared), count in sizes.items()
        )
        return further_token_bytes, (self.bytes_per_block, growing)

    @cached_property
    def stages(self) -> tuple[Quantity, ...]:
        """⌊available / block⌋ of each stage with a cache; stages that are alike count once."""
        trace, found = self._trace, {}
        for available, pages in zip(trace.available, trace.grouping.block_pages, strict=True):
            if pages_bytes(pages):
                block = self._block_of(pages, "stage_block_bytes")
                found[available.value, pages] = explained(
                    "stage_blocks", stage_blocks, available, block, unit=Unit.BLOCKS, source=_BLOCKS
                )
        return tuple(found.values())

    def _block_of(self, pages: BlockPages, name: str) -> Quantity:
        """A block of `pages`, as `name` where it is not the largest one."""
        if pages == self._pages:
            return self.bytes_per_block
        return replace(self._trace.grouping.block(pages, self._trace.stage), name=name)

    def _group_blocks(self, members: _Members, length: Quantity) -> Quantity:
        """Blocks of one group, by the rule of the member that takes the most."""
        demand, tokens = self._trace.demand, int(length.value)
        if self._is_v0:
            return FULL_RULE.explained(length, members[0], demand)
        spec = max(members, key=lambda spec: blocks_per_request(spec, tokens, demand))
        return block_rule(spec, demand).explained(length, spec, demand)

    def _blocks_of(
        self, counts: Mapping[_Members, int], length: Quantity
    ) -> tuple[tuple[Quantity, ...], ...]:
        """Products of the number of equal groups and the blocks of one; the number is left out where it is 1."""
        found: list[tuple[Quantity, ...]] = []
        for members, count in counts.items():
            blocks = self._group_blocks(members, length)
            groups = given("growing_groups" if self._trace.grows(members) else "fixed_groups", count)
            found.append((groups, blocks) if count > 1 else (blocks,))
        return tuple(found)

    def _request_blocks(self, counts: Mapping[_Members, int], length: Quantity, name: str) -> Quantity:
        groups = self._blocks_of(counts, length)
        if list(map(len, groups)) == [1]:
            return replace(groups[0][0], name=name)
        return explained(name, sum_of_products, groups, unit=Unit.BLOCKS, source=_SPECS)

    def _checked(self, check: FitCheck) -> tuple[tuple[Quantity, ...], ...]:
        """Blocks and bytes that a check counts: of the groups, or of layers one by one."""
        if not check.pages:
            if len(check.terms) == 1 and check.stage == self._trace.stage:
                return ((self.blocks_per_request, self.bytes_per_block),)
            specs = [members[0] for members, _ in check.terms]
            return tuple(
                (self._group_blocks((spec,), self._length), given("layers", spec.layers), page_of(spec))
                for spec in specs
            )
        block = self._block_of(check.pages, "checked_block_bytes")
        counts = {members: weight // int(block.value) for members, weight in check.terms}
        blocks = self.blocks_per_request
        if counts != self._counted:
            blocks = self._request_blocks(counts, self._length, "checked_blocks")
        return ((blocks, block),)

    def _budget(self, check: FitCheck) -> Quantity:
        """The memory that a check compares with."""
        trace = self._trace
        block = self._block_of(trace.grouping.block_pages[check.stage], "stage_block_bytes")
        override = trace.resolved.num_gpu_blocks_override
        budget: tuple[Quantity, ...] = (trace.available[check.stage],)
        if override is not None and trace.demand.rules.override_counts_in_check:
            budget = (given("num_gpu_blocks_override", override), block)
        null_block = (block,) if check.keeps_null_block else ()
        return explained("check_budget", check_budget, budget, null_block, source=_LONGEST)
