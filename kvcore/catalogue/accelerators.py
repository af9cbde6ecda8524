"""Accelerators: what the driver really gives, never the marketing figure."""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeVar

from kvcore.errors import CatalogueError
from kvcore.kept import Keeper
from kvcore.quantity import Grade


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
_REQUIRED: Final = frozenset(
    ("name", "vendor", "memory_gib", "memory_grade", "interconnect", "source", "checked")
)
_OPTIONAL: Final = frozenset(
    ("aliases", "compute_capability", "is_integrated", "memory_bandwidth_gb_s", "devices_per_node")
)
Member = TypeVar("Member", bound=StrEnum)


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
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError("invalid-catalogue-entry", field=FILE, reason=str(error)) from None
    cards = tuple(_Entry(name, table).read() for name, table in tables.items())
    owners: dict[str, str] = {}
    for card in cards:
        for spelling in _spellings_of(card):
            if owners.setdefault(spelling, card.id) != card.id:
                raise CatalogueError(
                    "invalid-catalogue-entry",
                    field=f"{FILE}:{card.id}",
                    reason=f"{owners[spelling]} is spelt so too",
                )
    return cards


class _Entry:
    """One table of the file, read by key."""

    def __init__(self, name: str, table: Any) -> None:
        self.name = name
        self.table: Mapping[str, Any] = table if isinstance(table, dict) else {}

    def read(self) -> Accelerator:
        """The accelerator, or CatalogueError `invalid-catalogue-entry`."""
        if ID.fullmatch(self.name) is None:
            raise self.wrong("an id has only letters, digits, dots, dashes and underscores")
        if missing := _REQUIRED - self.table.keys():
            raise self.wrong(f"missing {', '.join(sorted(missing))}")
        if unknown := self.table.keys() - _REQUIRED - _OPTIONAL:
            raise self.wrong(f"unknown {', '.join(sorted(unknown))}")
        checked = self.table["checked"]
        if not isinstance(checked, datetime.date):
            raise self.wrong("checked is a date")
        bandwidth = "memory_bandwidth_gb_s"
        return Accelerator(
            id=self.name,
            name=self.text("name", self.table["name"]),
            vendor=self.member("vendor", Vendor),
            memory_gib=self.decimal("memory_gib", LARGEST_MEMORY_GIB),
            memory_grade=self.member("memory_grade", Grade),
            interconnect=self.member("interconnect", Interconnect),
            compute_capability=self.capability(),
            is_integrated=self.flag("is_integrated"),
            memory_bandwidth_gb_s=self.decimal(bandwidth, 100_000.0) if bandwidth in self.table else None,
            devices_per_node=self.count("devices_per_node", 8),
            aliases=tuple(self.text("aliases", alias) for alias in self.list("aliases")),
            source=self.text("source", self.table["source"]),
            checked=checked.isoformat(),
        )

    def wrong(self, reason: str) -> CatalogueError:
        """The error that names file and entry."""
        return CatalogueError("invalid-catalogue-entry", field=f"{FILE}:{self.name}", reason=reason)

    def text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or value != value.strip():
            raise self.wrong(f"{key} is a text")
        return value

    def member(self, key: str, kind: type[Member]) -> Member:
        value = self.table[key]
        if value not in tuple(kind):
            raise self.wrong(f"{key} is one of {', '.join(kind)}")
        return kind(value)

    def decimal(self, key: str, largest: float) -> float:
        value = self.table[key]
        if not isinstance(value, float) or not 0 < value <= largest:
            raise self.wrong(f"{key} has a decimal point and lies between 0 and {largest:g}")
        return value

    def flag(self, key: str) -> bool:
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(f"{key} is true or false")
        return value

    def count(self, key: str, default: int) -> int:
        value = self.table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
            raise self.wrong(f"{key} is a whole number from 1")
        return value

    def list(self, key: str) -> list[Any]:
        value = self.table.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(f"{key} is a list")
        return value

    def capability(self) -> tuple[int, int] | None:
        if "compute_capability" not in self.table:
            return None
        value = self.list("compute_capability")
        if len(value) != 2 or not all(
            type(part) is int and 0 <= part <= LARGEST_CAPABILITY for part in value
        ):
            raise self.wrong("compute_capability is a list of major and minor")
        return value[0], value[1]


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
