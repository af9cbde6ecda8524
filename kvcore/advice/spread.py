"""A mixture of experts over several machines: replicas that share out its experts, and the fewest cards that serve.

Tensor parallelism stays inside one machine. Latent attention keeps the whole cache of a request on every rank of a
group, so further ranks leave room for it by their share of the experts alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvcore.advice.sweep_cell import Cell, serves
from kvcore.catalogue.accelerators import Accelerator
from kvcore.scenario import Scenario
from kvcore.units import ceil_div

REPLICAS: Final = (1, 2, 4, 8, 16)
MOST_CARDS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Replicas of one cell, the experts cut over all of their ranks."""

    cell: Cell
    """Of one replica."""
    replicas: int

    @property
    def cards(self) -> int:
        """Of all replicas."""
        return self.cell.gpus * self.replicas

    @property
    def requests(self) -> float:
        """At once on all replicas."""
        return self.cell.max_concurrency * self.replicas

    def machines(self, card: Accelerator) -> int:
        """Machines that they fill."""
        return ceil_div(self.cards, card.devices_per_node)


def spread_scenario(base: Scenario, replicas: int) -> Scenario:
    """`base` as that many replicas which share out its experts.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> spread_scenario(scenario_from_request({"model": "Qwen/Qwen3-30B-A3B"}), 4).parallel.data_parallel_size
        4
    """
    return replace(
        base, parallel=replace(base.parallel, data_parallel_size=replicas, enable_expert_parallel=True)
    )


def longest_request(
    cells: Mapping[int, Sequence[Cell]], card: Accelerator, most: int = MOST_CARDS
) -> Spread | None:
    """The layout of at most `most` of `card` whose replicas fit the longest request; None where nothing has a cache."""
    found = (
        Spread(cell=cell, replicas=replicas)
        for replicas, own in cells.items()
        for cell in own
        if cell.accelerator == card.id and cell.tensor_parallel_size <= card.devices_per_node
    )
    fitting = (one for one in found if one.cell.longest_request_tokens > 0 and one.cards <= most)
    return max(fitting, key=lambda one: (one.cell.longest_request_tokens, -one.cards), default=None)


def fewest_cards(
    cells: Mapping[int, Sequence[Cell]], card: Accelerator, wanted: float, most: int = MOST_CARDS
) -> Spread | None:
    """The fewest of `card` that store `wanted` requests, of as many the layout with room for the most.

    `cells` by the number of replicas; each replica has room for one request at least. None where `most` do not do.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.planning import Verdict
        >>> card = catalogue.find_accelerator("Ascend-910B4-32GB")
        >>> cell = Cell(card.id, 4, Verdict.FITS, gpus=4, max_concurrency=1.5)
        >>> found = fewest_cards({2: [cell], 4: [cell]}, card, 5)
        >>> found.cards, found.requests, found.machines(card)
        (16, 6.0, 2)
    """
    found = (
        Spread(cell=cell, replicas=replicas)
        for replicas, own in cells.items()
        for cell in own
        if cell.accelerator == card.id
        and cell.tensor_parallel_size <= card.devices_per_node
        and serves(cell, card, max(1.0, wanted / replicas))
    )
    enough = (one for one in found if one.cards <= most)
    return min(enough, key=lambda one: (one.cards, -one.requests), default=None)
