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
    is_short,
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

PER_REPLICA, TOKENS, GPUS, REPLICAS, ON_ALL, PER_GPU, TIME, SPEED = range(8)
"""Places in `figures_of`."""


def _columns(t: Words, *, has_replicas: bool) -> dict[int, str]:
    """The columns after the verdict, those first that decide: a phone shows no more than two of them."""
    each = t("Requests at once, per replica") if has_replicas else t("Requests at once")
    names = {
        ON_ALL: t("Requests at once, all replicas"),
        PER_GPU: t("Requests per GPU"),
        TIME: t("Time per token, at least"),
        SPEED: t("Tokens per second, at most"),
        PER_REPLICA: each,
        GPUS: t("GPUs per replica"),
        REPLICAS: t("Replicas"),
        TOKENS: t("KV cache tokens"),
    }
    if has_replicas:
        return names
    return {PER_REPLICA: each} | {
        place: name for place, name in names.items() if place not in (PER_REPLICA, ON_ALL, REPLICAS)
    }


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
    is_missing = any(variant.plan is not None and variant.plan.missing_bytes > 0 for _, variant in named)
    drawings.swatches(shown, t, has_missing=is_missing)
    columns = _columns(t, has_replicas=any(variant.replicas > 1 for _, variant in named))
    head = [t("Deployment"), t("Verdict"), *columns.values()]
    most, densest = best_of([variant for _, variant in named])
    now = next((all_gpus(variant) for _, variant in named if variant.is_now), 0)
    rows = ""
    for name, variant in named:
        marks = [t("current")] if variant.is_now else []
        marks += [t("most requests")] if variant is most else []
        marks += [t("most per GPU")] if variant is densest else []
        marks += [t("fewer GPUs than now")] if all_gpus(variant) < now else []
        reason = refusal_text(variant.error, t) or target_note(variant, t)
        notes = {
            PER_REPLICA: seats_note(variant, t),
            ON_ALL: limit_note(variant, t),
            PER_GPU: limit_note(variant, t),
        }
        texts = figures_of(variant)
        kind = ' class="kv-short"' if is_short(variant) else ""
        rows += (
            f"<tr><td>{two_lines(name, listed(t, marks))}</td>"
            f"<td{kind}>{two_lines(verdict_word(variant, t), reason)}</td>"
            + "".join(
                f'<td class="kv-figure">{two_lines(texts[column], notes.get(column, ""))}</td>'
                for column in columns
            )
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
