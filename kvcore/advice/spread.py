"""A mixture of experts over several machines: replicas that share out its experts, and the fewest cards that serve.

Tensor parallelism stays inside one machine. Latent attention keeps the whole cache of a request on every rank of a
group, so further ranks leave room for it by their share of the experts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.advice.sweep_cell import Cell, serves
from kvcore.base.units import ceil_div
from kvcore.catalogue.accelerators import Accelerator
from kvcore.scenario import Scenario

REPLICAS: Final = (1, 2, 4, 8, 16)
MOST_CARDS: Final = 64


class Spread(Struct, frozen=True, kw_only=True):
    """A cell whose replicas cut the experts over all of their ranks."""

    cell: Cell

    @property
    def replicas(self) -> int:
        """How many share them out."""
        return self.cell.replicas

    @property
    def cards(self) -> int:
        """Cards of all replicas."""
        return self.cell.gpus

    @property
    def requests(self) -> float:
        """At once on all replicas."""
        return self.cell.requests

    def machines(self, card: Accelerator) -> int:
        """Machines that they fill."""
        return ceil_div(self.cards, card.devices_per_node)


def spread_scenario(base: Scenario, replicas: int) -> Scenario:
    """`base` as that many replicas which share out its experts.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> spread_scenario(scenario_from_request({"model": "Qwen/Qwen3-30B-A3B"}), 4).parallel.data_parallel_size
        4
    """
    return replace(
        base, parallel=replace(base.parallel, data_parallel_size=replicas, enable_expert_parallel=True)
    )


def _spreads(cells: Iterable[Cell], card: Accelerator, most: int) -> Iterator[Spread]:
    for cell in cells:
        if (
            cell.accelerator == card.id
            and cell.tensor_parallel_size <= card.devices_per_node
            and cell.gpus <= most
        ):
            yield Spread(cell=cell)


def longest_request(cells: Iterable[Cell], card: Accelerator, most: int = MOST_CARDS) -> Spread | None:
    """The layout of at most `most` of `card` whose replicas fit the longest request; None where nothing has a cache."""
    fitting = (one for one in _spreads(cells, card, most) if one.cell.longest_request_tokens > 0)
    return max(fitting, key=lambda one: (one.cell.longest_request_tokens, -one.cards), default=None)


def fewest_cards(
    cells: Iterable[Cell], card: Accelerator, wanted: float, most: int = MOST_CARDS
) -> Spread | None:
    """The fewest of `card` that fit `wanted` requests; ties go to the layout with the most room.

    Each replica has room for one request at least. None where `most` do not do.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.planning import Verdict
        >>> card = catalogue.find_accelerator("Ascend-910B4-32GB")
        >>> cells = [Cell(card.id, 4, Verdict.FITS, gpus=4 * n, replicas=n, max_concurrency=1.5) for n in (2, 4)]
        >>> found = fewest_cards(cells, card, 5)
        >>> found.cards, found.requests, found.machines(card)
        (16, 6.0, 2)
    """
    enough = (
        one
        for one in _spreads(cells, card, most)
        if one.cell.max_concurrency >= 1 and serves(one.cell, card, wanted)
    )
    return min(enough, key=lambda one: (one.cards, -one.requests), default=None)
