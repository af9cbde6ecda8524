"""The cells of one model at one tensor parallel size, with cards that are treated alike planned together.

And the smallest deployments among them that serve a wanted number of requests at once, with what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from kvcore.cache.capacity import CachePlan, plan_cache, plan_pools
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.engine import heads_per_rank
from kvcore.engine.resolved import Resolved, view_of
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.shared_experts import stored_architecture
from kvcore.engine.vllm.storage import storage_of
from kvcore.engine.vllm.switches import V1Engine
from kvcore.engine.vllm.versions import Release, planned_release
from kvcore.errors import EngineRefusalError, KvPlannerError
from kvcore.memory.activations import multiprocessors, peak_activation_bytes, sampler_row, sampler_rows
from kvcore.memory.after_pool import after_pool_bytes
from kvcore.memory.budget import (
    available_of,
    budget_of,
    total_of,
    weights_of,
)
from kvcore.memory.communicators import exchange_row
from kvcore.memory.framework import framework_card_terms, non_torch_bytes, pool_share, system_bytes
from kvcore.memory.graphs import counted_graph_bytes, cuda_graph_bytes, graph_card_terms
from kvcore.memory.parts import least_room
from kvcore.memory.setting import Setting, links_of, setting_of
from kvcore.model.architecture import Architecture
from kvcore.model.families import read_architecture
from kvcore.planning import HIGH, LOW, Prepared, Verdict, config_in_force, judged, leaves_none, plan, prepare
from kvcore.quantity import Grade, Quantity
from kvcore.scenario import Scenario
from kvcore.units import gib

STARTS: Final = (Verdict.FITS, Verdict.TIGHT)


class Cell(NamedTuple):
    """One deployment of a sweep. A refusal has its code and no figures; weights that do not fit have no pool.

    `kv_cache_gib` and `weights_gib` are of one rank, `gpus` of all replicas, the other figures of one replica.
    """

    accelerator: str
    tensor_parallel_size: int
    verdict: Verdict | None = None
    refusal: str = ""
    gpus: int = 0
    """Of all replicas: each of them is started."""
    replicas: int = 1
    """Data parallel ones, as the scenario asks for them; a mixture of experts needs them all."""
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
    def requests(self) -> float:
        """At once on all replicas."""
        return self.max_concurrency * self.replicas

    @property
    def requests_per_gpu(self) -> float:
        """Requests at once over the GPUs; 0 where it does not start."""
        return self.requests / self.gpus if self.starts else 0.0


def planned_alone(scenario: Scenario, card: Accelerator, size: int) -> Cell:
    """The cell of one deployment on one card, planned by itself."""
    try:
        planned = plan(replace(scenario, accelerator=card))
    except KvPlannerError as error:
        return Cell(accelerator=card.id, tensor_parallel_size=size, refusal=error.code)
    cell = Cell(
        accelerator=card.id,
        tensor_parallel_size=size,
        verdict=planned.verdict,
        gpus=planned.scenario.parallel.ranks,
        replicas=planned.scenario.parallel.data_parallel_size,
        weights_gib=gib(planned.loaded_weights.value),
    )
    cache = planned.cache
    if cache is None:
        return cell
    return cell._replace(
        kv_cache_gib=gib(cache.num_blocks * cache.bytes_per_block),
        tokens=cache.tokens,
        max_concurrency=cache.max_concurrency,
        longest_request_tokens=cache.longest_request_tokens,
    )


class Sweeper(Struct, frozen=True, kw_only=True):
    """What is the same for all models: which cards are alike, and their budgets."""

    cards: tuple[Accelerator, ...]
    groups: dict[Hashable, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    budgets: dict[Hashable, tuple[Quantity, ...]] = field(default_factory=dict)

    def cells(self, scenario: Scenario, own: Sequence[int], size: int) -> Iterator[tuple[int, Cell]]:
        """The cells of `scenario`, whose card is still open, on the cards with the indices `own`."""
        scenario = replace(scenario, parallel=replace(scenario.parallel, tensor_parallel_size=size))
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
                yield index, planned_alone(scenario, self.cards[index], size)
            return
        groups: list[tuple[Prepared, list[int]]] = []
        # The view is all that flags, cache specs and weights can tell cards apart by.
        for indices in self.alike(own, view_of):
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

    def alike(
        self, indices: Sequence[int], key_of: Callable[[Accelerator], Hashable], *what: Hashable
    ) -> tuple[tuple[int, ...], ...]:
        """The indices in groups of cards of one `key_of`, by first appearance; worked out once for each `what`."""
        key = (tuple(indices), *what)
        if key not in self.groups:
            found: dict[Hashable, list[int]] = {}
            for index in indices:
                found.setdefault(key_of(self.cards[index]), []).append(index)
            self.groups[key] = tuple(tuple(group) for group in found.values())
        return self.groups[key]

    def budgets_of(self, resolved: Resolved) -> tuple[Quantity, ...]:
        """The budget of each card."""
        key = (resolved.version, resolved.gpu_memory_utilization)
        if key not in self.budgets:
            self.budgets[key] = tuple(budget_of(total_of(card), resolved) for card in self.cards)
        return self.budgets[key]


def _is_plain(scenario: Scenario, release: Release) -> bool:
    """Whether cards can be planned together: one stage, the V1 engine, a given length, memory that is profiled."""
    return (
        find_engine(scenario.engine).follows_vllm
        and release.switches.v1_engine is V1Engine.ONLY
        and scenario.parallel.pipeline_parallel_size == 1
        and scenario.max_model_len != -1
    )


def _overheads_key(setting: Setting, by_chip: bool, card: Accelerator) -> Hashable:
    """What framework, activations and the interval of the total take from a card whose flags are known."""
    own = replace(setting, accelerator=card, links=links_of(setting.scenario, card))
    return (
        framework_card_terms(own),
        multiprocessors(card) if by_chip else 0,
        sampler_rows(own),
        (card.compute_capability or (0,))[0],
        graph_card_terms(own),
        card.memory_grade is Grade.ASSUMED,
        card.vendor,
    )


class _Memory(NamedTuple):
    """What is left on one card for the KV cache, with its interval."""

    available: int
    ends: tuple[int, int] | None
    room: float
    """What stays free of the card at the least, without the cache."""


class _Group(NamedTuple):
    """Cards on which flags, cache specs and weights are the same."""

    sweeper: Sweeper
    scenario: Scenario
    architecture: Architecture
    prepared: Prepared
    alike: tuple[int, ...]
    size: int

    def cells(self) -> Iterator[tuple[int, Cell]]:
        """One cell for each card."""
        sweeper, parallel, cards = self.sweeper, self.scenario.parallel, self.sweeper.cards
        card = cards[self.alike[0]]
        resolved, specs = self.prepared.resolved, self.prepared.specs[0]
        setting = setting_of(replace(self.scenario, accelerator=card), self.architecture, resolved, card, 0)
        weights = weights_of(setting, self.prepared.weights[0])
        budgets = sweeper.budgets_of(resolved)
        failed = Cell(
            accelerator="",
            tensor_parallel_size=self.size,
            verdict=Verdict.WEIGHTS_DO_NOT_FIT,
            gpus=parallel.ranks,
            replicas=parallel.data_parallel_size,
            weights_gib=gib(weights.value),
        )
        left = [index for index in self.alike if weights.bounds[LOW] <= budgets[index].bounds[HIGH]]
        for index in sorted(set(self.alike) - set(left)):
            yield index, failed._replace(accelerator=cards[index].id)
        if not left:
            return
        memories = dict(self.memories(left, setting, weights))
        pooled = [index for index in left if memories[index].available > 0]
        try:
            pools = plan_pools(specs, [memories[index].available for index in pooled], resolved, parallel)
        except KvPlannerError as error:
            yield from sweeper.refused(left, self.size, error)
            return
        if pools is None:
            for index in left:
                yield index, planned_alone(self.scenario, cards[index], self.size)
            return
        by_card = dict(zip(pooled, pools, strict=True))
        for index in left:
            yield index, self.pool_cell(failed, cards[index], by_card.get(index), memories[index])

    def memories(
        self, left: Sequence[int], setting: Setting, weights: Quantity
    ) -> Iterator[tuple[int, _Memory]]:
        """What each card has left; of those with the same overheads one is worked out, the others differ in budget."""
        sweeper, resolved = self.sweeper, setting.resolved
        budgets = sweeper.budgets_of(resolved)
        kept = set(left)
        by_chip = sampler_row(setting.runner, resolved.version).vocabulary_rows_per_multiprocessor > 0
        counted: dict[Hashable, Quantity] = {}
        peaks: dict[Hashable, Quantity] = {}
        own = (resolved.version, setting.runner, self.size, by_chip)
        for group in sweeper.alike(self.alike, partial(_overheads_key, setting, by_chip), *own):
            members = [index for index in group if index in kept]
            if not members:
                continue
            card = sweeper.cards[members[0]]
            setting = replace(setting, accelerator=card, links=links_of(setting.scenario, card))
            terms = graph_card_terms(setting)
            if terms not in counted:
                counted[terms] = counted_graph_bytes(setting, cuda_graph_bytes(setting))
            chip = multiprocessors(card) if by_chip else 0
            sampled = sampler_rows(setting), chip, exchange_row(setting)
            if sampled not in peaks:
                peaks[sampled] = peak_activation_bytes(setting)
            peak, framework = peaks[sampled], non_torch_bytes(setting)
            graphs, system = cuda_graph_bytes(setting), system_bytes(setting)
            available = available_of(setting, budgets[members[0]], weights, peak, framework, counted[terms])
            taken = sum(part.value for part in (system, framework, weights, peak, graphs))
            after_pool = after_pool_bytes(setting, peak, available.value)
            room = least_room(-taken, after_pool, (graphs, system))
            for index in members:
                more = int(budgets[index].value - budgets[members[0]].value) // pool_share(setting)
                value, (low, high) = int(available.value) + more, available.bounds
                ends = None if available.interval is None else (int(low + more), int(high + more))
                yield index, _Memory(value, ends, total_of(sweeper.cards[index]).value + room)

    def pool_cell(self, failed: Cell, card: Accelerator, pool: CachePlan | None, memory: _Memory) -> Cell:
        """The cell of one pool, judged as `plan` judges it."""
        resolved, specs, parallel = self.prepared.resolved, self.prepared.specs, self.scenario.parallel
        try:
            verdict = judged(
                resolved,
                pool,
                weights_fit=True,
                least=() if memory.ends is None else memory.ends[:1],
                most=() if memory.ends is None else memory.ends[1:],
                planned=lambda available: plan_cache(specs, available, resolved, parallel),
                has_room=pool is None or memory.room >= pool.num_blocks * pool.bytes_per_block,
                is_empty=memory.ends is not None and leaves_none(memory.available, memory.ends[0]),
            )
        except EngineRefusalError as error:
            return Cell(card.id, self.size, refusal=error.code)
        cell = failed._replace(accelerator=card.id, verdict=verdict)
        if pool is None:
            return cell
        return cell._replace(
            kv_cache_gib=gib(pool.num_blocks * pool.bytes_per_block),
            tokens=pool.tokens,
            max_concurrency=pool.max_concurrency,
            longest_request_tokens=pool.longest_request_tokens,
        )


class Smallest(Struct, frozen=True, kw_only=True):
    """The same cell twice where one card is the smallest both ways; None where nothing serves."""

    fewest_gpus: Cell | None
    """Fewest GPUs, then the least memory of each."""
    least_memory: Cell | None
    """The least memory in all, then the fewest GPUs."""


def smallest(cells: Iterable[Cell], cards: Mapping[str, Accelerator], wanted: float) -> Smallest:
    """The smallest deployments that have room for `wanted` requests at once, on all of their replicas.

    Cards that stand alone in their machine count for a single one only.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.planning import Verdict
        >>> cards = {card.id: card for card in catalogue.load_accelerators()}
        >>> cells = [Cell("H200-141GB", 1, Verdict.FITS, gpus=1, max_concurrency=30.0),
        ...          Cell("RTX-4090-24GB", 4, Verdict.FITS, gpus=4, max_concurrency=21.0)]
        >>> found = smallest(cells, cards, 20)
        >>> found.fewest_gpus.accelerator, found.least_memory.accelerator
        ('H200-141GB', 'RTX-4090-24GB')
    """
    serving = [cell for cell in cells if serves(cell, cards[cell.accelerator], wanted)]
    if not serving:
        return Smallest(fewest_gpus=None, least_memory=None)

    def memory_gib(cell: Cell) -> float:
        return cards[cell.accelerator].memory_gib

    return Smallest(
        fewest_gpus=min(serving, key=lambda cell: (cell.gpus, memory_gib(cell), cell.accelerator)),
        least_memory=min(
            serving, key=lambda cell: (cell.gpus * memory_gib(cell), cell.gpus, cell.accelerator)
        ),
    )


def serves(cell: Cell, card: Accelerator, wanted: float) -> bool:
    """Whether a deployment stores `wanted` requests at once; a card that is alone in its machine counts once only."""
    is_possible = cell.gpus == 1 or card.interconnect is not Interconnect.NONE
    return cell.starts and cell.requests >= wanted and is_possible


class Cost(Struct, frozen=True, kw_only=True):
    """What a deployment costs, in the currency of the price that was given."""

    per_hour: float
    per_slot_hour: float
    """Of each request that runs at once."""


def cost_of(cell: Cell, price_per_gpu_hour: float, max_num_seqs: int | None = None) -> Cost:
    """The cost of a deployment that starts; no more requests run at once than `max_num_seqs` allows.

    Example:
        >>> from kvcore.planning import Verdict
        >>> cost_of(Cell("H100-80GB", 2, Verdict.FITS, gpus=2, max_concurrency=40.0), 2.5)
        Cost(per_hour=5.0, per_slot_hour=0.125)
    """
    slots = cell.requests if max_num_seqs is None else min(cell.requests, max_num_seqs * cell.replicas)
    per_hour = cell.gpus * price_per_gpu_hour
    return Cost(per_hour=per_hour, per_slot_hour=per_hour / slots)
