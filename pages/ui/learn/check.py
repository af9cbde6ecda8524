"""The questions of a step: a hint for each guess, more of the formula with every miss, a mark in the link."""

from __future__ import annotations

from html import escape

import streamlit as st
from msgspec import Struct

from kvcore.base.numbers import answer_text, count
from kvcore.base.words import Words
from kvcore.charts import summary
from kvcore.course import Step, StepName
from kvcore.course.lesson import judgement, prose
from kvcore.course.questions import (
    ASKED,
    AT_ONCE,
    LATER,
    OPEN,
    QUESTIONED,
    SHOWN,
    Asked,
    marks,
    questions,
    right,
    variant,
    with_mark,
)
from pages.ui.shared import net, state

TRIED = "learn.tried"
LETTERS_AFTER, NUMBERS_AFTER = 2, 3
"""Wrong guesses before the formula is shown, and before it is shown with its numbers."""


class Place(Struct, frozen=True, kw_only=True):
    """A question of this visit: its place, and whose numbers it has."""

    step: StepName
    number: int
    seed: int
    name: str


def count_of(step: Step, t: Words) -> int:
    """How many questions a step has."""
    seed = state.page_parameter("seed")
    return len(questions(variant(step.plan, seed), step.name, seed, t))


def step_questions(step: Step, t: Words, *, only: int | None = None) -> None:
    """The questions of a step, or one of them; their solutions instead with `reveal=1` in the link."""
    seed = state.page_parameter("seed")
    asked_of = variant(step.plan, seed)
    found = questions(asked_of, step.name, seed, t)
    if not found:
        return
    st.subheader(t("Check yourself"), anchor=False)
    if seed:
        varied = " · ".join(summary.scenario_line(asked_of, t))
        st.caption(t("Variant {seed}: {line}", seed=count(seed), line=varied))
    given = marks(state.page_parameter("score"), step.name)
    for number, one in enumerate(found):
        if only is not None and number != only:
            continue
        place = Place(step=step.name, number=number, seed=seed, name=one.name)
        with st.container(border=True, key=f"learn_question_{number}", gap="small"):
            st.html(f'<div class="kv-lesson"><b>{prose(one.prediction.question, t)}</b></div>')
            if is_revealing():
                _solution(one, "")
            elif given[number] != OPEN:
                _answered(place, one, given[number], t)
            else:
                _ask(place, one, t)


def is_revealing() -> bool:
    """Whether the link asks for all solutions."""
    return bool(state.page_parameter("reveal"))


def score_line(t: Words) -> None:
    """The answers so far; they are in the link of this page and nowhere else."""
    found, at_once = right(state.page_parameter("score"))
    if found:
        st.caption(
            t(
                "Right so far: {right} of {all}, {once} of them at once. The score is in this page\u2019s link alone.",
                right=count(found),
                all=count(ASKED * len(QUESTIONED)),
                once=count(at_once),
            ),
            width="content",
        )


def _ask(place: Place, one: Asked, t: Words) -> None:
    tried = _tried(place)
    with (
        st.form(f"learn.check.{place.step}.{place.number}.{place.seed}", border=False),
        st.container(horizontal=True, vertical_alignment="bottom", gap="small"),
    ):
        st.number_input(
            t("Your answer ({unit})", unit=one.prediction.unit),
            value=None,
            format="%.6g",
            key=_field(place),
            width=240,
        )
        st.form_submit_button(t("Check it"), on_click=_check, args=(place, one))
    if not tried:
        return
    said = t("Your answer: {guess}.", guess=f"{answer_text(tried[-1])} {one.prediction.unit}")
    hint = judgement(one.prediction, tried[-1], t)
    st.html(f'<div class="kv-lesson" role="status">{escape(said)} <b>{prose(hint, t)}</b></div>')
    if len(tried) >= NUMBERS_AFTER:
        _formula(one, with_numbers=True)
    elif len(tried) >= LETTERS_AFTER:
        _formula(one, with_numbers=False)
    st.button(
        t("Show the solution"),
        key=f"learn.solve.{place.step}.{place.number}",
        type="tertiary",
        on_click=_give_up,
        args=(place,),
    )


def _formula(one: Asked, *, with_numbers: bool) -> None:
    solution = one.solution
    rows = [solution.formula, *([solution.substituted] if with_numbers else [])]
    body = r" \\ ".join(f"&= {row}" for row in rows)
    st.latex(rf"\begin{{aligned}} {solution.symbol} {body} \end{{aligned}}")
    st.caption(" · ".join(f"${term.latex}$ {term.meaning}" for term in solution.terms))


def _answered(place: Place, one: Asked, mark: int, t: Words) -> None:
    said = {AT_ONCE: t("Right at once."), LATER: t("Right."), SHOWN: t("Shown.")}[mark]
    tried = _tried(place)
    if tried:
        said = f"{t('Your answer: {guess}.', guess=f'{answer_text(tried[-1])} {one.prediction.unit}')} {said}"
    _solution(one, said)


def _solution(one: Asked, said: str) -> None:
    answer = f"{answer_text(one.prediction.answer or 0)} {one.prediction.unit}"
    lead = f"{escape(said)} " if said else ""
    st.html(f'<div class="kv-lesson">{lead}<span class="kv-solution">{escape(answer)}</span></div>')
    _formula(one, with_numbers=True)


def _field(place: Place) -> str:
    return f"learn.answer.{place.step}.{place.number}.{place.seed}"


def _tried(place: Place) -> tuple[float, ...]:
    found: dict[Place, tuple[float, ...]] = st.session_state.get(TRIED, {})
    return found.get(place, ())


@net.callback
def _check(place: Place, one: Asked) -> None:
    given = st.session_state.get(_field(place))
    if given is None:
        return
    tried = (*_tried(place), float(given))
    st.session_state[TRIED] = {**st.session_state.get(TRIED, {}), place: tried}
    if one.is_right(float(given)):
        _mark(place, AT_ONCE if len(tried) == 1 else LATER)


@net.callback
def _give_up(place: Place) -> None:
    _mark(place, SHOWN)


def _mark(place: Place, mark: int) -> None:
    score = with_mark(state.page_parameter("score"), place.step, place.number, mark)
    state.set_page_parameter("score", score)
