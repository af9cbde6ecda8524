"""The figures of a KV plan as quantities: each with the formula of the rule that ran, and that rule's inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from kvcore.base.quantity import Quantity, Scope, Unit, figure, given, numbered, placeholders, sum_of_products
from kvcore.base.units import ceil_div
from kvcore.cache.fit import FitCheck, Trace
from kvcore.cache.groups import StageGroup
from kvcore.cache.kv_formats import LAYER_TOKEN
from kvcore.cache.packing import BlockPages, pages_bytes
from kvcore.cache.rules import FitRule, ReportedConcurrency, ReportedTokens
from kvcore.cache.spec import (
    FULL_RULE,
    CacheKind,
    LayerSpec,
    block_rule,
    blocks_per_request,
    grows_with_length,
    page_of,
)

if TYPE_CHECKING:
    from kvcore.cache.capacity import CachePlan

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
_REQUEST_BYTES: Final = "{blocks_per_request} × {bytes_per_block}"
_LONGEST: Final = f"{_PLANNING}:estimate_max_model_len (0.33.0)"

_Members: TypeAlias = tuple[LayerSpec, ...]
_Term: TypeAlias = tuple[str, tuple[Quantity, ...]]
"""A formula and what it names."""


class KvFigures:
    """The figures of one KV plan, each made when it is first asked for, and kept."""

    def __init__(self, plan: CachePlan, trace: Trace) -> None:
        self._plan, self._trace = plan, trace
        self._is_v0 = trace.resolved.is_v0
        self._groups = trace.groups
        self._pages = trace.grouping.block_pages[trace.stage]

    @cached_property
    def _length(self) -> Quantity:
        return given("max_model_len", self._plan.max_model_len, Unit.TOKENS)

    @cached_property
    def _growing(self) -> list[StageGroup]:
        return [group for group in self._groups if self._grows(group.members)]

    @cached_property
    def _bounded(self) -> Mapping[_Members, int]:
        """How many groups of each kind do not grow with a request."""
        return Counter(group.members for group in self._groups if not self._grows(group.members))

    @property
    def _layers(self) -> str:
        """What the layers of a block are called: all of the model's, or those of the widest group."""
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
        return self._block(self._pages, "bytes_per_block")

    @cached_property
    def blocks(self) -> Quantity:
        """Blocks of the pool: of the stage that has memory for the fewest, or as a flag says."""
        trace, stages = self._trace, self._stage_blocks()
        override = trace.resolved.num_gpu_blocks_override
        term: _Term = ("1", ())
        if self._groups and override is not None:
            term = ("{num_gpu_blocks_override}", (given("num_gpu_blocks_override", override),))
        elif len(stages) == 1:
            term = (stages[0].formula, stages[0].inputs)
        elif stages:
            term = (f"min({', '.join(f'{{{one.name}}}' for one in stages)})", stages)
        if override is None and any(one.value < 0 for one in stages):
            term = (f"max(0, {term[0]})", term[1])
        source = _WORKER if self._is_v0 else _BLOCKS
        return _figure("blocks", self._plan.num_blocks, Unit.BLOCKS, term, source, Scope.PER_REPLICA)

    @cached_property
    def pool(self) -> Quantity:
        """The pool in bytes, on a rank of the stage that is shown."""
        term = ("{blocks} × {bytes_per_block}", (self.blocks, self.bytes_per_block))
        value = self._plan.num_blocks * self._plan.bytes_per_block
        return _figure("kv_cache", value, Unit.BYTES, term, _PAGES)

    @cached_property
    def blocks_per_request(self) -> Quantity:
        """Blocks that one request of max_model_len may take at once."""
        return self._request_blocks(self._counted, self._length, "blocks_per_request")

    @cached_property
    def tokens(self) -> Quantity:
        """The figure behind "GPU KV cache size", by that version's own formula."""
        trace, rule = self._trace, self._trace.tokens_rule
        size = given("block_size", trace.resolved.block_size)
        term: _Term = ("{blocks} × {block_size}", (self.blocks, size))
        if not self._groups:
            term = ("", ())
        elif rule is ReportedTokens.CONCURRENCY:
            divisor = self._divisor(self._length, "blocks_per_request")
            formula = f"⌊{{blocks}} / {{{divisor.name}}} × {{max_model_len}}⌋"
            term = (formula, (self.blocks, divisor, self._length))
        elif rule is ReportedTokens.BLOCKS_PER_GROUP:
            size = given("block_size", trace.reported_block_size)
            term = (term[0], (self.blocks, size))
            if len(self._groups) > 1:
                groups = given("group_count", len(self._groups))
                term = ("⌊{blocks} / {group_count}⌋ × {block_size}", (self.blocks, groups, size))
            if trace.demand.context_ranks > 1:
                ranks = given("context_ranks", trace.demand.context_ranks)
                term = (f"{term[0]} × {{context_ranks}}", (*term[1], ranks))
        source = _WORKER if self._is_v0 else _TOKENS[rule]
        return _figure("tokens", self._plan.tokens, Unit.TOKENS, term, source, Scope.PER_REPLICA)

    @cached_property
    def concurrency(self) -> Quantity:
        """The figure behind "Maximum concurrency", unrounded."""
        return self._concurrency(
            self._length, self._plan.max_concurrency, "concurrency", "blocks_per_request"
        )

    def concurrency_of(self, tokens: int, held: float) -> Quantity:
        """Requests of another length at once, `held`, by the rule of `concurrency`."""
        length = given("typical_length", tokens, Unit.TOKENS)
        return self._concurrency(length, held, "typical_concurrency", "typical_blocks")

    @cached_property
    def bytes_per_token(self) -> Quantity:
        """Bytes per further token of one request, on a rank of the stage that is shown."""
        return _figure("bytes_per_token", self._plan.bytes_per_token, Unit.BYTES, self._slope(), _SPECS)

    @cached_property
    def bounded_blocks(self) -> tuple[Quantity, ...]:
        """Blocks of one group of each kind that does not grow with a request."""
        return tuple(self._group_blocks(members, self._length) for members in self._bounded)

    @cached_property
    def request_fixed(self) -> Quantity:
        """What a request of max_model_len takes whatever its further length."""
        formula, inputs = self._sum_of_blocks(self._bounded, self._length)
        if not self._bounded:
            formula, inputs = "{fixed_blocks}", (given("fixed_blocks", 0, Unit.BLOCKS),)
        elif " + " in formula:
            formula = f"({formula})"
        term = (f"{formula} × {{bytes_per_block}}", (*inputs, self.bytes_per_block))
        return _figure("request_fixed", self._plan.request_fixed_bytes, Unit.BYTES, term, _SPECS)

    @cached_property
    def needed(self) -> Quantity:
        """What the start-up check says one request needs, on a rank of the stage that is shown."""
        check, source = self._trace.tightest, _WORKER
        term: _Term = (_REQUEST_BYTES, (self.blocks_per_request, self.bytes_per_block))
        if check is not None:
            term, source = self._checked(check), _CHECKS[self._trace.demand.rules.fit_check]
        return _figure("needed", self._plan.needed_bytes, Unit.BYTES, term, source)

    @cached_property
    def longest(self) -> Quantity:
        """The largest max_model_len that passes the check, by bisection in the engine."""
        resolved, check = self._trace.resolved, self._trace.shortest
        limit = given(
            "length_limit", max(resolved.max_model_len, resolved.derived_max_model_len), Unit.TOKENS
        )
        source = _WORKER if self._is_v0 else _LONGEST
        term: _Term = ("{length_limit}", (limit,))
        if check is not None:
            term = ("max(ℓ ≤ {length_limit}: needed(ℓ) ≤ {check_budget})", (limit, self._budget(check)))
        elif self._groups:
            term = ("min({tokens}, {length_limit})", (self.tokens, limit))
        value = self._plan.longest_request_tokens
        return _figure("longest", value, Unit.TOKENS, term, source, Scope.PER_REPLICA)

    @property
    def _counted(self) -> Mapping[_Members, int]:
        """The groups of one request; V0 has one block table for all layers."""
        return Counter(group.members for group in self._groups[: 1 if self._is_v0 else None])

    def _grows(self, members: _Members) -> bool:
        return self._is_v0 or any(grows_with_length(spec, self._trace.demand) for spec in members)

    def _concurrency(self, length: Quantity, held: float, name: str, blocks_name: str) -> Quantity:
        rule = self._trace.concurrency_rule
        term: _Term = ("", ())
        if self._groups and rule is ReportedConcurrency.TOKENS:
            size = given("block_size", self._trace.resolved.block_size)
            term = (f"{{blocks}} × {{block_size}} / {{{length.name}}}", (self.blocks, size, length))
        elif self._groups:
            divisor = self._divisor(length, blocks_name)
            term = (f"{{blocks}} / {{{divisor.name}}}", (self.blocks, divisor))
        source = _WORKER if self._is_v0 else _CONCURRENCY[rule]
        return _figure(name, held, Unit.REQUESTS, term, source, Scope.PER_REPLICA)

    def _divisor(self, length: Quantity, name: str) -> Quantity:
        """Blocks of one request as the engine's concurrency counts them."""
        pages = [group.page_size_bytes for group in self._groups]
        rule = self._trace.concurrency_rule
        if rule is ReportedConcurrency.BLOCKS or len(set(pages)) == 1:
            is_full = length is self._length
            return self.blocks_per_request if is_full else self._request_blocks(self._counted, length, name)
        blocks = [self._group_blocks(group.members, length) for group in self._groups]
        formula, inputs = sum_of_products(
            (one, given("page_size_bytes", page, Unit.BYTES)) for one, page in zip(blocks, pages, strict=True)
        )
        first = given("first_page_bytes", pages[0], Unit.BYTES)
        taken = sum(int(one.value) * page for one, page in zip(blocks, pages, strict=True))
        term = (f"⌈({formula}) / {{first_page_bytes}}⌉", (*inputs, first))
        return _figure(f"counted_{name}", ceil_div(taken, pages[0]), Unit.BLOCKS, term, _CONCURRENCY[rule])

    def _slope(self) -> _Term:
        """Groups that grow × bytes of a block / its tokens, by the size of their blocks."""
        ranks = self._trace.demand.context_ranks
        sizes = Counter(
            (group.block_size, 1 if group.kind is CacheKind.MAMBA else ranks) for group in self._growing
        )
        if self._is_v0:
            sizes = Counter([(self._trace.resolved.block_size, 1)])
        if not sizes:
            return "{growing_groups} × {bytes_per_block}", (given("growing_groups", 0), self.bytes_per_block)
        token = self.layer_token if len(sizes) == 1 else None
        per_block = [page for _, page in self._pages]
        terms: list[_Term] = []
        for number, ((block_size, shared), count) in enumerate(sizes.items(), 1):
            mark = f"_{number}" if len(sizes) > 1 else ""
            size = given(f"block_size{mark}", block_size)
            term = f"{{bytes_per_block}} / {{{size.name}}}"
            inputs: tuple[Quantity, ...] = (self.bytes_per_block, size)
            if token is not None and per_block == [block_size * token.value]:
                term, inputs = _in_layers(token, given(self._layers, self._pages[0][0]))
            if count > 1:
                groups = given(f"growing_groups{mark}", count)
                term, inputs = f"{{{groups.name}}} × {term}", (groups, *inputs)
            if shared > 1:
                sharing = given(f"context_ranks{mark}", shared)
                term, inputs = f"{term} / {{{sharing.name}}}", (*inputs, sharing)
            terms.append((term, inputs))
        named = dict.fromkeys(one for _, inputs in terms for one in inputs)
        return " + ".join(term for term, _ in terms), tuple(named)

    def _stage_blocks(self) -> tuple[Quantity, ...]:
        """⌊available / block⌋ of each stage with a cache; stages that are alike count once."""
        trace, found = self._trace, {}
        for available, pages in zip(trace.available, trace.grouping.block_pages, strict=True):
            if pages_bytes(pages):
                block = self._block_of(pages, "stage_block_bytes")
                term = (f"⌊{{available_kv}} / {{{block.name}}}⌋", (available, block))
                value = int(available.value) // int(block.value)
                found[available.value, pages] = _figure("stage_blocks", value, Unit.BLOCKS, term, _BLOCKS)
        return numbered(found.values())

    def _block_of(self, pages: BlockPages, name: str) -> Quantity:
        """A block of `pages`, as `name` where it is not the largest one."""
        return self.bytes_per_block if pages == self._pages else self._block(pages, name)

    def _block(self, pages: BlockPages, name: str) -> Quantity:
        term = sum_of_products(
            (given(self._layers, layers), self._page(size)) for layers, size in pages if layers
        )
        return _figure(name, pages_bytes(pages), Unit.BYTES, term, _PAGES)

    def _page(self, page_bytes: int) -> Quantity:
        """A page of that size, as one of the specs stores it."""
        groups = (*self._growing, *(group for stage in self._trace.grouping.stages for group in stage))
        specs = (spec for group in groups for spec in group.members if spec.page_size_bytes == page_bytes)
        spec = next(specs, None)
        return given("page_size_bytes", page_bytes, Unit.BYTES) if spec is None else page_of(spec)

    def _group_blocks(self, members: _Members, length: Quantity) -> Quantity:
        """Blocks of one group, by the rule of the member that takes the most."""
        demand, tokens = self._trace.demand, int(length.value)
        if self._is_v0:
            spec, rule = members[0], FULL_RULE
        else:
            spec = max(members, key=lambda spec: blocks_per_request(spec, tokens, demand))
            rule = block_rule(spec, demand)
        inputs = tuple(
            length if name == "max_model_len" else given(name, getattr(spec, name, getattr(demand, name, 0)))
            for name in placeholders(rule.formula)
        )
        term = (rule.formula.replace("{max_model_len}", f"{{{length.name}}}"), inputs)
        return _figure(rule.name, rule.blocks(spec, tokens, demand), Unit.BLOCKS, term, rule.source)

    def _sum_of_blocks(self, counts: Mapping[_Members, int], length: Quantity) -> _Term:
        parts = []
        for members, count in counts.items():
            blocks = self._group_blocks(members, length)
            groups = given("growing_groups" if self._grows(members) else "fixed_groups", count)
            parts.append((groups, blocks) if count > 1 else (blocks,))
        return sum_of_products(parts)

    def _request_blocks(self, counts: Mapping[_Members, int], length: Quantity, name: str) -> Quantity:
        term, source = self._sum_of_blocks(counts, length), _SPECS
        if list(counts.values()) == [1]:
            (only,) = term[1]
            term, source = (only.formula, only.inputs), only.source
        value = sum(
            count * int(self._group_blocks(members, length).value) for members, count in counts.items()
        )
        return _figure(name, value, Unit.BLOCKS, term, source)

    def _checked(self, check: FitCheck) -> _Term:
        """What a check counts: blocks of the groups, or layers one by one."""
        if not check.pages:
            if len(check.terms) == 1 and check.stage == self._trace.stage:
                return _REQUEST_BYTES, (self.blocks_per_request, self.bytes_per_block)
            specs = [members[0] for members, _ in check.terms]
            return sum_of_products(
                (self._group_blocks((spec,), self._length), given("layers", spec.layers), page_of(spec))
                for spec in specs
            )
        block = self._block_of(check.pages, "checked_block_bytes")
        counts = {members: weight // int(block.value) for members, weight in check.terms}
        blocks = self.blocks_per_request
        if counts != self._counted:
            blocks = self._request_blocks(counts, self._length, "checked_blocks")
        return f"{{{blocks.name}}} × {{{block.name}}}", (blocks, block)

    def _budget(self, check: FitCheck) -> Quantity:
        """What a check compares with."""
        trace = self._trace
        block = self._block_of(trace.grouping.block_pages[check.stage], "stage_block_bytes")
        override, available = trace.resolved.num_gpu_blocks_override, trace.available[check.stage]
        formula, inputs = "{available_kv}", [available]
        if override is not None and trace.demand.rules.override_counts_in_check:
            formula = f"{{num_gpu_blocks_override}} × {{{block.name}}}"
            inputs = [given("num_gpu_blocks_override", override), block]
        if check.keeps_null_block:
            formula = f"{formula} − {{{block.name}}}"
            inputs = [*inputs, block]
        inputs = list(dict.fromkeys(inputs))
        return _figure("check_budget", check.budget_bytes, Unit.BYTES, (formula, tuple(inputs)), _LONGEST)


def _in_layers(token: Quantity, layers: Quantity) -> _Term:
    """One token in all layers, from what it takes in one; the two of keys and values stays in front."""
    pair = "2 × " if token.formula.startswith("2 × ") else ""
    return f"{pair}{{{layers.name}}} × {token.formula.removeprefix(pair)}", (layers, *token.inputs)


def _figure(
    name: str, value: float, unit: Unit, term: _Term, source: str, scope: Scope = Scope.PER_RANK
) -> Quantity:
    formula, inputs = term
    return figure(name, value, formula, *inputs, unit=unit, scope=scope, source=source)
