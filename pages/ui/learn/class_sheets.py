"""What a class is given: a handout and a teacher's sheet to print, a link for the students, one with the solutions."""

from __future__ import annotations

import streamlit as st

from kvcore.base.words import Words
from kvcore.charts.handout import Links, handout_html
from kvcore.planning import Plan
from pages.ui.learn import steps
from pages.ui.shared import numbers, share_link, state
from pages.ui.shared.parameters import LARGEST_SEED

OF_ONE_PERSON = ("score", "answers", "reveal", "present", "frame", "seed")
"""What a link says of the person who has it: none of that is for a class."""


def sheets(plan: Plan, t: Words) -> None:
    """The button, and what it opens."""
    box = st.popover(t("For a class"), icon=":material/groups:", key="learn.class", on_change="rerun")
    if not box.open:
        return
    route, seed = steps.route(), state.page_parameter("seed")
    links = _links()
    with box:
        numbers.of_parameter(
            st,
            t("Seed of the questions"),
            numbers.Limits(0, LARGEST_SEED),
            "seed",
            "learn.seed",
            t,
            help=t("Each number gives other figures; 0 asks about the scenario itself."),
        )
        st.caption(t("For the students (a number after seed= for each of them):"))
        st.code(links.students, language=None, wrap_lines=True)
        st.caption(t("With all solutions:"))
        st.code(links.solutions, language=None, wrap_lines=True)
        for name, label, solved in (
            ("handout", t("Handout (HTML, to print)"), False),
            ("teacher", t("Teacher’s sheet (HTML, to print)"), True),
        ):
            st.download_button(
                label,
                data=lambda solved=solved: handout_html(plan, route, seed, links, t, solved=solved),  # type: ignore[misc]
                file_name=f"kv-{name}.html",
                mime="text/html",
                icon=":material/print:",
                on_click="ignore",
                key=f"learn.{name}",
            )


def _links() -> Links:
    seed = str(state.page_parameter("seed") or 1)
    cleared: dict[str, str | None] = dict.fromkeys(OF_ONE_PERSON)
    solved = str(state.page_parameter("seed")) if state.page_parameter("seed") else None
    return Links(
        students=share_link.address("learn", {**cleared, "seed": seed}),
        solutions=share_link.address("learn", {**cleared, "seed": solved, "reveal": "1"}),
    )
