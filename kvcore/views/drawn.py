"""A figure of lines as HTML: the same plain dict that Plotly takes, drawn by the browser's own boxes.

A page with Plotly loads 4.7 MB of code and spends most of a key press on it. What our curves are made of needs none of
it: lines, areas, marks, rules and notes on two logarithmic axes. Places are shares of the plot in CSS variables, so
that the drawing fits every width; every text is escaped. Lines are boxes that are cut out by a polygon: Streamlit
removes an inline SVG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

from kvcore.views.plotting import Figure

NOMINAL_SHAPE: Final = 2.0
"""Width by height of the plot for which lines have their exact width; at other widths steep ones are a little off."""
DASHES: Final = {
    "dot": (1.5, 1.5),
    "dash": (3, 3),
    "longdash": (5, 4),
    "dashdot": (3, 2, 1, 2),
    "longdashdot": (5, 2, 1, 2),
}
"""Lengths of strokes and gaps by Plotly's names, in widths of the line."""
SHORTEST_STROKE: Final = 2.0
MARKS: Final = {"diamond": "kv-diamond", "triangle-down": "kv-triangle"}
ANCHORS: Final = {
    "left": "0",
    "top": "0",
    "center": "-50%",
    "middle": "-50%",
    "right": "-100%",
    "bottom": "-100%",
}


class Place(NamedTuple):
    """A point of the plot: shares of its width from the left and of its height from the top."""

    x: float
    y: float

    @property
    def style(self) -> str:
        """As CSS variables."""
        return f"--x:{_share(self.x)};--y:{_share(self.y)}"


class Scale(NamedTuple):
    """Where values stand on the two axes; both are logarithmic."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> Place:
        """The place of data coordinates; nothing has no logarithm, and stands far below."""
        return self.at_logarithms(*(math.log10(value) if value > 0 else -99.0 for value in (x, y)))

    def at_logarithms(self, x: float, y: float) -> Place:
        """The place of coordinates whose logarithms are given, as notes have them."""
        (left, right), (low, high) = self.x, self.y
        return Place((x - left) / (right - left), 1 - (y - low) / (high - low))


def html(figure: Figure, alternative: str) -> str:
    """The figure as one labelled image: `alternative` is what it shows in words.

    Raises ValueError for a trace that it cannot draw: anything but lines, areas to themselves and marks of `MARKS`.
    """
    layout = figure["layout"]
    across, up = layout["xaxis"], layout["yaxis"]
    scale = Scale(tuple(across["range"]), tuple(up["range"]))
    heights = [scale.at(1.0, value).y for value in up["tickvals"]]
    inside = "".join(f'<i class="kv-grid" style="--y:{_share(y)}"></i>' for y in heights)
    above = ""
    for trace in figure["data"]:
        if "fill" in trace:
            inside += _area(trace, scale)
        elif trace["mode"] == "lines":
            inside += _line(trace, scale)
        elif trace["mode"] in ("markers", "markers+text"):
            above += _marks(trace, scale)
        else:
            raise ValueError(f"cannot draw mode {trace['mode']!r}")
    inside += "".join(_rule(shape, scale) for shape in layout["shapes"])
    names = "".join(
        f'<span class="kv-tick-y" style="--y:{_share(y)}">{escape(text)}</span>'
        for y, text in zip(heights, up["ticktext"], strict=True)
    )
    names += "".join(
        f'<span class="kv-tick-x" style="--x:{_share(scale.at(value, 1.0).x)}">{escape(text)}</span>'
        for value, text in zip(across["tickvals"], across["ticktext"], strict=True)
    )
    notes = "".join(_note(note, scale) for note in layout["annotations"])
    margin = layout["margin"]
    inset = f"inset:{margin['t']}px {margin['r']}px {margin['b']}px {margin['l']}px"
    return (
        f'<figure class="kv-curve" role="img" aria-label="{escape(alternative)}" style="height:{layout["height"]}px">'
        f'<div class="kv-plot" style="{inset}"><div class="kv-inside">{inside}</div>{names}{above}{notes}'
        f"{_columns(figure['data'], scale)}</div>"
        f'<span class="kv-title-x">{escape(across["title"]["text"])}</span>'
        f'<span class="kv-title-y">{escape(up["title"]["text"])}</span></figure>'
    )


def _share(value: float) -> str:
    """The browser needs no more digits than a wide screen has pixels."""
    return f"{value:.4f}".rstrip("0").rstrip(".").replace("-0.", "-.")


def _percent(value: float, shift: float = 0.0) -> str:
    share = f"{100 * value:.2f}%"
    return share if not shift else f"calc({share} {'+' if shift > 0 else '-'} {abs(shift):.2f}px)"


def _cut(corners: Iterable[tuple[Place, float]], background: str, look: str) -> str:
    """A box over the whole plot of which a polygon is left; each corner with how many pixels lower it is."""
    points = ",".join(f"{_percent(place.x)} {_percent(place.y, shift)}" for place, shift in corners)
    return f'<i class="{look}" style="background:{background};clip-path:polygon({points})"></i>'


def _area(trace: Figure, scale: Scale) -> str:
    if trace["fill"] != "toself":
        raise ValueError(f"cannot fill {trace['fill']!r}")
    background, pattern = trace["fillcolor"], trace.get("fillpattern")
    if pattern is not None:
        stroke, size = pattern["size"] * pattern["solidity"], pattern["size"]
        lines = f"{pattern['fgcolor']} 0 {stroke:g}px,{pattern['bgcolor']} {stroke:g}px {size:g}px"
        background = f"repeating-linear-gradient(135deg,{lines})"
    corners = [(scale.at(x, y), 0.0) for x, y in zip(trace["x"], trace["y"], strict=True)]
    return _cut(corners, background, "kv-area")


def _line(trace: Figure, scale: Scale) -> str:
    places = [scale.at(x, y) for x, y in zip(trace["x"], trace["y"], strict=True)]
    if len(places) < 2:
        return ""
    half = trace["line"]["width"] / 2
    edge = [(place, half * _steepness(places, index)) for index, place in enumerate(places)]
    corners = [(place, -shift) for place, shift in edge] + [(place, shift) for place, shift in reversed(edge)]
    return _cut(corners, _strokes(trace["line"], "90deg"), "kv-area")


def _steepness(places: Sequence[Place], index: int) -> float:
    """How much higher than wide a line is cut at a point, so that it is of one width where it falls."""
    before, after = places[max(index - 1, 0)], places[min(index + 1, len(places) - 1)]
    run = NOMINAL_SHAPE * (after.x - before.x)
    return math.hypot(1.0, (after.y - before.y) / run) if run > 0 else 1.0


def _strokes(line: Figure, direction: str) -> str:
    """The colour of a line, in strokes where it is dashed."""
    color, parts = line["color"], DASHES.get(line.get("dash", ""))
    if parts is None:
        return str(color)
    unit, at, stops = max(line["width"], SHORTEST_STROKE), 0.0, []
    for index, part in enumerate(parts):
        stops.append(f"{'transparent' if index % 2 else color} {at:g}px {at + part * unit:g}px")
        at += part * unit
    return f"repeating-linear-gradient({direction},{','.join(stops)})"


def _rule(shape: Figure, scale: Scale) -> str:
    start, end = scale.at(shape["x0"], shape["y0"]), scale.at(shape["x1"], shape["y1"])
    width, is_upright = shape["line"]["width"], start.x == end.x
    look, direction = ("kv-upright", "180deg") if is_upright else ("kv-level", "90deg")
    background = _strokes(shape["line"], direction)
    return f'<i class="{look}" style="{start.style};--width:{width:g}px;background:{background}"></i>'


def _marks(trace: Figure, scale: Scale) -> str:
    marker, texts = trace["marker"], trace.get("text", ())
    shown = texts if "text" in trace["mode"] else [""] * len(trace["x"])
    look = MARKS.get(marker["symbol"])
    if look is None:
        raise ValueError(f"cannot draw symbol {marker['symbol']!r}")
    return "".join(
        f'<i class="{look}" style="{scale.at(x, y).style};--size:{marker["size"]}px;--color:{marker["color"]}"></i>'
        + (_label(scale.at(x, y), text) if text else "")
        for x, y, text in zip(trace["x"], trace["y"], shown, strict=True)
    )


def _label(place: Place, text: str) -> str:
    return f'<span class="kv-mark-name" style="{place.style}">{_words(text)}</span>'


def _note(note: Figure, scale: Scale) -> str:
    place = scale.at_logarithms(note["x"], note["y"])
    shift = f"--dx:{note['xshift']}px;--dy:{-note['yshift']}px"
    anchor = f"--ax:{ANCHORS[note['xanchor']]};--ay:{ANCHORS[note['yanchor']]}"
    looks = f"font-size:{note['font']['size']}px"
    if "bgcolor" in note:
        looks += (
            f";background:{note['bgcolor']};padding:0 {note['borderpad']}px;color:{note['font']['color']}"
        )
    return f'<span class="kv-curve-note" style="{place.style};{shift};{anchor};{looks}">{_words(note["text"])}</span>'


def _words(text: str) -> str:
    """A text that may be bold as a whole, as Plotly writes it."""
    plain = text.removeprefix("<b>").removesuffix("</b>")
    return escape(plain) if plain == text else f"<b>{escape(plain)}</b>"


def _columns(traces: Sequence[Figure], scale: Scale) -> str:
    """What the pointer finds: for each length a column of the plot with what every line and mark says of it."""
    said: dict[float, list[tuple[float, str]]] = {}
    for trace in traces:
        for index, x in enumerate(trace["x"] if "hovertemplate" in trace else ()):
            said.setdefault(x, []).append((trace["y"][index], _hover(trace, index)))
    # From the highest to the lowest, as they stand in the plot.
    found = [
        (scale.at(x, 1.0).x, [text for _, text in sorted(lines, key=lambda line: -line[0])])
        for x, lines in sorted(said.items())
    ]
    ends = [0.0, *((a + b) / 2 for (a, _), (b, _) in pairwise(found)), 1.0]
    return "".join(
        f'<i class="kv-column{" kv-leftward" * (x > 0.5)}" data-said="{_attribute(lines)}" '
        f'style="--x:{_share(start)};--size:{_share(end - start)};--at:{_share((x - start) / (end - start))}"></i>'
        for (x, lines), start, end in zip(found, ends, ends[1:], strict=False)
        if end > start
    )


def _hover(trace: Figure, index: int) -> str:
    template: Any = trace["hovertemplate"]
    text = template if isinstance(template, str) else template[index]
    texts = trace.get("text", ())
    return str(
        text.removesuffix("<extra></extra>")
        .replace("%{x:,}", f"{trace['x'][index]:,}")
        .replace("%{text}", texts[index] if index < len(texts) else "")
    )


def _attribute(lines: Sequence[str]) -> str:
    return escape("\n".join(lines)).replace("\n", "&#10;")
