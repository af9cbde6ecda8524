"""The cells of one model, with cards that are treated alike planned together."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from kvcore.advice.reads import Answers
from kvcore.advice.sweep_cards import Budget, Cards, Terms
from kvcore.advice.sweep_cell import Cell, planned_alone, refused_cell
from kvcore.cache.capacity import Pool, plan_cache, plan_pools
from kvcore.engine import heads_per_rank
from kvcore.engine.resolved import CardView, Resolved
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.storage import storage_of
from kvcore.engine.vllm.stored import stored_architecture
from kvcore.engine.vllm.switches import V1Engine
from kvcore.engine.vllm.versions import Release, planned_release
from kvcore.errors import EngineRefusalError, KvPlannerError
from kvcore.memory.activations import peak_activation_bytes
from kvcore.memory.after_pool import after_pool_bytes, doubles_pool
from kvcore.memory.budget import Remainder, checks_free_memory, remainder_of, weights_of
from kvcore.memory.framework import non_torch_bytes, system_bytes
from kvcore.memory.graphs import actual_graphs, captured_graphs, counted_graph_bytes
from kvcore.memory.parts import least_room
from kvcore.memory.setting import Setting, setting_of
from kvcore.memory.unstated import may_be_other
from kvcore.model.architecture import Architecture
from kvcore.model.families import read_architecture
from kvcore.planning import (
    HIGH,
    LOW,
    Prepared,
    Verdict,
    config_in_force,
    judged,
    leaves_none,
    prepare_resolved,
)
from kvcore.quantity import Quantity
from kvcore.scenario import Parallel, Scenario
from kvcore.units import gib

T = TypeVar("T")
Flags: TypeAlias = Answers[Parallel, Resolved | KvPlannerError]
"""What the flags of one view come to, whatever the tensor parallel size where they do not read it."""


class ModelSweep:
    """One model under the flags of one engine, on cards that are still open."""

    def __init__(self, cards: Cards, scenario: Scenario) -> None:
        self.cards, self.scenario = cards, scenario
        self._flags: dict[tuple[CardView, int], Flags] = {}
        self._resolved: dict[Resolved, Resolved] = {}

    def cells(self, own: Sequence[int], size: int) -> Iterator[tuple[int, Cell]]:
        """The cells at tensor parallel size `size` on the cards with the indices `own`."""
        scenario = replace(self.scenario, parallel=replace(self.scenario.parallel, tensor_parallel_size=size))
        try:
            architecture = stored_architecture(scenario, read_architecture(config_in_force(scenario)))
            storage_of(scenario)
            heads_per_rank(architecture.num_attention_heads, size)
            release = planned_release(scenario)
        except KvPlannerError as error:
            yield from self.refused(own, size, error)
            return
        if not _is_plain(scenario, release):
            for index in own:
                yield index, planned_alone(scenario, self.cards.cards[index], size)
            return
        groups: list[tuple[Prepared, list[int]]] = []
        answers: dict[int, Answers[CardView, Prepared | KvPlannerError]] = {}
        # The view is all that flags, cache specs and weights can tell cards apart by.
        for view, indices in self.cards.views(own).items():
            resolved = self._resolved_on(view, scenario, architecture)
            if isinstance(resolved, KvPlannerError):
                yield from self.refused(indices, size, resolved)
                continue
            known = answers.setdefault(id(resolved), Answers())
            prepared = known.of(view, partial(_prepared, scenario, architecture, resolved))
            if isinstance(prepared, KvPlannerError):
                yield from self.refused(indices, size, prepared)
                continue
            same = next((alike for other, alike in groups if other == prepared), None)
            if same is None:
                groups.append((prepared, list(indices)))
            else:
                same.extend(indices)
        for prepared, alike in groups:
            yield from Group(self.cards, scenario, architecture, prepared).cells(alike)

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

        flags = self._flags.setdefault((view, id(architecture)), Answers())
        return flags.of(scenario.parallel, resolved)

    def refused(self, indices: Iterable[int], size: int, error: KvPlannerError) -> Iterator[tuple[int, Cell]]:
        """Cells of one refusal."""
        for index in indices:
            card = self.cards.cards[index]
            yield index, refused_cell(card, size, error)


def _prepared(
    scenario: Scenario, architecture: Architecture, resolved: Resolved, view: CardView
) -> Prepared | KvPlannerError:
    try:
        return prepare_resolved(scenario, architecture, storage_of(scenario), view, resolved)
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
    """What cards with the same terms spend memory on, whatever they have of it."""

    remainder: Remainder
    budget: int
    """That it is left of; another leaves their difference more."""
    room: Callable[[int], float]
    """What stays free at the least beyond the total of a card, without the cache, by what that is planned in."""
    taken: float
    """Before the engine looks whether its budget is free; without bound below where it does not look."""


class Memory(NamedTuple):
    """What is left on one card for the KV cache, with its interval."""

    available: int
    ends: tuple[float, float]
    room: float
    """What stays free of the card at the least, without the cache; less than any where its budget is not free."""


class Group:
    """Cards on which flags, cache specs and weights are the same."""

    def __init__(
        self, cards: Cards, scenario: Scenario, architecture: Architecture, prepared: Prepared
    ) -> None:
        self.cards, self.scenario, self.prepared = cards, scenario, prepared
        self.setting = setting_of(scenario, architecture, prepared.resolved, cards.cards[0], 0)
        self.weights = weights_of(self.setting, prepared.weights[0])
        self._spent: dict[Terms, Spent] = {}
        self._parts: dict[Hashable, Any] = {}

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
        least, like = self.weights.bounds[LOW], dict[tuple[Terms, Budget], list[int]]()
        budgets, terms = self.cards.budgets(prepared.resolved), self.cards.terms(self.setting)
        for index in alike:
            if least <= budgets[index].most:
                like.setdefault((terms[index], budgets[index]), []).append(index)
            else:
                yield index, failed.on(cards[index])
        memories = [self.memory(*place, indices[0]) for place, indices in like.items()]
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

    def memory(self, terms: Terms, budget: Budget, index: int) -> Memory:
        """What the card with that index has left. Its parts are those of any other card with the same terms."""
        spent = self._spent.get(terms)
        if spent is None:
            spent = self._spent[terms] = self._spent_on(terms, budget, index)
        left = spent.remainder.with_more(budget.bytes - spent.budget)
        available = left.available
        is_free = budget.total - spent.taken >= budget.bytes
        room = budget.total + spent.room(available) if is_free else -math.inf
        return Memory(available, left.ends, room)

    def _spent_on(self, terms: Terms, budget: Budget, index: int) -> Spent:
        own = self.cards.on(self.setting, index)
        peak = self._part("activations", terms.activations, peak_activation_bytes, own)
        framework = self._part("framework", terms.framework, non_torch_bytes, own)
        system = self._part("system", terms.system, system_bytes, own)
        graphs, counted = self._part("graphs", terms.graphs, _graphs, own)
        taken = sum(part.value for part in (system, framework, self.weights, peak, graphs))

        if doubles_pool(own):

            def room(available: int) -> float:
                return least_room(-taken, after_pool_bytes(own, peak, available), (graphs, system))

        else:
            after_pool = self._part(
                "after_pool", (terms.after_pool, terms.activations), partial(_after_pool, peak), own
            )
            least = least_room(-taken, after_pool, (graphs, system))

            def room(available: int) -> float:
                del available
                return least

        left = remainder_of(own, budget.bytes, self.weights, peak, framework, counted)
        return Spent(left, budget.bytes, room, system.value if checks_free_memory(own) else -math.inf)

    def _part(self, name: str, terms: Hashable, of: Callable[[Setting], T], own: Setting) -> T:
        """A part of the memory, found once for the cards with the same terms of it."""
        found: T | None = self._parts.get((name, terms))
        if found is None:
            found = self._parts[name, terms] = of(own)
        return found

    def most_of(self, memory: Memory) -> float | None:
        """The upper end of what releases leave that may all be meant; None of a release that is known."""
        return memory.ends[HIGH] if may_be_other(self.scenario) else None

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
                is_empty=leaves_none(memory.available, low, self.most_of(memory)),
            )
        except EngineRefusalError as error:
            return Cell("", failed.tensor_parallel_size, refusal=error.code)
        if pool is None:
            return failed._replace(verdict=verdict)
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


def _after_pool(activations: Quantity, setting: Setting) -> Quantity:
    """What comes after a cache that is allotted once."""
    return after_pool_bytes(setting, activations, 0)
