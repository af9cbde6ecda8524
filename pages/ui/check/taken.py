"""After a button of the Check page: a toast, the new command, the way to Plan and the way back."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from kvcore.base.errors import KvPlannerError, ScenarioError
from kvcore.base.words import Words
from kvcore.controls import edit
from kvcore.deploy.launch_files import Artefact, artefact
from kvcore.planning import Plan
from kvcore.scenario import Scenario
from pages.ui.shared import net, problems, shell, state, undo

TAKEN = "check.taken"
"""The scenario that a button of this page made."""
FIXED = "check.fixed"
"""Whether that scenario is the log's with one change that fixes it."""
TOAST = "check.toast"


@net.callback
def take(changed: Scenario) -> None:
    """Callback: makes `changed` the scenario, with one step back."""
    undo.take(changed)
    st.session_state[TAKEN], st.session_state[FIXED] = changed, False
    st.session_state[TOAST] = True


@net.callback
def take_with(scenario: Scenario, field: str, value: object) -> None:
    """Callback: `take` for `scenario` with one field changed."""
    try:
        changed = edit.with_field(scenario, field, value)
    except KvPlannerError as error:
        problems.keep("check.fix", error)
        return
    take(changed)
    st.session_state[FIXED] = True


def is_fixed() -> bool:
    """Whether a change that was offered here was taken: the advice is done."""
    return bool(st.session_state.get(FIXED)) and st.session_state.get(TAKEN) == state.scenario()


def forget() -> None:
    """Forgets what a button took, for a new log."""
    for key in (TAKEN, FIXED, TOAST):
        st.session_state.pop(key, None)


def outcome(t: Words) -> None:
    """While the scenario is the one that was taken: its command, the link to Plan, and the way back."""
    problems.show("check.fix", t("The scenario was not changed."), t)
    if st.session_state.get(TAKEN) != state.scenario():
        return
    if st.session_state.pop(TOAST, False):
        st.toast(t("Done: every page now plans this start."))
    planned = state.planned()
    with st.container(border=True, key="check.taken"):
        st.markdown(f":material/check: **{t('Done: every page now plans this start.')}**")
        if isinstance(planned, Plan):
            with suppress(ScenarioError):
                st.code(artefact(Artefact.COMMAND, planned), language="bash")
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.page_link(
                shell.page_at(""),
                label=t("See it on Plan"),
                icon=":material/memory:",
                query_params=state.params(),
                width="content",
            )
            undo.offer(t)
