"""The smallest deployments of a sweep that serve a wanted number of requests at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvcore.advice.sweep_cell import Cell
from kvcore.catalogue.accelerators import Accelerator, Interconnect


@dataclass(frozen=True, kw_only=True, slots=True)
class Smallest:
    """The same cell twice where one card is the smallest both ways; None where nothing serves."""

    fewest_gpus: Cell | None
    """Fewest GPUs, then the least memory of each."""
    least_memory: Cell | None
    """The least memory in all, then the fewest GPUs."""


def smallest(cells: Iterable[Cell], cards: Mapping[str, Accelerator], wanted: float) -> Smallest:
    """The smallest deployments that have room for `wanted` requests at once, on one replica.

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
    return cell.starts and cell.max_concurrency >= wanted and is_possible


def smallest_of_card(cells: Iterable[Cell], card: Accelerator, wanted: float) -> Cell | None:
    """Of one card's deployments the one with the fewest GPUs that stores `wanted` requests at once, or None."""
    serving = (cell for cell in cells if serves(cell, card, wanted))
    return min(serving, key=lambda cell: cell.gpus, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one replica costs, in the currency of the price that was given."""

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
    slots = cell.max_concurrency if max_num_seqs is None else min(cell.max_concurrency, max_num_seqs)
    per_hour = cell.gpus * price_per_gpu_hour
    return Cost(per_hour=per_hour, per_slot_hour=per_hour / slots)
