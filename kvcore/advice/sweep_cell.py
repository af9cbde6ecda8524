"""The cells of one model at one tensor parallel size, with cards that are treated alike planned together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from kvcore.cache.capacity import Pool, Pools, plan_pools
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.partition import heads_per_rank
from kvcore.engine.resolved import Resolved, view_of
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.storage import storage_of
from kvcore.engine.vllm.switches import V1Engine
from kvcore.engine.vllm.versions import Release, planned_release
from kvcore.errors import KvPlannerError
from kvcore.memory.activations import multiprocessors, peak_activation_bytes, sampler_row
from kvcore.memory.budget import available_of, budget_of, total_of, weights_of
from kvcore.memory.framework import find_overhead_of, non_torch_bytes
from kvcore.memory.graphs import counted_graph_bytes, cuda_graph_bytes, graph_card_terms
from kvcore.memory.parts import half_width
from kvcore.memory.setting import Setting, link_of, setting_of
from kvcore.model.architecture import Architecture
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, Prepared, Verdict, config_in_force, judged, plan, prepare
from kvcore.quantity import Grade, Quantity
from kvcore.scenario import Scenario
from kvcore.units import gib

_KeyOf: TypeAlias = Callable[[Accelerator], Hashable]
STARTS: Final = (Verdict.FITS, Verdict.TIGHT)


class Cell(NamedTuple):
    """One deployment of a sweep. A refusal has its code and no figures; weights that do not fit have no pool.

    `kv_cache_gib` and `weights_gib` are of one rank, the other figures of one replica.
    """

    accelerator: str
    tensor_parallel_size: int
    verdict: Verdict | None = None
    refusal: str = ""
    gpus: int = 0
    """Of one replica."""
    weights_gib: float = 0.0
    kv_cache_gib: float = 0.0
    tokens: int = 0
    max_concurrency: float = 0.0
    longest_request_tokens: int = 0

    @property
    def starts(self) -> bool:
        """Whether the engine would start."""
        return self.verdict in STARTS

    @property
    def requests_per_gpu(self) -> float:
        """Concurrency of a replica over its GPUs; 0 where it does not start."""
        return self.max_concurrency / self.gpus if self.starts else 0.0


def cell_of(planned: Plan, card: Accelerator, size: int) -> Cell:
    """The cell of one plan."""
    cache = planned.cache
    return Cell(
        accelerator=card.id,
        tensor_parallel_size=size,
        verdict=planned.verdict,
        gpus=planned.scenario.parallel.ranks_per_replica,
        weights_gib=gib(planned.loaded_weights.value),
        kv_cache_gib=gib(cache.num_blocks * cache.bytes_per_block) if cache is not None else 0.0,
        tokens=cache.tokens if cache is not None else 0,
        max_concurrency=cache.max_concurrency if cache is not None else 0.0,
        longest_request_tokens=cache.longest_request_tokens if cache is not None else 0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweeper:
    """What is the same for all models: which cards are alike, and their budgets."""

    cards: tuple[Accelerator, ...]
    sizes: tuple[int, ...]
    groups: dict[Hashable, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    budgets: dict[Hashable, tuple[int, ...]] = field(default_factory=dict)

    def cells(self, scenario: Scenario, own: Sequence[int], size: int) -> Iterator[tuple[int, Cell]]:
        """The cells of `scenario`, whose card is still open, on the cards with the indices `own`."""
        scenario = replace(scenario, parallel=replace(scenario.parallel, tensor_parallel_size=size))
        try:
            architecture = read_architecture(config_in_force(scenario))
            storage_of(scenario)
            heads_per_rank(architecture.num_attention_heads, size)
            release = planned_release(scenario)
        except KvPlannerError as error:
            yield from self.refused(own, size, error)
            return
        if not _is_plain(scenario, release):
            for index in own:
                yield index, _planned_alone(scenario, self.cards[index], size)
            return
        groups: list[tuple[Prepared, list[int]]] = []
        for indices in self.alike_in_view(own):
            try:
                view = view_of(self.cards[indices[0]])
                prepared = prepare(scenario, architecture, storage_of(scenario), view)
            except KvPlannerError as error:
                yield from self.refused(indices, size, error)
                continue
            same = next((alike for other, alike in groups if other == prepared), None)
            if same is None:
                groups.append((prepared, list(indices)))
            else:
                same.extend(indices)
        for prepared, alike in groups:
            yield from _Group(self, scenario, architecture, prepared, tuple(alike), size).cells()

    def refused(self, indices: Iterable[int], size: int, error: KvPlannerError) -> Iterator[tuple[int, Cell]]:
        """Cells of one refusal."""
        for index in indices:
            card = self.cards[index]
            yield index, Cell(accelerator=card.id, tensor_parallel_size=size, refusal=error.code)

    def alike_in_view(self, own: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Cards of one view, which is all that flags, cache specs and weights can tell them apart by."""
        key = tuple(own)
        if key not in self.groups:
            self.groups[key] = self.grouped(own, view_of)
        return self.groups[key]

    def alike_in_overheads(
        self, alike: tuple[int, ...], setting: Setting, by_chip: bool
    ) -> tuple[tuple[int, ...], ...]:
        """Of cards with the same flags, those with the same memory outside the KV cache, and a total of the
        same grade.
        """
        size = setting.parallel.tensor_parallel_size
        key = (alike, setting.resolved.version, setting.runner, size, by_chip)
        if key not in self.groups:
            self.groups[key] = self.grouped(alike, lambda card: _overheads_key(card, setting, by_chip))
        return self.groups[key]

    def grouped(self, indices: Iterable[int], key_of: _KeyOf) -> tuple[tuple[int, ...], ...]:
        """The indices by the key of their card, in order of first appearance."""
        found: dict[Hashable, list[int]] = {}
        for index in indices:
            found.setdefault(key_of(self.cards[index]), []).append(index)
        return tuple(tuple(group) for group in found.values())

    def budget_bytes(self, resolved: Resolved) -> tuple[int, ...]:
        """The budget of each card."""
        key = (resolved.version, resolved.gpu_memory_utilization)
        if key not in self.budgets:
            self.budgets[key] = tuple(int(budget_of(total_of(card), resolved).value) for card in self.cards)
        return self.budgets[key]


def _is_plain(scenario: Scenario, release: Release) -> bool:
    """Whether cards can be planned together: one stage, the V1 engine, a given length, memory that is profiled."""
    return (
        find_engine(scenario.engine).follows_vllm
        and release.switches.v1_engine is V1Engine.ONLY
        and scenario.parallel.pipeline_parallel_size == 1
        and scenario.max_model_len != -1
    )


def _planned_alone(scenario: Scenario, card: Accelerator, size: int) -> Cell:
    try:
        return cell_of(plan(replace(scenario, accelerator=card)), card, size)
    except KvPlannerError as error:
        return Cell(accelerator=card.id, tensor_parallel_size=size, refusal=error.code)


def _overheads_key(card: Accelerator, setting: Setting, by_chip: bool) -> Hashable:
    """What framework, activations and the interval of the total take from a card whose flags are known."""
    own = replace(setting, accelerator=card, link=link_of(setting.parallel, card))
    return (
        find_overhead_of("non_torch", own),
        find_overhead_of("context", own),
        multiprocessors(card) if by_chip else 0,
        graph_card_terms(own),
        card.memory_grade is Grade.ASSUMED,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Memory:
    """What is left on one card for the KV cache, with the lower end of its interval."""

    available: int
    low: int | None


class _Group:
    """Cards on which flags, cache specs and weights are the same."""

    def __init__(
        self,
        sweeper: Sweeper,
        scenario: Scenario,
        architecture: Architecture,
        prepared: Prepared,
        alike: tuple[int, ...],
        size: int,
    ) -> None:
        self.sweeper, self.alike, self.size = sweeper, alike, size
        self.scenario, self.architecture, self.prepared = scenario, architecture, prepared

    def cells(self) -> Iterator[tuple[int, Cell]]:
        """One cell for each card."""
        sweeper, parallel = self.sweeper, self.scenario.parallel
        card = sweeper.cards[self.alike[0]]
        scenario = replace(self.scenario, accelerator=card)
        resolved, specs = self.prepared.resolved, self.prepared.specs[0]
        setting = setting_of(scenario, self.architecture, resolved, card, 0)
        weights = weights_of(setting, self.prepared.weights[0])
        budgets = sweeper.budget_bytes(resolved)
        failed = Cell(
            accelerator="",
            tensor_parallel_size=self.size,
            verdict=Verdict.WEIGHTS_DO_NOT_FIT,
            gpus=parallel.ranks_per_replica,
            weights_gib=gib(weights.value),
        )
        left = []
        for index in self.alike:
            if weights.value > budgets[index]:
                yield index, failed._replace(accelerator=sweeper.cards[index].id)
            else:
                left.append(index)
        if not left:
            return
        memories = dict(self.memories(left, setting, weights))
        failed = failed._replace(verdict=Verdict.NO_KV_MEMORY)
        pooled = [index for index in left if memories[index].available > 0]
        for index in left:
            if memories[index].available <= 0:
                yield index, failed._replace(accelerator=sweeper.cards[index].id)
        try:
            pools = plan_pools(specs, [memories[index].available for index in pooled], resolved, parallel)
        except KvPlannerError as error:
            yield from sweeper.refused(pooled, self.size, error)
            return
        if pools is None:
            for index in pooled:
                yield index, _planned_alone(self.scenario, sweeper.cards[index], self.size)
            return
        for index, pool in zip(pooled, pools.pools, strict=True):
            yield index, self.pool_cell(failed, sweeper.cards[index], pools, pool, memories[index])

    def memories(
        self, left: Sequence[int], setting: Setting, weights: Quantity
    ) -> Iterator[tuple[int, _Memory]]:
        """What each card has left; of those with the same overheads one is worked out, the others differ in budget."""
        sweeper, resolved = self.sweeper, setting.resolved
        budgets = sweeper.budget_bytes(resolved)
        kept = set(left)
        by_chip = sampler_row(setting.runner, resolved.version).vocabulary_rows_per_multiprocessor > 0
        counted: dict[Hashable, Quantity] = {}
        activations = None if by_chip else peak_activation_bytes(setting)
        for group in sweeper.alike_in_overheads(self.alike, setting, by_chip):
            members = [index for index in group if index in kept]
            if not members:
                continue
            card = sweeper.cards[members[0]]
            setting = replace(setting, accelerator=card, link=link_of(setting.parallel, card))
            terms = graph_card_terms(setting)
            if terms not in counted:
                counted[terms] = counted_graph_bytes(setting, cuda_graph_bytes(setting))
            available = available_of(
                setting,
                budget_of(total_of(card), resolved),
                weights,
                activations or peak_activation_bytes(setting),
                non_torch_bytes(setting),
                counted[terms],
            )
            spread = None if available.interval is None else half_width(available)
            for index in members:
                value = int(available.value) + budgets[index] - budgets[members[0]]
                low = None if spread is None else int(value - spread)
                yield index, _Memory(available=value, low=low)

    def pool_cell(self, failed: Cell, card: Accelerator, pools: Pools, pool: Pool, memory: _Memory) -> Cell:
        """The cell of one pool, judged as `plan` judges it."""
        if pool.num_blocks < pools.least_blocks:
            return Cell(accelerator=card.id, tensor_parallel_size=self.size, refusal="state-blocks-too-few")
        verdict = judged(
            weights_fit=True,
            num_blocks=pool.num_blocks,
            fits=pool.fits,
            lows=() if memory.low is None else (memory.low,),
            enough=pools.needed_bytes + pools.bytes_per_block,
            fits_in=lambda lows: pools.needed_bytes <= lows[0] + pools.budget_offset_bytes,
        )
        return Cell(
            card.id,
            self.size,
            verdict,
            "",
            failed.gpus,
            failed.weights_gib,
            gib(pool.num_blocks * pools.bytes_per_block),
            pool.tokens,
            pool.max_concurrency,
            pool.longest_request_tokens,
        )
