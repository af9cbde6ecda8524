"""The cells of one model, with cards that are treated alike planned together."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from kvcore.advice.reads import Answers
from kvcore.advice.sweep_cards import Cards, Terms
from kvcore.advice.sweep_cell import Cell, planned_alone, refused_cell
from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.quantity import Quantity
from kvcore.base.units import gib
from kvcore.cache.capacity import Pool, plan_cache, plan_pools
from kvcore.engine import heads_per_rank
from kvcore.engine.resolved import CardView, Resolved
from kvcore.engine.switches import V1Engine
from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.storage import storage_of
from kvcore.engines.vllm.stored import stored_architecture
from kvcore.engines.vllm.versions import Release, planned_release
from kvcore.memory.activations import peak_activation_bytes
from kvcore.memory.after_pool import after_pool_bytes, doubles_pool
from kvcore.memory.budget import (
    Inside,
    Remainder,
    checks_free_memory,
    inside_of,
    release_remainder,
    weights_of,
)
from kvcore.memory.framework import non_torch_bytes, system_bytes
from kvcore.memory.graphs import actual_graphs, captured_graphs, counted_graph_bytes
from kvcore.memory.parts import least_room
from kvcore.memory.setting import Setting, setting_of
from kvcore.memory.unstated import may_be_other, other_settings
from kvcore.memory.weights import WeightBytes
from kvcore.model.architecture import Architecture
from kvcore.model.families import read_architecture
from kvcore.model.quantization import Quantization
from kvcore.planning import (
    HIGH,
    LOW,
    Prepared,
    Verdict,
    config_in_force,
    judged,
    lay_out,
    leaves_none,
    load,
)
from kvcore.scenario import Parallel, Scenario

T = TypeVar("T")
Resolutions: TypeAlias = list[tuple[CardView, tuple[int, ...], Resolved | KvPlannerError]]
"""What the flags come to on the cards of each view, which are the ones with these indices."""


class ModelSweep:
    """One model under the flags of one engine, on cards that are still open."""

    def __init__(self, cards: Cards, scenario: Scenario, own: Sequence[int]) -> None:
        """`own`: the indices of the cards among `cards`."""
        self.cards, self.scenario, self.own = cards, scenario, own
        self._flags: dict[int, Answers[Parallel, Resolutions]] = {}
        self._flags_on: dict[tuple[int, int], Answers[Parallel, Resolved | KvPlannerError]] = {}
        self._resolved: dict[Resolved, Resolved] = {}

    def cells(self, size: int) -> Iterator[tuple[int, Cell]]:
        """The cells at tensor parallel size `size`, by the index of the card."""
        scenario = replace(self.scenario, parallel=replace(self.scenario.parallel, tensor_parallel_size=size))
        try:
            architecture = stored_architecture(scenario, read_architecture(config_in_force(scenario)))
            storage = storage_of(scenario)
            heads_per_rank(architecture.num_attention_heads, size)
            release = planned_release(scenario)
        except KvPlannerError as error:
            yield from self.refused(self.own, size, error)
            return
        if not _is_plain(scenario, release):
            for index in self.own:
                yield index, planned_alone(scenario, self.cards.cards[index], size)
            return
        groups: dict[tuple[int, tuple[WeightBytes, ...]], tuple[Prepared, list[int]]] = {}
        layouts: dict[int, Prepared | KvPlannerError] = {}
        loaded: dict[int, Answers[CardView, Prepared | KvPlannerError]] = {}
        # The view is all that flags, cache specs and weights can tell cards apart by.
        for view, indices, resolved in self._resolutions(scenario, architecture):
            flags, laid_out = id(resolved), layouts.get(id(resolved))
            if laid_out is None:
                laid_out = layouts[flags] = _laid_out(scenario, architecture, storage, resolved)
                loaded[flags] = Answers()
            prepared = laid_out
            if isinstance(laid_out, Prepared):
                prepared = loaded[flags].of(view, partial(_loaded, scenario, architecture, storage, laid_out))
            if isinstance(prepared, KvPlannerError):
                yield from self.refused(indices, size, prepared)
            else:
                _, alike = groups.setdefault((flags, prepared.weights), (prepared, []))
                alike.extend(indices)
        for prepared, alike in groups.values():
            yield from Group(self.cards, scenario, architecture, prepared).cells(alike)

    def _resolutions(self, scenario: Scenario, architecture: Architecture) -> Resolutions:
        """The flags on all cards, for each view of them."""

        def on_all(parallel: Parallel) -> Resolutions:
            asked = replace(scenario, parallel=parallel)
            views = self.cards.views(self.own).items()
            return [(view, indices, self._resolved_on(view, asked, architecture)) for view, indices in views]

        return self._flags.setdefault(id(architecture), Answers()).of(scenario.parallel, on_all)

    def _resolved_on(
        self, view: CardView, scenario: Scenario, architecture: Architecture
    ) -> Resolved | KvPlannerError:
        """The flags on the cards of `view`: the same object where they come to the same."""

        def resolved(parallel: Parallel) -> Resolved | KvPlannerError:
            asked = replace(scenario, parallel=parallel)
            try:
                found = find_engine(scenario.engine).resolve(asked, architecture, view)
            except KvPlannerError as error:
                return error
            found = replace(found, notices=())
            return self._resolved.setdefault(found, found)

        # Another size may change the flags on one card alone: the others keep theirs.
        flags = self._flags_on.setdefault((id(view), id(architecture)), Answers())
        return flags.of(scenario.parallel, resolved)

    def refused(self, indices: Iterable[int], size: int, error: KvPlannerError) -> Iterator[tuple[int, Cell]]:
        """Cells of one refusal."""
        for index in indices:
            card = self.cards.cards[index]
            yield index, refused_cell(card, size, error)


def _laid_out(
    scenario: Scenario, architecture: Architecture, storage: Quantization, resolved: Resolved | KvPlannerError
) -> Prepared | KvPlannerError:
    if isinstance(resolved, KvPlannerError):
        return resolved
    try:
        return lay_out(scenario, architecture, storage, resolved)
    except KvPlannerError as error:
        return error


def _loaded(
    scenario: Scenario,
    architecture: Architecture,
    storage: Quantization,
    laid_out: Prepared,
    view: CardView,
) -> Prepared | KvPlannerError:
    try:
        return load(scenario, architecture, storage, view, laid_out)
    except KvPlannerError as error:
        return error


def _is_plain(scenario: Scenario, release: Release) -> bool:
    """Whether cards can be planned together: one stage, the V1 engine, a given length, memory that is profiled."""
    return (
        find_engine(scenario.engine).follows_vllm
        and release.switches.v1_engine is V1Engine.ONLY
        and scenario.parallel.pipeline_parallel_size == 1
        and scenario.max_model_len != -1
    )


class Spent(NamedTuple):
    """What cards with the same terms of it spend memory on inside the budget, and on graphs."""

    inside: Inside
    activations: Quantity
    framework: Quantity
    graphs: Quantity


class Memory(NamedTuple):
    """What is left on one card for the KV cache, with its interval."""

    available: int
    ends: tuple[float, float]
    room: float
    """What stays free of the card at the least, without the cache; less than any where its budget is not free."""


class Spending:
    """What one release spends memory on, with the flags and weights of a group: found once for cards with the same
    terms."""

    def __init__(self, cards: Cards, setting: Setting, weights: Quantity) -> None:
        self.cards, self.setting, self.weights = cards, setting, weights
        self.budgets, self.terms = cards.budgets(setting.resolved), cards.terms(setting)
        self.doubles_pool = doubles_pool(setting)
        self._settings: dict[int, Setting] = {}
        self._left: dict[Terms, tuple[Remainder, int]] = {}
        self._spent: dict[Hashable, Spent] = {}
        self._room: dict[Hashable, tuple[float, float]] = {}
        self._parts: dict[Hashable, Any] = {}

    def left(self, index: int) -> Remainder:
        """What is left of the budget of the card with that index."""
        terms, budget = self.terms[index], self.budgets[index].bytes
        known = self._left.get(terms)
        if known is None:
            inside, setting = self.spent(index).inside, self._on(index)
            known = self._left[terms] = release_remainder(setting, budget, inside), budget
        remainder, own = known
        return remainder.with_more(budget - own)

    def spent(self, index: int) -> Spent:
        """What that card spends."""
        terms = self.terms[index]
        found = self._spent.get(terms.inside)
        if found is None:
            own = self._on(index)
            peak = self._part("activations", terms.activations, peak_activation_bytes, own)
            framework = self._part("framework", terms.framework, non_torch_bytes, own)
            graphs, counted = self._part("graphs", terms.graphs, _graphs, own)
            inside = inside_of(own, self.weights, peak, framework, counted)
            found = self._spent[terms.inside] = Spent(inside, peak, framework, graphs)
        return found

    def room(self, index: int, available: int) -> tuple[float, float]:
        """What stays free at the least beyond the total of that card, with `available` for the cache and none of it;
        and what is taken before the engine looks whether its budget is free, without bound below where it does not
        look.
        """
        terms, planned = self.terms[index], available if self.doubles_pool else 0
        found = self._room.get((terms.taken, planned))
        if found is None:
            own, spent = self._on(index), self.spent(index)
            peak, graphs = spent.activations, spent.graphs
            system = self._part("system", terms.system, system_bytes, own)
            both = terms.after_pool, terms.activations, planned
            after_pool = self._part("after_pool", both, partial(_after_pool, peak, planned), own)
            taken = sum(part.value for part in (system, spent.framework, self.weights, peak, graphs))
            before = system.value if checks_free_memory(own) else -math.inf
            found = least_room(-taken, after_pool, (graphs, system)), before
            self._room[terms.taken, planned] = found
        return found

    def _on(self, index: int) -> Setting:
        found = self._settings.get(index)
        if found is None:
            found = self._settings[index] = self.cards.on(self.setting, index)
        return found

    def _part(self, name: str, terms: Hashable, of: Callable[[Setting], T], own: Setting) -> T:
        """A part of the memory, found once for the cards with the same terms of it."""
        found: T | None = self._parts.get((name, terms))
        if found is None:
            found = self._parts[name, terms] = of(own)
        return found


class Group:
    """Cards on which flags, cache specs and weights are the same."""

    def __init__(
        self, cards: Cards, scenario: Scenario, architecture: Architecture, prepared: Prepared
    ) -> None:
        self.cards, self.scenario, self.prepared = cards, scenario, prepared
        setting = setting_of(scenario, architecture, prepared.resolved, cards.cards[0], 0)
        self.weights = weights_of(setting, prepared.weights[0])
        self.planned = Spending(cards, setting, self.weights)
        self.others = [Spending(cards, other, self.weights) for other in other_settings(setting)]
        """The releases that may be meant where none is stated."""
        self.is_open = may_be_other(scenario)

    def cells(self, alike: Sequence[int]) -> Iterator[tuple[int, Cell]]:
        """One cell for each card."""
        cards, parallel, prepared = self.cards.cards, self.scenario.parallel, self.prepared
        failed = Cell(
            accelerator="",
            tensor_parallel_size=parallel.tensor_parallel_size,
            verdict=Verdict.WEIGHTS_DO_NOT_FIT,
            gpus=parallel.ranks,
            replicas=parallel.data_parallel_size,
            weights_gib=gib(self.weights.value),
        )
        least, like = self.weights.bounds[LOW], dict[Hashable, list[int]]()
        budgets, terms, others = self.planned.budgets, self.planned.terms, self.others
        for index in alike:
            if least <= budgets[index].most:
                same: Hashable = budgets[index], terms[index]
                if others:
                    same = same, *(other.terms[index] for other in others)
                like.setdefault(same, []).append(index)
            else:
                yield index, failed.on(cards[index])
        memories = [self.memory(indices[0]) for indices in like.values()]
        pooled = [memory.available for memory in memories if memory.available > 0]
        try:
            pools = plan_pools(prepared.specs[0], pooled, prepared.resolved, parallel)
        except KvPlannerError as error:
            for index in chain(*like.values()):
                yield index, refused_cell(cards[index], failed.tensor_parallel_size, error)
            return
        if pools is None:
            for index in chain(*like.values()):
                yield index, planned_alone(self.scenario, cards[index], failed.tensor_parallel_size)
            return
        left = iter(pools)
        for memory, indices in zip(memories, like.values(), strict=True):
            cell = self.cell(failed, next(left) if memory.available > 0 else None, memory)
            for index in indices:
                yield index, cell.on(cards[index])

    def memory(self, index: int) -> Memory:
        """What the card with that index has left, its interval spanning all releases that may be meant."""
        found = self.planned.left(index)
        available, (low, high) = found.available, found.ends
        for other in self.others:
            ends = other.left(index).ends
            low, high = min(low, ends[LOW]), max(high, ends[HIGH])
        budget, (room, taken) = self.planned.budgets[index], self.planned.room(index, available)
        is_free = budget.total - taken >= budget.bytes
        return Memory(available, (low, high), budget.total + room if is_free else -math.inf)

    def cell(self, failed: Cell, pool: Pool | None, memory: Memory) -> Cell:
        """The cell of one pool, judged as `plan` judges it."""
        resolved, specs, parallel = self.prepared.resolved, self.prepared.specs, self.scenario.parallel
        low, high = memory.ends
        try:
            verdict = judged(
                resolved,
                pool,
                weights_fit=True,
                least=(int(low),),
                most=(int(high),),
                planned=lambda available: plan_cache(specs, available, resolved, parallel),
                has_room=pool is None or memory.room >= pool.num_blocks * pool.bytes_per_block,
                is_empty=leaves_none(memory.available, low, high if self.is_open else None),
            )
        except EngineRefusalError as error:
            return Cell("", failed.tensor_parallel_size, refusal=error.code)
        if pool is None:
            return replace(failed, verdict=verdict)
        return Cell(
            "",
            failed.tensor_parallel_size,
            verdict,
            gpus=failed.gpus,
            replicas=failed.replicas,
            weights_gib=failed.weights_gib,
            kv_cache_gib=gib(pool.num_blocks * pool.bytes_per_block),
            tokens=pool.tokens,
            max_concurrency=pool.max_concurrency,
            longest_request_tokens=pool.longest_request_tokens,
        )


def _graphs(setting: Setting) -> tuple[Quantity, Quantity]:
    """What captured graphs take, and what of it the engine takes off the budget."""
    captured = captured_graphs(setting)
    graphs = actual_graphs(setting, captured)
    return graphs, counted_graph_bytes(setting, graphs, captured)


def _after_pool(activations: Quantity, available: int, setting: Setting) -> Quantity:
    return after_pool_bytes(setting, activations, available)
