"""Tables of the Plan page: all numbers, the effect of the person's own figures, and downloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

import streamlit as st

from kvcore.base.numbers import count, gib_text
from kvcore.base.words import Words
from kvcore.contract.result import planned_result
from kvcore.controls.in_force import OverrideStep
from kvcore.explain.numbers import NumberRow, numbers_csv
from kvcore.planning import Plan
from pages.ui.shared import elements
from pages.ui.shared.elements import two_lines


def table(rows: Sequence[NumberRow], t: Words) -> None:
    """The text alternative of the charts: value, formula with today's numbers, grade, source."""
    head = (
        t("Number"),
        t("Value"),
        t("Formula, with today's numbers"),
        t("Basis, 80 % interval"),
        t("Source"),
    )
    body = "".join(
        "<tr>"
        f"<td>{two_lines(row.label, row.scope)}</td>"
        f'<td class="kv-figure">{two_lines(row.value, row.gigabytes and f"{row.gigabytes} GB")}</td>'
        f'<td class="kv-formula">{two_lines(row.formula, row.substituted and f"= {row.substituted}")}</td>'
        f"<td>{two_lines(row.grade, row.interval)}</td>"
        f'<td class="kv-source">{escape(row.source)}</td>'
        "</tr>"
        for row in rows
    )
    elements.table(head, body)


def override_table(steps: Sequence[OverrideStep], t: Words) -> None:
    """Row by row, why the person's own figures give another answer than the estimate."""
    if not steps:
        return
    with st.expander(t("Your figures against the estimate"), expanded=True, icon=":material/compare_arrows:"):
        head = (t("Part"), t("Estimate"), t("Yours"), t("Difference"), t("KV cache tokens"))
        body = "".join(
            f"<tr><td>{escape(t(step.label))}</td>"
            f'<td class="kv-figure">{escape(gib_text(step.predicted_bytes))}</td>'
            f'<td class="kv-figure">{escape(gib_text(step.given_bytes))}</td>'
            f'<td class="kv-figure">{escape(gib_text(step.given_bytes - step.predicted_bytes, signed=True))}</td>'
            f'<td class="kv-figure">{count(step.tokens_before)} → {count(step.tokens_after)}</td></tr>'
            for step in steps
        )
        elements.table(head, body)
        st.caption(t("Each line adds to the one before; the last figure is the plan above."))


def downloads(plan: Plan, t: Words) -> None:
    """Downloads of the plan for a spreadsheet and for a script, made when asked for."""
    with st.container(horizontal=True):
        elements.download(t("Download CSV"), "kv-plan.csv", lambda: numbers_csv(plan, t).encode("utf-8-sig"))
        elements.download(
            t("Download JSON"),
            "kv-plan.json",
            lambda: json.dumps(planned_result(plan), ensure_ascii=False, indent=2).encode(),
        )
