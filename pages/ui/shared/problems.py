"""The error of a button, shown next to it: one at a time, gone once something else was done."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words
from kvcore.scenario import Scenario
from pages.ui.shared import labels

KEY = "problem"


class Problem(NamedTuple):
    """An error, the place that shows it, and the scenario that it left as it was."""

    place: str
    error: KvPlannerError
    scenario: Scenario


def keep(place: str, error: KvPlannerError) -> None:
    """Has `place` show an error, and no other place. For callbacks."""
    st.session_state[KEY] = Problem(place, error, st.session_state["scenario"])


def clear() -> None:
    """Clears the error before something else is tried. For callbacks."""
    st.session_state.pop(KEY, None)


def at(place: str) -> KvPlannerError | None:
    """The error that `place` shows, or None."""
    kept: Problem | None = st.session_state.get(KEY)
    if kept is None or kept.place != place or kept.scenario != st.session_state["scenario"]:
        return None
    return kept.error


def next_to_control(field: str, t: Words) -> None:
    """Below the control of a field: why it shows its old value again. Once; the page need not say it then."""
    if st.session_state.get("input_error_field") != field:
        return
    error: KvPlannerError | None = st.session_state.pop("input_error", None)
    del st.session_state["input_error_field"]
    if error is not None:
        _say(error, t("This setting was not changed."), t)


def show(place: str, title: str, t: Words) -> None:
    """The error of `place`, with its next step and its code; `title` is a text of the catalogue."""
    error = at(place)
    if error is not None:
        _say(error, title, t)


def _say(error: KvPlannerError, title: str, t: Words) -> None:
    st.error(title, icon=":material/error:")
    st.text(f"{t.error(error)}\n{t('Next: {step}', step=t.next_step(error))}")
    labels.code(error)
