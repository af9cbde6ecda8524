"""The thresholds of the alerts: the plan's, and each by hand in the link."""

from __future__ import annotations

from typing import Any

import streamlit as st
from msgspec.structs import replace

from kvcore.base.words import Words
from kvcore.deploy.going_live import Load, Thresholds, never_fires, thresholds
from kvcore.planning import Plan
from pages.ui.shared import net, numbers, state
from pages.ui.shared.numbers import Limits
from pages.ui.shared.parameters import ALERT_FIRST_SECONDS, ALERT_KV_PERCENT, ALERT_SECONDS, ALERT_WAITING

FIELDS = {
    "alert_kv": "kv_cache_usage",
    "alert_waiting": "waiting_requests",
    "alert_first": "first_token_seconds",
    "alert_seconds": "request_seconds",
}


def chosen(plan: Plan, load: Load) -> Thresholds:
    """The plan's thresholds, with those in the link in their place."""
    found = thresholds(plan, load)
    given: dict[str, Any] = {
        field: state.page_parameter(name)
        for name, field in FIELDS.items()
        if state.page_parameter(name) is not None
    }
    if "kv_cache_usage" in given:
        given["kv_cache_usage"] /= 100
    return replace(found, **given)


def edit(plan: Plan, load: Load, t: Words) -> None:
    """A field for each threshold, and the button back to the plan's."""
    limits = thresholds(plan, load)
    grid = st.grid(4, min_column_width=150)
    boxes = (
        (
            t("KV cache above, %"),
            Limits(*ALERT_KV_PERCENT),
            "alert_kv",
            round(limits.kv_cache_usage * 100),
            1,
        ),
        (
            t("Requests waiting, more than"),
            Limits(*ALERT_WAITING),
            "alert_waiting",
            limits.waiting_requests,
            1,
        ),
        (
            t("First token above, s"),
            Limits(*ALERT_FIRST_SECONDS, is_whole=False),
            "alert_first",
            limits.first_token_seconds,
            0.5,
        ),
        (
            t("Whole request above, s"),
            Limits(*ALERT_SECONDS, is_whole=False),
            "alert_seconds",
            limits.request_seconds,
            1,
        ),
    )
    for label, taken, name, usual, step in boxes:
        numbers.of_parameter(grid.cell(), label, taken, name, name, t, min(usual, taken.high), step=step)
    if never_fires(plan, chosen(plan, load)):
        st.warning(
            t("A latency is beyond the last bound of the engine's histogram: this alert would never fire."),
            icon=":material/notifications_off:",
        )
    if any(state.page_parameter(name) is not None for name in FIELDS):
        st.button(
            t("Back to the thresholds of the plan"),
            key="alert_reset",
            type="tertiary",
            icon=":material/undo:",
            on_click=_reset,
        )


@net.callback
def _reset() -> None:
    for name in FIELDS:
        state.set_page_parameter(name, None)
