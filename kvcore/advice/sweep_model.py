"""The cells of one model, with cards that are treated alike planned together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from kvcore.advice.reads import Answers
from kvcore.advice.sweep_cards import Cards, Terms
from kvcore.advice.sweep_cell import Cell, planned_alone
from kvcore.cache.capacity import CachePlan, plan_cache, plan_pools
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
from kvcore.memory.budget import available_of, weights_of
from kvcore.memory.framework import non_torch_bytes, pool_share, system_bytes
from kvcore.memory.graphs import counted_graph_bytes, cuda_graph_bytes
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
        self._resolved: list[Resolved] = []
        self.parts: dict[Hashable, Answers[Resolved, Any]] = {}
        """Of the memory, for flags that agree in what they take from them."""

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
            yield from Group(self, scenario, architecture, prepared).cells(alike)

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
            if found not in self._resolved:
                self._resolved.append(found)
            return self._resolved[self._resolved.index(found)]

        flags = self._flags.setdefault((view, id(architecture)), Answers())
        return flags.of(scenario.parallel, resolved)

    def refused(self, indices: Iterable[int], size: int, error: KvPlannerError) -> Iterator[tuple[int, Cell]]:
        """Cells of one refusal."""
        for index in indices:
            card = self.cards.cards[index]
            yield index, Cell(accelerator=card.id, tensor_parallel_size=size, refusal=error.code)


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


class Memory(NamedTuple):
    """What is left on one card for the KV cache, with its interval."""

    available: int
    ends: tuple[int, int]
    room: float
    """What stays free of the card at the least, without the cache."""


class Remainder(NamedTuple):
    """What one budget leaves. Another leaves their difference more, unless only a share of it becomes the cache."""

    budget: int
    available: Quantity
    share: int


class Group:
    """Cards on which flags, cache specs and weights are the same."""

    def __init__(
        self, sweep: ModelSweep, scenario: Scenario, architecture: Architecture, prepared: Prepared
    ) -> None:
        self.sweep, self.cards, self.scenario, self.prepared = sweep, sweep.cards, scenario, prepared
        self.architecture = architecture
        self.setting = self._setting(prepared.resolved, 0)
        self.weights = weights_of(self.setting, prepared.weights[0])
        self.budgets = self.cards.budgets(prepared.resolved)
        self.doubles_pool = doubles_pool(self.setting)
        self._parts: dict[Hashable, Any] = {}
        self._remainders: dict[Hashable, Remainder] = {}

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
        least, like = self.weights.bounds[LOW], dict[Terms, list[int]]()
        for index in alike:
            if least <= self.budgets[index].bounds[HIGH]:
                like.setdefault(self.cards.terms(self.setting, index), []).append(index)
            else:
                yield index, failed._replace(accelerator=cards[index].id)
        memories = [self.memory(terms, indices[0]) for terms, indices in like.items()]
        pooled = [memory.available for memory in memories if memory.available > 0]
        try:
            pools = plan_pools(prepared.specs[0], pooled, prepared.resolved, parallel)
        except KvPlannerError as error:
            for indices in like.values():
                yield from self.sweep.refused(indices, failed.tensor_parallel_size, error)
            return
        if pools is None:
            for index in chain(*like.values()):
                yield index, planned_alone(self.scenario, cards[index], failed.tensor_parallel_size)
            return
        left = iter(pools)
        for memory, indices in zip(memories, like.values(), strict=True):
            cell = self.cell(failed, next(left) if memory.available > 0 else None, memory)
            for index in indices:
                yield index, cell._replace(accelerator=cards[index].id)

    def memory(self, terms: Terms, index: int) -> Memory:
        """What the card with that index has left. Its parts are those of another card with the same terms."""
        peak = self._part(peak_activation_bytes, terms.activations, index)
        framework = self._part(non_torch_bytes, terms.framework, index)
        system = self._part(system_bytes, terms.system, index)
        graphs, counted = self._part(_graphs, terms.graphs, index)
        remainder, budget = self._remainders.get(terms.of_remainder), int(self.budgets[index].value)
        if remainder is None or (remainder.share > 1 and remainder.budget != budget):
            own = self._setting(self.prepared.resolved, index)
            left = available_of(own, self.budgets[index], self.weights, peak, framework, counted)
            remainder = Remainder(budget, left, pool_share(own))
            self._remainders[terms.of_remainder] = remainder
        more = budget - remainder.budget
        available, (low, high) = int(remainder.available.value) + more, remainder.available.bounds

        def after(own: Setting) -> Quantity:
            return after_pool_bytes(own, peak, available)

        sizes = peak.value, available if self.doubles_pool else 0
        after_pool = self._part(after, (terms.after_pool, *sizes), index)
        taken = sum(part.value for part in (system, framework, self.weights, peak, graphs))
        room = least_room(-taken, after_pool, (graphs, system))
        ends = int(low + more), int(high + more)
        return Memory(available, ends, self.cards.totals[index].value + room)

    def _part(self, of: Callable[[Setting], T], terms: Hashable, index: int) -> T:
        """A part of the memory, found once for the cards with the same terms of it."""
        key = (of.__name__, terms)
        if key not in self._parts:
            known = self.sweep.parts.setdefault((self.scenario.parallel, *key), Answers())
            resolved = self.prepared.resolved
            self._parts[key] = known.of(resolved, lambda resolved: of(self._setting(resolved, index)))
        found: T = self._parts[key]
        return found

    def _setting(self, resolved: Resolved, index: int) -> Setting:
        card = self.cards.cards[index]
        scenario = replace(self.scenario, accelerator=card)
        return setting_of(scenario, self.architecture, resolved, card, 0)

    def most_of(self, memory: Memory) -> int | None:
        """The upper end of what releases leave that may all be meant; None of a release that is known."""
        return memory.ends[HIGH] if may_be_other(self.scenario) else None

    def cell(self, failed: Cell, pool: CachePlan | None, memory: Memory) -> Cell:
        """The cell of one pool, judged as `plan` judges it."""
        resolved, specs, parallel = self.prepared.resolved, self.prepared.specs, self.scenario.parallel
        try:
            verdict = judged(
                resolved,
                pool,
                weights_fit=True,
                least=memory.ends[:1],
                most=memory.ends[1:],
                planned=lambda available: plan_cache(specs, available, resolved, parallel),
                has_room=pool is None or memory.room >= pool.num_blocks * pool.bytes_per_block,
                is_empty=leaves_none(memory.available, memory.ends[LOW], self.most_of(memory)),
            )
        except EngineRefusalError as error:
            return Cell("", failed.tensor_parallel_size, refusal=error.code)
        if pool is None:
            return failed._replace(verdict=verdict)
        return failed._replace(
            verdict=verdict,
            kv_cache_gib=gib(pool.num_blocks * pool.bytes_per_block),
            tokens=pool.tokens,
            max_concurrency=pool.max_concurrency,
            longest_request_tokens=pool.longest_request_tokens,
        )


def _graphs(setting: Setting) -> tuple[Quantity, Quantity]:
    """What captured graphs take, and what of it the engine takes off the budget."""
    graphs = cuda_graph_bytes(setting)
    return graphs, counted_graph_bytes(setting, graphs)
