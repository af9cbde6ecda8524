"""A figure in Plotly's JSON schema as HTML: for a page that draws it anew at every step of a slider.

Plotly takes as long to mount one chart as the browser takes for the rest of the Plan page. What a curve needs of the
schema is drawn here: lines and areas on logarithmic axes, marks, straight lines, notes. Lines stand in one SVG image,
which is stretched, and texts beside it at shares of the frame: the drawing fits every width, its texts keep their size.
Every text is escaped; colours that follow the theme are in the page's stylesheet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import quote

from kvcore.charts.plotting import Figure

SIDE: Final = 1000
"""Units of the stretched SVG from one end of the frame to the other."""
DASHES: Final = {
    "dot": "2 4",
    "dashdot": "8 3 2 3",
    "dash": "8 5",
    "longdash": "14 6",
    "longdashdot": "14 4 2 4",
}
"""Plotly's names of dashes as an SVG's lengths, in pixels."""
STYLE: Final = (
    "polyline{fill:none;vector-effect:non-scaling-stroke}"
    ".kv-grid{stroke:#808495;opacity:.22}.kv-interval{fill:#0072b2;opacity:.3}"
)
"""The colours of the image: it knows no theme."""
_SAFE: Final = " !$&'()*+,-./:;=?@_~"
"""Characters that an address of `data:` may hold as they are; Chromium and Firefox take spaces as well."""
MARKS: Final = {"diamond": "kv-diamond", "triangle-down": "kv-triangle"}
_ACROSS: Final = {"left": "0%", "center": "-50%", "right": "-100%"}
_UP: Final = {"bottom": "0%", "middle": "50%", "top": "100%"}


class Said(NamedTuple):
    """What the drawing says under the pointer around one place of the horizontal axis, a line each."""

    at: float
    lines: tuple[str, ...]


def figure_html(figure: Figure, alternative: str, said: Sequence[Said] = ()) -> str:
    """The figure as one labelled image; `alternative` describes it, `said` is what stands under the pointer.

    Both axes are logarithmic. Traces other than lines, areas and marks of `scatter` are left out, and so is what none
    of our curves has: legends, bars, linear axes.

    Example:
        >>> from kvcore.charts import plotting as draw
        >>> line = draw.scatter("lines", [1, 10, 100], [100, 10, 1], line=draw.stroke("#0072B2", 2.5))
        >>> axes = {"xaxis": draw.log_axis(1, 100, "tokens"), "yaxis": draw.log_axis(1, 100, "requests")}
        >>> html = figure_html(draw.figure([line], 380, (56, 62, 12, 48), **axes), "a < b")
        >>> "points=%220,0 500,500 1000,1000%22" in html, 'aria-label="a &lt; b"' in html
        (True, True)
    """
    layout = figure["layout"]
    frame = _Frame(x=tuple(layout["xaxis"]["range"]), y=tuple(layout["yaxis"]["range"]))
    margin = layout["margin"]
    box = f"left:{margin['l']}px;right:{margin['r']}px;top:{margin['t']}px;bottom:{margin['b']}px"
    traces: list[Figure] = figure["data"]
    hatched = "".join(frame.hatched(trace) for trace in traces if "fillpattern" in trace)
    drawn = [trace for trace in traces if trace["mode"] == "lines" and "fillpattern" not in trace]
    lines = "".join(frame.trace(trace) for trace in drawn)
    rules = "".join(frame.rule(shape) for shape in layout.get("shapes", ()))
    marks = "".join(frame.marks(trace) for trace in traces if "markers" in trace["mode"])
    notes = "".join(frame.note(note) for note in layout.get("annotations", ()))
    return (
        f'<figure class="kv-plot" role="img" aria-label="{escape(alternative)}" style="height:{layout["height"]}px">'
        f'<div class="kv-plot-frame" style="{box}">{hatched}'
        f"{_image(frame.grid(layout['yaxis']) + lines + rules)}"
        f"{frame.ticks(layout['xaxis'], layout['yaxis'])}{notes}{marks}{frame.pointed(said)}</div></figure>"
    )


class _Frame(NamedTuple):
    """The logarithms at the ends of both axes, and what is drawn between them."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        """Where a value stands on the horizontal axis: its share of the width."""
        return (math.log10(value) - self.x[0]) / (self.x[1] - self.x[0])

    def up(self, value: float) -> float:
        """Where a value stands on the vertical axis: its share of the height, from below."""
        return (math.log10(value) - self.y[0]) / (self.y[1] - self.y[0])

    def points(self, x: Sequence[float], y: Sequence[float]) -> str:
        """Points of the stretched SVG."""
        return " ".join(
            f"{self.across(a) * SIDE:.5g},{(1 - self.up(b)) * SIDE:.5g}" for a, b in zip(x, y, strict=True)
        )

    def hatched(self, trace: Figure) -> str:
        """The rectangle around a hatched area; its pattern is a class of the stylesheet."""
        x, y = [self.across(value) for value in trace["x"]], [self.up(value) for value in trace["y"]]
        place = f"left:{100 * min(x):.5g}%;width:{100 * (max(x) - min(x)):.5g}%"
        height = f"bottom:{100 * min(y):.5g}%;height:{100 * (max(y) - min(y)):.5g}%"
        return f'<div class="kv-{escape(trace["name"])}" style="{place};{height}"></div>'

    def trace(self, trace: Figure) -> str:
        """A line, or an area where the trace is filled."""
        points = self.points(trace["x"], trace["y"])
        if trace.get("fill") == "toself":
            return f'<polygon class="kv-{escape(trace["name"])}" points="{points}"/>'
        return f'<polyline points="{points}"{_stroke(trace["line"])}/>'

    def rule(self, shape: Figure) -> str:
        """A straight line."""
        points = self.points((shape["x0"], shape["x1"]), (shape["y0"], shape["y1"]))
        return f'<polyline points="{points}"{_stroke(shape["line"])}/>'

    def grid(self, axis: Figure) -> str:
        """The lines at the heights that the axis names."""
        heights = (f"{(1 - self.up(height)) * SIDE:.5g}" for height in axis.get("tickvals", ()))
        return "".join(f'<polyline class="kv-grid" points="0,{at} {SIDE},{at}"/>' for at in heights)

    def ticks(self, x: Figure, y: Figure) -> str:
        """The names along both axes and their titles."""
        names = [
            f'<span class="kv-plot-x" style="left:{100 * self.across(at):.5g}%">{escape(text)}</span>'
            for at, text in zip(x.get("tickvals", ()), x.get("ticktext", ()), strict=True)
        ]
        names += [
            f'<span class="kv-plot-y" style="bottom:{100 * self.up(at):.5g}%">{escape(text)}</span>'
            for at, text in zip(y.get("tickvals", ()), y.get("ticktext", ()), strict=True)
        ]
        names.append(f'<span class="kv-plot-x-title">{escape(x["title"]["text"])}</span>')
        names.append(f'<span class="kv-plot-y-title">{escape(y["title"]["text"])}</span>')
        return "".join(names)

    def marks(self, trace: Figure) -> str:
        """Marks, each with its name where the trace shows texts."""
        look = MARKS[trace["marker"]["symbol"]]
        texts = trace.get("text", ()) if "text" in trace["mode"] else ()
        drawn = []
        for index, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
            name = _plain(texts[index])[1] if texts else ""
            place = f"left:{100 * self.across(x):.5g}%;bottom:{100 * self.up(y):.5g}%"
            drawn.append(
                f'<span class="kv-mark {look}" style="{place}"><i style="background:{trace["marker"]["color"]}"></i>'
                f"<b>{escape(name)}</b></span>"
            )
        return "".join(drawn)

    def note(self, note: Figure) -> str:
        """A text at logarithms of a place, on a ground of its own where it has one."""
        left = (note["x"] - self.x[0]) / (self.x[1] - self.x[0])
        low = (note["y"] - self.y[0]) / (self.y[1] - self.y[0])
        move = (
            f"translate(calc({_ACROSS[note['xanchor']]} + {note['xshift']}px),"
            f"calc({_UP[note['yanchor']]} - {note['yshift']}px))"
        )
        is_bold, text = _plain(note["text"])
        ground = f";background:{note['bgcolor']};color:{note['font']['color']}" if "bgcolor" in note else ""
        looks = "kv-plot-note" + " kv-grounded" * ("bgcolor" in note) + " kv-bold" * is_bold
        return (
            f'<span class="{looks}" style="left:{100 * left:.5g}%;bottom:{100 * low:.5g}%;transform:{move}{ground}">'
            f"{escape(text)}</span>"
        )

    def pointed(self, said: Sequence[Said]) -> str:
        """A stretch of the frame around each place, from the middle of its neighbours to the middle."""
        places = [self.across(one.at) for one in said]
        ends = [0.0, *((a + b) / 2 for a, b in pairwise(places)), 1.0]
        drawn = []
        for one, place, left, right in zip(said, places, ends, ends[1:], strict=False):
            width = max(right - left, 1e-6)
            at = min(max((place - left) / width, 0.0), 1.0)
            looks = "kv-pointed" + " kv-pointed-left" * (place > 0.5)
            drawn.append(
                f'<i class="{looks}" style="left:{100 * left:.5g}%;width:{100 * width:.5g}%;--at:{100 * at:.4g}%" '
                f'data-said="{escape(chr(10).join(one.lines))}"></i>'
            )
        return "".join(drawn)


def _image(drawn: str) -> str:
    """What is drawn, stretched over the frame: as an image, since a page may not hold an SVG of its own."""
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none">'
        f"<style>{STYLE}</style>{drawn}</svg>"
    )
    return f'<img alt="" decoding="sync" src="data:image/svg+xml,{quote(svg, safe=_SAFE)}">'


def _stroke(line: Figure) -> str:
    dash = DASHES.get(line.get("dash", ""), "")
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f' stroke="{line["color"]}" stroke-width="{line["width"]}"{dashed}'


def _plain(text: str) -> tuple[bool, str]:
    """Whether Plotly's text is bold as a whole, and the text without its tags."""
    inner = text.removeprefix("<b>").removesuffix("</b>")
    return inner != text, inner
