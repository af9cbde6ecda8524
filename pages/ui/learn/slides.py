"""A step cut into slides for a projector, one thing on each: idea, picture, question, drawing, formulas, a try."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from kvcore.base.words import Words
from kvcore.course import Step, StepName
from pages.ui.learn import answer, check, guess, look, own, practice
from pages.ui.shared import state

PARAMETER = "slide"
FORMULAS: Final = 2
"""Formulas on one slide."""


class Kind(StrEnum):
    """What a slide shows."""

    IDEA = "idea"
    PICTURE = "picture"
    GUESS = "guess"
    DRAWING = "drawing"
    CURVE = "curve"
    FORMULA = "formula"
    REMARKS = "remarks"
    OWN = "own"
    TRY = "try"
    QUESTION = "question"


class Slide(NamedTuple):
    """One slide: what it shows, and which of several."""

    kind: Kind
    at: int = 0


def slides(step: Step, is_revealed: bool, t: Words) -> tuple[Slide, ...]:
    """The slides of a step, in order; what gives the answer away comes once it is revealed."""
    content = step.content
    found = [Slide(Kind.IDEA)]
    if step.name in look.OF_LOAD or (step.name not in look.WITHOUT_BAR and step.plan.memory is not None):
        found.append(Slide(Kind.PICTURE))
    found.append(Slide(Kind.GUESS))
    if not is_revealed:
        return tuple(found)
    if look.drawn(step, t) is not None:
        found.append(Slide(Kind.DRAWING))
    if step.name is StepName.REQUESTS and not content.missing:
        found.append(Slide(Kind.CURVE))
    found += [Slide(Kind.FORMULA, at) for at in range(0, len(content.equations), FORMULAS)]
    if content.remarks:
        found.append(Slide(Kind.REMARKS))
    if step.name is StepName.OWN:
        found.append(Slide(Kind.OWN))
    if step.experiment is not None:
        found.append(Slide(Kind.TRY))
    found += [Slide(Kind.QUESTION, at) for at in range(check.count_of(step, t))]
    return tuple(found)


def number(of: tuple[Slide, ...]) -> int:
    """The slide that the link names, from 0 on; a number beyond the last is the last."""
    return min(int(state.page_parameter(PARAMETER)), len(of)) - 1


def show(slide: Slide, step: Step, is_revealed: bool, t: Words) -> None:
    """One slide of a step."""
    if slide.kind is Kind.IDEA:
        guess.idea(step.content, t)
    elif slide.kind is Kind.PICTURE:
        picture(step, is_revealed, t)
    elif slide.kind is Kind.GUESS:
        guess.ask(step, t)
    elif slide.kind is Kind.DRAWING:
        look.drawing(step, t)
    elif slide.kind is Kind.CURVE:
        answer.curve(step, t)
    elif slide.kind is Kind.FORMULA:
        answer.formulas(step, t, slice(slide.at, slide.at + FORMULAS))
    elif slide.kind is Kind.REMARKS:
        answer.remarks(step, t)
    elif slide.kind is Kind.OWN:
        own.deployment(step, t)
    elif slide.kind is Kind.TRY:
        practice.experiment(step, t)
    else:
        check.step_questions(step, t, only=slide.at)


def picture(step: Step, is_revealed: bool, t: Words) -> None:
    """The small load of a step, or the memory bar with the parts explained so far; nothing where it has neither."""
    if step.name in look.OF_LOAD:
        look.load(step, t)
    elif step.name not in look.WITHOUT_BAR:
        answer.memory(step, is_revealed, t)
