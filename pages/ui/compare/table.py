"""Deployments next to each other: bars on one GiB axis, their colours, and the table that says the same."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvcore.advice.vary import Variant, best_of
from kvcore.base.parts import AFTER_POOL, STACKED, UNACCOUNTED
from kvcore.base.words import Words, listed
from kvcore.charts.comparison import figures_of, limit_note, refusal_text, seats_note, verdict_word
from kvcore.charts.memory_bar import difference_name, small_multiples
from pages.ui.shared import drawings, html_table
from pages.ui.shared.html_table import two_lines

LIMITED_COLUMNS = (6, 7)
"""Counted in requests that run, which max_num_seqs may limit."""
REPLICA_COLUMNS = (5, 6)
"""Replicas and what all of them have room for: said only where there are several."""


def show(named: Sequence[tuple[str, Variant]], key: str, t: Words, short_names: Sequence[str] = ()) -> None:
    """Bars, legend, table; the bars take `short_names` where the names are too long for them."""
    drawn = [
        (short, variant)
        for short, (_, variant) in zip(short_names or [name for name, _ in named], named, strict=True)
    ]
    said = t("Memory of one GPU in each deployment; the table below says the same")
    st.html(small_multiples(drawn, t).html(f"kv-{key}", said))
    has_difference = any(variant.plan is not None and difference_name(variant.plan) for _, variant in named)
    has_later = any(variant.plan is not None and variant.plan.cache is not None for _, variant in named)
    left_out = {UNACCOUNTED: not has_difference, AFTER_POOL: not has_later}
    shown = [part for part in STACKED if not left_out.get(part)]
    drawings.swatches(shown, t, has_missing=True)
    head = [
        t("Deployment"),
        t("Verdict"),
        t("Requests at once, per replica"),
        t("KV cache tokens"),
        t("GPUs per replica"),
        t("Replicas"),
        t("On all replicas"),
        t("Requests per GPU"),
    ]
    hidden = () if any(variant.replicas > 1 for _, variant in named) else REPLICA_COLUMNS
    head = [text for column, text in enumerate(head) if column not in hidden]
    most, densest = best_of([variant for _, variant in named])
    rows = ""
    for name, variant in named:
        marks = [t("current")] if variant.is_now else []
        marks += [t("most requests")] if variant is most else []
        marks += [t("most per GPU")] if variant is densest else []
        reason = refusal_text(variant.error, t)
        held, *others = figures_of(variant)
        limit = limit_note(variant, t)
        figures = [
            two_lines(text, limit if column in LIMITED_COLUMNS else "")
            for column, text in enumerate(others, start=3)
            if column not in hidden
        ]
        rows += (
            f"<tr><td>{two_lines(name, listed(t, marks))}</td><td>{two_lines(verdict_word(variant, t), reason)}</td>"
            + f'<td class="kv-figure">{two_lines(held, seats_note(variant, t))}</td>'
            + "".join(f'<td class="kv-figure">{figure}</td>' for figure in figures)
            + "</tr>"
        )
    html_table.show(head, rows, "kv-compare")
