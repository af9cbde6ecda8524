"""Pieces of figures as plain dicts in Plotly's JSON schema: colours, traces, axes, lines, notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from kvcore.base.numbers import short_tokens

Figure: TypeAlias = dict[str, Any]

OUTLINE: Final = "rgba(60,60,60,0.75)"
CAPACITY: Final = "#D55E00"
BUDGET: Final = "#8A8A8A"
OPERATING_POINT: Final = "#CC79A7"
CURRENT_LINE: Final = "#0072B2"
OTHER_LINE: Final = "#8A8A8A"
WARNING_TEXT: Final = "#8A3B00"
WARNING_GROUND: Final = "#FCEBE1"
POINT_TEXT: Final = "#5B2245"
POINT_GROUND: Final = "#F8E6F0"
DARK_TEXT: Final = "#111111"

MAX_MARKS: Final = 8
"""Most powers of two named on an axis: more run into each other on a phone."""
TEXT_HOVER: Final = "%{text}<extra></extra>"


def figure(data: Sequence[Figure], height: int, margins: tuple[int, int, int, int], **layout: Any) -> Figure:
    """Traces in a frame of `height` pixels with margins left, right, top and bottom; it cannot be dragged."""
    margin = dict(zip("lrtb", margins, strict=True))
    frame = {"height": height, "margin": margin, "dragmode": False}
    legend = {} if "legend" in layout else {"showlegend": False}
    return {"data": list(data), "layout": frame | legend | layout}


def hatching(shape: str, color: str, ground: str, size: int, solidity: float) -> Figure:
    """A pattern in `color` on `ground`."""
    return {"shape": shape, "fgcolor": color, "bgcolor": ground, "size": size, "solidity": solidity}


def scatter(
    mode: str, x: Sequence[object], y: Sequence[object], hover: str | list[str] = "", **more: Any
) -> Figure:
    """Points, lines or texts; without a `hover` they have no tooltip."""
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
    """The style of a line; without a `dash` it is solid."""
    return {"color": color, "width": width} | ({"dash": dash} if dash else {})


def rule(x: tuple[float, float], y: tuple[float, float], line: Figure, **more: Any) -> Figure:
    """A straight line over the figure, at data coordinates."""
    (x0, x1), (y0, y1) = x, y
    return {
        "type": "line", "xref": "x", "yref": "y", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "line": line, **more,
    }  # fmt: skip


def upright(x: float, line: Figure, **more: Any) -> Figure:
    """A vertical line through the whole height."""
    return rule((x, x), (0, 1), line, yref="paper", **more)


def note(x: float, y: float | str, text: str, *, size: int = 12, **more: Any) -> Figure:
    """A text at data coordinates, in the theme's colour."""
    place = {"x": x, "y": y, "xref": "x", "yref": "y", "showarrow": False}
    return {**place, "text": text, "font": {"size": size}, **more}


def grounded(ground: str, color: str) -> Figure:
    """The colours of a note with a ground of its own."""
    return {"bgcolor": ground, "borderpad": 3, "font": {"color": color, "size": 12}}
