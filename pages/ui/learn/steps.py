"""The way through the steps of the Learn page: lesson or path, back, next, the number of the step; all in the link."""

from __future__ import annotations

from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.base.words import Words
from kvcore.course import StepName
from kvcore.course.course import Route, lesson_after, lesson_with, route_of, routes
from kvcore.explain.reference import POST_MORTEM, RULE_OF_THUMB
from kvcore.texts import SYLLABUS
from kvcore.wire import link
from pages.ui.learn import check, guess, look
from pages.ui.shared import net, shell, state, undo

PARAMETER = "step"
PAGINATION = "learn.pagination"
ROUTE = "learn.route"


def route() -> Route:
    """The lesson or the path that the link names, else the whole course."""
    return route_of(lesson=state.page_parameter("lesson"), path=state.page_parameter("path"))


def chosen() -> StepName:
    """The step that the link names, of the route that it names."""
    return route().at(state.page_parameter(PARAMETER))


def way(name: StepName, t: Words) -> DeltaGenerator:
    """What to go through; then back, next and the numbers. The arrow keys press the two buttons.

    Gives the first row, for what else belongs to the whole of it.
    """
    on = route()
    number, last = on.number_of(name), len(on.steps)
    row = st.container(horizontal=True, key="learn_route", vertical_alignment="center", gap="small")
    with row:
        _routes(on, t)
        guess.switch(t)
        check.score_line(t)
        if not look.is_presented():
            look.switch("learn.present", t)
    with st.container(horizontal=True, key="learn_way", vertical_alignment="center", gap="small"):
        st.button(
            t("Back"),
            key="learn.back",
            shortcut="Left",
            disabled=number == 1,
            on_click=_go,
            args=(number - 1,),
        )
        st.button(
            t("Next"),
            key="learn.next",
            shortcut="Right",
            disabled=number == last,
            on_click=_go,
            args=(number + 1,),
        )
        if last > 1:
            # A key of its own for each step: a seeded pagination warns of its default, which it always has.
            st.pagination(
                last,
                default=number,
                max_visible_pages=last,
                key=f"{PAGINATION}.{number}",
                on_change=_picked,
                args=(number,),
            )
        if look.is_presented():
            look.switch("learn.present", t)
    return row


def _routes(on: Route, t: Words) -> None:
    known, now = {_key(one): one for one in routes()}, _key(on)
    st.selectbox(
        t("Lesson or path"),
        list(known),
        format_func=lambda key: known[key].title(t),
        index=list(known).index(now),
        key=state.seed(ROUTE, now),
        label_visibility="collapsed",
        width=310,
        on_change=net.taking(ROUTE, _take_route, known),
    )


def _key(on: Route) -> str:
    return f"{on.path}/{on.lesson}"


def _take_route(chosen_key: str) -> None:
    """The same step on another route, where it is on it; else the next one that is."""
    path, _, lesson = chosen_key.partition("/")
    onto = route_of(lesson=lesson, path=path)
    number = onto.number_of(chosen()) if chosen() in onto.steps or not lesson else 1
    state.set_page_parameters({"lesson": lesson, "path": path, PARAMETER: number})


def heading(name: StepName, question: str, t: Words) -> None:
    """The lesson of a step, then its number on the way and its question."""
    letter = lesson_with(name)
    steps = SYLLABUS[letter].steps
    words = f"{letter} · {t(SYLLABUS[letter].title)}"
    if len(steps) > 1:
        at = t("{number} of {count}", number=str(steps.index(name.value) + 1), count=str(len(steps)))
        words = f"{words} · {at}"
    if steps[0] == name.value:
        words = f"{words} · {t(SYLLABUS[letter].about)}"
    st.html(f'<div class="kv-kicker">{escape(words)}</div>')
    st.header(f"{route().number_of(name)} · {question}", anchor=False)


def further(name: StepName, t: Words) -> None:
    """The next step, below a long answer; behind the last one of a lesson the next lesson."""
    on = route()
    number = on.number_of(name)
    following = lesson_after(on.lesson) if on.lesson else ""
    if number == len(on.steps) and not following:
        return
    with st.container(key="learn_further"):
        if number < len(on.steps):
            st.button(
                t("On to step {number}", number=str(number + 1)),
                key="learn.further",
                icon=":material/arrow_forward:",
                on_click=_go,
                args=(number + 1,),
            )
        else:
            st.button(
                t("On to lesson {lesson}", lesson=route_of(lesson=following).title(t)),
                key="learn.further",
                icon=":material/arrow_forward:",
                on_click=state.set_page_parameters,
                args=({"lesson": following, PARAMETER: 1},),
            )


def ends(t: Words, *, offers_undo: bool) -> None:
    """Worked examples to go through, below the step; the way back from them, where nothing above it offers it."""
    with st.container(horizontal=True, key="learn_examples", vertical_alignment="center", gap="small"):
        st.caption(t("Step through a published example:"), width="content")
        for key, label, example in (
            ("learn.rule_of_thumb", t("Qwen3-32B on 8 × RTX 4090"), RULE_OF_THUMB),
            ("learn.post_mortem", t("Llama-2-70B on 4 × A100"), POST_MORTEM),
        ):
            params = {field: str(value) for field, value in example.items()}
            st.button(label, key=key, type="tertiary", on_click=_load, args=(params,))
        st.page_link(
            shell.page_at("reference"),
            label=t("Four guides, step by step"),
            icon=":material/menu_book:",
            query_params={**state.params(), "section": "stories"},
        )
        if offers_undo:
            undo.offer(t)
    with st.container(key="learn_credits"):
        st.caption(
            t("Computed in bytes, shown rounded.")
            + " "
            + t("“Qwen3-32B on 8 × RTX 4090”, by yorickbao, CC BY 4.0.")
        )


@net.callback
def _go(number: int) -> None:
    """A step by its number and not by one more: the browser may report one press twice."""
    state.set_page_parameter(PARAMETER, number)


@net.callback
def _picked(number: int) -> None:
    _go(st.session_state[f"{PAGINATION}.{number}"])


@net.callback
def _load(params: dict[str, str]) -> None:
    undo.take(link.decode(params).scenario)
