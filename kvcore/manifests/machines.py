"""The card that a label, a machine's type or a scheduler's words mean: one of the catalogue, and how many."""

import fnmatch
import re
from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta

from kvcore.base.errors import KvPlannerError
from kvcore.catalogue.accelerators import Accelerator, accelerator_from_facts, find_accelerator
from kvcore.manifests.cards import card_in
from kvcore.tables import Record, Reviewed, Source, TableFile

_COUNT: Final = re.compile(r"(.{1,120}?)\s*[:=]\s*(\d{1,4})$")
_BEFORE: Final = re.compile(r"(?:gpu:|nvidia[_.-]|amd[_.-]|(\d{1,3})\s*x\s+)", re.IGNORECASE)
_MEMORY: Final = re.compile(r"(\d{2,3})\s*g(?:i?b)?\b", re.IGNORECASE)
_SIZES: Final = {
    "A100": "A100-80GB",
    "H100": "H100-80GB",
    "H200": "H200-141GB",
    "B200": "B200-180GB",
    "A10": "A10-24GB",
}
"""Cards of several memories, and the one that is meant where nothing else is said; it is named as assumed."""


Type = Annotated[str, Meta(pattern=r"^[a-z0-9_.*-]{3,60}$")]


class MachineRow(Record, frozen=True, kw_only=True):
    """Types of machines with one card."""

    names: Mapping[Type, Annotated[int, Meta(ge=1, le=64)]]
    card: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{2,60}$")]
    source: Source


class Machines(Reviewed, frozen=True, kw_only=True):
    """`machines.toml`."""

    machine: tuple[MachineRow, ...]


MACHINES: Final = TableFile("kvcore.manifests", "machines.toml", Machines)


def card_named(text: str) -> tuple[Accelerator | None, int | None]:
    """The card that a file's words mean, and how many of it a machine of that type has; None for each not known.

    Example:
        >>> [one.id if one else None for one, _ in map(card_named, ("NVIDIA-B200", "g5.12xlarge", "amd.com/gpu"))]
        ['B200-180GB', 'A10G-24GB', None]
        >>> card_named("Standard_NC48ads_A100_v4")[1]
        2
    """
    plain = text.strip().removeprefix("ml.")
    for row in MACHINES.load().machine:
        for pattern, count in row.names.items():
            if fnmatch.fnmatchcase(plain.lower(), pattern):
                return find_accelerator(row.card), count
    counted = _COUNT.fullmatch(plain)
    if counted is None:
        return _card(plain), None
    return _card(counted[1]), int(counted[2])


def _card(name: str) -> Accelerator | None:
    candidates = [name, _BEFORE.sub("", name).strip(), name.replace("_", " ")]
    short = card_in(name)
    memory = _MEMORY.search(name)
    if short is not None:
        candidates += [f"{short}-{memory[1]}GB"] if memory is not None else []
        candidates += [_SIZES.get(short.upper(), short), short]
    for one in candidates:
        try:
            return find_accelerator(one)
        except KvPlannerError:
            continue
    if short is None:
        return None
    try:
        return accelerator_from_facts(None, None, _BEFORE.sub("", name).replace("_", " "))
    except KvPlannerError:
        return None


def is_assumed_size(text: str, card: Accelerator) -> bool:
    """Whether the words do not say which of several memories the card has.

    Example:
        >>> card = find_accelerator("A100-80GB")
        >>> is_assumed_size("A100", card), is_assumed_size("nvidia-a100-80gb", card)
        (True, False)
    """
    short = card_in(text)
    return short is not None and _SIZES.get(short.upper()) == card.id and _MEMORY.search(text) is None
