"""The cards that a start may have run on whose log names none: by their memory, or by what its budget adds up to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from msgspec import Struct

from kvcore.base.errors import KvPlannerError, Notice
from kvcore.base.units import gib
from kvcore.catalogue.accelerators import Accelerator, load_accelerators
from kvcore.engines.registry import find_engine
from kvcore.evidence.log.reader import StartupLog
from kvcore.planning.numbers import OnCards
from kvcore.scenario import Scenario

SAME_CARD_SHARE: Final = 0.02
"""Largest share by which a card's memory differs from what a budget adds up to."""
SAME_MEMORY_SHARE: Final = 0.005
"""The same, of a memory that the log prints: drivers keep a little more or less."""
MOST_CARDS: Final = 8
_SLICE: Final = "-MIG-"


class CardGuess(Struct, frozen=True, kw_only=True):
    """Cards that fit, the nearest first. Never a fact: several kinds of card have the same memory."""

    cards: tuple[Accelerator, ...]
    memory_gib: float
    """Of the log, or what the nearest card's budget adds up to."""
    by_budget: bool
    """Whether the memory was worked out from utilization, weights and KV memory."""

    @property
    def notice(self) -> Notice:
        """The guess in words."""
        params = {"cards": ", ".join(card.name for card in self.cards), "memory": f"{self.memory_gib:.2f}"}
        return Notice(code="log-card-by-budget" if self.by_budget else "log-card-by-memory", params=params)


def guessed_cards(log: StartupLog, scenario: Scenario | None) -> CardGuess | None:
    """The cards that may be meant by a log that names none; None where it names one, or where none fits.

    A start has total × utilization = weights + activations + framework + KV memory. With the weights and the KV memory
    that were printed, and the rest as planned on each card, the total follows. Without a scenario only a memory that
    the log prints counts.

    Example:
        >>> from kvcore.evidence.log.reader import read_log
        >>> log = read_log("CUDA out of memory. Tried to allocate 594.00 MiB. GPU 2 has a total capacity of 44.39 GiB "
        ...                "of which 212.31 MiB is free")
        >>> [card.id for card in guessed_cards(log, None).cards]
        ['L40-48GB', 'L40S-48GB', 'A40-48GB']
    """
    if log.card_name is not None:
        return None
    total = log.worst_rank.total_gib
    if total is not None:
        near = [(abs(card.memory_gib / total.value - 1), total.value, card) for card in _possible(log)]
        return _nearest([one for one in near if one[0] <= SAME_MEMORY_SHARE], by_budget=False)
    if scenario is None:
        return None
    found = (
        (abs(card.memory_gib / implied - 1), implied, card) for card, implied in _by_budget(log, scenario)
    )
    return _nearest([one for one in found if one[0] <= SAME_CARD_SHARE], by_budget=True)


def _nearest(found: list[tuple[float, float, Accelerator]], *, by_budget: bool) -> CardGuess | None:
    if not found:
        return None
    # A slice is meant where nothing else fits.
    found = [one for one in found if _SLICE not in one[2].id] or found
    found.sort(key=lambda one: (one[0], one[2].id))
    cards = tuple(card for _, _, card in found[:MOST_CARDS])
    return CardGuess(cards=cards, memory_gib=round(found[0][1], 2), by_budget=by_budget)


def _possible(log: StartupLog) -> Iterator[Accelerator]:
    """Cards that the engine runs on, of the log's vendor and compute capability where it tells them."""
    engine = find_engine(log.engine)
    for card in load_accelerators():
        is_of_vendor = log.vendor is None or card.vendor is log.vendor
        capability = card.compute_capability
        if is_of_vendor and engine.runs_on(card) and (capability is None or log.capability.has(capability)):
            yield card


def _by_budget(log: StartupLog, scenario: Scenario) -> Iterator[tuple[Accelerator, float]]:
    """Cards, each with the total in GiB that its budget would have had."""
    weights = log.worst_rank.weights_gib or log.worst_rank.profiled_weights_gib
    available = log.worst_rank.available_kv_gib
    if weights is None or available is None or scenario.kv_cache_memory_bytes is not None:
        return
    with suppress(KvPlannerError):
        on_cards = OnCards(scenario)
        for card in _possible(log):
            with suppress(KvPlannerError):
                found = on_cards.numbers(card)
                share = found.resolved.gpu_memory_utilization
                if found.stage_kv and share:
                    planned = min(gib(one.value) for one in found.stage_kv)
                    more = available.value - planned + weights.value - gib(found.weights_bytes)
                    yield card, card.memory_gib + more / share
