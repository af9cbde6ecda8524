"""The thresholds of the alerts: those of the plan, and each by hand, in the link."""

from __future__ import annotations

from typing import Any

import streamlit as st
from msgspec.structs import replace

from kvcore.deploy.going_live import Load, Thresholds, never_fires, thresholds
from kvcore.planning import Plan
from kvcore.scenario.page_parameters import (
    ALERT_FIRST_SECONDS,
    ALERT_KV_PERCENT,
    ALERT_SECONDS,
    ALERT_WAITING,
)
from kvcore.texts.words import Words
from pages.ui.shared import net, state

FIELDS = {
    "alert_kv": "kv_cache_usage",
    "alert_waiting": "waiting_requests",
    "alert_first": "first_token_seconds",
    "alert_seconds": "request_seconds",
}


def chosen(plan: Plan, load: Load) -> Thresholds:
    """The thresholds of the plan, those in the link in their place."""
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
    """A field for each threshold, and the way back to the plan's."""
    limits = thresholds(plan, load)
    grid = st.grid(4, min_column_width=150)
    low, high = ALERT_KV_PERCENT
    grid.cell().number_input(
        t("KV cache above, %"), low, high,
        **state.bound("alert_kv", "alert_kv", min(high, round(limits.kv_cache_usage * 100))),
    )  # fmt: skip
    low, high = ALERT_WAITING
    grid.cell().number_input(
        t("Requests waiting, more than"), low, high,
        **state.bound("alert_waiting", "alert_waiting", min(high, limits.waiting_requests)),
    )  # fmt: skip
    least, most = ALERT_FIRST_SECONDS
    grid.cell().number_input(
        t("First token above, s"), least, most, step=0.5, format="%g",
        **state.bound("alert_first", "alert_first", limits.first_token_seconds),
    )  # fmt: skip
    least, most = ALERT_SECONDS
    grid.cell().number_input(
        t("Whole request above, s"), least, most, step=1.0, format="%g",
        **state.bound("alert_seconds", "alert_seconds", limits.request_seconds),
    )  # fmt: skip
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
