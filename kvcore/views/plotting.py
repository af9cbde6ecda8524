"""Pieces of figures as plain dicts in Plotly's JSON schema: traces, axes, lines, notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from kvcore.texts.palette import CAPACITY, MUTED_TEXT, OUTLINE, Part
from kvcore.texts.words import short_tokens

Figure: TypeAlias = dict[str, Any]

MAX_MARKS: Final = 8
"""Powers of two named on an axis: more run into each other on a phone."""
TEXT_HOVER: Final = "%{text}<extra></extra>"


def figure(data: Sequence[Figure], height: int, margins: tuple[int, int, int, int], **layout: Any) -> Figure:
    """Traces in a frame of `height` pixels with margins left, right, top and bottom; it cannot be dragged."""
    margin = dict(zip("lrtb", margins, strict=True))
    frame = {"height": height, "margin": margin, "dragmode": False}
    legend = {} if "legend" in layout else {"showlegend": False}
    return {"data": list(data), "layout": frame | legend | layout}


def bars(
    data: Sequence[Figure], height: int, margins: tuple[int, int, int, int], smallest: int, **layout: Any
) -> Figure:
    """Stacked horizontal bars, whose texts shrink down to `smallest` pixels and are hidden below that."""
    looks = {"hoverlabel": {"align": "left"}, "uniformtext": {"minsize": smallest, "mode": "hide"}}
    return figure(data, height, margins, barmode="overlay", **looks, **layout)


def bar(name: str, start: float, size: float, row: object, marker: Figure, hover: str, **more: Any) -> Figure:
    """One piece of a horizontal bar; one without a `hover` says nothing under the pointer."""
    said = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    trace = {"type": "bar", "orientation": "h", "name": name, "x": [size], "base": [start], "y": [row]}
    return {**trace, "marker": marker, **said, **more}


def part_bar(
    part: Part,
    name: str,
    start: float,
    size: float,
    row: object,
    said: str,
    hover: str,
    font: int,
    **more: Any,
) -> Figure:
    """One part of memory under its name, with what it says on itself in letters of `font` pixels."""
    text = {"text": [said], "textposition": "inside", "textangle": 0, "insidetextanchor": "middle"}
    looks = {"textfont": {"color": part.text_color, "size": font}, **text, **more}
    return bar(name, start, size, row, part_marker(part), hover, **looks)


def filled(color: str, outline: str = OUTLINE, width: int = 1, pattern: Figure | None = None) -> Figure:
    """The ground and outline of a bar, and the pattern on it."""
    marker = {"color": color, "line": {"color": outline, "width": width}}
    return marker if pattern is None else {**marker, "pattern": pattern}


def hatching(shape: str, color: str, ground: str, size: int, solidity: float) -> Figure:
    """A pattern in `color` on `ground`."""
    return {"shape": shape, "fgcolor": color, "bgcolor": ground, "size": size, "solidity": solidity}


def part_marker(part: Part) -> Figure:
    """How a part of memory is drawn."""
    ink = MUTED_TEXT if part.text_color == MUTED_TEXT else "rgba(60,60,60,0.55)"
    pattern = hatching(part.pattern, ink, part.color, 7, 0.18) if part.pattern else None
    return filled(part.color, pattern=pattern)


def missing_marker(ground: str) -> Figure:
    """How memory is drawn that is needed and is not there."""
    return filled("rgba(213,94,0,0.22)", CAPACITY, 2, hatching("/", CAPACITY, ground, 9, 0.35))


def scatter(
    mode: str, x: Sequence[object], y: Sequence[object], hover: str | list[str] = "", **more: Any
) -> Figure:
    """Points, lines or texts; without a `hover` they say nothing under the pointer."""
    said = {"hovertemplate": hover} if hover else {"hoverinfo": "skip"}
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **said, **more}


def axis(title: str = "", standoff: int = 6, **more: Any) -> Figure:
    """An axis that cannot be zoomed."""
    named = {"title": {"text": title, "standoff": standoff}} if title else {}
    return {"fixedrange": True, **named, **more}


def log_axis(low: float, high: float, title: str, standoff: int = 8, **more: Any) -> Figure:
    """A logarithmic axis from `low` to `high`."""
    return axis(title, standoff, type="log", range=[math.log10(low), math.log10(high)], **more)


def power_ticks(low: float, high: float) -> Figure:
    """The powers of two to name on an axis of lengths from `low` to `high`, from 1 to 2²⁴."""
    marks = [1 << power for power in range(25) if low <= 1 << power <= high]
    marks = marks[:: -(-len(marks) // MAX_MARKS) or 1]
    return {"tickvals": marks, "ticktext": [short_tokens(mark) for mark in marks]}


def stroke(color: str, width: float, dash: str = "") -> Figure:
    """How a line is drawn; without a `dash` as Plotly draws it."""
    return {"color": color, "width": width} | ({"dash": dash} if dash else {})


def rule(x: tuple[float, float], y: tuple[float, float], line: Figure, **more: Any) -> Figure:
    """A straight line over the figure, at data coordinates."""
    (x0, x1), (y0, y1) = x, y
    return {
        "type": "line", "xref": "x", "yref": "y", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "line": line, **more,
    }  # fmt: skip


def upright(x: float, line: Figure, margin: float = 0, **more: Any) -> Figure:
    """A vertical line through the whole height, and past it by `margin` of it at both ends."""
    return rule((x, x), (0 - margin, 1 + margin), line, yref="paper", **more)


def note(x: float, y: float | str, text: str, *, size: int = 12, **more: Any) -> Figure:
    """A text at data coordinates, in the theme's colour."""
    place = {"x": x, "y": y, "xref": "x", "yref": "y", "showarrow": False}
    return {**place, "text": text, "font": {"size": size}, **more}


def grounded(ground: str, color: str, size: int = 12, pad: int = 3) -> Figure:
    """The looks of a note that has colours of its own."""
    return {"bgcolor": ground, "borderpad": pad, "font": {"color": color, "size": size}}
