"""Changes that a button makes, and one step back from them."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words
from kvcore.controls import edit
from kvcore.scenario import Scenario
from pages.ui.shared import net, state

KEY = state.UNDO
GO = "go_to_plan"
PLAN = "pages/plan.py"


@net.callback
def change(fields: Sequence[tuple[str, object]]) -> None:
    """Callback: changes all `fields` as one entry of the browser's history."""
    changed = state.scenario()
    try:
        for field, value in fields:
            changed = edit.with_field(changed, field, value)
    except KvPlannerError as error:
        st.session_state["input_error"] = error
        return
    take(changed)


@net.callback
def take(changed: Scenario) -> None:
    """Callback: makes `changed` the scenario, and remembers the one before."""
    before = state.scenario()
    st.session_state[KEY] = (before, changed)
    state.set_scenario(changed)
    state.tell_of_the_card(before, changed)


@net.callback
def take_to_plan(changed: Scenario) -> None:
    """Callback: `take`, then go to the Plan page."""
    st.session_state[GO] = changed


def follow() -> None:
    """Goes to Plan after a callback asked for it. Pages with such buttons call it before they draw."""
    changed = st.session_state.pop(GO, None)
    if changed is not None:
        before = state.scenario()
        st.session_state[KEY] = (before, changed)
        state.tell_of_the_card(before, changed)
        st.switch_page(PLAN, query_params=state.adopt(changed))


def offer(t: Words) -> None:
    """The button that goes back, while the scenario is the one that a button made."""
    before, after = st.session_state.get(KEY, (None, None))
    if before is None or after != state.scenario() or before == after:
        return
    st.button(
        t("Undo the last change"), key="undo_button", icon=":material/undo:", type="tertiary", on_click=_back
    )


@net.callback
def _back() -> None:
    before, _ = st.session_state.pop(KEY)
    state.set_scenario(before)
