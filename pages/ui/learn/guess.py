"""The first half of a step: the idea, and a guess, judged when the answer is revealed."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import streamlit as st
from msgspec.structs import replace

from kvcore.base.numbers import answer_text
from kvcore.base.words import Words
from kvcore.course import Step
from kvcore.course.lesson import Content, Prediction, judgement, prose
from pages.ui.shared import net, state

EVERY_ANSWER = "learn.every_answer"
ANSWERS = "learn.answers"
SHORT_LIST = 3
"""Longest list of short options that is not laid out in a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """A guess, and the right answer at that time; None where nothing was filled in."""

    number: float | None = None
    option: str | None = None
    answer: float | None = None
    answer_option: str = ""


def switch(t: Words) -> None:
    """The switch that shows answers without guessing first: to read, to print."""
    st.toggle(t("Show every answer"), **state.bound("answers", EVERY_ANSWER))


def is_revealed(step: Step) -> bool:
    """Whether this step shows its answer."""
    return _shows_all() or step.name in _guesses()


def _shows_all() -> bool:
    return bool(state.page_parameter("answers") or state.page_parameter("reveal"))


def idea(content: Content, t: Words) -> None:
    """The idea of the step."""
    points = "".join(f"<li>{prose(text, t)}</li>" for text in content.points)
    more = f"<ul>{points}</ul>" if points else ""
    st.html(f'<div class="kv-lesson"><p>{prose(content.idea, t)}</p>{more}</div>')


def ask(step: Step, t: Words) -> None:
    """The question with its field, or the guess and how far off it was."""
    guess = _guesses().get(step.name)
    prediction = step.content.prediction
    with st.container(border=True, key=f"learn_guess_{step.name}", gap="small"):
        if guess is not None:
            _judged(step, guess, t)
            return
        if _shows_all():
            st.html(
                f'<div class="kv-lesson"><b>{prose(prediction.question, t)}</b> {_solution(prediction, t)}</div>'
            )
            return
        st.html(f'<div class="kv-lesson"><b>{prose(prediction.question, t)}</b></div>')
        with st.form(f"learn.form.{step.name}", border=False):
            key = f"learn.field.{step.name}"
            if prediction.options:
                st.radio(
                    t("Your guess"),
                    [option.name for option in prediction.options],
                    index=None,
                    format_func=lambda name: _label(prediction, name),
                    key=key,
                    horizontal=len(prediction.options) > SHORT_LIST,
                )
            else:
                st.number_input(
                    t("Your guess ({unit})", unit=prediction.unit),
                    value=None,
                    format="%.6g",
                    key=key,
                    width=260,
                )
            st.form_submit_button(
                t("Reveal"),
                type="primary",
                icon=":material/visibility:",
                on_click=_reveal,
                args=(step.name, prediction),
            )


def _judged(step: Step, guess: Guess, t: Words) -> None:
    prediction = step.content.prediction
    lines = [f"<b>{prose(prediction.question, t)}</b>"]
    if guess.option is not None:
        right = guess.option == guess.answer_option
        said = t("Your guess: {guess}.", guess=_label(prediction, guess.option))
        lines.append(f"{escape(said)} <b>{escape(t('Right.') if right else t('Not quite.'))}</b>")
    elif guess.number is not None:
        then = replace(prediction, answer=guess.answer)
        now = prediction if guess.answer == prediction.answer else replace(then, slips=())
        said = t("Your guess: {guess}.", guess=f"{answer_text(guess.number)} {prediction.unit}")
        lines.append(f"{escape(said)} <b>{prose(judgement(now, guess.number, t), t)}</b>")
    lines.append(_solution(prediction, t))
    st.html(f'<div class="kv-lesson">{"<br>".join(lines)}</div>')
    st.button(t("Guess again"), key=f"learn.again.{step.name}", type="tertiary", icon=":material/replay:",
              on_click=_forget, args=(step.name,))  # fmt: skip


def _solution(prediction: Prediction, t: Words) -> str:
    if prediction.options:
        text = _label(prediction, prediction.answer_option)
    elif prediction.answer is not None:
        text = f"{answer_text(prediction.answer)} {prediction.unit}"
    else:
        text = ""
    if not text:
        return ""
    return f'<span class="kv-solution">{escape(t("Answer: {answer}", answer=text))}</span>'


def _label(prediction: Prediction, name: str) -> str:
    return next((option.label for option in prediction.options if option.name == name), "")


@net.callback
def _reveal(name: str, prediction: Prediction) -> None:
    given = st.session_state.get(f"learn.field.{name}")
    is_option = isinstance(given, str)
    guess = Guess(
        number=None if is_option else given,
        option=given if is_option else None,
        answer=prediction.answer,
        answer_option=prediction.answer_option,
    )
    st.session_state[ANSWERS] = {**_guesses(), name: guess}


@net.callback
def _forget(name: str) -> None:
    st.session_state[ANSWERS] = {step: guess for step, guess in _guesses().items() if step != name}


def _guesses() -> dict[str, Guess]:
    found: dict[str, Guess] = st.session_state.get(ANSWERS, {})
    return found
