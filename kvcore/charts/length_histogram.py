"""How long requests are, as a plain dict in Plotly's JSON schema: what they need, what they take, and the limits.

Bins are of equal width, or of equal ratio where lengths reach over more than a decade.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from msgspec import Struct

from kvcore.base.numbers import count
from kvcore.base.words import Words
from kvcore.charts import plotting as draw
from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.mix import Mix

HEIGHT: Final = 320
BINS: Final = 40
LOG_FROM: Final = 4.0
"""Ratio of the longest length or limit to the median from which bins and axis are logarithmic."""
NEEDED_COLOR: Final = draw.CURRENT_LINE
TAKEN_COLOR: Final = "#009E73"
CROWDED_PIXELS: Final = 0.16
"""Share of the axis below which the labels of two limits run into each other."""


class Limit(NamedTuple):
    """A `max_model_len` marked on the axis."""

    name: str
    tokens: int
    color: str
    dash: str


class Bins(Struct, frozen=True, kw_only=True):
    """Rising edges, and the share of the requests between each two of them."""

    edges: tuple[float, ...]
    shares: tuple[float, ...]


def binned(histogram: LengthHistogram, edges: Sequence[float]) -> Bins:
    """The share of the requests in each (edge, next edge]; the first bin includes its lower edge.

    Example:
        >>> binned(LengthHistogram.from_lengths([1, 2, 3, 4]), (0, 2, 4)).shares
        (0.5, 0.5)
    """
    totals = list(accumulate(histogram.counts, initial=0))
    below = [totals[bisect_right(histogram.lengths, edge)] / totals[-1] for edge in edges]
    shares = [upper - lower for lower, upper in pairwise(below)]
    shares[0] += below[0]
    return Bins(edges=tuple(edges), shares=tuple(shares))


def bin_edges(shortest: int, longest: int, *, is_log: bool) -> tuple[float, ...]:
    """Edges of the bins; linear ones are multiples of 1, 2 or 5 times a power of ten.

    Example:
        >>> bin_edges(120, 470, is_log=False)[:3]
        (120, 130, 140)
    """
    low, high = max(1, shortest), max(2, longest)
    if is_log:
        ratio = max((high / low) ** (1 / BINS), 1.05)
        steps = max(1, math.ceil(math.log(high / low) / math.log(ratio) - 1e-9))
        edges = sorted({math.floor(low * ratio**step) for step in range(steps)} | {high})
        return tuple(edges) if len(edges) > 1 else (low - 1, high)
    step = _nice_step((high - low) / BINS)
    first = (low - 1) // step * step if low % step else low
    return tuple(range(first, max(high, first + step) + step, step))


def _nice_step(least: float) -> int:
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10


def is_wide(mix: Mix, limits: Sequence[int]) -> bool:
    """Whether the axis is logarithmic."""
    middle = max(1, mix.needed.percentile_tokens(50))
    return max(mix.needed.longest_tokens, *limits) / middle >= LOG_FROM


def length_histogram(mix: Mix, tried: int, limits: Sequence[Limit], t: Words) -> draw.Figure:
    """Requests by the length that they need, hatched beyond the tried limit, with a line for what they take."""
    tokens = [limit.tokens for limit in limits]
    wide = is_wide(mix, tokens)
    shortest = max(1, min(mix.needed.lengths[0], mix.taken.lengths[0]))
    longest = max(mix.needed.longest_tokens, mix.taken.longest_tokens)
    edges = bin_edges(shortest, longest, is_log=wide)
    needed, taken = binned(mix.needed, edges), binned(mix.taken, edges)
    top = 100 * max(*needed.shares, *taken.shares)
    left, right = _span(edges, tokens, wide)
    data = [
        _area(needed, left, tried, NEEDED_COLOR, "needed", t),
        _area(needed, tried, right, draw.CAPACITY, "ignored", t),
        _line(taken, t),
    ]
    return draw.figure(
        [trace for trace in data if trace is not None],
        HEIGHT,
        (52, 12, 58, 46),
        hovermode="closest",
        xaxis=_x_axis(left, right, wide, t),
        yaxis=draw.axis(
            t("share of the requests"),
            8,
            range=[0, top * 1.08 or 1],
            ticksuffix=" %",
            nticks=6,
            zeroline=False,
        ),
        shapes=[draw.upright(limit.tokens, draw.stroke(limit.color, 2, limit.dash)) for limit in limits],
        annotations=_labels(limits, left, right, wide),
    )


def _span(edges: Sequence[float], limits: Sequence[int], wide: bool) -> tuple[float, float]:
    low, high = min(edges[0], *limits), max(edges[-1], *limits)
    if wide:
        return max(0.7, low / 1.12), high * 1.12
    return max(0, low - (high - low) * 0.03), high + (high - low) * 0.04


def _x_axis(left: float, right: float, wide: bool, t: Words) -> draw.Figure:
    title = t("tokens of one request")
    if not wide:
        scale = {"range": [left, right], "nticks": 7, "tickformat": ",d"}
        return draw.axis(title, 8, showgrid=False, tickangle=0, **scale)
    return draw.log_axis(left, right, title, showgrid=False, tickangle=0, **draw.power_ticks(left, right))


def _area(bins: Bins, low: float, high: float, color: str, name: str, t: Words) -> draw.Figure | None:
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for start, end, share in _spans(bins):
        left, right = max(start, low), min(end, high)
        if left < right and share > 0:
            x += [left, left, right, right, None]
            y += [0, share, share, 0, None]
            text += [_span_text(start, end, share, t)] * 5
    if not x:
        return None
    looks: draw.Figure = {"fillcolor": "rgba(0,114,178,0.45)"}
    if color == draw.CAPACITY:
        pattern = draw.hatching("/", draw.CAPACITY, "rgba(213,94,0,0.12)", 7, 0.3)
        looks = {"fillcolor": "rgba(213,94,0,0.35)", "fillpattern": pattern}
    looks |= {"line": draw.stroke(color, 1), "hoveron": "points"}
    return draw.scatter("lines", x, y, draw.TEXT_HOVER, name=name, fill="toself", text=text, **looks)


def _line(bins: Bins, t: Words) -> draw.Figure:
    x: list[float] = [bins.edges[0]]
    y: list[float] = [0.0]
    text = [""]
    for start, end, share in _spans(bins):
        x += [start, end]
        y += [share, share]
        text += [_span_text(start, end, share, t)] * 2
    line = draw.stroke(TAKEN_COLOR, 2.5, "solid")
    ends = [*x, bins.edges[-1]], [*y, 0]
    return draw.scatter("lines", *ends, draw.TEXT_HOVER, name="taken", line=line, text=[*text, ""])


def _spans(bins: Bins) -> Iterator[tuple[float, float, float]]:
    """The start, end and per cent of each bin."""
    for (start, end), share in zip(pairwise(bins.edges), bins.shares, strict=True):
        yield start, end, 100 * share


def _span_text(start: float, end: float, percent: float, t: Words) -> str:
    return t(
        "{low} to {high} tokens: {percent} % of the requests",
        low=count(start),
        high=count(end),
        percent=f"{percent:.1f}",
    )


def _labels(limits: Sequence[Limit], left: float, right: float, wide: bool) -> list[draw.Figure]:
    """The names of the limits above the plot, on separate lines where they would run into each other."""
    scale = math.log if wide else float
    start = scale(max(left, 1e-9)) if wide else left
    labels: list[draw.Figure] = []
    for level, limit in enumerate(sorted(limits, key=lambda limit: limit.tokens)):
        place = (scale(limit.tokens) - start) / (scale(right) - start)
        anchor = "left" if place < CROWDED_PIXELS else "right" if place > 1 - CROWDED_PIXELS else "center"
        x = math.log10(limit.tokens) if wide else limit.tokens
        text = f"<b>{limit.name} {count(limit.tokens)}</b>"
        labels.append(
            draw.note(x, 1, text, yref="paper", xanchor=anchor, yanchor="bottom", yshift=2 + 17 * level)
        )
    return labels


def marked_limits(tried: int, recommended: int, now: int, t: Words) -> tuple[Limit, ...]:
    """The limits to mark; equal ones share a line."""
    names = {tried: [t("tried")]}
    names.setdefault(recommended, []).append(t("recommended"))
    names.setdefault(now, []).append(t("now"))
    looks = {now: (draw.BUDGET, "dot"), recommended: (TAKEN_COLOR, "dash")}
    looks[tried] = (draw.OPERATING_POINT, "solid")
    return tuple(Limit(" / ".join(words), tokens, *looks[tokens]) for tokens, words in names.items())
