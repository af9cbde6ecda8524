"""The chip that says on every page that measured parts replace predicted ones, and removes them."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from kvcore.evidence.calibration import given_fields
from kvcore.present.comparison import PART_LABELS
from kvcore.present.text import Words
from kvcore.scenario import Measured
from pages.ui import state


def chip(t: Words) -> None:
    """Shown only while the scenario carries measured parts."""
    given = given_fields(state.scenario().measured)
    if not given:
        return
    names = ", ".join(t(PART_LABELS[part]) for part in given)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="measurements"):
        st.badge(t("Measured: {parts}", parts=names), icon=":material/straighten:", color="violet")
        st.button(
            t("Back to the estimate"),
            key="measurements.remove",
            icon=":material/close:",
            type="tertiary",
            on_click=_remove,
        )


def _remove() -> None:
    state.set_scenario(replace(state.scenario(), measured=Measured()))
