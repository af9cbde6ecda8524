"""Conformal factors of the KV memory's interval: errors of published starts as multiples of the parts' uncertainty.

    python tools/accuracy.py --fit      writes the rows of `factor` in kvcore/memory/intervals.toml

A start's score is its residual, less what unknown surroundings span on that side, over what its parts leave unsure.
A cell (vendor, one rank or several, release era, multimodal or not) takes the quantile of the scores of all
publications, each with the weight of its likeness to the cell, and of one more that is further off than any: the fewer
are like it, the wider it is. `judged` fits them without a start's own publication.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from kvcore.base.parts import ACTIVATIONS, CUDA_GRAPHS, FRAMEWORK, WEIGHTS
from kvcore.base.quantity import Grade
from kvcore.base.units import GIB
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.setting import setting_of
from kvcore.memory.budget import ASSUMED_TOTAL_SPREAD
from kvcore.memory.intervals import Cell, FactorRow, Ranks, Reach, cell_of, interval_of, reach_of
from kvcore.planning import Plan

TABLE: Final = Path(__file__).resolve().parents[1] / "kvcore" / "memory" / "intervals.toml"
ERAS: Final = tuple(Version(name) for name in ("0.0", "0.11.0", "0.18.0", "0.24.0"))
"""Releases whose budgets, samplers and runners differ most."""
MISSED: Final = 0.15
"""Share of the publications that may lie below the interval, and as much above: few miss on both sides of a cell."""
LEAST: Final = 0.55
"""Least factor of a cell on the uncertainty of the parts."""
OTHER_VENDOR, OTHER_RANKS, OTHER_KIND, NEXT_ERA, OTHER_ERA = 0.15, 0.15, 0.4, 0.4, 0.2
"""Weight of a publication of another cell, by the kind of difference."""
UNSEEN: Final = 0.25
"""Publications that lie further off than any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A cell of the table; None matches any."""

    vendor: Vendor | None
    ranks: Ranks
    multimodal: bool | None
    era: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The factors that one start needs."""

    id: str
    group: str
    """Its publication."""
    place: Place
    residual: float
    """Measured − predicted, in bytes."""
    reach: Reach


def era_of(version: Version) -> int:
    """The release era, by its place in `ERAS`."""
    return max(index for index, since in enumerate(ERAS) if since <= version)


def place_of(cell: Cell) -> Place:
    """The cell of a start."""
    return Place(vendor=cell.vendor, ranks=cell.ranks, multimodal=cell.multimodal, era=era_of(cell.version))


def score_of(start: Mapping[str, Any], planned: Plan, change_gib: float = 0.0) -> Iterator[Score]:
    """The score of a start whose KV memory may fairly be compared; `change_gib` is added to its prediction."""
    if "kv_gib" not in start["checks"] or planned.memory is None:
        return
    memory, scenario = planned.memory, planned.scenario
    setting = setting_of(scenario, planned.architecture, planned.resolved, planned.accelerator, planned.stage)
    parts = {
        WEIGHTS.field: memory.weights,
        ACTIVATIONS.field: memory.activations,
        FRAMEWORK.field: memory.framework,
        CUDA_GRAPHS.field: memory.counted_graphs,
    }
    measured = start["measured"]["available_kv_gib"]
    is_assumed = planned.accelerator.memory_grade is Grade.ASSUMED
    yield Score(
        id=start["id"],
        group=start["group"],
        place=place_of(cell_of(setting)),
        residual=(measured - change_gib) * GIB - memory.available_kv.value,
        reach=reach_of(setting, parts, ASSUMED_TOTAL_SPREAD * GIB if is_assumed else 0.0),
    )


def likeness(place: Place, other: Place) -> float:
    """Weight of a start of `other` for `place`, from 0 to 1."""
    found = 1.0
    if place.vendor != other.vendor:
        found *= OTHER_VENDOR
    if place.ranks != other.ranks:
        found *= OTHER_RANKS
    if place.multimodal not in (None, other.multimodal):
        found *= OTHER_KIND
    if place.era is not None and other.era is not None and place.era != other.era:
        found *= NEXT_ERA if abs(place.era - other.era) == 1 else OTHER_ERA
    return found


def factor_at(place: Place, scores: Sequence[Score]) -> tuple[float, float]:
    """Factors on the uncertainty of starts of a place, below and above the prediction."""
    sizes = Counter(score.group for score in scores)
    weights = [likeness(place, score.place) / sizes[score.group] for score in scores]
    less = [max(0.0, -score.residual - score.reach.below) / score.reach.estimates for score in scores]
    more = [max(0.0, score.residual - score.reach.above) / score.reach.estimates for score in scores]
    return _quantile(less, weights), _quantile(more, weights)


def _quantile(values: Iterable[float], weights: Sequence[float]) -> float:
    """The least of `values` that leaves no more than `MISSED` of the weight above it, with `UNSEEN` beyond all."""
    wanted, seen, found = (1 - MISSED) * (sum(weights) + UNSEEN), 0.0, 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        if seen >= wanted:
            break
        seen, found = seen + weight, value
    return max(LEAST, found)


def judged(scores: Sequence[Score]) -> Iterator[tuple[Score, tuple[float, float]]]:
    """Each start with the ends of its interval as offsets from its prediction, its own publication left out.

    By the row that the table has for it, which need not tell its era and kind apart.
    """
    kept: dict[tuple[str, Place], tuple[float, float]] = {}
    for score in scores:
        key = score.group, row_of(score.place)
        if key not in kept:
            kept[key] = factor_at(key[1], [other for other in scores if other.group != score.group])
        less, more = kept[key]
        yield score, interval_of(0.0, score.reach, FactorRow(less=less, more=more, publications=0))


def places() -> Iterator[Place]:
    """The cells of the table: by era and kind where most starts are, then the other vendors, then any."""
    ranks: tuple[Ranks, ...] = ("one", "several")
    for number, kind, era in product(ranks, (False, True), reversed(range(len(ERAS)))):
        yield Place(vendor=Vendor.NVIDIA, ranks=number, multimodal=kind, era=era)
    for vendor, number in product((Vendor.AMD, Vendor.HUAWEI, None), ranks):
        yield Place(vendor=vendor, ranks=number, multimodal=None, era=None)


def row_of(place: Place) -> Place:
    """The first of `places` that a start belongs to, as the table is read."""
    return next(
        row
        for row in places()
        if row.vendor in (None, place.vendor)
        and row.ranks == place.ranks
        and row.multimodal in (None, place.multimodal)
        and (row.era is None or (place.era is not None and row.era <= place.era))
    )


def text_of(scores: Sequence[Score]) -> str:
    """The rows of `factor`."""
    lines = []
    for place in places():
        less, more = factor_at(place, scores)
        own = len({score.group for score in scores if likeness(place, score.place) == 1.0})
        lines.append("\n[[factor]]")
        if place.vendor is not None:
            lines.append(f'vendor = "{place.vendor.value}"')
        lines.append(f'ranks = "{place.ranks}"')
        if place.multimodal is not None:
            lines.append(f"multimodal = {str(place.multimodal).lower()}")
        if place.era:
            lines.append(f'since = "{ERAS[place.era]}"')
        lines += [f"less = {less:.2f}", f"more = {more:.2f}", f"publications = {own}"]
    return "\n".join(lines) + "\n"


def write(scores: Sequence[Score]) -> None:
    """Put the fitted rows in place of those of the table."""
    text = TABLE.read_text("utf-8")
    TABLE.write_text(text[: text.index("\n[[factor]]")] + text_of(scores), encoding="utf-8")
