"""Compare: the largest step that still starts, for each way to cut the cards and each length."""

from __future__ import annotations

import streamlit as st

from kvcore.advice.batches import LARGEST, largest_batches
from kvcore.advice.vary import splits
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count
from kvcore.base.words import Words
from kvcore.charts.comparison import split_name
from kvcore.planning import Plan
from kvcore.scenario import Scenario
from pages.ui.shared import state

SHORTER = (8, 2, 1)
"""Parts of the planned length that the columns are of."""


def show(scenario: Scenario, t: Words) -> None:
    """One row a cut, one column a length."""
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
    columns: dict[str, list[str]] = {t("Cut"): [split_name(one) for one in cuts]}
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
    st.dataframe(columns, hide_index=True, key="largest_batches")
    st.caption(
        t(
            "--max-num-batched-tokens up to {largest}, at each context length. Tight: within the estimate's error.",
            largest=count(LARGEST),
        )
    )
