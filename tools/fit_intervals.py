"""Widths of the KV memory's interval: what publications differ by, and errors as multiples of the parts' uncertainty.

    python tools/accuracy.py --fit      writes `between_gib` and the rows of `factor` in kvcore/memory/intervals.toml

Authors differ in ways that no field says. How far, `between_gib` estimates from the constants that several publications
inform: a random effect, by its median, as a few publications lie far off for reasons of their own. What is left of a
start's residual without it, and without what unknown surroundings span on that side, is its score, as a multiple of
what its parts leave unsure. A cell (vendor, one rank or several, release era, multimodal or not) takes the quantile of
the scores of all publications, each with the weight of its likeness to the cell, and of one more that is further off
than any: the fewer are like it, the wider it is. `judged` fits them without a start's own publication.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
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
from tools.residuals import Residual

TABLE: Final = Path(__file__).resolve().parents[1] / "kvcore" / "memory" / "intervals.toml"
ERAS: Final = tuple(Version(name) for name in ("0.0", "0.11.0", "0.18.0", "0.24.0"))
"""Releases whose budgets, samplers and runners differ most."""
MISSED: Final = 0.15
"""Share of the publications that may lie below the interval, and as much above: few miss on both sides of a cell."""
LEAST: Final = 0.5
"""Least factor of a cell on the uncertainty of the parts."""
COVERED: Final = statistics.NormalDist().inv_cdf(0.9)
"""Half an 80 % interval in standard deviations: 1.2816."""
MEDIAN: Final = 1 / statistics.NormalDist().inv_cdf(0.75)
"""A standard deviation in medians of the distance: 1.4826."""
BETWEEN: Final = "framework"
"""Constants that publications differ in: of the part that takes what no other part explains."""
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


def between_gib(residuals: Mapping[str, Sequence[Residual]]) -> float:
    """Half an 80 % interval of what publications differ by that state the same, in GiB.

    A random effect of the publications on the constants that several of them inform: 1.2816 × 1.4826 × the median of
    |what one publication says of a constant − the median of what the others say|, as of normal errors. 0 where no
    constant has two publications.
    """
    distances = [
        abs(own - statistics.median(said for other, said in effects.items() if other != group))
        for effects in map(_effects, _of_the_framework(residuals))
        if len(effects) > 1
        for group, own in effects.items()
    ]
    return COVERED * MEDIAN * statistics.median(distances) if distances else 0.0


def _of_the_framework(residuals: Mapping[str, Sequence[Residual]]) -> Iterator[Sequence[Residual]]:
    return (items for constant, items in residuals.items() if constant.startswith(BETWEEN))


def _effects(items: Iterable[Residual]) -> dict[str, float]:
    """What each publication says of a constant: the median of the changes that its starts propose."""
    steps: dict[str, list[float]] = defaultdict(list)
    for item in items:
        steps[item.group].append(item.step)
    return {group: statistics.median(values) for group, values in steps.items()}


def factor_at(place: Place, scores: Sequence[Score]) -> tuple[float, float]:
    """Factors on the uncertainty of starts of a place, below and above the prediction."""
    sizes = Counter(score.group for score in scores)
    weights = [likeness(place, score.place) / sizes[score.group] for score in scores]
    less = [_factor(-score.residual - score.reach.below, score.reach) for score in scores]
    more = [_factor(score.residual - score.reach.above, score.reach) for score in scores]
    return _quantile(less, weights), _quantile(more, weights)


def _factor(distance: float, reach: Reach) -> float:
    """The factor with which a start reaches `distance` bytes, of which publications differ by some."""
    beyond = math.sqrt(max(0.0, max(0.0, distance) ** 2 - reach.between**2))
    return beyond / reach.estimates if beyond else 0.0


def _quantile(values: Iterable[float], weights: Sequence[float]) -> float:
    """The least of `values` that leaves no more than `MISSED` of the weight above it, with `UNSEEN` beyond all."""
    wanted, seen, found = (1 - MISSED) * (sum(weights) + UNSEEN), 0.0, 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        if seen >= wanted:
            break
        seen, found = seen + weight, value
    return max(LEAST, found)


def judged(
    scores: Sequence[Score], between: Mapping[str, float]
) -> Iterator[tuple[Score, tuple[float, float]]]:
    """Each start with the ends of its interval as offsets from its prediction, its own publication left out.

    `between`: what the other publications differ by, in bytes, for each publication.
    """
    for group in dict.fromkeys(score.group for score in scores):
        own = [score for score in scores if score.group == group]
        yield from judged_by(own, [score for score in scores if score.group != group], between[group])


def judged_by(
    scores: Iterable[Score], others: Sequence[Score], between: float
) -> Iterator[tuple[Score, tuple[float, float]]]:
    """Each start with the ends of its interval as offsets from its prediction, fitted on `others` alone, whose
    publications differ by `between` bytes.

    By the row that the table has for it, which need not tell its era and kind apart.
    """
    kept: dict[Place, tuple[float, float]] = {}
    known = [with_between(score, between) for score in others]
    for score in scores:
        row = row_of(score.place)
        if row not in kept:
            kept[row] = factor_at(row, known)
        less, more = kept[row]
        reach = with_between(score, between).reach
        yield score, interval_of(0.0, reach, FactorRow(less=less, more=more, publications=0))


def with_between(score: Score, between: float) -> Score:
    """The score with what publications differ by, in bytes; nothing where a start's parts are given."""
    return changed(score, reach=score.reach._replace(between=between if score.reach.between else 0.0))


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


def write(scores: Sequence[Score], between: float) -> None:
    """Put what publications differ by, in GiB, and the fitted rows in place of those of the table."""
    text = TABLE.read_text("utf-8")
    head = re.sub(
        r"(?m)^between_gib = .*$", f"between_gib = {between:.3f}", text[: text.index("\n[[factor]]")]
    )
    known = [with_between(score, round(between, 3) * GIB) for score in scores]
    TABLE.write_text(head + text_of(known), encoding="utf-8")
