"""Several engines on one card, in the order in which they start: what each takes, and which fractions work."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import Notice, ScenarioError, notice, shorten
from kvcore.base.numbers import gib_text
from kvcore.base.units import GIB
from kvcore.catalogue.names import recognized
from kvcore.engine.protocol import Resolved
from kvcore.engine.rank_memory import RankMemory
from kvcore.scenario import Scenario

FIELD: Final = "other_engines"
THIS: Final = "this"
MOST: Final = 8
MARGIN_GIB: Final = 0.5
"""Left free by a fraction that is advised: free memory is not the same at each start."""
_SIZE: Final = r"(\d{1,5}(?:\.\d{1,4})?)\s?GiB"
_TAKEN: Final = re.compile(_SIZE)
_ENGINE: Final = re.compile(
    rf"([A-Za-z0-9][\w./:-]{{0,199}})(?: (0?\.\d{{1,4}}|1(?:\.0{{1,4}})?))?(?: kv={_SIZE})?"
)


class Planned(Protocol):
    """What is asked of a plan here."""

    @property
    def scenario(self) -> Scenario:
        """The deployment."""

    @property
    def resolved(self) -> Resolved:
        """Its flags."""

    @property
    def memory(self) -> RankMemory | None:
        """The worst rank's."""


class Entry(Struct, frozen=True, kw_only=True):
    """One engine of the list: a model with its flags, or memory that is taken."""

    name: str
    taken_gib: float | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_gib: float | None = None


class Share(Struct, frozen=True, kw_only=True):
    """What one engine takes of the card."""

    name: str
    taken_bytes: float
    bounds: tuple[float, float]
    is_this: bool = False
    """The engine that is planned."""
    is_refused: bool = False
    """It finds too little free memory and does not start; it takes nothing then."""


def entries(text: str) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """The engines that start before the planned one, and those after it.

    Raises ScenarioError `other-engines-unreadable`.

    Example:
        >>> before, after = entries("Qwen/Qwen3-0.6B 0.3; this; 7.2 GiB")
        >>> before[0].gpu_memory_utilization, after[0].taken_gib
        (0.3, 7.2)
    """
    words = [word for part in text.split(";") if (word := part.strip())]
    if len(words) > MOST or words.count(THIS) > 1:
        raise ScenarioError("other-engines-unreadable", FIELD, shorten(text), most=MOST)
    place = words.index(THIS) if THIS in words else len(words)
    found = tuple(_entry(word) for word in words if word != THIS)
    return found[:place], found[place:]


def _entry(word: str) -> Entry:
    taken = _TAKEN.fullmatch(word)
    if taken is not None:
        return Entry(name=word, taken_gib=float(taken[1]))
    found = _ENGINE.fullmatch(word)
    if found is None:
        raise ScenarioError("other-engines-unreadable", FIELD, shorten(word), most=MOST)
    share, size = found[2], found[3]
    return Entry(
        name=found[1],
        gpu_memory_utilization=None if share is None else float(share),
        kv_cache_gib=None if size is None else float(size),
    )


def beside(scenario: Scenario, plan: Callable[[Scenario], Planned]) -> tuple[Scenario, tuple[Share, ...]]:
    """`scenario` as its engine finds the card, and what those before it take.

    Raises ScenarioError for a list that cannot be read, or a model in it that is not known.
    """
    if scenario.other_engines is None or scenario.accelerator is None:
        return scenario, ()
    shares: list[Share] = []
    for entry in entries(scenario.other_engines)[0]:
        shares.append(_share(entry, scenario, _taken(shares), plan))
    return _after(scenario, _taken(shares)), tuple(shares)


def engines_on_card(
    planned: Planned, before: tuple[Share, ...], plan: Callable[[Scenario], Planned]
) -> tuple[Share, ...]:
    """Every engine of the card in the order of start, the planned one among them; empty where it is alone."""
    scenario, memory = planned.scenario, planned.memory
    if scenario.other_engines is None or memory is None:
        return ()
    own = Share(
        name=scenario.model,
        taken_bytes=memory.total.value - memory.unused.value - _taken(before),
        bounds=_own_bounds(planned, _taken(before)),
        is_this=True,
        is_refused=memory.stops_at_start,
    )
    shares = [*before, own]
    for entry in entries(scenario.other_engines)[1]:
        shares.append(_share(entry, scenario, _taken(shares), plan))
    return tuple(shares)


def neighbour_notices(planned: Planned, shares: tuple[Share, ...]) -> Iterator[Notice]:
    """What does not start beside the others, and a fraction that leaves the planned engine its start.

    Source: vllm/v1/worker/utils.py:request_memory (0.14.1, 0.28.0, 0.33.0): compared before kv_cache_memory_bytes is
    read; github.com/vllm-project/vllm/issues/55827: engines that start at once are charged each other's loading.
    """
    if not shares or planned.memory is None:
        return
    total = planned.memory.total.value
    for share in shares:
        if share.is_refused and not share.is_this:
            yield notice("other-engine-does-not-start", FIELD, name=shorten(share.name))
    taken = _taken(shares)
    if taken > total:
        yield notice("engines-exceed-card", FIELD, taken=gib_text(taken), total=gib_text(total))
    own = next(share for share in shares if share.is_this)
    others = _taken(shares[: shares.index(own)])
    available = planned.memory.available_kv.value
    if not own.is_refused and available <= 0 < others and planned.memory.framework.value >= others:
        asked = planned.resolved.gpu_memory_utilization
        fraction = math.ceil((others / total + asked) * 100) / 100
        said = {"fraction": f"{min(1.0, fraction):.2f}", "others": gib_text(others)}
        yield notice("fraction-counts-others", "gpu_memory_utilization", **said)
    if own.is_refused:
        system = planned.memory.system.value - (0 if others > planned.memory.system.value else others)
        fraction = math.floor((total - others - system - MARGIN_GIB * GIB) / total * 100) / 100
        said = {"fraction": f"{max(0.0, fraction):.2f}", "others": gib_text(others)}
        fixed = planned.scenario.kv_cache_memory_bytes is not None
        yield notice(
            "fraction-beside-given-kv" if fixed else "fraction-beside-others",
            "gpu_memory_utilization",
            **said,
        )
    if len(shares) > 1:
        yield notice("engines-start-in-turn", FIELD)


def _taken(shares: list[Share] | tuple[Share, ...]) -> float:
    return sum(share.taken_bytes for share in shares)


def _after(scenario: Scenario, taken_bytes: float) -> Scenario:
    """`scenario` on a card of which others have taken so many bytes."""
    around = scenario.surroundings
    taken = (around.taken_gib or 0.0) + taken_bytes / GIB
    return replace(scenario, surroundings=replace(around, taken_gib=taken))


def _share(entry: Entry, host: Scenario, taken_bytes: float, plan: Callable[[Scenario], Planned]) -> Share:
    """What an engine of the list takes where so many bytes are taken already."""
    if entry.taken_gib is not None:
        size = entry.taken_gib * GIB
        return Share(name=entry.name, taken_bytes=size, bounds=(size, size))
    meant = recognized(entry.name)
    known = catalogue.bundled_model(entry.name if meant is None else meant.model)
    if known is None:
        raise ScenarioError("other-engine-unknown", FIELD, shorten(entry.name))
    own = Scenario(
        model=known.id,
        config=known.config,
        checkpoint=known.checkpoint,
        accelerator=host.accelerator,
        engine=host.engine,
        engine_version=host.engine_version,
        gpu_memory_utilization=entry.gpu_memory_utilization,
        kv_cache_memory_bytes=None if entry.kv_cache_gib is None else int(entry.kv_cache_gib * GIB),
        surroundings=host.surroundings,
    )
    planned = plan(_after(own, taken_bytes))
    memory = planned.memory
    if memory is None or memory.stops_at_start:
        return Share(name=known.id, taken_bytes=0, bounds=(0, 0), is_refused=True)
    size = memory.total.value - memory.unused.value - taken_bytes
    return Share(name=known.id, taken_bytes=size, bounds=_own_bounds(planned, taken_bytes))


def _own_bounds(planned: Planned, taken_bytes: float) -> tuple[float, float]:
    """The interval of what a planned engine takes: only parts outside its budget are unsure."""
    memory = planned.memory
    if memory is None:
        return 0.0, 0.0
    size = memory.total.value - memory.unused.value - taken_bytes
    outside = [memory.system] if memory.counted_graphs.value else [memory.system, memory.cuda_graphs]
    low = sum(part.value - part.bounds[0] for part in outside)
    high = sum(part.bounds[1] - part.value for part in outside) + memory.after_pool.bounds[1]
    return size - low, size + high
