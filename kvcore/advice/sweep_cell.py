"""One cell of a sweep, planned by itself; the smallest among many, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.units import gib
from kvcore.cache.capacity import Pool
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.planning import Verdict, plan
from kvcore.planning.numbers import Numbers, numbers_of
from kvcore.scenario import Scenario

STARTS: Final = (Verdict.FITS, Verdict.TIGHT)


class Cell(Struct, frozen=True, gc=False):
    """One deployment of a sweep. A refusal has its code and no figures; weights that do not fit have no pool.

    `kv_cache_gib` and `weights_gib` are of one rank, `gpus` of all replicas, the other figures of one replica.
    """

    accelerator: str
    tensor_parallel_size: int
    verdict: Verdict | None = None
    refusal: str = ""
    gpus: int = 0
    """GPUs of all replicas: each of them is started."""
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


def refused_cell(card: Accelerator, size: int, error: KvPlannerError) -> Cell:
    """The cell of a refusal."""
    return Cell(accelerator=card.id, tensor_parallel_size=size, refusal=error.code)


def planned_alone(scenario: Scenario, card: Accelerator, size: int) -> Cell:
    """The cell of one deployment on one card, planned by itself."""
    try:
        planned = plan(replace(scenario, accelerator=card))
    except KvPlannerError as error:
        return refused_cell(card, size, error)
    return cell_of(numbers_of(planned), card)


def cell_of(numbers: Numbers, card: Accelerator) -> Cell:
    """The cell of a deployment on `card`."""
    parallel, pool = numbers.parallel, numbers.pool
    return Cell(
        card.id,
        parallel.tensor_parallel_size,
        numbers.verdict,
        "",
        parallel.ranks,
        parallel.data_parallel_size,
        gib(numbers.weights_bytes),
        *(() if pool is None else _figures(pool)),
    )


def _figures(pool: Pool) -> tuple[float, int, float, int]:
    kv_cache_gib = gib(pool.num_blocks * pool.bytes_per_block)
    return kv_cache_gib, pool.tokens, pool.max_concurrency, pool.longest_request_tokens


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
    """Whether a deployment fits `wanted` requests at once; cards without a link to others serve with one GPU only."""
    is_possible = cell.gpus == 1 or card.interconnect is not Interconnect.NONE
    return cell.starts and cell.requests >= wanted and is_possible


class Cost(Struct, frozen=True, kw_only=True):
    """Cost of a deployment, in the currency of the price that was given."""

    per_hour: float
    per_slot_hour: float
    """Cost per hour of each request that runs at once."""


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
