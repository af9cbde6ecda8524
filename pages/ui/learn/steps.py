"""The way through the steps of the Learn page, kept in the link: lesson or path, back, next; the plan taught; the
class's sheets."""

from __future__ import annotations

from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.advice.fixes import fixes
from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words
from kvcore.charts import summary
from kvcore.charts.handout import Links, handout_html
from kvcore.course import StepName
from kvcore.course.lesson import Route, lesson_after, lesson_with, route_of, routes
from kvcore.course.request_steps import FAILURES
from kvcore.explain.reference import POST_MORTEM, RULE_OF_THUMB
from kvcore.planning import Plan, plan
from kvcore.texts import SYLLABUS
from kvcore.wire import link
from pages.ui.learn import check, guess, look
from pages.ui.shared import elements, net, notes, numbers, share_link, shell, state, undo
from pages.ui.shared.parameters import LARGEST_SEED

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
    """The choice of the route, then back, next and the step numbers. The arrow keys press the two buttons. Returns the
    first row, for controls of the whole route.

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
    """Callback: takes another route, at the same step where it has it, else at the next one that it has."""
    path, _, lesson = chosen_key.partition("/")
    onto = route_of(lesson=lesson, path=path)
    number = onto.number_of(chosen()) if chosen() in onto.steps or not lesson else 1
    state.set_page_parameters({"lesson": lesson, "path": path, PARAMETER: number})


def heading(name: StepName, question: str, t: Words) -> None:
    """The lesson of a step, then its number on the route and its question."""
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
    """The button to the next step, below a long answer; after a lesson's last step, to the next lesson."""
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
    """Worked examples below the step, and the way back from them where nothing above offers it."""
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
    """Callback: goes to a step by its number, as the browser may report one press twice."""
    state.set_page_parameter(PARAMETER, number)


@net.callback
def _picked(number: int) -> None:
    _go(st.session_state[f"{PAGINATION}.{number}"])


@net.callback
def _load(params: dict[str, str]) -> None:
    undo.take(link.decode(params).scenario)


def taught(planned: Plan | KvPlannerError, t: Words) -> Plan:
    """The plan of the lesson. A scenario that is refused or does not start says so above it, with the changes that let
    it."""
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


OF_ONE_PERSON = ("score", "answers", "reveal", "present", "frame", "seed")
"""Page parameters of one person, which a class's link leaves out."""


def class_sheets(plan: Plan, t: Words) -> None:
    """The button “For a class”, and the panel that it opens."""
    box = st.popover(t("For a class"), icon=":material/groups:", key="learn.class", on_change="rerun")
    if not box.open:
        return
    chosen, seed = route(), state.page_parameter("seed")
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
            elements.download(
                label,
                f"kv-{name}.html",
                lambda solved=solved: handout_html(plan, chosen, seed, links, t, solved=solved),  # type: ignore[misc]
                key=f"learn.{name}",
                icon=":material/print:",
            )


def _links() -> Links:
    seed = str(state.page_parameter("seed") or 1)
    cleared: dict[str, str | None] = dict.fromkeys(OF_ONE_PERSON)
    solved = str(state.page_parameter("seed")) if state.page_parameter("seed") else None
    return Links(
        students=share_link.address("learn", {**cleared, "seed": seed}),
        solutions=share_link.address("learn", {**cleared, "seed": solved, "reveal": "1"}),
    )
