"""Concurrency by context length, as a plain dict in Plotly's JSON schema: `{"data": [...], "layout": {...}}`.

Scales are fixed and lines are named where they begin, because a figure is remounted whenever its data change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kvcore.advice.vary import ConcurrencyCurve
from kvcore.base.numbers import concurrency_text, count, short_tokens
from kvcore.base.words import Words, listed, sentences
from kvcore.charts import plotting as draw
from kvcore.charts.figure_html import Said
from kvcore.engine.protocol import Engine
from kvcore.planning import Plan

CURVE_HEIGHT: Final = 380
DASHES: Final = ("dot", "dashdot", "dash", "longdash", "longdashdot")
LINE_NAME_PIXELS: Final = 20
"""Smallest distance between two names, in pixels: closer ones run into each other."""
OVERFLOW: Final = "allow"
"""The margins have room for every label; else Plotly measures each, a seventh of the drawing's time."""
SHORTEST_CURVE_LENGTH: Final = 512
SEATS_DECADES: Final = 0.4
"""Distance, in decades, below which a point covers the name of the max_num_seqs line at the right end."""
NEAR_THE_ZONE: Final = 3.0
"""Fewest requests at once with which a tag below the point stays out of the zone where none fits."""
_POINT_OUTLINE: Final = {"color": "#222222", "width": 1}


def curve_lengths(plan: Plan) -> tuple[int, ...]:
    """The lengths of the curve: powers of two, the model's limit and the planned length."""
    limit, now = plan.resolved.derived_max_model_len, plan.resolved.max_model_len
    top = max(2 * limit, 2 * now, 32768)
    powers = [1 << power for power in range(9, 25) if 1 << power <= top]
    return tuple(sorted({*powers, now, *((limit,) if limit >= SHORTEST_CURVE_LENGTH else ())}))


def concurrency_chart(plan: Plan, curves: Sequence[ConcurrencyCurve], t: Words) -> draw.Figure:
    """Requests of each length that fit at once: a line for each tensor parallel size, log-log.

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
    data: list[draw.Figure] = [_out_of_memory_zone(left, right, low)]
    if present is not None:
        data.append(_band(present, low))
    others = [curve for curve in drawn if curve is not present]
    data += [
        _curve_line(curve, draw.stroke(draw.OTHER_LINE, 1.5, DASHES[index % len(DASHES)]), t, low)
        for index, curve in enumerate(others)
    ]
    notes = _line_names(drawn, present, low, high)
    if present is not None:
        data.append(_curve_line(present, draw.stroke(draw.CURRENT_LINE, 2.5, "solid"), t, low))
    covers_seats = False
    if plan.cache is not None and plan.cache.max_concurrency > 0:
        held = plan.cache.max_concurrency
        said = t("now: {count}", count=concurrency_text(held))
        if seats < held:
            said = t("now: {seats}, room for {count}", seats=count(seats), count=concurrency_text(held))
        covers_seats = now > right / 16 and abs(math.log10(held / seats)) < SEATS_DECADES
        marker = {"symbol": "diamond", "size": 14, "color": draw.OPERATING_POINT, "line": _POINT_OUTLINE}
        data.append(
            draw.scatter("markers", [now], [held], draw.TEXT_HOVER, name="now", marker=marker, text=[said])
        )
        notes.append(_tag(now, held, said, is_left=now * 4 < right))
    limit = plan.resolved.derived_max_model_len
    shows_limit = left < limit < right
    seats_end = limit if shows_limit and limit > right / 8 else right
    limit_name = plan.resolved.engine.called("max_num_seqs")
    # Near the top the model's limit has its name just above the line.
    is_below_the_limit = math.log10(high / seats) * CURVE_HEIGHT < 2 * LINE_NAME_PIXELS * math.log10(
        high / low
    )
    seats_place = (left, "left", 6) if covers_seats else (seats_end, "right", -4)
    notes += [
        _note(
            left,
            0.9,
            (
                t("not even one request of that length fits")
                if plan.resolved.engine.starts_without_room
                else t("OOM at start: not even one request fits")
            ),
            "left",
            "top",
            6,
            -2,
        )
        | draw.grounded(draw.WARNING_GROUND, draw.WARNING_TEXT),
        _note(
            seats_place[0],
            seats,
            f"{limit_name} {count(seats)}",
            seats_place[1],
            "top" if is_below_the_limit else "bottom",
            seats_place[2],
        ),
    ]
    shapes = [
        draw.rule((left, right), (seats, seats), draw.stroke(draw.BUDGET, 1.5, "dash")),
        draw.rule((left, right), (1, 1), draw.stroke(draw.CAPACITY, 1.5, "solid")),
    ]
    if shows_limit:
        shapes.append(draw.rule((limit, limit), (low, high), draw.stroke(draw.BUDGET, 1.5, "dot")))
        name = t("model limit {tokens}", tokens=short_tokens(limit))
        notes.append(_note(limit, high, name, "right", "top", -4))
    heights = _heights(low, high)
    return draw.figure(
        data,
        CURVE_HEIGHT,
        (56, 62, 12, 48),
        hovermode="closest",
        xaxis=draw.log_axis(
            left,
            right,
            t("context length (tokens)"),
            tickangle=0,
            showgrid=False,
            automargin=False,
            ticklabeloverflow=OVERFLOW,
            **draw.power_ticks(max(left, SHORTEST_CURVE_LENGTH), right),
        ),
        yaxis=draw.log_axis(
            low,
            high,
            t("requests at once, per replica"),
            tickvals=heights,
            ticktext=[f"{height:,g}" for height in heights],
            zeroline=False,
            automargin=False,
            ticklabeloverflow=OVERFLOW,
        ),
        shapes=shapes,
        annotations=notes,
    )


def curve_said(curves: Sequence[ConcurrencyCurve], t: Words) -> tuple[Said, ...]:
    """What the chart says under the pointer at each length: how many such requests fit, by tensor parallel size."""
    drawn = [curve for curve in curves if 0 < max(curve.concurrency, default=0) < math.inf]
    if not drawn:
        return ()
    return tuple(
        Said(
            length,
            (
                t("{tokens} tokens", tokens=count(length)),
                *(
                    f"TP {curve.tensor_parallel_size}: {concurrency_text(curve.concurrency[index])}"
                    for curve in drawn
                ),
            ),
        )
        for index, length in enumerate(drawn[0].lengths)
    )


def curve_caption(curves: Sequence[ConcurrencyCurve], engine: Engine, t: Words) -> str:
    """How to read the zones, and which sizes have no line."""
    lines = [
        t(
            "Below 1 the engine starts all the same, and refuses a request of that length when it comes. Above it, "
            "requests beyond the line wait or are retracted; beyond {limit} they always wait. The band is the 80 % "
            "interval of the fitted parts.",
            limit=engine.called("max_num_seqs"),
        )
        if engine.starts_without_room
        else t(
            "Below 1 the engine stops at start. Above it, requests beyond the line wait or are preempted; beyond "
            "max_num_seqs they always wait. The band is the 80 % interval of the fitted parts."
        )
    ]
    absent = [str(curve.tensor_parallel_size) for curve in curves if not max(curve.concurrency, default=0)]
    if absent:
        lines.append(
            t("No line for TP {sizes}: no memory is left for the KV cache.", sizes=listed(t, absent))
        )
    return sentences(t, lines)


class LengthMark(NamedTuple):
    """A percentile of the request log: its length, and how many such requests fit at once."""

    name: str
    tokens: int
    requests: float


CROWDED: Final = 1.2
"""Ratio of lengths below which two marks share a label."""


def with_length_marks(chart: draw.Figure, marks: Sequence[LengthMark]) -> draw.Figure:
    """The concurrency chart with the percentiles of the request log on its present line."""
    drawn = [mark for mark in marks if mark.requests > 0]
    if not drawn:
        return chart
    names = [
        mark.name if after is None or after.tokens > CROWDED * mark.tokens else ""
        for mark, after in zip(drawn, [*drawn[1:], None], strict=True)
    ]
    hover = [
        f"{mark.name}: {count(mark.tokens)} → {concurrency_text(mark.requests)}<extra></extra>"
        for mark in drawn
    ]
    trace = draw.scatter(
        "markers+text",
        [mark.tokens for mark in drawn],
        [mark.requests for mark in drawn],
        hover,
        text=[f"<b>{name}</b>" if name else "" for name in names],
        textposition="top right",
        marker={
            "symbol": "triangle-down",
            "size": 11,
            "color": draw.OPERATING_POINT,
            "line": _POINT_OUTLINE,
        },
        cliponaxis=False,
    )
    return {**chart, "data": [*chart["data"], trace]}


def _heights(low: float, high: float) -> list[float]:
    """The numbers of requests that the axis names: fewer of each decade where it has many decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 3) if math.log10(high / low) > 4.2 else (1, 2, 5)
    heights = [step * 10.0**decade for decade in decades for step in steps]
    return [height for height in heights if low <= height <= high]


def _out_of_memory_zone(left: float, right: float, low: float) -> draw.Figure:
    pattern = draw.hatching("/", "rgba(213,94,0,0.45)", "rgba(213,94,0,0.12)", 9, 0.2)
    outline = [left, right, right, left], [1, 1, low, low]
    return _area(*outline, "rgba(213,94,0,0.16)", fillpattern=pattern, name="oom")


def _band(curve: ConcurrencyCurve, low: float) -> draw.Figure:
    ends = [*curve.high, *reversed(curve.low)]
    lengths = [*curve.lengths, *reversed(curve.lengths)]
    return _area(
        lengths, [_rounded(max(value, low / 10)) for value in ends], "rgba(0,114,178,0.30)", name="interval"
    )


def _area(x: Sequence[float], y: Sequence[float], color: str, **more: Any) -> draw.Figure:
    return draw.scatter("lines", x, y, fill="toself", fillcolor=color, line={"width": 0}, **more)


def _curve_line(curve: ConcurrencyCurve, line: draw.Figure, t: Words, low: float) -> draw.Figure:
    name = f"TP {curve.tensor_parallel_size}"
    points = [(x, y) for x, y in zip(curve.lengths, curve.concurrency, strict=True) if y > low / 10]
    # One sentence for all points, which the browser fills in.
    hover = t(
        "{name}: {count} {count:request|requests} of {tokens} tokens",
        name=name,
        count="%{text}",
        tokens="%{x:,}",
    )
    return draw.scatter(
        "lines",
        [x for x, _ in points],
        [_rounded(y) for _, y in points],
        f"{hover}<extra></extra>",
        name=name,
        line=line,
        text=[concurrency_text(y) for _, y in points],
    )


def _rounded(value: float) -> float:
    """A number with eight digits: as exact as a screen shows, in half the bytes."""
    return float(f"{value:.8g}")


def _line_names(
    drawn: Sequence[ConcurrencyCurve], present: ConcurrencyCurve | None, low: float, high: float
) -> list[draw.Figure]:
    """The names of the lines at their right ends; lines that end together share one."""
    apart = math.log10(high / low) * LINE_NAME_PIXELS / CURVE_HEIGHT
    groups: list[list[ConcurrencyCurve]] = []
    for curve in sorted(drawn, key=lambda curve: curve.concurrency[-1]):
        end = max(curve.concurrency[-1], low)
        if groups and math.log10(end / max(groups[-1][0].concurrency[-1], low)) < apart:
            groups[-1].append(curve)
        else:
            groups.append([curve])
    names = ["TP " + ", ".join(str(curve.tensor_parallel_size) for curve in group) for group in groups]
    return [
        _note(
            group[0].lengths[-1],
            max(group[0].concurrency[-1], low),
            f"<b>{name}</b>" if present in group else name,
            "left",
            "middle" if group[0].concurrency[-1] > low else "bottom",
            5,
        )
        for group, name in zip(groups, names, strict=True)
    ]


def _tag(x: float, y: float, text: str, *, is_left: bool) -> draw.Figure:
    # Lines fall to the right: the free sides of a point are above right and below left. Near the zone without a start,
    # whose words stand below one, it is above.
    place = ("left", "bottom", 9, 5) if is_left else ("right", "top", -9, -5)
    if y < NEAR_THE_ZONE:
        y, place = max(y, 1.0), ("left" if is_left else "right", "bottom", 9 if is_left else -4, 9)
    return _note(x, y, f"<b>{text}</b>", *place) | draw.grounded(draw.POINT_GROUND, draw.POINT_TEXT)


def _note(
    x: float, y: float, text: str, xanchor: str, yanchor: str, xshift: int = 0, yshift: int = 0
) -> draw.Figure:
    """A text at data coordinates; on log axes Plotly wants their logarithms."""
    place: draw.Figure = {"xanchor": xanchor, "yanchor": yanchor, "xshift": xshift, "yshift": yshift}
    return draw.note(math.log10(x), math.log10(y), text, **place)
