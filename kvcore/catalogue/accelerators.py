"""Accelerators, with the memory that the driver really gives, not the marketing figure."""

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import asdict

from kvcore.base.errors import CatalogueError, checked_text, invalid
from kvcore.base.kept import Keeper
from kvcore.base.quantity import Grade
from kvcore.base.toml_files import file_text
from kvcore.base.words import msg
from kvcore.tables import Record, convert, read_toml, wrong


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    HUAWEI = "huawei"
    OTHER = "other"


class Interconnect(StrEnum):
    """The link between cards of one machine, which decides the communication buffers."""

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
    """CUDA cards only; None if unknown."""
    is_integrated: bool = False
    """Shares its memory with the processor (GB10, Jetson)."""
    is_part: bool = False
    """A slice or a partition of a card, which nobody buys."""
    memory_bandwidth_gb_s: float | None = None
    dense_tflops: float | None = None
    """10^12 operations a second with 16 bits, without sparsity."""
    fp8_dense_tflops: float | None = None
    devices_per_node: int = 8
    driver_total_mib: float | None = None
    """Memory as the driver's tool prints it, where somebody says so."""
    aliases: tuple[str, ...] = ()
    """Names that logs and drivers print."""
    source: str = ""
    checked: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it is called."""
        return (self.id, self.name, f"{self.vendor} {self.name}", *self.aliases)


FILE: Final = "accelerators.toml"
ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LARGEST_MEMORY_GIB: Final = 1024.0
LARGEST_CAPABILITY: Final = 99
Name = Annotated[str, Meta(pattern=r"^\S(.*\S)?$")]
Part = Annotated[int, Meta(ge=0, le=LARGEST_CAPABILITY)]


class CardRow(Record, frozen=True, kw_only=True):
    """One table of the file; accelerators.toml says what each field means."""

    name: Name
    vendor: Vendor
    memory_gib: Annotated[float, Meta(ge=0.01, le=LARGEST_MEMORY_GIB)]
    memory_grade: Grade
    interconnect: Interconnect
    source: Name
    checked: datetime.date
    aliases: tuple[Name, ...] = ()
    compute_capability: tuple[Part, Part] | None = None
    is_integrated: bool = False
    is_part: bool = False
    memory_bandwidth_gb_s: Annotated[float, Meta(ge=0.01, le=100_000.0)] | None = None
    dense_tflops: Annotated[float, Meta(ge=0.1, le=100_000.0)] | None = None
    fp8_dense_tflops: Annotated[float, Meta(ge=0.1, le=100_000.0)] | None = None
    devices_per_node: Annotated[int, Meta(ge=1, le=1024)] = 8

    def card(self, name: str) -> Accelerator:
        """The accelerator with that id."""
        values = asdict(self)
        return Accelerator(id=name, **{**values, "checked": self.checked.isoformat()})


@cache
def load_accelerators() -> tuple[Accelerator, ...]:
    """All bundled accelerators, by vendor and memory.

    Raises CatalogueError `invalid-catalogue-entry` naming file and entry when the file is not as it has to be.
    """
    order = list(Vendor)
    cards = _checked([_card(name) for name in _rows()])
    return tuple(sorted(cards, key=lambda card: (order.index(card.vendor), card.memory_gib, card.id)))


def read_accelerators(text: str) -> tuple[Accelerator, ...]:
    """Accelerators of a TOML text, checked strictly: keys, types, ranges, and that no two are spelt alike."""
    return _checked([_read_card(name, table) for name, table in read_toml(text, FILE).items()])


@cache
def _rows() -> Mapping[str, Any]:
    return read_toml(file_text("kvcore.catalogue", FILE), FILE)


@cache
def _card(name: str) -> Accelerator:
    """One card of the file: a plan of it does not need the others."""
    return _read_card(name, _rows()[name])


ANY_CARD: Final = msg("a name of the catalogue, or give the memory (GiB) of your card")
"""The advice when no name is near."""


def _read_card(name: str, table: Any) -> Accelerator:
    if ID.fullmatch(name) is None:
        raise wrong(f"{FILE}:{name}", "an id has only letters, digits, dots, dashes and underscores")
    row: CardRow = convert(table, CardRow, f"{FILE}:{name}")
    return row.card(name)


def _checked(cards: list[Accelerator]) -> tuple[Accelerator, ...]:
    """The same cards. Raises TableError if two are spelt alike."""
    owners: dict[str, str] = {}
    for card in cards:
        for key in map(spelling, card.names):
            if owners.setdefault(key, card.id) != card.id:
                raise wrong(f"{FILE}:{card.id}", f"{owners[key]} is spelt so too")
    return tuple(cards)


def find_accelerator(text: str) -> Accelerator:
    """The accelerator whose id, name or alias is spelt so, whatever the case and the separators.

    Raises CatalogueError `unknown-accelerator` with near matches.

    Example:
        >>> find_accelerator("NVIDIA H100 80GB HBM3").id, find_accelerator("h100-80gb").id
        ('H100-80GB', 'H100-80GB')
    """
    found = bundled_accelerator(checked_text("accelerator", text)) or spellings().get(spelling(text))
    if found is None:
        ids = {spelling(card.id): card.id for card in load_accelerators()}
        from difflib import get_close_matches

        near = [ids[key] for key in get_close_matches(spelling(text), ids, n=3, cutoff=0.4)]
        raise CatalogueError(
            "unknown-accelerator",
            field="accelerator",
            value=text,
            near=", ".join(near) or ANY_CARD,
        )
    return found


def bundled_accelerator(card_id: str) -> Accelerator | None:
    """The accelerator with exactly this id; None for any other."""
    return _card(card_id) if card_id in _rows() else None


@cache
def spellings() -> Mapping[str, Accelerator]:
    """All ids, names and aliases, as `spelling` writes them."""
    return {key: card for card in load_accelerators() for key in map(spelling, card.names)}


def spelling(text: str) -> str:
    """`text` in the form in which names of cards are compared.

    Example:
        >>> spelling("NVIDIA A100-SXM4-80GB")
        'nvidia-a100-sxm4-80gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", text[:200].lower()).strip("-")


# -- the accelerator that a log or a person describes by memory, vendor and name ---------------------------------

CUSTOM: Final = "custom"
"""The id of a card that is not exactly one of the catalogue."""
MEMORY_TOLERANCE: Final = 0.12
"""Relative difference in memory up to which a named board is recognised: ECC, drivers and WSL2 differ."""
UNNAMED_MEMORY_TOLERANCE: Final = 0.01
"""Relative difference in memory up to which a board without a name is recognised: drivers differ by 0.5 %."""
DRIVER_DIFFERENCE_GIB: Final = 0.40
DRIVER_DIFFERENCE_SHARE: Final = 0.0018
"""How far torch's total is below the driver tool's. Source: accelerators.toml, NVIDIA."""

_NOISE: Final = frozenset(
    "nvidia amd intel huawei geforce tesla instinct generation edition gpu card npu hbm3 hbm2e hbm3e under wsl2 gib"
    " board accelerator".split()
)
_WORD: Final = r"[a-z]+\d*[a-z]*|\d+(?:\.\d+)?(?:gb|gib|mib|g)?"
_SIZE: Final = r"\d+(?:\.\d+)?(?:gb|gib|mib|g)|\d{1,3}(?:\.\d+)?"
"""A word that is a size, not the number of a model such as 4090."""
LONGEST_NAME: Final = 120
_NOT_IN_A_NAME: Final = r"[^\w ./,()+@-]+"
"""Names are shown in markup too: characters that could be read as markup are removed."""
_MARKETED_SIZE: Final = re.compile(r"(?<![\w.])(\d{1,3})\s*GB?\b", re.IGNORECASE)


def checked_name(name: str) -> str:
    """A name that a person gives a card, in single spaces. Raises ScenarioError `invalid-value` for what
    `accelerator_from_facts` would leave out of it.

    Example:
        >>> checked_name("RTX 6090  32GB")
        'RTX 6090 32GB'
    """
    if re.search(_NOT_IN_A_NAME, name):
        raise invalid(
            "accelerator.name", name, "it must be of letters, digits, spaces and . , / ( ) + @ - _ only"
        )
    return " ".join(name.split())


def accelerator_from_facts(memory_gib: float | None, vendor: str | None, name: str | None) -> Accelerator:
    """The card with some of memory, vendor and name.

    Its kind (capability, interconnect, integrated memory) is that of the catalogue entry with most of the name in
    common and near in memory, else of the one nearest in memory; its memory is the given one, or the entry's, or
    the size in the name less the usual difference, both graded assumed. Without any match it is a card of no known
    kind. Raises CatalogueError `unknown-accelerator` when neither a memory nor a name with one is known, and
    `accelerator-not-described` without any name.

    Example:
        >>> card = accelerator_from_facts(79.18, "nvidia", "NVIDIA H100 80GB HBM3")
        >>> card.memory_gib, card.compute_capability, card.interconnect.value
        (79.18, (9, 0), 'nvlink')
    """
    known_vendor = _vendor(vendor)
    name = (
        " ".join(re.sub(_NOT_IN_A_NAME, " ", (name or "")[: 10 * LONGEST_NAME]).split())[:LONGEST_NAME]
        or None
    )
    match = _best_match(memory_gib, known_vendor, name or "")
    if match is not None and memory_gib is None:
        return replace(match, memory_grade=Grade.ASSUMED)
    if match is not None and memory_gib is not None:
        return replace(
            match, id=CUSTOM, name=name or match.name, memory_gib=memory_gib, memory_grade=Grade.MEASURED
        )
    grade = Grade.MEASURED if memory_gib is not None else Grade.ASSUMED
    total_gib = memory_gib if memory_gib is not None else _memory_in_name_gib(name or "")
    if total_gib is None and name is None:
        raise CatalogueError("accelerator-not-described", field="accelerator.name")
    if total_gib is None:
        raise CatalogueError("unknown-accelerator", field="accelerator.name", value=name, near=ANY_CARD)
    return Accelerator(
        id=CUSTOM,
        name=name or f"{total_gib:g} GiB card",
        vendor=known_vendor or Vendor.NVIDIA,
        memory_gib=total_gib,
        memory_grade=grade,
        source="given",
    )


def with_interconnect(card: Accelerator, interconnect: Interconnect) -> Accelerator:
    """`card` with another link to its neighbours; its id becomes `custom`.

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
    if re.fullmatch(_SIZE, word) is not None:
        return False
    return not is_number_needed or any(character.isdigit() for character in word)


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in re.findall(_WORD, text[:200].lower()) if word not in _NOISE)


@cache
def _spelling_words(card: Accelerator) -> tuple[frozenset[str], ...]:
    texts = (card.id.replace("-", " "), card.name, *card.aliases)
    return tuple(words for text in texts if (words := _words(text)))
