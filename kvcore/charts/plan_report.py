"""A plan to hand on: an HTML document to print with its charts, a text for a ticket, the QR code of a link.

The document has no script, and nothing in it is loaded from elsewhere. Every text is escaped; colours and patterns are
those of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import Final

import segno

from kvcore.advice.vary import ConcurrencyCurve, concurrency_curve
from kvcore.base.numbers import concurrency_text, count, gib_text, short_tokens
from kvcore.base.parts import AFTER_POOL, OVERESTIMATED, PARTS, UNACCOUNTED, UNUSED, Part
from kvcore.base.units import GIB, gib
from kvcore.base.words import Words
from kvcore.charts import memory_bar, summary
from kvcore.charts import plotting as draw
from kvcore.charts.curves import curve_lengths
from kvcore.controls.in_force import assumed_text, override_steps
from kvcore.deploy.going_live import expected_log_lines
from kvcore.deploy.shell import launch_command
from kvcore.explain.numbers import number_rows
from kvcore.planning import Plan
from kvcore.texts import LABELS
from kvcore.wire.link import carries_configs

SIGNS: Final = {"fits": "✔", "caution": "▲", "fails": "✖"}
WIDE_COLUMN: Final = 2
MOST_TICKS: Final = 12
"""Most numbers on the scale of an empty bar."""
MAX_QR_CHARACTERS: Final = 2953
"""Most bytes of a code with the least error correction. Source: ISO/IEC 18004, version 40-L."""
QUIET_ZONE: Final = 4
"""White modules around a code; without them many readers find nothing. Source: ISO/IEC 18004."""
WIDTH: Final = 720
BAR_TOP: Final = 34
BAR_SIZE: Final = 46
BAR_HEIGHT: Final = 104
CURVE_HEIGHT: Final = 165
LEFT: Final = 48
RIGHT: Final = 24
BOTTOM: Final = 34
NAMED_SHARE: Final = 0.075
"""Share of the bar below which a part is named by the legend alone."""
INK: Final = "#333"
UNUSED_GROUND: Final = "#F4F4F4"
HATCHES: Final = {
    "/": ("slash", '<path d="M0 8L8 0" stroke="#555" stroke-width="1"/>'),
    "x": ("cross", '<path d="M0 8L8 0M0 0L8 8" stroke="#555" stroke-width="1"/>'),
    ".": ("dot", '<circle cx="4" cy="4" r="1.2" fill="#555"/>'),
    "\\": ("backslash", '<path d="M0 0L8 8" stroke="#555" stroke-width="1"/>'),
    "-": ("dash", '<path d="M0 4L8 4" stroke="#555" stroke-width="1"/>'),
}
"""Name and drawing of each of Plotly's patterns."""
PICTURE_TOP: Final = 44
"""Room above a picture for what was planned and the verdict."""
WIDE_LETTERS: Final = 0x2E80
"""Letters from here on are as wide as they are high: Chinese, Japanese, Korean."""
NOT_CARRIED: Final = LABELS["links"]["not-carried"]


def report_html(plan: Plan, link: str, t: Words) -> str:
    """The plan as a document: verdict, memory, capacity, command, log lines to expect, all numbers, link."""
    curve = concurrency_curve(plan, curve_lengths(plan))
    sentence = summary.verdict_sentence(plan, t)
    outcome = sentence.outcome.value
    parts = [
        f"<h1>{escape(plan.scenario.model)}</h1>",
        f'<p class="soft">{escape(" · ".join(summary.scenario_line(plan, t)))}</p>',
        *(f'<p class="soft">{escape(said)}</p>' for said in (assumed_text(plan, t),) if said),
        f'<p class="verdict {outcome}">{SIGNS[outcome]} {escape(sentence.text)}</p>',
        _titled(memory_bar.memory_title(plan, t), memory_svg(plan, t) + legend(plan, t)),
        '<div class="cards">',
        *(
            f"<div>{escape(card.label)}<b>{escape(card.value)}</b>"
            f'<span class="soft">{escape(card.note)}</span></div>'
            for card in summary.cards(plan, curve, t)
        ),
        "</div>",
        _titled(t("Requests at once by context length"), curve_svg(plan, curve, t)),
        _overrides(plan, t),
        _titled(t("Start command:"), _code((launch_command(plan),))),
        _titled(t("Lines to expect in the log:"), _code(expected_log_lines(plan))),
        _titled(t("Note"), _notices(plan, t)),
        _titled(t("All numbers"), _numbers(plan, t)),
        _titled(t("The same plan as a link:"), _code((link,))),
        "" if carries_configs(plan.scenario) else f"<p>{escape(t(NOT_CARRIED))}</p>",
    ]
    return document(f"KV Planner: {plan.scenario.model}", "\n".join(filter(None, parts)), t)


def document(title: str, body: str, t: Words) -> str:
    """A page to print; `body` is HTML already. It has no script and loads nothing."""
    return _frame().substitute(language=t.language.tag, title=escape(title), body=body)


@cache
def _frame() -> Template:
    """The frame of a report, with its style and a policy that lets nothing run."""
    return Template(resources.files("kvcore.charts").joinpath("report.html").read_text("utf-8"))


def _titled(title: str, body: str) -> str:
    """A section, or nothing when it would be empty."""
    return f"<section><h2>{escape(title.rstrip(':：'))}</h2>{body}</section>" if body else ""


def legend(plan: Plan, t: Words) -> str:
    """Colour, pattern, name and size of each part of the bar, as a list; "" without a card."""
    items = "".join(
        f"<li>{swatch_svg(color, pattern)}{escape(name)} <b>{escape(size)}</b></li>"
        for color, pattern, name, size in _legend_rows(plan, t)
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def _legend_rows(plan: Plan, t: Words) -> list[tuple[str, str, str, str]]:
    """Colour, pattern, name and size of each part of the bar."""
    # Graphs that the engine counts and those that come on top stand apart in the bar, and are one part.
    sizes: dict[Part, float] = {}
    for segment in memory_bar.segments(plan):
        sizes[segment.part] = sizes.get(segment.part, 0.0) + segment.figure
    rows = [(part.color, part.pattern, t(part.label), gib_text(size * GIB)) for part, size in sizes.items()]
    reaching = memory_bar.overlap(plan)
    if reaching is not None:
        size = gib_text(-reaching.size * GIB)
        rows.append((UNACCOUNTED.color, UNACCOUNTED.pattern, t(OVERESTIMATED), size))
    return rows


def _code(lines: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""


def _notices(plan: Plan, t: Words) -> str:
    return "".join(
        f"<p>{escape(t.error(notice))} → {escape(t.next_step(notice))}</p>" for notice in plan.notices
    )


def _numbers(plan: Plan, t: Words) -> str:
    head = (t("Number"), t("Value"), t("Formula, with today's numbers"), t("Basis, 80 % interval"))
    rows = (
        (row.label, row.value, f"{row.formula} = {row.substituted}" if row.formula else "",
         ", ".join(filter(None, (row.grade, row.interval))))
        for row in number_rows(plan, t)
    )  # fmt: skip
    return _table(head, rows)


def _overrides(plan: Plan, t: Words) -> str:
    steps = override_steps(plan)
    if not steps:
        return ""
    head = (t("Part"), t("Estimate"), t("Yours"), t("KV cache tokens"))
    rows = (
        (t(step.label), gib_text(step.predicted_bytes), gib_text(step.given_bytes),
         f"{count(step.tokens_before)} → {count(step.tokens_after)}")
        for step in steps
    )  # fmt: skip
    return _titled(t("Your figures against the estimate"), _table(head, rows))


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    header = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    body = "".join(f"<tr>{''.join(map(_cell, range(len(row)), row))}</tr>" for row in rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _cell(place: int, text: str) -> str:
    return f"<td>{escape(text)}</td>" if place == WIDE_COLUMN else f'<td class="figure">{escape(text)}</td>'


def memory_svg(plan: Plan, t: Words) -> str:
    """The memory of one GPU as a stacked bar with the lines of budget and card; "" without a card."""
    body = _memory_body(plan, t)
    return _drawing(BAR_HEIGHT, memory_bar.memory_title(plan, t), body) if body else ""


def memory_picture(plan: Plan, t: Words) -> str:
    """The bar as an SVG file of its own, with scenario, verdict and legend, on white; "" without a card.

    Example:
        >>> from kvcore import plan
        >>> from kvcore.base.words import Language, words
        >>> drawn = memory_picture(plan(model="Qwen/Qwen3-8B", accelerator="H100-80GB"), words(Language.ENGLISH))
        >>> drawn[:36], "Weights 15.3 GiB" in drawn
        ('<svg xmlns="http://www.w3.org/2000/s', True)
    """
    body = _memory_body(plan, t)
    if not body:
        return ""
    x, y = 1.0, PICTURE_TOP + BAR_HEIGHT + 14.0
    rows = []
    for color, pattern, name, size in _legend_rows(plan, t):
        text = f"{name} {size}"
        width = 40 + sum(12 if ord(letter) > WIDE_LETTERS else 7 for letter in text)
        if x > 1 and x + width > WIDTH:
            x, y = 1.0, y + 20
        swatch = swatch_svg(color, pattern).replace("<svg ", f'<svg x="{x:.1f}" y="{y - 11:.1f}" ', 1)
        rows.append(swatch + _text(x + 19, y, text, "start", INK))
        x += width
    bar = f'<g transform="translate(0 {PICTURE_TOP})">{"".join(body)}</g>'
    return _picture(plan, memory_bar.memory_title(plan, t), bar + "".join(rows), round(y + 12), t)


def curve_picture(plan: Plan, t: Words) -> str:
    """The curve as an SVG file of its own, with scenario and verdict, on white; "" where no request fits.

    Example:
        >>> from kvcore import plan
        >>> from kvcore.base.words import Language, words
        >>> drawn = curve_picture(plan(model="Qwen/Qwen3-8B", accelerator="H100-80GB"), words(Language.ENGLISH))
        >>> drawn[:36], "context length (tokens)" in drawn
        ('<svg xmlns="http://www.w3.org/2000/s', True)
    """
    drawn = curve_svg(plan, concurrency_curve(plan, curve_lengths(plan)), t)
    if not drawn:
        return ""
    placed = drawn.replace("<svg ", f'<svg y="{PICTURE_TOP}" height="{CURVE_HEIGHT}" ', 1)
    return _picture(plan, t("Requests at once by context length"), placed, PICTURE_TOP + CURVE_HEIGHT + 8, t)


def _picture(plan: Plan, title: str, body: str, height: int, t: Words) -> str:
    """A file of `height` with what was planned and the verdict above `body`."""
    said = (
        " · ".join((plan.scenario.model, *summary.scenario_line(plan, t))),
        summary.verdict_sentence(plan, t).text,
    )
    lines = [
        _text(1, 16 + 18 * row, "".join(filter(str.isprintable, text)), "start", INK)
        for row, text in enumerate(said)
    ]
    frame = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{2 * WIDTH}" '
        f'height="{2 * height}" font-size="12" font-family="system-ui, \'Noto Sans CJK SC\', sans-serif">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#FFF"/>'
    return f"{frame}<title>{escape(title)}</title>{ground}{''.join(lines)}{body}</svg>"


def _memory_body(plan: Plan, t: Words) -> list[str]:
    """The bar's elements; none without a card."""
    memory = plan.memory
    if memory is None:
        return []
    missing, reaching = memory_bar.shortage(plan), memory_bar.overlap(plan)
    total, budget = gib(memory.total.value), memory_bar.budget_end_gib(plan)
    scale = (WIDTH - 2) / memory_bar.end_gib(plan, missing)
    body = [_defs()]
    for segment in memory_bar.segments(plan):
        x, width, part = 1 + segment.start * scale, segment.size * scale, segment.part
        if width < 0.5:
            continue
        is_unused = part in (UNUSED, AFTER_POOL)
        body.append(_rectangle(x, width, UNUSED_GROUND if is_unused else part.color))
        if part.pattern:
            body.append(_rectangle(x, width, f"url(#hatch-{HATCHES[part.pattern][0]})"))
        if missing is not None and not is_unused:
            width = min(width, max(0.0, (missing.start - segment.start) * scale))
        if width > NAMED_SHARE * WIDTH:
            color = "#444" if is_unused else part.text_color
            for row, line in enumerate((t(part.label), gib_text(segment.figure * GIB))):
                body.append(_text(x + width / 2, BAR_TOP + 20 + 15 * row, line, "middle", color))
    if reaching is not None:
        x, width = 1 + reaching.start * scale, reaching.size * scale
        body.append(_rectangle(x, width, "url(#hatch-dash)", UNACCOUNTED.color))
    if missing is not None:
        x, width = 1 + missing.start * scale, missing.size * scale
        body.append(_rectangle(x, width, "url(#hatch-missing)", draw.CAPACITY))
        note = t("{size} missing", size=gib_text(missing.size * GIB))
        body.append(
            _text(min(x + width / 2, WIDTH - 60), BAR_TOP + BAR_SIZE + 18, note, "middle", draw.CAPACITY)
        )
    lines = (
        (budget, draw.BUDGET, "5 3", 12, memory_bar.budget_label(plan, t)),
        (total, draw.CAPACITY, "", 26, t("card {size}", size=gib_text(memory.total.value))),
    )
    for position, color, dash, height, label in lines:
        x = 1 + position * scale
        body.append(_line(x, BAR_TOP - 6, x, BAR_TOP + BAR_SIZE + 6, color, dash, 2))
        body.append(_text(x - 4, height, label, "end", INK))
    return body


def curve_svg(plan: Plan, curve: ConcurrencyCurve, t: Words) -> str:
    """Requests of each length that fit at once, log-log; "" where none fits."""
    points = [(x, y) for x, y in zip(curve.lengths, curve.concurrency, strict=True) if y > 0]
    if len(points) < 2:
        return ""
    left, right = math.log2(curve.lengths[0]), math.log2(curve.lengths[-1])
    peak = max(y for _, y in points)
    least = min(0.5, *(0.9 * y for _, y in points))
    low, high = math.log10(least), math.log10(max(10.0, peak * 1.3))

    def x_of(length: float) -> float:
        return LEFT + (math.log2(length) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y_of(requests: float) -> float:
        share = (math.log10(max(requests, least)) - low) / (high - low)
        return CURVE_HEIGHT - BOTTOM - share * (CURVE_HEIGHT - BOTTOM - 12)

    body = []
    for power in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 3):
            mark = step * 10.0**power
            if low <= math.log10(mark) <= high:
                body.append(_line(LEFT, y_of(mark), WIDTH - RIGHT, y_of(mark), "#DDD", "", 1))
                body.append(_text(LEFT - 6, y_of(mark) + 4, f"{mark:,.12g}", "end", INK))
    body += [
        _text(x_of(2**power), CURVE_HEIGHT - BOTTOM + 16, short_tokens(2**power), "middle", INK)
        for power in range(math.ceil(left), math.floor(right) + 1)
    ]
    body.append(_line(LEFT, y_of(1), WIDTH - RIGHT, y_of(1), draw.CAPACITY, "", 1.5))
    warning = t("OOM at start: not even one request fits")
    body.append(_text(LEFT + 6, y_of(1) + 13, warning, "start", draw.WARNING_TEXT))
    band = [
        *zip(curve.lengths, curve.high, strict=True),
        *reversed([*zip(curve.lengths, curve.low, strict=True)]),
    ]
    outline = _points((x_of(x), y_of(y)) for x, y in band)
    body.append(f'<polygon points="{outline}" fill="{draw.CURRENT_LINE}" opacity="0.2"/>')
    drawn = _points((x_of(x), y_of(y)) for x, y in points)
    body.append(f'<polyline points="{drawn}" fill="none" stroke="{draw.CURRENT_LINE}" stroke-width="2"/>')
    now = plan.resolved.max_model_len
    if plan.cache is not None and plan.cache.max_concurrency > 0 and left <= math.log2(now) <= right:
        x, y = x_of(now), y_of(plan.cache.max_concurrency)
        body.append(
            f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="{draw.OPERATING_POINT}" stroke="#333"/>'
        )
        note = t("{name}: {count} {count:request|requests} of {tokens} tokens", name=f"TP {curve.tensor_parallel_size}",
                 count=concurrency_text(plan.cache.max_concurrency), tokens=count(now))  # fmt: skip
        end = x > WIDTH * 0.6
        body.append(_text(x - 10 if end else x + 10, y - 8, note, "end" if end else "start", INK))
    body.append(_text(WIDTH / 2, CURVE_HEIGHT - 4, t("context length (tokens)"), "middle", INK))
    return _drawing(CURVE_HEIGHT, t("Requests at once by context length"), body)


def swatch_svg(color: str, pattern: str) -> str:
    """A patch of a part's colour and pattern for the legend."""
    hatch = f'<rect width="13" height="13" fill="url(#hatch-{HATCHES[pattern][0]})"/>' if pattern else ""
    fill = UNUSED_GROUND if color.startswith("rgba") else color
    return (
        '<svg width="13" height="13" aria-hidden="true">'
        f'<rect width="13" height="13" fill="{fill}" stroke="#555"/>{hatch}</svg>'
    )


def _defs() -> str:
    hatches = "".join(_pattern(name, drawing) for name, drawing in HATCHES.values())
    ground = '<rect width="8" height="8" fill="#FCEBE1" fill-opacity="0.2"/>'
    missing = _pattern("missing", f'{ground}<path d="M0 8L8 0" stroke="{draw.CAPACITY}" stroke-width="2"/>')
    return f"<defs>{hatches}{missing}</defs>"


def _pattern(name: str, drawing: str) -> str:
    size = 'width="8" height="8" patternUnits="userSpaceOnUse"'
    return f'<pattern id="hatch-{name}" {size}>{drawing}</pattern>'


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


def ticket_text(plan: Plan, link: str, t: Words) -> str:
    """Verdict, memory table, capacity, command, log lines to expect, link. The model name stands in code marks."""
    line = " · ".join((f"`{summary.model_name(plan.scenario)}`", *summary.scenario_line(plan, t)))
    lines = [f"**{summary.verdict_sentence(plan, t).text}**", "", line, ""]
    if plan.memory is not None:
        lines += [f"| {t('Part')} | GiB |", "|---|---:|"]
        labels = {part.name: t(part.label) for part in PARTS}
        labels = {"total": memory_bar.memory_title(plan, t), **labels}
        if memory_bar.difference_name(plan):
            labels[UNACCOUNTED.name] = t(memory_bar.difference_name(plan))
        sizes = {name: gib_text(getattr(plan.memory, name).value) for name in labels}
        lines += [*(f"| {label} | {sizes[name]} |" for name, label in labels.items()), ""]
    if plan.cache is not None:
        lines += [
            f"- {t('KV cache tokens')}: {count(plan.cache.tokens)}",
            f"- {t('Requests at once')}: {_requests(plan, t)}",
            f"- {t('Longest request')}: {count(plan.cache.longest_request_tokens)}",
            "",
        ]
    lines += [t("Start command:"), "", *_indented(*launch_command(plan).splitlines())]
    expected = expected_log_lines(plan)
    if expected:
        lines += ["", t("Lines to expect in the log:"), "", *_indented(*expected)]
    lines += ["", f"{t('The same plan as a link:')} <{link}>", ""]
    if not carries_configs(plan.scenario):
        lines += [t(NOT_CARRIED), ""]
    return "\n".join(lines)


def _requests(plan: Plan, t: Words) -> str:
    """The requests at once, as the verdict and the card say them."""
    requests = concurrency_text(summary.requests_at_once(plan))
    if plan.cache is None or summary.waiting_seats(plan) is None:
        return requests
    held = concurrency_text(plan.cache.max_concurrency)
    return t("{requests} (max_num_seqs; the KV cache has room for {held})", requests=requests, held=held)


def _indented(*lines: str) -> list[str]:
    """An indented code block: no fence that a text could close."""
    return [f"    {line}" for line in lines]


def qr_svg(text: str) -> str:
    """The code as an inline SVG, black on white; "" for too long a text.

    Example:
        >>> qr_svg("https://example.org/?v=1")[:4], qr_svg("x" * 2954)
        ('<svg', '')
    """
    if len(text.encode()) > MAX_QR_CHARACTERS:
        return ""
    code = segno.make_qr(text, error="l")
    return code.svg_inline(border=QUIET_ZONE, dark="#000", light="#fff", omitsize=True)


def empty_bar_svg(plan: Plan, t: Words) -> str:
    """One GPU as an empty bar with a scale, for a class to draw the parts into; "" without a card."""
    if plan.memory is None:
        return ""
    total = plan.memory.total.value / GIB
    step = next(size for size in (1, 2, 5, 10, 20, 50) if total / size <= MOST_TICKS)
    ticks = (
        _line(x, BAR_TOP + BAR_SIZE, x, BAR_TOP + BAR_SIZE + 5, INK, "", 1)
        + _text(x, BAR_TOP + BAR_SIZE + 18, str(at), "middle" if at else "start", INK)
        for at in range(0, int(total) + 1, step)
        for x in (1 + at / total * (WIDTH - 2),)
    )
    title = t("One GPU: {size}", size=gib_text(plan.memory.total.value))
    return _drawing(BAR_HEIGHT, title, (_rectangle(1, WIDTH - 2, "#fff"), *ticks))


def qr_image(text: str) -> str:
    """A data URL with an SVG of the code, black on white in every theme, at any size; "" for too long a text.

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
