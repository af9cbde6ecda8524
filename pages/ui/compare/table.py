"""Deployments next to each other: bars on one GiB axis, their colours, the same as a table; and the largest steps that
start."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from kvcore.advice.vary import LARGEST_BATCH, Variant, best_of, largest_batches, splits
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count
from kvcore.base.parts import AFTER_POOL, STACKED, UNACCOUNTED
from kvcore.base.words import Words, listed
from kvcore.charts.comparison import (
    all_gpus,
    figures_of,
    limit_note,
    refusal_text,
    seats_note,
    split_name,
    target_note,
    verdict_word,
)
from kvcore.charts.memory_bar import difference_name, small_multiples
from kvcore.planning import Plan
from kvcore.scenario import Scenario
from pages.ui.shared import drawings, elements, frames, state
from pages.ui.shared.elements import two_lines

LIMITED_COLUMNS = (6, 7)
"""Columns that count running requests, which max_num_seqs may limit."""
REPLICA_COLUMNS = (5, 6)
"""Columns on all replicas: shown only where there are several."""


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
        t("Time per token, at least"),
        t("Tokens per second, at most"),
    ]
    hidden = () if any(variant.replicas > 1 for _, variant in named) else REPLICA_COLUMNS
    head = [text for column, text in enumerate(head) if column not in hidden]
    most, densest = best_of([variant for _, variant in named])
    now = next((all_gpus(variant) for _, variant in named if variant.is_now), 0)
    rows = ""
    for name, variant in named:
        marks = [t("current")] if variant.is_now else []
        marks += [t("most requests")] if variant is most else []
        marks += [t("most per GPU")] if variant is densest else []
        marks += [t("fewer GPUs than now")] if all_gpus(variant) < now else []
        reason = refusal_text(variant.error, t) or target_note(variant, t)
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
    elements.table(head, rows, "kv-compare")
    st.caption(
        t(
            "Time per token and tokens per second: bounds by memory bandwidth alone, with as many requests of full "
            "length as run at once. Shorter ones are faster."
        )
    )


SHORTER = (8, 2, 1)
"""Divisors of the planned length that the columns are for."""


def show_batches(scenario: Scenario, t: Words) -> None:
    """The largest batch that still starts: a row for each split, a column for each length."""
    planned = state.planned()
    if not isinstance(planned, Plan):
        return
    cuts = [
        one
        for one in splits(scenario.parallel, planned.architecture)
        if one.decode_context_parallel_size == scenario.parallel.decode_context_parallel_size
    ]
    longest = planned.resolved.max_model_len
    lengths = sorted({max(1, longest // part) for part in SHORTER})
    try:
        found = list(largest_batches(scenario, cuts, lengths))
    except KvPlannerError:
        return
    st.subheader(t("The largest step that still starts"), anchor=False)
    columns: dict[str, list[str]] = {t("Layout"): [split_name(one) for one in cuts]}
    for index, length in enumerate(lengths):
        own = found[index :: len(lengths)]
        columns[t("{tokens} tokens", tokens=count(length))] = [
            t("none")
            if not one.tokens
            else t("{requests} tight", requests=count(one.tokens))
            if one.is_tight
            else count(one.tokens)
            for one in own
        ]
    frames.show(pd.DataFrame(columns), key="largest_batches")
    st.caption(
        t(
            "--max-num-batched-tokens up to {largest}, at each context length. Tight: within the estimate's error.",
            largest=count(LARGEST_BATCH),
        )
    )
