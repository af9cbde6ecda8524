"""Three questions a step with hints that fit the slip, computed from the plan's facts, never written down."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.numbers import answer_text, count, exact_gib_text, format_bytes
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, figure, placeholders
from kvcore.base.units import GB, GIB, KIB, MIB
from kvcore.base.words import Words
from kvcore.course.equation import Equation, equation
from kvcore.course.facts import facts, parameter_count
from kvcore.course.lesson import CLOSE, Lesson, Prediction, Slip, StepName
from kvcore.planning import Plan
from kvcore.texts import LESSONS, QUESTIONS, Question

ASKED: Final = 3
"""Questions of a step."""
SCALES: Final = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "GB": GB}
STEP_OF_UNITS: Final = 1024
THOUSAND: Final = 1000
SMALL: Final = GIB
"""Sizes below it are shown in MiB or KiB."""
BILLION: Final = 10**9
IN_GB: Final = ("example_file", "example_bandwidth")
_SIGNS: Final = str.maketrans({"×": "*", "−": "-"})
_BRACKETS: Final = {"⌊": "floor(", "⌋": ")", "⌈": "ceil(", "⌉": ")"}
_OPERATIONS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
}


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
        if one.step == name.value and len(found) < ASKED and _has_answer(one, values):
            found.append(_asked(lesson, key, one, known, values))
    return tuple(found)


def _has_answer(one: Question, values: Mapping[str, float]) -> bool:
    """Whether the plan has all that a question names, and the answer is no nothing."""
    if not set(placeholders(one.answer)) | set(placeholders(one.text)) <= values.keys():
        return False
    try:
        return value_of(one.answer, values) > 0
    except ZeroDivisionError:
        return False


def _asked(
    lesson: Lesson, key: str, one: Question, known: Mapping[str, Quantity], values: Mapping[str, float]
) -> Asked:
    result, scale = value_of(one.answer, values), SCALES.get(one.unit, 1)
    shown = {name: _text(known[name]) for name in placeholders(one.text)}
    prediction = Prediction(
        question=lesson.t(one.text, **shown),
        unit=lesson.t(LESSONS[one.unit].text) if one.unit in LESSONS else one.unit,
        answer=result / scale,
    )
    slips = [
        *(_slip(lesson, text, values, scale) for text in one.slips),
        *_everywhere(lesson, one, result / scale),
    ]
    solved = figure(
        "asked",
        result,
        one.answer,
        *(known[name] for name in placeholders(one.answer)),
        unit=Unit.BYTES if one.unit in SCALES else Unit.NONE,
        scope=Scope.TOTAL,
        grade=Grade.DERIVED,
    )
    return Asked(
        name=key,
        prediction=replace(prediction, slips=_apart(slips, result / scale)),
        solution=equation(solved, lesson.t),
        worked=_worked(one, known, prediction),
    )


def _worked(one: Question, known: Mapping[str, Quantity], prediction: Prediction) -> str:
    numbers = re.sub(r"\{(\w+)\}", lambda match: _text(known[match[1]]), one.answer)
    return f"{numbers} = {answer_text(prediction.answer or 0)} {prediction.unit}"


def _slip(lesson: Lesson, text: str, values: Mapping[str, float], scale: float) -> Slip:
    formula, _, reason = text.partition(" => ")
    return lesson.slip(value_of(formula, values) / scale, reason)


def _everywhere(lesson: Lesson, one: Question, answer: float) -> Iterator[Slip]:
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
    if "tensor_parallel_size" in one.answer and ranks > 1:
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
        return f"{fact.value / GB:g} GB"
    if fact.unit is Unit.BYTES:
        return exact_gib_text(fact.value) if abs(fact.value) >= SMALL else format_bytes(fact.value)
    if fact.name == "parameter_count":
        return f"{fact.value / BILLION:.4g} × 10⁹"
    return count(int(fact.value)) if float(fact.value).is_integer() else f"{fact.value:g}"


def value_of(formula: str, values: Mapping[str, float]) -> float:
    """The value of `formula`, which has numbers, {names}, + − × /, brackets, ⌊⌋ ⌈⌉, min and max.

    Raises KeyError for a name that has no value, ZeroDivisionError, ValueError for any other sign.

    Example:
        >>> value_of("⌈{tokens} / {size}⌉ × {size} − {tokens}", {"tokens": 1000, "size": 16})
        8.0
    """
    text = re.sub(r"\{(\w+)\}", r"\1", formula.translate(_SIGNS))
    for sign, python in _BRACKETS.items():
        text = text.replace(sign, python)
    return float(_value(ast.parse(text, mode="eval").body, values))


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATIONS:
            return float(_OPERATIONS[type(sign)](_value(left, values), _value(right, values)))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS:
            return float(_FUNCTIONS[name](*(_value(one, values) for one in arguments)))
    raise ValueError(f"a formula has what is none of its signs: {ast.dump(node)[:80]}")
