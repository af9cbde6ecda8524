"""One page to print or to file: a complete HTML document with its charts inside. No script, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from kvcore.advice.curve import concurrency_curve
from kvcore.deploy.checklist import expected_log_lines
from kvcore.deploy.launch import launch_command
from kvcore.explain.numbers import number_rows
from kvcore.planning import Plan
from kvcore.scenario.link import carries_configs
from kvcore.scenario.settings import override_steps
from kvcore.texts.palette import OVERESTIMATED, UNACCOUNTED
from kvcore.texts.words import Words, count, gib_text
from kvcore.units import GIB
from kvcore.views.bar import overlap, segments
from kvcore.views.charts import curve_lengths
from kvcore.views.summary import cards, scenario_line, verdict_sentence
from kvcore.views.svg import curve_svg, memory_svg, swatch_svg
from kvcore.views.ticket import NOT_CARRIED

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
SIGNS: Final = {"fits": "✔", "caution": "▲", "fails": "✖"}
WIDE_COLUMN: Final = 2
STYLE: Final = """
@page { size: A4; margin: 9mm; }
body { font: 12px/1.4 system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif; color: #111; background: #fff;
  max-width: 190mm; margin: 0 auto; padding: 8px; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
h1 { font-size: 17px; margin: 0 0 2px; overflow-wrap: anywhere; } h2 { font-size: 12.5px; margin: 7px 0 2px; }
p { margin: 2px 0; } .verdict { font-weight: 600; border: 1px solid #888; border-radius: 4px; padding: 5px 8px; }
.fits { border-left: 6px solid #009E73; } .caution { border-left: 6px solid #E69F00; }
.fails { border-left: 6px solid #D55E00; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: 6px; margin: 6px 0; }
.cards div { border: 1px solid #bbb; border-radius: 4px; padding: 4px 7px; }
.cards b { font-size: 16px; display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 1px 14px; padding: 0; margin: 2px 0; list-style: none; }
.legend svg { vertical-align: -2px; margin-right: 4px; }
table { border-collapse: collapse; width: 100%; font-size: 9px; line-height: 1.2; }
th, td { text-align: left; vertical-align: top; padding: 1.5px 8px 1.5px 0; border-bottom: 1px solid #ddd; }
td.figure { white-space: nowrap; } td { overflow-wrap: anywhere; }
pre { font-size: 9.5px; margin: 2px 0; padding: 4px 6px; border: 1px solid #ddd; white-space: pre-wrap;
  overflow-wrap: anywhere; } .soft { color: #555; } section { break-inside: avoid; }
@media print { body { padding: 0; font-size: 11px; } }
"""


def report_html(plan: Plan, link: str, t: Words) -> str:
    """The plan as a document: verdict, memory, capacity, command, log lines to expect, all numbers, link."""
    curve = concurrency_curve(plan, curve_lengths(plan))
    sentence = verdict_sentence(plan, t)
    outcome = sentence.outcome.value
    parts = [
        f"<h1>{escape(plan.scenario.model)}</h1>",
        f'<p class="soft">{escape(" · ".join(scenario_line(plan, t)))}</p>',
        f'<p class="verdict {outcome}">{SIGNS[outcome]} {escape(sentence.text)}</p>',
        _titled(t("Memory of one GPU"), memory_svg(plan, t) + _legend(plan, t)),
        '<div class="cards">',
        *(
            f"<div>{escape(card.label)}<b>{escape(card.value)}</b>"
            f'<span class="soft">{escape(card.note)}</span></div>'
            for card in cards(plan, curve, t)
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
    title = escape(f"KV Planner: {plan.scenario.model}")
    return (
        f'<!doctype html>\n<html lang="{t.language.tag}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n"
        "</body>\n</html>\n"
    )


def _titled(title: str, body: str) -> str:
    """A section, or nothing when it would be empty."""
    return f"<section><h2>{escape(title.rstrip(':：'))}</h2>{body}</section>" if body else ""


def _legend(plan: Plan, t: Words) -> str:
    items = "".join(
        f"<li>{swatch_svg(segment.part.color, segment.part.pattern)}{escape(t(segment.part.label))} "
        f"<b>{escape(gib_text(segment.figure * GIB))}</b></li>"
        for segment in segments(plan)
        if segment.size > 0
    )
    reaching = overlap(plan)
    if reaching is not None:
        size = gib_text(-reaching.size * GIB)
        swatch = swatch_svg(UNACCOUNTED.color, UNACCOUNTED.pattern)
        items += f"<li>{swatch}{escape(t(OVERESTIMATED))} <b>{escape(size)}</b></li>"
    return f'<ul class="legend">{items}</ul>' if items else ""


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
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>" if place == WIDE_COLUMN else f'<td class="figure">{escape(cell)}</td>'
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
