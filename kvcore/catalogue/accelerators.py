"""Accelerators: what the driver really gives, never the marketing figure."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Annotated, Final

from kvcore.errors import CatalogueError
from kvcore.kept import Keeper
from kvcore.quantity import Grade
from kvcore.versioned import Bounds, Decimal, Pattern, convert, read_toml, wrong


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    HUAWEI = "huawei"
    OTHER = "other"


class Interconnect(StrEnum):
    """How cards of this kind reach each other inside one machine: decides the communication buffers."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    HCCS = "hccs"
    PCIE = "pcie"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator(Keeper):
    """One kind of card. `memory_gib` is the total that torch reports."""

    id: str
    name: str
    vendor: Vendor
    memory_gib: float
    memory_grade: Grade = Grade.EXACT
    interconnect: Interconnect = Interconnect.PCIE
    compute_capability: tuple[int, int] | None = None
    """Of CUDA cards; None when unknown."""
    is_integrated: bool = False
    """Shares its memory with the processor (GB10, Jetson)."""
    memory_bandwidth_gb_s: float | None = None
    devices_per_node: int = 8
    aliases: tuple[str, ...] = ()
    """Names that logs and drivers print."""
    source: str = ""
    checked: str = ""


FILE: Final = "accelerators.toml"
ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LARGEST_MEMORY_GIB: Final = 1024.0
LARGEST_CAPABILITY: Final = 99
Name = Annotated[str, Pattern(r"\S(.*\S)?", "a text without spaces around it")]
Part = Annotated[int, Bounds(0, LARGEST_CAPABILITY)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CardRow:
    """One table of the file; accelerators.toml says what each field means."""

    name: Name
    vendor: Vendor
    memory_gib: Annotated[Decimal, Bounds(0.01, LARGEST_MEMORY_GIB)]
    memory_grade: Grade
    interconnect: Interconnect
    source: Name
    checked: datetime.date
    aliases: tuple[Name, ...] = ()
    compute_capability: tuple[Part, Part] | None = None
    is_integrated: bool = False
    memory_bandwidth_gb_s: Annotated[Decimal, Bounds(0.01, 100_000.0)] | None = None
    devices_per_node: Annotated[int, Bounds(1, 1024)] = 8

    def card(self, name: str) -> Accelerator:
        """The accelerator with that id."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Accelerator(id=name, **{**values, "checked": self.checked.isoformat()})


@cache
def load_accelerators() -> tuple[Accelerator, ...]:
    """All bundled accelerators, by vendor and memory.

    Raises CatalogueError `invalid-catalogue-entry` naming file and entry when the file is not as it has to be.
    """
    text = files("kvcore.catalogue").joinpath(FILE).read_text("utf-8")
    order = list(Vendor)
    return tuple(
        sorted(read_accelerators(text), key=lambda card: (order.index(card.vendor), card.memory_gib, card.id))
    )


def read_accelerators(text: str) -> tuple[Accelerator, ...]:
    """Accelerators of a TOML text, checked strictly: keys, types, ranges, and that no two are spelt alike."""
    cards = []
    for name, table in read_toml(text, FILE).items():
        if ID.fullmatch(name) is None:
            raise wrong(f"{FILE}:{name}", "an id has only letters, digits, dots, dashes and underscores")
        row: CardRow = convert(table, CardRow, f"{FILE}:{name}")
        cards.append(row.card(name))
    owners: dict[str, str] = {}
    for card in cards:
        for spelling in _spellings_of(card):
            if owners.setdefault(spelling, card.id) != card.id:
                raise wrong(f"{FILE}:{card.id}", f"{owners[spelling]} is spelt so too")
    return tuple(cards)


def find_accelerator(text: str) -> Accelerator:
    """The accelerator whose id, name or alias is spelt so, whatever the case and the separators.

    Raises CatalogueError `unknown-accelerator` with near matches.

    Example:
        >>> find_accelerator("NVIDIA H100 80GB HBM3").id, find_accelerator("h100-80gb").id
        ('H100-80GB', 'H100-80GB')
    """
    found = spellings().get(spelling(text))
    if found is None:
        ids = {spelling(card.id): card.id for card in load_accelerators()}
        near = [ids[key] for key in difflib.get_close_matches(spelling(text), ids, n=3, cutoff=0.4)]
        raise CatalogueError(
            "unknown-accelerator",
            field="accelerator",
            value=text,
            near=", ".join(near) or "one of the catalogue",
        )
    return found


def bundled_accelerator(card_id: str) -> Accelerator | None:
    """The accelerator with exactly this id; None for any other."""
    return _by_id().get(card_id)


@cache
def _by_id() -> Mapping[str, Accelerator]:
    return {card.id: card for card in load_accelerators()}


@cache
def spellings() -> Mapping[str, Accelerator]:
    """All ids, names and aliases, as `spelling` writes them."""
    return {key: card for card in load_accelerators() for key in _spellings_of(card)}


def spelling(text: str) -> str:
    """`text` without what does not tell cards apart.

    Example:
        >>> spelling("NVIDIA A100-SXM4-80GB")
        'nvidia-a100-sxm4-80gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", text[:200].lower()).strip("-")


def _spellings_of(card: Accelerator) -> set[str]:
    return {spelling(text) for text in (card.id, card.name, f"{card.vendor} {card.name}", *card.aliases)}
