"""A log whose model is not bundled: nothing is compared or fixed before a person says which model it is."""

from __future__ import annotations

import re

import streamlit as st

from kvcore.base.words import Words
from kvcore.evidence.recognized import Recognized
from pages.ui.shared import net, state
from pages.ui.sidebar import model_source

SAME = "check.same_model"
"""The log's name for a model, and the sidebar's name for the same."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def is_known(found: Recognized) -> bool:
    """Whether the plan is of the log's model."""
    return not found.unknown_model or st.session_state.get(SAME) == (
        found.unknown_model,
        found.scenario.model,
    )


def unknown(found: Recognized, t: Words) -> None:
    """What the log calls its model, and the ways to say which one it is."""
    if is_known(found):
        return
    with st.container(border=True, key="check.unknown", gap="xsmall"):
        st.text(
            t(
                "The log names the model {model}, which is not bundled. Identify it to compare "
                "the log and to get fixes.",
                model=found.unknown_model,
            )
        )
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            if HUB_ID.fullmatch(found.unknown_model) and not model_source.is_offline():
                st.button(
                    t("Look it up on the Hub"),
                    key="check.look_up",
                    icon=":material/search:",
                    on_click=model_source.fetch_and_use,
                    args=(found.unknown_model, "check"),
                )
            st.button(t("It is the model in the sidebar"), key="check.same", on_click=_is_same, args=(found,))
        model_source.show_error("check", t)


@net.callback
def _is_same(found: Recognized) -> None:
    st.session_state[SAME] = (found.unknown_model, state.scenario().model)
