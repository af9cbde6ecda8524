"""The source documents as stories: step by step, with figures computed now, what was wrong, and the start to open."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from kvcore.base.words import Words, msg
from kvcore.charts.stories import (
    ORDER,
    Corrected,
    StoryRow,
    corrections_of,
    opened,
    rows_of,
    step_at,
    steps_of,
)
from kvcore.texts import SOURCES, Source, StoryPage, StoryStep
from kvcore.wire import link
from pages.ui.check import tabs
from pages.ui.learn import look
from pages.ui.shared import elements, net, shell, state
from pages.ui.shared.parameters import PARAMETERS, decode_page, encode_page

STORY, STEP, CHOICE = "story", "story_step", "reference_story"
NAMES = {
    Source.RULE_OF_THUMB: msg("Rule of thumb"),
    Source.POST_MORTEM: msg("Post-mortem"),
    Source.ASCEND_TUNING: msg("Ascend pre-run"),
    Source.PARAMETERS: msg("vLLM's parameters"),
}
PAGES = {
    StoryPage.PLAN: ("", msg("Open this start on the Plan page"), ":material/memory:"),
    StoryPage.CHECK: ("check", msg("Open this start on the Check page"), ":material/fact_check:"),
    StoryPage.WORKLOAD: ("workload", msg("Open this load on the Workload page"), ":material/bar_chart:"),
    StoryPage.GOING_LIVE: ("reference", msg("Open this start under Going live"), ":material/rocket_launch:"),
}


def panel(t: Words) -> None:
    """The chosen story at the chosen step."""
    story = Source(state.page_parameter(STORY))
    st.segmented_control(
        t("Guide"),
        [one.value for one in ORDER],
        format_func=lambda name: t(NAMES[Source(name)]),
        required=True,
        label_visibility="collapsed",
        default=story.value,
        key=state.seed(CHOICE, story.value),
        on_change=_chosen,
    )
    look.present()
    number, step = step_at(story, state.page_parameter(STEP))
    _source(story, t)
    _way(story, number, t)
    st.header(f"{number} · {t(step.title)}", anchor=False)
    st.markdown(t(step.text))
    rows = rows_of(step, t)
    if rows:
        st.html(_table(rows, t))
    with st.container(border=True, gap="xsmall", key="story_wrong"):
        st.markdown(f":material/rule: **{t('Checked against the engine')}**")
        st.markdown(t(step.wrong))
        for one in corrections_of(step, t):
            st.html(_corrected(one, t))
    _open(step, t)


def _source(story: Source, t: Words) -> None:
    document = SOURCES[story]
    names = (document.name, document.title, document.license)
    st.caption(" · ".join(t(name) if name == document.name else name for name in names if name))


def _way(story: Source, number: int, t: Words) -> None:
    """The buttons back and next, and the page numbers; the arrow keys press the two buttons."""
    last = len(steps_of(story))
    with st.container(horizontal=True, key="story_way", vertical_alignment="center", gap="small"):
        for label, key, to, shortcut in (
            (t("Back"), "story.back", number - 1, "Left"),
            (t("Next"), "story.next", number + 1, "Right"),
        ):
            st.button(
                label,
                key=key,
                shortcut=shortcut,
                disabled=not 1 <= to <= last,
                on_click=state.set_page_parameter,
                args=(STEP, to),
            )
        # A key of its own for each step: a seeded pagination warns of its default, which it always has.
        key = f"story.pages.{story}.{number}"
        st.pagination(last, default=number, max_visible_pages=last, key=key, on_change=_picked, args=(key,))
        look.switch("story.present", t)


@net.callback
def _chosen() -> None:
    """Callback: opens another story at its first step."""
    state.set_page_parameter(STEP, None)
    state.set_page_parameter(STORY, st.session_state[CHOICE])


@net.callback
def _picked(key: str) -> None:
    state.set_page_parameter(STEP, st.session_state[key])


def _table(rows: Sequence[StoryRow], t: Words) -> str:
    head = ("", t("The guide"), t("By its own rule, now"), t("The engine, as planned"))
    cells = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th><td class="kv-figure">{escape(row.written)}</td>'
        f'<td class="kv-figure">{escape(row.own)}{_formula(row)}</td>'
        f'<td class="kv-figure"><b>{escape(row.engine)}</b></td></tr>'
        for row in rows
    )
    return elements.table_html(head, cells, "kv-story")


def _formula(row: StoryRow) -> str:
    return f"<small>{escape(row.formula)}</small>" if row.formula else ""


def _corrected(one: Corrected, t: Words) -> str:
    return (
        f'<p class="kv-corrected"><span>{escape(t("Says"))}</span> {escape(one.claim)}<br>'
        f"<span>{escape(t('Correct'))}</span> {escape(one.truth)}</p>"
    )


def _open(step: StoryStep, t: Words) -> None:
    """A link to the start of the step, with the present language and place in the story."""
    path, label, icon = PAGES[step.page]
    given = opened(step)
    params = {
        **state.params(link.decode(given, PARAMETERS).scenario),
        **encode_page(decode_page(given).values),
    }
    if step.page is StoryPage.CHECK:
        params[tabs.NAME] = tabs.PRERUN
    if step.page is StoryPage.GOING_LIVE:
        params["section"] = "going-live"
    st.page_link(shell.page_at(path), label=t(label), icon=icon, query_params=params)
