"""Concurrency by context length, as a plain dict in Plotly's JSON schema: `{"data": [...], "layout": {...}}`.

Scales are fixed and lines are named where they begin, because a figure is remounted whenever its data change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from kvcore.advice.curve import ConcurrencyCurve
from kvcore.planning import Plan
from kvcore.texts.palette import (
    BUDGET,
    CAPACITY,
    CURRENT_LINE,
    OPERATING_POINT,
    OTHER_LINE,
    POINT_GROUND,
    POINT_TEXT,
    WARNING_GROUND,
    WARNING_TEXT,
)
from kvcore.texts.words import Words, concurrency_text, count, short_tokens

Figure: TypeAlias = dict[str, Any]

CURVE_HEIGHT: Final = 380
DASHES: Final = ("dot", "dashdot", "dash", "longdash", "longdashdot")
MAX_MARKS: Final = 8
"""Lengths named on the axis: more run into each other on a phone."""
LINE_NAME_PIXELS: Final = 20
"""Names closer than this would run into each other."""
SHORTEST_CURVE_LENGTH: Final = 512


def curve_lengths(plan: Plan) -> tuple[int, ...]:
    """The lengths at which the curve is drawn: powers of two, the model's limit and the length that is planned."""
    limit, now = plan.resolved.derived_max_model_len, plan.resolved.max_model_len
    top = max(2 * limit, 2 * now, 32768)
    powers = [1 << power for power in range(9, 25) if 1 << power <= top]
    return tuple(sorted({*powers, now, *((limit,) if limit >= SHORTEST_CURVE_LENGTH else ())}))


def concurrency_chart(plan: Plan, curves: Sequence[ConcurrencyCurve], t: Words) -> Figure:
    """Requests of each length that fit at once: one line per tensor parallel size, log-log.

    Below one the start fails: that zone is tinted, hatched and labelled. The band is the 80 % interval of the parts
    that are fitted. A model that keeps nothing of a request has no line.
    """
    now, seats = plan.resolved.max_model_len, plan.resolved.max_num_seqs
    lengths = curve_lengths(plan)
    size = plan.scenario.parallel.tensor_parallel_size
    drawn = [curve for curve in curves if 0 < max(curve.concurrency, default=0) < math.inf]
    present = next((curve for curve in drawn if curve.tensor_parallel_size == size), None)
    peak = max([value for curve in drawn for value in curve.concurrency] + [float(seats)])
    low, high = 0.2, 10 ** (math.ceil(math.log10(peak * 1.6) * 2) / 2)
    left, right = min(lengths) * 0.9, max(lengths)
    data: list[Figure] = [_out_of_memory_zone(left, right, low)]
    if present is not None:
        data.append(_band(present, low))
    others = [curve for curve in drawn if curve is not present]
    data += [_curve_line(curve, DASHES[index % len(DASHES)], t, low) for index, curve in enumerate(others)]
    notes = _line_names(drawn, present, low, high)
    if present is not None:
        data.append(_curve_line(present, "solid", t, low, current=True))
    if plan.cache is not None and plan.cache.max_concurrency > 0:
        data.append(_operating_point(now, plan.cache.max_concurrency, t))
        notes.append(
            _tag(
                now,
                max(plan.cache.max_concurrency, low * 1.4),
                t("now: {count}", count=concurrency_text(plan.cache.max_concurrency)),
                xanchor="left" if now * 4 < right else "right",
            )
        )
    limit = plan.resolved.derived_max_model_len
    shows_limit = left < limit < right
    seats_end = limit if shows_limit and limit > right / 8 else right
    notes += [
        _warning(left, 0.9, t("OOM at start: not even one request fits")),
        _note(seats_end, seats, f"max_num_seqs {count(seats)}", xanchor="right", yanchor="bottom", xshift=-4),
    ]  # fmt: skip
    shapes = [_rule(left, right, seats, seats, "dash"), _rule(left, right, 1, 1, "solid", CAPACITY)]
    if shows_limit:
        shapes.append(_rule(limit, limit, low, high, "dot"))
        notes.append(
            _note(
                limit,
                high,
                t("model limit {tokens}", tokens=short_tokens(limit)),
                xanchor="right",
                yanchor="top",
                xshift=-4,
            )
        )
    return {"data": data, "layout": _curve_layout(lengths, left, right, low, high, shapes, notes, t)}


class LengthMark(NamedTuple):
    """A percentile of the real requests: its length, and how many such requests fit at once."""

    name: str
    tokens: int
    requests: float


CROWDED: Final = 1.2
"""Marks closer than this factor share one label."""


def with_length_marks(chart: Figure, marks: Sequence[LengthMark]) -> Figure:
    """The concurrency chart with the percentiles of the real requests on its present line."""
    drawn = [mark for mark in marks if mark.requests > 0]
    if not drawn:
        return chart
    names = [
        mark.name if after is None or after.tokens > CROWDED * mark.tokens else ""
        for mark, after in zip(drawn, [*drawn[1:], None], strict=True)
    ]
    trace: Figure = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [mark.tokens for mark in drawn],
        "y": [mark.requests for mark in drawn],
        "text": [f"<b>{name}</b>" if name else "" for name in names],
        "textposition": "top right",
        "marker": {"symbol": "triangle-down", "size": 11, "color": OPERATING_POINT,
                   "line": {"color": "#222222", "width": 1}},
        "hovertemplate": [f"{mark.name}: {count(mark.tokens)} → {concurrency_text(mark.requests)}<extra></extra>"
                          for mark in drawn],
        "cliponaxis": False,
    }  # fmt: skip
    return {**chart, "data": [*chart["data"], trace]}


def _curve_layout(
    lengths: tuple[int, ...],
    left: float,
    right: float,
    low: float,
    high: float,
    shapes: list[Figure],
    notes: list[Figure],
    t: Words,
) -> Figure:
    marks = [1 << power for power in range(9, 25) if left <= 1 << power <= right]
    marks = marks[:: -(-len(marks) // MAX_MARKS)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    crowded = math.log10(high / low) > 4.2
    heights = [step * 10.0**decade for decade in decades for step in ((1, 3) if crowded else (1, 2, 5))]
    heights = [height for height in heights if low <= height <= high]
    return {
        "height": CURVE_HEIGHT,
        "margin": {"l": 56, "r": 62, "t": 12, "b": 48},
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "xaxis": {
            "type": "log",
            "range": [math.log10(left), math.log10(right)],
            "fixedrange": True,
            "tickvals": marks,
            "ticktext": [short_tokens(mark) for mark in marks],
            "tickangle": 0,
            "title": {"text": t("context length (tokens)"), "standoff": 8},
            "showgrid": False,
        },
        "yaxis": {
            "type": "log",
            "range": [math.log10(low), math.log10(high)],
            "fixedrange": True,
            "tickvals": heights,
            "ticktext": [f"{height:,g}" for height in heights],
            "title": {"text": t("requests at once, per replica"), "standoff": 8},
            "zeroline": False,
        },
        "shapes": shapes,
        "annotations": notes,
    }


def _out_of_memory_zone(left: float, right: float, low: float) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [left, right, right, left],
        "y": [1, 1, low, low],
        "fill": "toself",
        "fillcolor": "rgba(213,94,0,0.16)",
        "fillpattern": {"shape": "/", "fgcolor": "rgba(213,94,0,0.45)", "bgcolor": "rgba(213,94,0,0.12)", "size": 9,
                        "solidity": 0.2},
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": "oom",
    }  # fmt: skip


def _band(curve: ConcurrencyCurve, low: float) -> Figure:
    upper = [max(value, low / 10) for value in curve.high]
    lower = [max(value, low / 10) for value in curve.low]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*curve.lengths, *reversed(curve.lengths)],
        "y": [*upper, *reversed(lower)],
        "fill": "toself",
        "fillcolor": "rgba(0,114,178,0.30)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": "interval",
    }


def _curve_line(curve: ConcurrencyCurve, dash: str, t: Words, low: float, *, current: bool = False) -> Figure:
    name = f"TP {curve.tensor_parallel_size}"
    points = [(x, y) for x, y in zip(curve.lengths, curve.concurrency, strict=True) if y > low / 10]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {
            "color": CURRENT_LINE if current else OTHER_LINE,
            "width": 2.5 if current else 1.5,
            "dash": dash,
        },
        "text": [
            t("{name}: {count} requests of {tokens} tokens", name=name, count=concurrency_text(y), tokens=count(x))
            for x, y in points
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _line_names(
    drawn: Sequence[ConcurrencyCurve], present: ConcurrencyCurve | None, low: float, high: float
) -> list[Figure]:
    """The names of the lines, outside the right edge where they end; lines that end together share one."""
    apart = math.log10(high / low) * LINE_NAME_PIXELS / CURVE_HEIGHT
    groups: list[list[ConcurrencyCurve]] = []
    for curve in sorted(drawn, key=lambda curve: curve.concurrency[-1]):
        end = max(curve.concurrency[-1], low)
        if groups and math.log10(end / max(groups[-1][0].concurrency[-1], low)) < apart:
            groups[-1].append(curve)
        else:
            groups.append([curve])
    return [
        _note(
            group[0].lengths[-1],
            max(group[0].concurrency[-1], low),
            "TP " + ", ".join(str(curve.tensor_parallel_size) for curve in group),
            xanchor="left",
            yanchor="middle" if group[0].concurrency[-1] > low else "bottom",
            xshift=5,
            bold=present in group,
        )
        for group in groups
    ]


def _operating_point(length: int, concurrency: float, t: Words) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "now",
        "x": [length],
        "y": [concurrency],
        "marker": {
            "symbol": "diamond",
            "size": 14,
            "color": OPERATING_POINT,
            "line": {"color": "#222222", "width": 1},
        },
        "text": [t("now: {count}", count=concurrency_text(concurrency))],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _rule(x0: float, x1: float, y0: float, y1: float, dash: str, color: str = BUDGET) -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "yref": "y",
        "x0": x0,
        "x1": x1,
        "y0": y0,
        "y1": y1,
        "line": {"color": color, "dash": dash, "width": 1.5},
    }


def _tag(x: float, y: float, text: str, xanchor: str) -> Figure:
    # Lines fall to the right: the free sides of a point are above right and below left.
    side = 1 if xanchor == "left" else -1
    yanchor = "bottom" if side > 0 else "top"
    note = _note(x, y, text, xanchor=xanchor, yanchor=yanchor, xshift=9 * side, yshift=5 * side, bold=True)
    return note | {"bgcolor": POINT_GROUND, "borderpad": 3, "font": {"size": 12, "color": POINT_TEXT}}


def _warning(x: float, y: float, text: str) -> Figure:
    note = _note(x, y, text, xanchor="left", yanchor="top", xshift=6, yshift=-2)
    return note | {
        "bgcolor": WARNING_GROUND,
        "borderpad": 3,
        "font": {"size": 12, "color": WARNING_TEXT},
    }


def _note(
    x: float,
    y: float,
    text: str,
    *,
    xanchor: str,
    yanchor: str,
    xshift: int = 0,
    yshift: int = 0,
    bold: bool = False,
) -> Figure:
    """A text at data coordinates; on log axes Plotly wants their logarithms."""
    return {
        "x": math.log10(x),
        "y": math.log10(y),
        "xref": "x",
        "yref": "y",
        "text": f"<b>{text}</b>" if bold else text,
        "showarrow": False,
        "xanchor": xanchor,
        "yanchor": yanchor,
        "xshift": xshift,
        "yshift": yshift,
        "font": {"size": 12},
    }
