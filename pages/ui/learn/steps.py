"""The way through the steps of the Learn page, kept in the link: lesson or path, back, next; the plan taught; the
class's sheets."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.advice.fixes import fixes
from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words
from kvcore.charts import summary
from kvcore.charts.handout import Links, handout_html
from kvcore.course import StepName
from kvcore.course.lesson import PICTURES, Route, lesson_after, lesson_before, lesson_with, route_of, routes
from kvcore.course.request_steps import FAILURES
from kvcore.explain.reference import POST_MORTEM, RULE_OF_THUMB
from kvcore.planning import Plan, plan
from kvcore.texts import LESSONS, SYLLABUS
from kvcore.wire import link
from pages.ui.learn import check, guess, look, pictures, slides
from pages.ui.shared import elements, net, notes, numbers, share_link, shell, state, undo
from pages.ui.shared.parameters import LARGEST_SEED

PARAMETER = "step"
PAGER = "learn.pager"
ROUTE = "learn.route"


def route() -> Route:
    """The lesson or the path that the link names, else the whole course."""
    return route_of(lesson=state.page_parameter("lesson"), path=state.page_parameter("path"))


def chosen() -> StepName:
    """The step that the link names, of the route that it names."""
    return route().at(state.page_parameter(PARAMETER))


class Inner(NamedTuple):
    """A place inside a step that has several slides or scenes."""

    parameter: str = ""
    """The page parameter that says it."""
    at: int = 0
    """The number of the slide or scene, from 0 on."""
    of: int = 1
    """How many there are."""
    first: int = 0
    """The parameter's value for the first."""


def way(name: StepName, inner: Inner, t: Words) -> DeltaGenerator:
    """The choice of the route, then back, next and the steps by their titles; the arrow keys press the two buttons.

    Gives the first row, for what else belongs to the whole of it.
    """
    on = route()
    number = on.number_of(name)
    row = st.container(horizontal=True, key="learn_route", vertical_alignment="center", gap="small")
    with row:
        _routes(on, t)
        if name not in PICTURES:
            guess.switch(t)
            check.score_line(t)
        if not look.is_presented():
            look.switch("learn.present", t)
    with st.container(horizontal=True, key="learn_way", vertical_alignment="center", gap="small"):
        for key, label, shortcut, to in (
            ("learn.back", t("Back"), "Left", _before(on, number, inner)),
            ("learn.next", t("Next"), "Right", _after(on, number, inner)),
        ):
            st.button(
                label,
                key=key,
                shortcut=shortcut,
                disabled=to is None,
                on_click=state.set_page_parameters,
                args=(to or {},),
            )
        if look.is_presented():
            st.caption(_place(on, number, inner, t), width="content")
            look.switch("learn.present", t)
        elif len(on.steps) > 1:
            _pager(on, number, t)
    return row


def _before(on: Route, number: int, inner: Inner) -> dict[str, Any] | None:
    """What goes back by one slide, scene, step or lesson; None at the very beginning."""
    if inner.at:
        return {inner.parameter: inner.first + inner.at - 1}
    if number > 1:
        return _step(on, number - 1)
    earlier = lesson_before(on.lesson) if on.lesson else ""
    onto = route_of(lesson=earlier)
    return {"lesson": earlier, **_step(onto, len(onto.steps))} if earlier else None


def _after(on: Route, number: int, inner: Inner) -> dict[str, Any] | None:
    """What goes on by one slide, scene, step or lesson; None at the very end."""
    if inner.at < inner.of - 1:
        return {inner.parameter: inner.first + inner.at + 1}
    if number < len(on.steps):
        return _step(on, number + 1)
    later = lesson_after(on.lesson) if on.lesson else ""
    return {"lesson": later, **_step(route_of(lesson=later), 1)} if later else None


def _step(on: Route, number: int) -> dict[str, Any]:
    """A step from its first slide or scene on; the small engine stays where it is from one step with it to the next."""
    kept = {} if on.at(number) in look.OF_LOAD else {pictures.SCENE: None}
    return {PARAMETER: number, slides.PARAMETER: None, **kept}


def _place(on: Route, number: int, inner: Inner, t: Words) -> str:
    said = t("Step {number} of {count}", number=str(number), count=str(len(on.steps)))
    if inner.of < 2:
        return said
    return f"{said} · {inner.at + 1} / {inner.of}"


def _pager(on: Route, number: int, t: Words) -> None:
    """The steps by their titles."""
    numbers = list(range(1, len(on.steps) + 1))
    # A key of its own for each step: it shows the step that the buttons have gone to.
    key = f"{PAGER}.{number}"
    st.selectbox(
        t("Step"),
        numbers,
        format_func=lambda one: f"{one} · {title(on.at(one), t)}",
        index=number - 1,
        key=key,
        label_visibility="collapsed",
        width=430,
        on_change=net.taking(key, lambda one: state.set_page_parameters(_step(on, one)), numbers),
    )


def title(name: StepName, t: Words) -> str:
    """The question of a step, which is its title."""
    return t(LESSONS[f"{name}-question"].text)


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
    state.set_page_parameters({"lesson": lesson, "path": path, **_step(onto, number)})


def heading(name: StepName, t: Words) -> None:
    """The lesson of a step, then its number on the route and its question."""
    letter = lesson_with(name)
    words = f"{letter} · {t(SYLLABUS[letter].title)}"
    if SYLLABUS[letter].steps[0] == name.value:
        words = f"{words} · {t(SYLLABUS[letter].about)}"
    st.html(f'<div class="kv-kicker">{escape(words)}</div>')
    st.header(f"{route().number_of(name)} · {title(name, t)}", anchor=False)


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
                on_click=state.set_page_parameters,
                args=(_step(on, number + 1),),
            )
        else:
            st.button(
                t("On to lesson {lesson}", lesson=route_of(lesson=following).title(t)),
                key="learn.further",
                icon=":material/arrow_forward:",
                on_click=state.set_page_parameters,
                args=({"lesson": following, **_step(route_of(lesson=following), 1)},),
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
            # A projector has no room for the buttons.
            if not look.is_presented():
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


OF_ONE_PERSON = ("score", "answers", "reveal", "present", "frame", "slide", "seed")
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
    """The links of the sheets, both with the seed that the sheets have."""
    cleared: dict[str, str | None] = dict.fromkeys(OF_ONE_PERSON)
    seed = str(state.page_parameter("seed"))
    return Links(
        students=share_link.address("learn", {**cleared, "seed": seed}),
        solutions=share_link.address("learn", {**cleared, "seed": seed, "reveal": "1"}),
    )
