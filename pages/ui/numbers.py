"""Tables of the Plan page: all numbers, the effect of the person's own figures, and downloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

import streamlit as st

from kvcore.contract import result_of
from kvcore.plan import Plan
from kvcore.present.explain import Figures, NumberRow, numbers_csv
from kvcore.present.overrides import OverrideStep
from kvcore.present.text import Words, count, gib_text


def table(rows: Sequence[NumberRow], t: Words) -> None:
    """The text alternative of the charts: value, formula with today's numbers, grade, source."""
    head = (t("Number"), t("Value"), "GB", t("Per"), t("Formula"), t("With today's numbers"), t("Known how"), t("80 % interval"), t("Source"))  # fmt: skip
    body = [
        (row.label, row.value, row.gigabytes, row.scope, row.formula, row.substituted, row.grade, row.interval, row.source)
        for row in rows
    ]  # fmt: skip
    _html_table(head, body, figures=(1, 2), code=(4, 5))


def override_table(steps: Sequence[OverrideStep], t: Words) -> None:
    """Term by term, why the person's own figures give another answer than the engine's own."""
    if not steps:
        return
    with st.expander(t("Your figures against the estimate"), expanded=True, icon=":material/compare_arrows:"):
        head = (t("Part"), t("Estimate"), t("Yours"), t("Difference"), t("KV cache tokens"))
        body = [
            (
                t(step.label),
                gib_text(step.predicted_bytes),
                gib_text(step.given_bytes),
                gib_text(step.given_bytes - step.predicted_bytes, signed=True),
                f"{count(step.tokens_before)} → {count(step.tokens_after)}",
            )
            for step in steps
        ]
        _html_table(head, body, figures=(1, 2, 3, 4))
        st.caption(t("Each line is laid on the one above it, so the last figure is the plan above."))


def downloads(plan: Plan, figures: Figures, t: Words) -> None:
    """The plan for a spreadsheet and for a script; made when asked for."""
    with st.container(horizontal=True):
        st.download_button(
            t("Download CSV"),
            data=lambda: numbers_csv(plan, figures, t).encode("utf-8-sig"),
            file_name="kv-plan.csv",
            mime="text/csv",
            on_click="ignore",
        )
        st.download_button(
            t("Download JSON"),
            data=lambda: json.dumps(result_of(plan), ensure_ascii=False, indent=2).encode(),
            file_name="kv-plan.json",
            mime="application/json",
            on_click="ignore",
        )


def _html_table(
    head: Sequence[str], body: Sequence[Sequence[str]], figures: tuple[int, ...] = (), code: tuple[int, ...] = ()
) -> None:
    def cell(index: int, text: str) -> str:
        kind = ' class="kv-figure"' if index in figures else ""
        inner = f"<code>{escape(text)}</code>" if index in code and text else escape(text)
        return f"<td{kind}>{inner}</td>"

    header = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    rows = "".join(f"<tr>{''.join(cell(i, text) for i, text in enumerate(row))}</tr>" for row in body)
    st.html(f'<div class="kv-table"><table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>')
