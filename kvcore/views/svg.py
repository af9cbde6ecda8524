"""SVG text: the charts of the printed report (one card, concurrency by context length), and QR codes of links.

Colours and patterns are those of the page. Every text is escaped; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from typing import Final

import segno

from kvcore.advice.curve import ConcurrencyCurve
from kvcore.planning import Plan
from kvcore.texts.palette import BUDGET, CAPACITY, CURRENT_LINE, OPERATING_POINT, UNACCOUNTED
from kvcore.texts.words import Words, concurrency_text, count, gib_text, short_tokens
from kvcore.units import GIB, gib
from kvcore.views.bar import budget_end_gib, budget_label, overlap, segments, shortage

MAX_QR_CHARACTERS: Final = 2953
"""Bytes in the largest code with the least error correction. Source: ISO/IEC 18004, version 40-L."""
QUIET_ZONE: Final = 4
"""Modules of white around it, without which many readers find nothing. Source: ISO/IEC 18004."""
WIDTH: Final = 720
BAR_TOP: Final = 34
BAR_SIZE: Final = 46
BAR_HEIGHT: Final = 104
CURVE_HEIGHT: Final = 165
LEFT: Final = 48
BOTTOM: Final = 34
NAMED_SHARE: Final = 0.075
"""A narrower part of the bar is named by the legend alone."""
UNUSED: Final = "#F4F4F4"
HATCHES: Final = {
    "/": '<path d="M0 8L8 0" stroke="#555" stroke-width="1"/>',
    "x": '<path d="M0 8L8 0M0 0L8 8" stroke="#555" stroke-width="1"/>',
    ".": '<circle cx="4" cy="4" r="1.2" fill="#555"/>',
    "-": '<path d="M0 4L8 4" stroke="#555" stroke-width="1"/>',
}


def memory_svg(plan: Plan, t: Words) -> str:
    """The memory of one GPU as a stacked bar with the lines of budget and card; "" without a card."""
    memory = plan.memory
    if memory is None:
        return ""
    missing = shortage(plan)
    total, budget = gib(memory.total.value), budget_end_gib(plan)
    parts = segments(plan)
    ends = [total, *(part.start + part.size for part in parts)]
    if missing is not None:
        ends.append(missing.start + missing.size)
    scale = (WIDTH - 2) / max(ends)
    body = [_defs()]
    for segment in parts:
        x, width = 1 + segment.start * scale, segment.size * scale
        if width < 0.5:
            continue
        fill = UNUSED if segment.part.name == "unused" else segment.part.color
        body.append(_rectangle(x, width, fill))
        if segment.part.pattern:
            body.append(_rectangle(x, width, f"url(#hatch-{_hatch_id(segment.part.pattern)})"))
        if missing is not None and segment.part.name != "unused":
            width = min(width, max(0.0, (missing.start - segment.start) * scale))
        if width > NAMED_SHARE * WIDTH:
            color = "#444" if segment.part.name == "unused" else segment.part.text_color
            label = (t(segment.part.label), gib_text(segment.figure * GIB))
            body += [
                _text(x + width / 2, BAR_TOP + 20 + 15 * row, line, "middle", color)
                for row, line in enumerate(label)
            ]
    reaching = overlap(plan)
    if reaching is not None:
        body.append(
            _rectangle(
                1 + reaching.start * scale, reaching.size * scale, "url(#hatch-dash)", UNACCOUNTED.color
            )
        )
    if missing is not None:
        x, width = 1 + missing.start * scale, missing.size * scale
        body.append(_rectangle(x, width, "url(#hatch-missing)", CAPACITY))
        note = t("{size} missing", size=gib_text(-missing.size * GIB, signed=True))
        body.append(_text(min(x + width / 2, WIDTH - 60), BAR_TOP + BAR_SIZE + 18, note, "middle", CAPACITY))
    lines = (
        (budget, BUDGET, "5 3", 12, budget_label(plan, t)),
        (total, CAPACITY, "", 26, t("card {size}", size=gib_text(memory.total.value))),
    )
    for position, color, dash, height, label_text in lines:
        x = 1 + position * scale
        body.append(_line(x, BAR_TOP - 6, x, BAR_TOP + BAR_SIZE + 6, color, dash, 2))
        body.append(_text(x - 4, height, label_text, "end", "#333"))
    return _drawing(BAR_HEIGHT, t("Memory of one GPU"), body)


def curve_svg(plan: Plan, curve: ConcurrencyCurve, t: Words) -> str:
    """Requests of each length that fit at once, log-log; "" where none fits."""
    points = [(x, y) for x, y in zip(curve.lengths, curve.concurrency, strict=True) if y > 0]
    if len(points) < 2:
        return ""
    left, right = math.log2(curve.lengths[0]), math.log2(curve.lengths[-1])
    peak = max(y for _, y in points)
    low, high = math.log10(0.5), math.log10(max(10.0, peak * 1.3))

    def x_of(length: float) -> float:
        return LEFT + (math.log2(length) - left) / (right - left) * (WIDTH - LEFT - 12)

    def y_of(requests: float) -> float:
        share = (math.log10(max(requests, 0.5)) - low) / (high - low)
        return CURVE_HEIGHT - BOTTOM - share * (CURVE_HEIGHT - BOTTOM - 12)

    body = []
    for power in range(math.ceil(high) + 1):
        for step in (1, 3):
            mark = step * 10**power
            if math.log10(mark) <= high:
                body.append(_line(LEFT, y_of(mark), WIDTH - 12, y_of(mark), "#DDD", "", 1))
                body.append(_text(LEFT - 6, y_of(mark) + 4, f"{mark:,}", "end", "#333"))
    body += [
        _text(x_of(2**power), CURVE_HEIGHT - BOTTOM + 16, short_tokens(2**power), "middle", "#333")
        for power in range(math.ceil(left), math.floor(right) + 1)
    ]
    body.append(_line(LEFT, y_of(1), WIDTH - 12, y_of(1), CAPACITY, "", 1.5))
    body.append(
        _text(LEFT + 6, y_of(1) + 13, t("OOM at start: not even one request fits"), "start", "#8A3B00")
    )
    band = [(x, y) for x, y in zip(curve.lengths, curve.high, strict=True)]
    band += [(x, y) for x, y in reversed(list(zip(curve.lengths, curve.low, strict=True)))]
    outline = _points((x_of(x), y_of(y)) for x, y in band)
    body.append(f'<polygon points="{outline}" fill="{CURRENT_LINE}" opacity="0.2"/>')
    drawn = _points((x_of(x), y_of(y)) for x, y in points)
    body.append(f'<polyline points="{drawn}" fill="none" stroke="{CURRENT_LINE}" stroke-width="2"/>')
    now = plan.resolved.max_model_len
    if plan.cache is not None and plan.cache.max_concurrency > 0 and left <= math.log2(now) <= right:
        x, y = x_of(now), y_of(plan.cache.max_concurrency)
        body.append(
            f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="{OPERATING_POINT}" stroke="#333"/>'
        )
        note = t("{name}: {count} requests of {tokens} tokens", name=f"TP {curve.tensor_parallel_size}",
                 count=concurrency_text(plan.cache.max_concurrency), tokens=count(now))  # fmt: skip
        end = x > WIDTH * 0.6
        body.append(_text(x - 10 if end else x + 10, y - 8, note, "end" if end else "start", "#333"))
    body.append(_text(WIDTH / 2, CURVE_HEIGHT - 4, t("context length (tokens)"), "middle", "#333"))
    return _drawing(CURVE_HEIGHT, t("Requests at once by context length"), body)


def swatch_svg(color: str, pattern: str) -> str:
    """A patch of a part's colour and pattern for the legend."""
    hatch = f'<rect width="13" height="13" fill="url(#hatch-{_hatch_id(pattern)})"/>' if pattern else ""
    fill = UNUSED if color.startswith("rgba") else color
    return (
        '<svg width="13" height="13" aria-hidden="true">'
        f'<rect width="13" height="13" fill="{fill}" stroke="#555"/>{hatch}</svg>'
    )


def _hatch_id(pattern: str) -> str:
    return {"/": "slash", "x": "cross", ".": "dot", "-": "dash"}[pattern]


def _defs() -> str:
    hatches = "".join(
        f'<pattern id="hatch-{_hatch_id(name)}" width="8" height="8" patternUnits="userSpaceOnUse">{drawing}</pattern>'
        for name, drawing in HATCHES.items()
    )
    missing = (
        '<pattern id="hatch-missing" width="8" height="8" patternUnits="userSpaceOnUse">'
        '<rect width="8" height="8" fill="#FCEBE1" fill-opacity="0.2"/>'
        f'<path d="M0 8L8 0" stroke="{CAPACITY}" stroke-width="2"/></pattern>'
    )
    return f"<defs>{hatches}{missing}</defs>"


def _drawing(height: int, title: str, body: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" font-size="12" font-family="inherit">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def _rectangle(x: float, width: float, fill: str, stroke: str = "#555") -> str:
    return f'<rect x="{x:.1f}" y="{BAR_TOP}" width="{width:.1f}" height="{BAR_SIZE}" fill="{fill}" stroke="{stroke}"/>'


def _line(x0: float, y0: float, x1: float, y1: float, color: str, dash: str, width: float) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{color}" '
        f'stroke-width="{width:g}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, color: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def _points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


@lru_cache(maxsize=8)
def qr_image(text: str) -> str:
    """The address of an SVG of the code, black on white in every theme, of any size; "" for too long a text.

    Example:
        >>> qr_image("https://example.org/?v=1")[:18], qr_image("x" * 2954)
        ('data:image/svg+xml', '')
    """
    if len(text.encode()) > MAX_QR_CHARACTERS:
        return ""
    code = segno.make_qr(text, error="l")
    return code.svg_data_uri(
        border=QUIET_ZONE, dark="#000", light="#fff", omitsize=True, encode_minimal=False
    )
