"""The end of a path: what the class's own deployment serves, its verdict, and a link to type or to scan."""

from __future__ import annotations

import streamlit as st

from kvcore.base.words import Words
from kvcore.charts import summary
from kvcore.course import Step, StepName
from pages.ui.shared import notes, share_link, shell, state


def deployment(step: Step, t: Words) -> None:
    """Verdict, link and way to the Plan page, on the step about the class's own deployment."""
    if step.name is not StepName.OWN:
        return
    with st.container(border=True, key="learn_own", gap="small"):
        notes.verdict(summary.verdict_sentence(step.plan, t))
        st.caption(t("The link of this deployment, for a ticket or the next class:"))
        st.code(share_link.plan_address(step.plan), language=None, wrap_lines=True)
        st.page_link(
            shell.page_at(""),
            label=t("Open it on the Plan page: fixes and launch command"),
            icon=":material/memory:",
            query_params=state.params(),
        )
