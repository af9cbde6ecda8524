"""The KV memory of a rank in plain numbers: bytes spent on all cards alike, and what that leaves on one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from kvcore.base.kept import kept
from kvcore.base.quantity import Quantity
from kvcore.catalogue.accelerators import Accelerator, Interconnect, Vendor
from kvcore.engine.protocol import Engine, Resolved, Setting
from kvcore.engine.rank_memory import least_room
from kvcore.memory.activations import multiprocessors
from kvcore.memory.after_pool import after_pool_bytes
from kvcore.memory.budget import (
    Inside,
    budget_of,
    checks_free_memory,
    inside_of,
    other_settings,
    profile_of,
    release_remainder,
    total_of,
    total_spread_bytes,
)
from kvcore.memory.framework import FRAMEWORK, system_bytes


class CardTraits(NamedTuple):
    """A card as a rank's memory sees it, but for its size: starts on cards with equal traits spend the same."""

    vendor: Vendor
    compute_capability: tuple[int, int] | None
    multiprocessors: int
    """0 where the start takes no memory for each of them."""
    is_integrated: bool
    interconnect: Interconnect | None
    """None, and 0 below, where a start joins no cards."""
    devices_per_node: int
    names: frozenset[str]
    """Those of the names by which tables know single cards that are in its own."""


@kept
def traits_of(
    accelerator: Accelerator, engine: Engine, is_joined: bool, counts_chip: bool = True
) -> CardTraits:
    """The traits of a card under an engine, for starts that join several or one alone, and that take memory for each
    multiprocessor, `counts_chip`, or not.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.engines.registry import find_engine
        >>> cards = (catalogue.find_accelerator(name) for name in ("H100-80GB", "H200-141GB"))
        >>> h100, h200 = (traits_of(card, find_engine("vllm"), True) for card in cards)
        >>> h100 == h200
        True
    """
    label = f"{accelerator.id} {accelerator.name}"
    return CardTraits(
        vendor=accelerator.vendor,
        compute_capability=accelerator.compute_capability,
        multiprocessors=multiprocessors(accelerator) if counts_chip else 0,
        is_integrated=accelerator.is_integrated,
        interconnect=accelerator.interconnect if is_joined else None,
        devices_per_node=accelerator.devices_per_node if is_joined else 0,
        names=frozenset(name for name in _card_names(engine) if name in label),
    )


@cache
def _card_names(engine: Engine) -> frozenset[str]:
    return frozenset(_names_in((FRAMEWORK.load(), engine.facts)))


def _names_in(value: object) -> Iterator[str]:
    """The names of cards in the rows of tables."""
    if isinstance(value, Struct):
        for field in value.__struct_fields__:
            inner = getattr(value, field)
            if field == "card" and isinstance(inner, str):
                yield inner
            else:
                yield from _names_in(inner)
    elif isinstance(value, tuple | list | frozenset | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _names_in(inner)


class Budget(NamedTuple):
    """Bytes of one card that an engine may spend, out of its total."""

    total: float
    bytes: float
    most: float
    """Where the total is as much higher as it may be."""


class KvNumbers(NamedTuple):
    """KV memory of a rank, in bytes."""

    value: int
    bounds: tuple[float, float]
    """The ends of its 80 % interval."""


class Left(NamedTuple):
    """Memory that a start leaves of one card for its KV cache."""

    kv: KvNumbers
    room: float
    """Bytes that stay free at the least without the cache."""
    stops_at_start: bool
    """Whether the engine finds too little free memory before it loads anything."""


class Spending:
    """Bytes that a rank spends: the same on all cards with the traits of the one in `setting`."""

    def __init__(self, setting: Setting, weights: Quantity) -> None:
        self.setting, self.weights = setting, weights
        profile = profile_of(setting)
        inside = profile.activations, profile.framework, profile.counted_graphs
        self._activations, self._graphs = profile.activations, profile.cuda_graphs
        self._system = system_bytes(setting)
        self._taken = sum(
            part.value
            for part in (self._system, profile.framework, weights, profile.activations, profile.cuda_graphs)
        )
        self._inside = inside_of(setting, weights, *inside)
        self._others = [(other, _inside(other, weights)) for other in other_settings(setting)]
        self._doubles_pool = setting.engine.doubles_pool(setting)
        self._after_pool = after_pool_bytes(setting, profile.activations, 0.0)

    def left_on(self, accelerator: Accelerator) -> Left:
        """The memory left on a card; the interval spans all releases that may be meant."""
        budget = budget_on(accelerator, self.setting.resolved)
        spread = total_spread_bytes(accelerator)
        found = release_remainder(self.setting, budget.bytes, self._inside, spread)
        low, high = found.ends
        for other, inside in self._others:
            ends = release_remainder(other, budget_on(accelerator, other.resolved).bytes, inside, spread).ends
            low, high = min(low, ends[0]), max(high, ends[1])
        available = found.available
        after_pool = self._after_pool
        if self._doubles_pool:
            after_pool = after_pool_bytes(self.setting, self._activations, available)
        room = least_room(budget.total - self._taken, after_pool, (self._graphs, self._system))
        too_little = budget.total - self._system.value < budget.bytes
        return Left(KvNumbers(available, (low, high)), room, too_little and checks_free_memory(self.setting))


def _inside(setting: Setting, weights: Quantity) -> Inside:
    profile = profile_of(setting)
    return inside_of(setting, weights, profile.activations, profile.framework, profile.counted_graphs)


def budget_on(accelerator: Accelerator, resolved: Resolved) -> Budget:
    """The budget of a card with these flags."""
    rounds_up = resolved.switches.rounds_budget_up
    return _budget(accelerator, resolved.gpu_memory_utilization, rounds_up)


@kept
def _budget(accelerator: Accelerator, utilization: float, rounds_up: bool) -> Budget:
    total = total_of(accelerator)
    budget = budget_of(total, utilization, rounds_up=rounds_up)
    return Budget(total.value, budget.value, budget.bounds[1])
