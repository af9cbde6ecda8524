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
    """The smallest deployments that hold `wanted` requests at once, on one replica.

    Cards that stand alone in their machine count for a single one only.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.plan import Verdict
        >>> cards = {card.id: card for card in catalogue.load_accelerators()}
        >>> cells = [Cell("H200-141GB", 1, Verdict.FITS, gpus=1, max_concurrency=30.0),
        ...          Cell("RTX-4090-24GB", 4, Verdict.FITS, gpus=4, max_concurrency=21.0)]
        >>> found = smallest(cells, cards, 20)
        >>> found.fewest_gpus.accelerator, found.least_memory.accelerator
        ('H200-141GB', 'RTX-4090-24GB')
    """
    serving = [
        cell
        for cell in cells
        if cell.starts
        and cell.max_concurrency >= wanted
        and (cell.gpus == 1 or cards[cell.accelerator].interconnect is not Interconnect.NONE)
    ]
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
