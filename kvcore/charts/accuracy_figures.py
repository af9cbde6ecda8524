"""The planner's error on published starts: a scatter as a dict in Plotly's JSON schema, tables as rows of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import DASH, count, error_percent, plain, two_decimals, whole_percent
from kvcore.base.parts import PARTS
from kvcore.base.words import Words
from kvcore.charts import plotting as draw
from kvcore.evidence.accuracy import (
    FITTED,
    IN_GIB,
    Check,
    Peer,
    Point,
    PublishedStart,
    Summary,
    era_order,
    groups,
    held_out,
    mixed,
    ninth_decile,
    of_one_source,
    our_points,
    peer_points,
    release_name,
    summarize,
    widths,
)
from kvcore.flags import FLAGS
from kvcore.texts import LABELS

HEIGHT: Final = 420
NEAR: Final = 0.05
"""Largest relative error with which a point without an interval counts as met."""
SMALLEST_GROUP: Final = 2

CHECK_LABELS: Final = {**{part.name: part.label for part in PARTS}, **LABELS["checks"]}
GROUP_LABELS: Final = LABELS["accuracy-groups"]
SURROUNDING_LABELS: Final = LABELS["surroundings"]


class ErrorRow(Struct, frozen=True, kw_only=True):
    """The errors of one group, as text, in the order of the table."""

    label: str
    count: str
    median: str
    p90: str
    signed: str
    near: str
    inside: str


class LeftOutRow(Struct, frozen=True, kw_only=True):
    """The errors of one check on the same starts, fitted with and without each start's own publication, as text.

    In the order of the table.
    """

    label: str
    median: str
    median_unseen: str
    p90: str
    p90_unseen: str
    p90_gib: str
    """Without the own publication, in GiB."""
    inside: str
    """Without the own publication."""
    count: str
    one_source: str


def left_out_rows(starts: Sequence[PublishedStart], t: Words) -> tuple[LeftOutRow, ...]:
    """A row for each check that rests on fitted constants; `one_source` counts the starts that had to be skipped."""
    rows: list[LeftOutRow] = []
    for check in FITTED:
        points = our_points(starts, check)
        kept = [(point, left) for point in points if (left := point.held_out) is not None]
        fitted, left_out = summarize(point for point, _ in kept), summarize(left for _, left in kept)
        if fitted is None or left_out is None:
            continue
        distances = [
            math.inf if left.predicted is None else abs(left.predicted - left.measured) for _, left in kept
        ]
        rows.append(
            LeftOutRow(
                label=t(CHECK_LABELS[check]),
                count=count(fitted.count),
                median=error_percent(fitted.median, t),
                median_unseen=error_percent(left_out.median, t),
                p90=error_percent(fitted.p90, t),
                p90_unseen=error_percent(left_out.p90, t),
                p90_gib=two_decimals(ninth_decile(distances)),
                inside=_inside(left_out, t),
                one_source=count(of_one_source(starts, check)),
            )
        )
    return tuple(rows)


def _inside(found: Summary, t: Words) -> str:
    return DASH if found.inside is None else whole_percent(found.inside, t)


class CoverageRow(Struct, frozen=True, kw_only=True):
    """How many starts of a group lie inside an interval fitted without their own publication, as text."""

    label: str
    inside: str
    share: str
    width: str
    median: str


def coverage_rows(starts: Sequence[PublishedStart], t: Words) -> tuple[CoverageRow, ...]:
    """A row for all starts, then one for each number of ranks and release era, oldest first."""
    without = held_out(starts)
    rows = []
    eras = sorted(groups(without, "era").items(), key=lambda item: era_order(item[0]))
    for name, group in ((t("All starts"), without), *eras):
        judged = [point for point in our_points(group, Check.KV_MEMORY) if point.interval]
        if not judged:
            continue
        inside = sum(point.is_inside is True for point in judged)
        rows.append(
            CoverageRow(
                label=_group_name(name, t),
                inside=t("{part} of {whole}", part=count(inside), whole=count(len(judged))),
                share=whole_percent(inside / len(judged), t),
                width=error_percent(median(widths(judged)), t),
                median=error_percent(median(abs(point.error) for point in judged), t),
            )
        )
    return tuple(rows)


def _group_name(name: str, t: Words) -> str:
    """The name of a group; one that ends in a question mark has no release."""
    return t("{engine}, release not stated", engine=name[:-2].rstrip(",")) if name.endswith(" ?") else name


def stated_rows(starts: Sequence[PublishedStart], t: Words) -> tuple[tuple[str, str], ...]:
    """How many starts state each surrounding; a link is asked of starts with several cards only."""
    judged = [start for start in starts if Check.KV_MEMORY in start.points]
    rows = []
    for name in ("link", "installation", "host", "driver", "taken_gib"):
        asked = [start for start in judged if name != "link" or start.tensor_parallel_size > 1]
        stated = sum(name in start.surroundings for start in asked)
        label = t(FLAGS[f"surroundings.{name}"].label)
        rows.append((label, t("{part} of {whole}", part=count(stated), whole=count(len(asked)))))
    return tuple(rows)


def surroundings_text(start: PublishedStart, t: Words) -> str:
    """The surroundings that a start's author stated; a dash for none."""
    said = start.surroundings
    names = [t(SURROUNDING_LABELS[value]) for value in said.values() if value in SURROUNDING_LABELS]
    names += [t("driver {driver}", driver=str(said["driver"]))] if "driver" in said else []
    names += [t("{size} GiB taken", size=plain(float(said["taken_gib"])))] if "taken_gib" in said else []
    return " · ".join(names) or DASH


def fit_text(point: Point, t: Words) -> str:
    """Whether the constants were fitted with a point's publication, in words."""
    if not point.is_fitted:
        return t("not in the fit")
    return t("in the fit") if point.left_out is not None else t("in the fit, no other source")


def shown_starts(
    starts: Sequence[PublishedStart], check: Check, *, left_out: bool
) -> Sequence[PublishedStart]:
    """The starts that the page shows for a check: as predicted, or each with its own publication left out."""
    return held_out(starts) if left_out and check in FITTED else starts


def error_row(label: str, found: Summary, t: Words) -> ErrorRow:
    """A summary as text; a start without an answer has an infinite error."""
    answered = count(found.count) if found.answered == found.count else f"{found.answered}/{found.count}"
    return ErrorRow(
        label=label,
        count=answered,
        median=error_percent(found.median, t),
        p90=error_percent(found.p90, t),
        signed=DASH if found.signed_median is None else error_percent(found.signed_median, t, signed=True),
        near=whole_percent(found.within_five_percent, t),
        inside=_inside(found, t),
    )


def _summed(named: Iterable[tuple[str, Sequence[Point]]], t: Words) -> Iterator[tuple[Summary, ErrorRow]]:
    for label, points in named:
        found = summarize(points)
        if found is not None:
            yield found, error_row(label, found, t)


def check_rows(starts: Sequence[PublishedStart], t: Words) -> tuple[ErrorRow, ...]:
    """A row for each check; tokens once more for models of mixed layers alone."""
    named: list[tuple[str, Sequence[Point]]] = []
    for check in Check:
        label = t(CHECK_LABELS[check])
        named.append((label, our_points(starts, check)))
        if check is Check.KV_TOKENS_GIVEN_KV:
            named.append((t("{check}, mixed layers", check=label), our_points(mixed(starts), check)))
    return tuple(row for _, row in _summed(named, t))


def group_rows(starts: Sequence[PublishedStart], check: Check, by: str, t: Words) -> tuple[ErrorRow, ...]:
    """The errors of one check in every group of at least two starts, largest group first, then all other starts
    together."""
    named: list[tuple[str, Sequence[Point]]] = []
    rest: list[Point] = []
    for name, group in groups(starts, by).items():
        points = our_points(group, check)
        if len(points) < SMALLEST_GROUP:
            rest += points
        else:
            named.append((_group_name(name, t), points))
    rows = [row for _, row in sorted(_summed(named, t), key=lambda item: -item[0].count)]
    return (*rows, *(row for _, row in _summed([(t("single starts"), rest)], t)))


class SameStartsRow(Struct, frozen=True, kw_only=True):
    """A tool and this planner on the starts that the tool answered, as text, in the order of the table."""

    label: str
    count: str
    median: str
    our_median: str
    p90: str
    our_p90: str


def same_starts_rows(
    starts: Sequence[PublishedStart], peers: Sequence[Peer], check: Check, t: Words
) -> tuple[SameStartsRow, ...]:
    """A row for each peer that answered any: its errors, and those of this planner on the very same starts, each start
    predicted without its own publication where the check rests on fitted constants."""
    unseen = shown_starts(starts, check, left_out=True)
    rows: list[tuple[int, SameStartsRow]] = []
    for peer in peers:
        both = [start for start in unseen if check in start.points and check in start.peers.get(peer.id, {})]
        theirs, ours = summarize(peer_points(both, check, peer.id)), summarize(our_points(both, check))
        if theirs is None or ours is None:
            continue
        row = SameStartsRow(
            label=peer.name,
            count=count(ours.count),
            median=error_percent(theirs.median, t),
            our_median=error_percent(ours.median, t),
            p90=error_percent(theirs.p90, t),
            our_p90=error_percent(ours.p90, t),
        )
        rows.append((ours.count, row))
    return tuple(row for _, row in sorted(rows, key=lambda item: -item[0]))


def point_name(start: PublishedStart) -> str:
    """The model, engine and card of a start."""
    tensor_parallel = f" TP {start.tensor_parallel_size}" if start.tensor_parallel_size > 1 else ""
    return f"{start.model} · {release_name(start)} · {start.card}{tensor_parallel}"


def scatter(starts: Iterable[PublishedStart], check: Check, t: Words) -> draw.Figure:
    """Predicted against measured on two equal logarithmic axes; on the line both are the same.

    A point outside its interval, or without one more than 5 % off, is an orange diamond. A hollow point is one whose
    publication took part in the fit of its constants.
    """
    shown = [(start, start.points[check]) for start in starts if check in start.points]
    pairs = [(start, point, point.predicted) for start, point in shown if point.predicted is not None]
    pairs = [(start, point, value) for start, point, value in pairs if point.measured > 0 and value > 0]
    values = [number for _, point, value in pairs for number in (point.measured, value)] or [1.0]
    low, high = min(values) / 1.25, max(values) * 1.25
    unit = t("{check}, GiB", check=t(CHECK_LABELS[check])) if check in IN_GIB else t(CHECK_LABELS[check])
    kinds = {
        (True, False): (t("as predicted"), draw.CURRENT_LINE, "circle"),
        (False, False): (t("off the prediction"), draw.CAPACITY, "diamond"),
        (True, True): (t("as predicted, in the fit"), draw.CURRENT_LINE, "circle-open"),
        (False, True): (t("off the prediction, in the fit"), draw.CAPACITY, "diamond-open"),
    }
    drawn = {kind: [one for one in pairs if (_is_met(one[1]), one[1].is_fitted) == kind] for kind in kinds}
    traces = [_points(drawn[kind], *looks, t) for kind, looks in kinds.items() if drawn[kind]]
    equal = draw.scatter(
        "lines", [low, high], [low, high], line=draw.stroke(draw.BUDGET, 1, "dash"), showlegend=False
    )
    ticks = {"dtick": 1 if high / low > 1000 else "D2", "tickformat": ",~s" if high >= 10_000 else "~g"}
    return draw.figure(
        [equal, *traces],
        HEIGHT,
        (64, 12, 34, 52),
        hovermode="closest",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        xaxis=draw.log_axis(low, high, t("measured: {quantity}", quantity=unit), 10, **ticks),
        yaxis=draw.log_axis(low, high, t("predicted"), 6, **ticks),
    )


def _is_met(point: Point) -> bool:
    inside = point.is_inside
    return abs(point.error) <= NEAR if inside is None else inside


def _points(
    pairs: Sequence[tuple[PublishedStart, Point, float]], name: str, color: str, symbol: str, t: Words
) -> draw.Figure:
    outline = {"color": draw.OUTLINE, "width": 2 if symbol.endswith("-open") else 1}
    said = t("measured {x}, predicted {y}", x="%{x:,.5~g}", y="%{y:,.5~g}")
    return draw.scatter(
        "markers",
        [point.measured for _, point, _ in pairs],
        [value for _, _, value in pairs],
        f"%{{text}}<br>{said}<extra></extra>",
        name=name,
        text=[
            f"{point_name(start)}<br>{error_percent(point.error, t, signed=True)}"
            for start, point, _ in pairs
        ],
        marker={"color": color, "symbol": symbol, "size": 9, "opacity": 0.8, "line": outline},
    )


def citation(start: PublishedStart, t: Words) -> str:
    """The source of a start that has no address."""
    version = start.engine_version or t("of an unnamed version")
    return t(
        "published start of {model} on {engine} {version}, {date}",
        model=start.model,
        engine=start.engine,
        version=version,
        date=start.date or t("undated"),
    )
