"""Folded parts of a page, which cost nothing until somebody opens them."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.ui.shared import state


def fold(label: str, name: str, icon: str | None = None) -> tuple[DeltaGenerator, bool]:
    """An expander, and whether to fill it: from its first opening on, so that text typed into it stays.

    Its label makes it another expander in another language, so whether it is open is kept apart.
    """
    is_open, was_opened = f"{name}.open", f"{name}.opened"
    key = f"{name}.{state.language()}"
    if key not in st.session_state:
        st.session_state[key] = st.session_state.get(is_open, False)
    box = st.expander(label, key=key, icon=icon, on_change="rerun")
    st.session_state[is_open] = bool(box.open)
    return box, _is_opened(box.open, was_opened)


def other_ways(label: str, key: str) -> tuple[DeltaGenerator, bool]:
    """A small popover in the sidebar, and whether to fill it; its key says whether it is open, in any language."""
    box = st.popover(label, icon=":material/add:", type="tertiary", key=key, on_change="rerun")
    return box, _is_opened(box.open, f"{key}.opened")


def _is_opened(is_open: bool | None, name: str) -> bool:
    if is_open:
        st.session_state[name] = True
    return name in st.session_state
