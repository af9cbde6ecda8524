"""Accelerators: what the driver really gives, never the marketing figure."""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from kvcore.errors import CatalogueError
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
class Accelerator:
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
ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIRED: Final = frozenset(
    ("name", "vendor", "memory_gib", "memory_grade", "interconnect", "source", "checked")
)
_OPTIONAL: Final = frozenset(
    ("aliases", "compute_capability", "is_integrated", "memory_bandwidth_gb_s", "devices_per_node")
)
LARGEST_MEMORY_GIB: Final = 1024.0


@cache
def load_accelerators() -> tuple[Accelerator, ...]:
    """All bundled accelerators, by vendor and memory.

    Raises CatalogueError `catalogue-entry` naming file and entry when the file is not as it has to be.
    """
    text = files("kvcore.catalogue").joinpath(FILE).read_text("utf-8")
    cards = read_accelerators(text)
    order = list(Vendor)
    return tuple(sorted(cards, key=lambda card: (order.index(card.vendor), card.memory_gib, card.id)))


def read_accelerators(text: str) -> tuple[Accelerator, ...]:
    """Accelerators of a TOML text, checked strictly."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError("catalogue-entry", field=FILE, reason=str(error)) from None
    return tuple(_read_entry(name, table) for name, table in tables.items())


def _read_entry(name: str, table: Mapping[str, Any]) -> Accelerator:
    def refuse(reason: str) -> CatalogueError:
        return CatalogueError("catalogue-entry", field=f"{FILE}:{name}", reason=reason)

    if not isinstance(table, dict) or ID.fullmatch(name) is None:
        raise refuse("an id has only letters, digits, dots, dashes and underscores")
    if missing := _REQUIRED - table.keys():
        raise refuse(f"missing {', '.join(sorted(missing))}")
    if unknown := table.keys() - _REQUIRED - _OPTIONAL:
        raise refuse(f"unknown {', '.join(sorted(unknown))}")
    memory_gib = table["memory_gib"]
    if not isinstance(memory_gib, float) or not 0 < memory_gib <= LARGEST_MEMORY_GIB:
        raise refuse("memory_gib is a number of GiB with a decimal point")
    if not isinstance(table["checked"], datetime.date) or not str(table["source"]).strip():
        raise refuse("source is a text and checked a date")
    capability = table.get("compute_capability")
    try:
        return Accelerator(
            id=name,
            name=table["name"],
            vendor=Vendor(table["vendor"]),
            memory_gib=memory_gib,
            memory_grade=Grade(table["memory_grade"]),
            interconnect=Interconnect(table["interconnect"]),
            compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
            is_integrated=table.get("is_integrated", False),
            memory_bandwidth_gb_s=table.get("memory_bandwidth_gb_s"),
            devices_per_node=table.get("devices_per_node", 8),
            aliases=tuple(table.get("aliases", ())),
            source=table["source"],
            checked=table["checked"].isoformat(),
        )
    except (ValueError, TypeError, IndexError) as error:
        raise refuse(str(error)) from None


def find_accelerator(text: str) -> Accelerator:
    """The accelerator with this id, or whose alias or name is spelt so.

    Raises CatalogueError `unknown-accelerator` with near matches.

    Example:
        >>> find_accelerator("NVIDIA H100 80GB HBM3").id, find_accelerator("h100-80gb").id
        ('H100-80GB', 'H100-80GB')
    """
    found = _spellings().get(_normal(text))
    if found is None:
        near = difflib.get_close_matches(text, [card.id for card in load_accelerators()], n=3, cutoff=0.4)
        raise CatalogueError(
            "unknown-accelerator", field="accelerator", value=text, near=", ".join(near) or "the catalogue"
        )
    return found


@cache
def _spellings() -> Mapping[str, Accelerator]:
    spellings: dict[str, Accelerator] = {}
    for pick in (
        lambda card: card.aliases,
        lambda card: (card.name, f"{card.vendor} {card.name}"),
        lambda card: (card.id,),
    ):
        for card in load_accelerators():
            spellings |= {_normal(spelling): card for spelling in pick(card)}
    return spellings


_NOISE: Final = frozenset(
    ("nvidia", "amd", "intel", "huawei", "geforce", "tesla", "instinct", "generation", "edition", "gpu", "card", "npu", "hbm3", "hbm2e", "hbm3e", "under", "wsl2", "gib")
)  # fmt: skip
_WORD: Final = re.compile(r"[a-z]+\d*[a-z]*|\d+(?:\.\d+)?(?:gb|mib|g)?")


def _normal(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(text.lower()) if word not in _NOISE)


MEMORY_TOLERANCE: Final = 0.12
"""A named board is recognised when its memory is that near the catalogue's, in parts of it: ECC, drivers and WSL2
differ."""
UNNAMED_MEMORY_TOLERANCE: Final = 0.01
"""A board without a usable name is taken for the kind whose memory is that near: drivers differ by half a per cent."""


@lru_cache(maxsize=1024)
def accelerator_from_facts(memory_gib: float | None, vendor: str | None, name: str | None) -> Accelerator:
    """The card that a log describes by some of memory, vendor and name.

    The kind (capability, interconnect, integrated memory) is that of the catalogue entry with most words of the name
    in common and near in memory, else of the one nearest in memory; the memory is the given one, or the entry's,
    graded assumed. Without any match: a generic card. Raises CatalogueError `unknown-accelerator` when there is
    neither a memory nor a known name.

    Example:
        >>> card = accelerator_from_facts(79.18, "nvidia", "NVIDIA H100 80GB HBM3")
        >>> card.memory_gib, card.compute_capability, card.interconnect.value
        (79.18, (9, 0), 'nvlink')
    """
    match = _best_match(memory_gib, vendor, name or "")
    if match is None:
        known_vendor = vendor.lower() if vendor and vendor.lower() in tuple(Vendor) else None
        if memory_gib is None:
            raise CatalogueError(
                "unknown-accelerator",
                field="accelerator.name",
                value=name,
                near="the catalogue, or give memory_gib",
            )
        return Accelerator(
            id="custom",
            name=name or f"{memory_gib:g} GiB card",
            vendor=Vendor(known_vendor or Vendor.NVIDIA),
            memory_gib=memory_gib,
            memory_grade=Grade.MEASURED,
            source="given",
        )
    if memory_gib is None:
        return replace(match, memory_grade=Grade.ASSUMED)
    return replace(
        match, id="custom", name=name or match.name, memory_gib=memory_gib, memory_grade=Grade.MEASURED
    )


def _best_match(memory_gib: float | None, vendor: str | None, name: str) -> Accelerator | None:
    exact = _spellings().get(_normal(name))
    words = _words(name)
    best: tuple[float, Accelerator] | None = None
    for card in load_accelerators():
        if vendor is not None and vendor.lower() in tuple(Vendor) and card.vendor != vendor.lower():
            continue
        gap = abs(card.memory_gib - memory_gib) / card.memory_gib if memory_gib is not None else 0.0
        if gap > MEMORY_TOLERANCE:
            continue
        common = max(
            len(words & spelling) / len(words | spelling) if spelling else 0.0
            for spelling in _spelling_words(card)
        )
        distinctive = words & frozenset().union(*_spelling_words(card)) - _sizes(words)
        if not distinctive:
            continue
        score = common + (1.0 if card is exact else 0.0) - gap
        if best is None or score > best[0]:
            best = (score, card)
    if best is not None:
        return best[1]
    if memory_gib is None:
        return None
    kind = Vendor.HUAWEI if vendor is not None and vendor.lower() == Vendor.HUAWEI else Vendor.NVIDIA
    same = [card for card in load_accelerators() if card.vendor is kind and card.memory_grade is Grade.EXACT]
    nearest = min(same, key=lambda card: (abs(card.memory_gib - memory_gib), card.id))
    near = abs(nearest.memory_gib - memory_gib) <= UNNAMED_MEMORY_TOLERANCE * memory_gib
    return nearest if near or kind is Vendor.HUAWEI else None


def _sizes(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if re.fullmatch(r"\d+(?:\.\d+)?(?:gb|mib|g)?", word))


@cache
def _spelling_words(card: Accelerator) -> tuple[frozenset[str], ...]:
    return tuple(_words(spelling) for spelling in (card.id.replace("-", " "), card.name, *card.aliases))
