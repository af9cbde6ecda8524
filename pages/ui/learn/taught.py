"""Which plan a class is taught with: the scenario's own, or where there is none, the nearest one that starts."""

from __future__ import annotations

import streamlit as st

from kvcore.advice.fixes import fixes
from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words
from kvcore.charts import summary
from kvcore.course.request_steps import FAILURES
from kvcore.planning import Plan, plan
from kvcore.wire import link
from pages.ui.shared import notes


def taught(planned: Plan | KvPlannerError, t: Words) -> Plan:
    """The plan of the lesson. What is refused, or does not start, says so above it, with the changes that let it."""
    if isinstance(planned, KvPlannerError):
        return _instead(planned, t)
    if planned.verdict in FAILURES:
        with st.container(key="learn_fails", gap="xsmall"):
            st.caption(f":material/change_history: {summary.verdict_sentence(planned, t).text}")
            notes.fixes(planned, fixes(planned), t)
    return planned


def _instead(error: KvPlannerError, t: Words) -> Plan:
    found = notes.refused(error, t)
    if found:
        change = summary.accepted_label(found[0], t)
        st.caption(
            t("Until then the lesson goes on with the first of these changes: {change}.", change=change)
        )
        return found[0].plan
    st.caption(t("Until then the lesson goes on with the example that this planner starts with."))
    return _example()


@st.cache_resource
def _example() -> Plan:
    return plan(link.decode({name: str(value) for name, value in link.START.items()}).scenario)
