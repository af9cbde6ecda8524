"""The accelerator that a log or a person describes by memory, vendor and name."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Final

from kvcore.catalogue.accelerators import (
    Accelerator,
    Interconnect,
    Vendor,
    load_accelerators,
    spelling,
    spellings,
)
from kvcore.errors import CatalogueError
from kvcore.quantity import Grade

CUSTOM: Final = "custom"
"""The id of a card that is not exactly one of the catalogue."""
MEMORY_TOLERANCE: Final = 0.12
"""A named board is recognised when its memory is that near the catalogue's, in parts of it: ECC, drivers and WSL2
differ."""
UNNAMED_MEMORY_TOLERANCE: Final = 0.01
"""A board without a usable name is taken for the kind whose memory is that near: drivers differ by half a per cent."""
DRIVER_DIFFERENCE_GIB: Final = 0.40
DRIVER_DIFFERENCE_SHARE: Final = 0.0018
"""What torch reports is that much below the driver tool's figure. Source: accelerators.toml, NVIDIA."""

_NOISE: Final = frozenset(
    "nvidia amd intel huawei geforce tesla instinct generation edition gpu card npu hbm3 hbm2e hbm3e under wsl2 gib"
    " board accelerator".split()
)
_WORD: Final = re.compile(r"[a-z]+\d*[a-z]*|\d+(?:\.\d+)?(?:gb|gib|mib|g)?")
_SIZE: Final = re.compile(r"\d+(?:\.\d+)?(?:gb|gib|mib|g)|\d{1,3}(?:\.\d+)?")
"""A word that is a size, not the number of a model such as 4090."""
LONGEST_NAME: Final = 120
_NOT_IN_A_NAME: Final = re.compile(r"[^\w ./,()+@-]+")
"""A name is shown wherever its card is, in markup too: what could be read as markup is left out of it."""
_MARKETED_SIZE: Final = re.compile(r"(?<![\w.])(\d{1,3})\s*GB?\b", re.IGNORECASE)


def accelerator_from_facts(memory_gib: float | None, vendor: str | None, name: str | None) -> Accelerator:
    """The card with some of memory, vendor and name.

    Its kind (capability, interconnect, integrated memory) is that of the catalogue entry with most of the name in
    common and near in memory, else of the one nearest in memory; its memory is the given one, or the entry's, or
    the size in the name less the usual difference, both graded assumed. Without any match it is a card of no known
    kind. Raises CatalogueError `unknown-accelerator` when neither a memory nor a name with one is known.

    Example:
        >>> card = accelerator_from_facts(79.18, "nvidia", "NVIDIA H100 80GB HBM3")
        >>> card.memory_gib, card.compute_capability, card.interconnect.value
        (79.18, (9, 0), 'nvlink')
    """
    known_vendor = _vendor(vendor)
    name = " ".join(_NOT_IN_A_NAME.sub(" ", (name or "")[: 10 * LONGEST_NAME]).split())[:LONGEST_NAME] or None
    match = _best_match(memory_gib, known_vendor, name or "")
    if match is not None and memory_gib is None:
        return replace(match, memory_grade=Grade.ASSUMED)
    if match is not None and memory_gib is not None:
        return replace(
            match, id=CUSTOM, name=name or match.name, memory_gib=memory_gib, memory_grade=Grade.MEASURED
        )
    grade = Grade.MEASURED if memory_gib is not None else Grade.ASSUMED
    total_gib = memory_gib if memory_gib is not None else _memory_in_name_gib(name or "")
    if total_gib is None:
        raise CatalogueError(
            "unknown-accelerator",
            field="accelerator.name",
            value=name,
            near="one of the catalogue, or give memory_gib",
        )
    return Accelerator(
        id=CUSTOM,
        name=name or f"{total_gib:g} GiB card",
        vendor=known_vendor or Vendor.NVIDIA,
        memory_gib=total_gib,
        memory_grade=grade,
        source="given",
    )


def with_interconnect(card: Accelerator, interconnect: Interconnect) -> Accelerator:
    """`card` linked to its neighbours in another way: no longer exactly the catalogue's.

    Example:
        >>> card = accelerator_from_facts(79.18, "nvidia", "NVIDIA H100 80GB HBM3")
        >>> with_interconnect(card, Interconnect.PCIE).interconnect.value
        'pcie'
    """
    if card.interconnect is interconnect:
        return card
    return replace(card, id=CUSTOM, interconnect=interconnect)


def _vendor(text: str | None) -> Vendor | None:
    if not text:
        return None
    return Vendor(text.lower()) if text.lower() in tuple(Vendor) else Vendor.OTHER


def _memory_in_name_gib(name: str) -> float | None:
    found = _MARKETED_SIZE.search(name)
    if found is None or int(found[1]) == 0:
        return None
    driver_gib = int(found[1])
    return round(driver_gib - (DRIVER_DIFFERENCE_GIB + DRIVER_DIFFERENCE_SHARE * driver_gib), 2)


def _best_match(memory_gib: float | None, vendor: Vendor | None, name: str) -> Accelerator | None:
    named = _best_named(memory_gib, vendor, name)
    if named is not None or memory_gib is None:
        return named
    kind = vendor or Vendor.NVIDIA
    same = [card for card in load_accelerators() if card.vendor is kind and card.memory_grade is Grade.EXACT]
    if not same:
        return None
    nearest = min(same, key=lambda card: (abs(card.memory_gib - memory_gib), card.id))
    is_near = abs(nearest.memory_gib - memory_gib) <= UNNAMED_MEMORY_TOLERANCE * memory_gib
    return nearest if is_near or kind is Vendor.HUAWEI else None


def _best_named(memory_gib: float | None, vendor: Vendor | None, name: str) -> Accelerator | None:
    """The card with most words in common: any word where the memory is near, the model's number where it is unknown."""
    words = _words(name)
    exact = spellings().get(spelling(name))
    best: tuple[float, Accelerator] | None = None
    for card in load_accelerators():
        gap = abs(card.memory_gib - memory_gib) / card.memory_gib if memory_gib is not None else 0.0
        if gap > MEMORY_TOLERANCE or (vendor is not None and card.vendor is not vendor):
            continue
        known = _spelling_words(card)
        common = frozenset[str]().union(*(words & spelt for spelt in known))
        is_number_needed = memory_gib is None and card is not exact
        if not any(_tells_cards_apart(word, is_number_needed) for word in common):
            continue
        share = max(len(words & spelt) / len(words | spelt) for spelt in known)
        score = share + (1.0 if card is exact else 0.0) - gap
        if best is None or score > best[0]:
            best = (score, card)
    return None if best is None else best[1]


def _tells_cards_apart(word: str, is_number_needed: bool) -> bool:
    if _SIZE.fullmatch(word) is not None:
        return False
    return not is_number_needed or any(character.isdigit() for character in word)


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(text[:200].lower()) if word not in _NOISE)


@cache
def _spelling_words(card: Accelerator) -> tuple[frozenset[str], ...]:
    texts = (card.id.replace("-", " "), card.name, *card.aliases)
    return tuple(words for text in texts if (words := _words(text)))
