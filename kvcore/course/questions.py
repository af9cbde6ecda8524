"""Three questions a step with hints that fit the slip, computed from the plan's facts, never written down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.numbers import answer_text, count, exact_gib_text, format_bytes, in_billions, plain
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained
from kvcore.base.units import GB, GIB, KIB, MIB
from kvcore.base.words import Words
from kvcore.course.answers import ANSWERS, Answer, Facts
from kvcore.course.equation import Equation, equation
from kvcore.course.facts import facts, parameter_count
from kvcore.course.lesson import CLOSE, STEPS, Lesson, Prediction, Slip, StepName
from kvcore.planning import Plan
from kvcore.texts import LESSONS, QUESTIONS, Question

ASKED: Final = 3
"""Questions of a step."""
SCALES: Final = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "GB": GB}
STEP_OF_UNITS: Final = 1024
THOUSAND: Final = 1000
SMALL: Final = GIB
"""Sizes below it are shown in MiB or KiB."""
IN_GB: Final = ("example_file", "example_bandwidth")
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
NOTHING: Final = LETTERS[0]
OPEN, AT_ONCE, LATER, SHOWN = range(4)
"""Not answered; right at the first guess; right after hints; given up."""


class Asked(Struct, frozen=True, kw_only=True):
    """One question of a step about one plan."""

    name: str
    prediction: Prediction
    solution: Equation
    """The formula in letters, in numbers, and the answer."""
    worked: str
    """The same in one line of plain text, for paper."""

    def is_right(self, guess: float) -> bool:
        """Whether a guess is near enough: within two per cent, as everywhere on the page."""
        answer = self.prediction.answer
        return answer is not None and math.isclose(guess, answer, rel_tol=CLOSE, abs_tol=1e-9)


def questions(base: Plan, name: StepName, seed: int, t: Words) -> tuple[Asked, ...]:
    """The questions of a step about `base`, with the numbers that `seed` draws; those that have their figures."""
    known = facts(base, seed)
    if name is StepName.WEIGHTS:
        known["parameter_count"] = parameter_count(base)
    values = {fact: one.value for fact, one in known.items()}
    lesson = Lesson(plan=base, t=t)
    found: list[Asked] = []
    for key, one in QUESTIONS.items():
        if one.step == name.value and len(found) < ASKED and _has_answer(one, ANSWERS[key], values):
            found.append(_asked(lesson, key, known, values))
    return tuple(found)


def _has_answer(one: Question, answer: Answer, values: Mapping[str, float]) -> bool:
    """Whether the plan has all that a question names, and the answer is above 0."""
    if not {*answer.term.names, *_named(one.text)} <= values.keys():
        return False
    try:
        return bool(answer.rule(Facts(values)) > 0)
    except ZeroDivisionError:
        return False


def _named(text: str) -> list[str]:
    """The facts that a text has places for."""
    return [name for _, name, _, _ in Formatter().parse(text) if name]


def _asked(lesson: Lesson, key: str, known: Mapping[str, Quantity], values: Mapping[str, float]) -> Asked:
    one, answer = QUESTIONS[key], ANSWERS[key]
    scale = SCALES.get(one.unit, 1)
    solved = explained(
        "asked",
        answer.computed,
        *(known[name] for name in answer.term.names),
        unit=Unit.BYTES if one.unit in SCALES else Unit.NONE,
        scope=Scope.TOTAL,
        grade=Grade.DERIVED,
    )
    prediction = Prediction(
        question=lesson.t(one.text, **{name: _text(known[name]) for name in _named(one.text)}),
        unit=lesson.t(LESSONS[one.unit].text) if one.unit in LESSONS else one.unit,
        answer=solved.value / scale,
    )
    slips = [
        *(lesson.slip(rule(Facts(values)) / scale, reason) for reason, rule in answer.slips),
        *_everywhere(lesson, one, answer, solved.value / scale),
    ]
    numbers = answer.term.text({part.name: _text(part) for part in solved.inputs})
    return Asked(
        name=key,
        prediction=replace(prediction, slips=_apart(slips, solved.value / scale)),
        solution=equation(solved, lesson.t),
        worked=f"{numbers} = {answer_text(prediction.answer or 0)} {prediction.unit}",
    )


def _everywhere(lesson: Lesson, one: Question, by: Answer, answer: float) -> Iterator[Slip]:
    """Slips of units and of cards, which every question may have."""
    if one.unit == "GiB":
        yield lesson.slip(answer * GIB / GB, "gigabytes")
    if one.unit == "KiB":
        yield lesson.slip(answer * KIB / THOUSAND, "slip-kilobytes")
    if one.unit in SCALES:
        yield from (
            lesson.slip(answer * factor, "slip-unit")
            for factor in (STEP_OF_UNITS, 1 / STEP_OF_UNITS, STEP_OF_UNITS**2, STEP_OF_UNITS**3)
        )
    ranks = lesson.plan.scenario.parallel.tensor_parallel_size
    if "tensor_parallel_size" in by.term.names and ranks > 1:
        reason = {"ranks": str(ranks)}
        yield from (lesson.slip(wrong, "slip-cards", **reason) for wrong in (answer * ranks, answer / ranks))


def _apart(slips: list[Slip], answer: float) -> tuple[Slip, ...]:
    """The slips that are not the answer, each value with the first of its reasons."""
    kept: list[Slip] = []
    for slip in slips:
        near = (answer, *(one.value for one in kept))
        if slip.value > 0 and not any(math.isclose(slip.value, other, rel_tol=CLOSE) for other in near):
            kept.append(slip)
    return tuple(kept)


def _text(fact: Quantity) -> str:
    """A fact as a question shows it: exact enough to compute with."""
    if fact.name in IN_GB:
        return f"{plain(fact.value / GB)} GB"
    if fact.unit is Unit.BYTES:
        return exact_gib_text(fact.value) if abs(fact.value) >= SMALL else format_bytes(fact.value)
    if fact.name == "parameter_count":
        return in_billions(fact.value)
    return count(int(fact.value)) if float(fact.value).is_integer() else plain(fact.value)


# What a student has answered is a text that a link carries and nothing else keeps: a letter a step, in the order of the
# steps, for three marks of two bits each, in the order of the questions.


def marks(score: str, step: StepName) -> tuple[int, ...]:
    """The marks of a step's questions. A text that is no score has none.

    Example:
        >>> marks(with_mark("", StepName.BUDGET, 2, LATER), StepName.BUDGET)
        (0, 0, 2)
    """
    at = STEPS.index(step)
    bits = LETTERS.index(score[at]) if at < len(score) and score[at] in LETTERS else 0
    return tuple(bits >> 2 * question & 3 for question in range(ASKED))


def with_mark(score: str, step: StepName, question: int, mark: int) -> str:
    """The score with one mark set; what stands there already stays, so that no second visit makes it better.

    Example:
        >>> with_mark("", StepName.PARTS, 0, AT_ONCE), with_mark("B", StepName.PARTS, 0, SHOWN)
        ('B', 'B')
    """
    now = marks(score, step)
    if now[question] != OPEN:
        return score
    at = STEPS.index(step)
    padded = score.ljust(at + 1, NOTHING)
    bits = LETTERS.index(padded[at]) | mark << 2 * question
    return padded[:at] + LETTERS[bits] + padded[at + 1 :]


def right(score: str) -> tuple[int, int]:
    """Questions that were answered right, and how many of them at once.

    Example:
        >>> right(with_mark(with_mark("", StepName.PARTS, 0, AT_ONCE), StepName.LOG, 1, LATER))
        (2, 1)
    """
    found = [mark for step in STEPS for mark in marks(score, step)]
    return found.count(AT_ONCE) + found.count(LATER), found.count(AT_ONCE)
