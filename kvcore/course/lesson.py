"""Lessons: the parts of a step, the judgement of a guess, and the routes that a class may take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.numbers import factor_text
from kvcore.base.parts import AFTER_POOL, PARTS
from kvcore.base.words import Words, msg
from kvcore.course.equation import Equation
from kvcore.planning import Plan
from kvcore.scenario import Scenario
from kvcore.texts import LESSONS, PATHS, SYLLABUS


class StepName(StrEnum):
    """The moving pictures, then the steps, in their order."""

    LAYERS = "layers"
    REUSE = "reuse"
    SHARING = "sharing"
    PARTS = "parts"
    BUDGET = "budget"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    FRAMEWORK = "framework"
    TOKEN = "token"
    POOL = "pool"
    BLOCKS = "blocks"
    BATCHING = "batching"
    REQUESTS = "requests"
    LIMITS = "limits"
    CARDS = "cards"
    WEIGHT_BITS = "weight_bits"
    CACHE_BITS = "cache_bits"
    QUALITY = "quality"
    DRAFT = "draft"
    GAIN = "gain"
    LOG = "log"
    TIER = "tier"
    ENGINES = "engines"
    OWN = "own"


PICTURES: Final = (StepName.LAYERS, StepName.REUSE, StepName.SHARING)
"""The moving pictures of lesson 0: they have scenes and no formula, and no number in the whole course."""
STEPS: Final = tuple(name for name in StepName if name not in PICTURES)
_IN_ORDER: Final = tuple(StepName)
BUDGET_LINE: Final = "budget"
"""The line of the budget on the memory bar, next to the names of its parts."""
OUTSIDE: Final = frozenset(("system", "unused", BUDGET_LINE))
_WITH_WEIGHTS: Final = OUTSIDE | {"weights"}
_WITH_ACTIVATIONS: Final = _WITH_WEIGHTS | {"activations"}
_WITH_OVERHEADS: Final = _WITH_ACTIVATIONS | {"framework", "cuda_graphs"}
EXPLAINED: Final[dict[StepName, frozenset[str]]] = {
    StepName.PARTS: frozenset((*(part.name for part in PARTS), BUDGET_LINE)),
    StepName.BUDGET: OUTSIDE,
    StepName.WEIGHTS: _WITH_WEIGHTS,
    StepName.ACTIVATIONS: _WITH_ACTIVATIONS,
    StepName.FRAMEWORK: _WITH_OVERHEADS,
    StepName.TOKEN: _WITH_OVERHEADS,
    **dict.fromkeys(STEPS[STEPS.index(StepName.POOL) :], _WITH_OVERHEADS | {"kv_cache"}),
}
"""Parts of the memory bar that a step has explained; the first shows all at once, the others build it up again."""

CLOSE: Final = 0.02
"""A guess this near is right."""
FAR: Final = 2.0
"""From this factor on a guess is off by a factor, not by per cent."""


class Option(Struct, frozen=True, kw_only=True):
    """One answer to choose from."""

    name: str
    label: str


class Slip(Struct, frozen=True, kw_only=True):
    """A wrong answer that is often given, and where it comes from."""

    value: float
    reason: str


class Prediction(Struct, frozen=True, kw_only=True):
    """The guess before the formula: a number in `unit`, or one of `options`.

    `answer` is None where this scenario has none.
    """

    question: str
    unit: str = ""
    answer: float | None = None
    slips: tuple[Slip, ...] = ()
    options: tuple[Option, ...] = ()
    answer_option: str = ""


class Effect(Struct, frozen=True, kw_only=True):
    """One figure before and after an experiment."""

    meaning: str
    before: str
    after: str


class Experiment(Struct, frozen=True, kw_only=True):
    """One control of the sidebar to move, and what happens then."""

    field: str
    value: object
    control: str
    before: str
    after: str
    effects: tuple[Effect, ...]
    scenario: Scenario


class Exercise(Struct, frozen=True, kw_only=True):
    """A question about this scenario, with its answer."""

    question: str
    answer: str


class Content(Struct, frozen=True, kw_only=True):
    """The text and figures of one step for one plan."""

    question: str
    idea: str
    prediction: Prediction
    points: tuple[str, ...] = ()
    equations: tuple[Equation, ...] = ()
    remarks: tuple[str, ...] = ()
    """Conclusions from the equations."""
    missing: str = ""
    """Why there are no numbers."""
    exercises: tuple[Exercise, ...] = ()

    def answered(self, **changes: Any) -> Content:
        """The same with fields of its prediction changed."""
        return replace(self, prediction=replace(self.prediction, **changes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One page of the derivation."""

    name: StepName
    content: Content
    experiment: Experiment | None
    corrections: tuple[str, ...] = ()
    """Names of the corrections that belong here."""
    plan: Plan = field(repr=False)

    @property
    def number(self) -> int:
        """The number of the step, from 1."""
        return STEPS.index(self.name) + 1

    def explained(self, *, revealed: bool) -> frozenset[str]:
        """Parts of the memory bar that are coloured: this step's own only after its answer."""
        if revealed:
            return EXPLAINED[self.name]
        if self.name in (StepName.PARTS, StepName.BUDGET):
            return frozenset()
        return EXPLAINED[STEPS[self.number - 2]]


class Lesson(Struct, frozen=True, kw_only=True):
    """One plan, explained in one language."""

    plan: Plan
    t: Words

    def say(self, key: str, /, **figures: str) -> str:
        """The sentence `key` of lessons.toml, with the marks of the parts of memory."""
        return self.t(LESSONS[key].text, **MARKS, **figures)

    def slip(self, value: float, key: str, /, **figures: str) -> Slip:
        """A wrong answer with its reason."""
        return Slip(value=value, reason=self.say(key, **figures))

    def content(
        self, name: StepName, *, unit: str = "", options: Iterable[str] = (), **figures: str
    ) -> Content:
        """The texts of a step that fit every plan: its question, its idea, and the guess."""
        return Content(
            question=self.say(f"{name}-question"),
            idea=self.say(f"{name}-idea", **figures),
            prediction=Prediction(
                question=self.say(f"{name}-guess", **figures),
                unit=unit,
                options=tuple(Option(name=one, label=self.say(f"{name}-{one}")) for one in options),
            ),
        )


def part(name: str) -> str:
    """The mark of a part of memory inside a text; `prose` makes it a word in the part's colour."""
    return f"\x02{name}\x03"


MARKS: Final = {one.name: part(one.name) for one in (*PARTS, AFTER_POOL)}


def prose(text: str, t: Words) -> str:
    """A text as HTML: everything escaped, marks of parts as words with their colour, `code` as code.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> prose("a < b, `--x`", words(Language.ENGLISH))
        'a &lt; b, <code>--x</code>'
    """
    labels = {part.name: t(part.label) for part in (*PARTS, AFTER_POOL)}

    def word(match: re.Match[str]) -> str:
        name = match[1]
        return f'<span class="kv-word"><span class="kv-swatch kv-{name}"></span>{escape(labels[name])}</span>'

    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub("\x02([a-z_]+)\x03", word, html)


def judgement(prediction: Prediction, guess: float, t: Words) -> str:
    """The distance of a guess from the answer, and the likely slip."""
    answer = prediction.answer
    if answer is None:
        return ""
    if math.isclose(guess, answer, rel_tol=CLOSE, abs_tol=1e-9):
        return t("Right.")
    slip = next((one for one in prediction.slips if math.isclose(guess, one.value, rel_tol=CLOSE)), None)
    off = _distance(guess, answer, t)
    return f"{off} {slip.reason}" if slip is not None else off


def _distance(guess: float, answer: float, t: Words) -> str:
    if answer <= 0 or guess <= 0:
        return t("Too high.") if guess > answer else t("Too low.")
    ratio = guess / answer
    if ratio >= FAR:
        return t("{factor} times too high.", factor=factor_text(ratio))
    if ratio <= 1 / FAR:
        return t("{factor} times too low.", factor=factor_text(1 / ratio))
    percent = f"{abs(ratio - 1) * 100:.0f}"
    return (
        t("{percent} % too high.", percent=percent)
        if ratio > 1
        else t("{percent} % too low.", percent=percent)
    )


WHOLE = msg("The whole course")


class Route(Struct, frozen=True, kw_only=True):
    """Steps one after the other: of a lesson, of a path, or of the whole course."""

    steps: tuple[StepName, ...]
    lesson: str = ""
    """The letter of the lesson; "" for a path and the whole course."""
    path: str = ""
    """The minutes of the path; "" for a lesson and the whole course."""

    def title(self, t: Words) -> str:
        """The title as the page offers it."""
        if self.lesson:
            return f"{self.lesson} · {t(SYLLABUS[self.lesson].title)}"
        return t(PATHS[self.path].title) if self.path else t(WHOLE)

    def at(self, number: int) -> StepName:
        """The step of a number from one on; out-of-range numbers are clamped.

        Example:
            >>> route_of(lesson="e").at(99).value
            'limits'
        """
        return self.steps[min(max(number, 1), len(self.steps)) - 1]

    def number_of(self, name: StepName) -> int:
        """The number of a step; for one that is not on the route, of the next that is, else the last.

        Example:
            >>> route_of(path="20").number_of(StepName.BUDGET)
            2
        """
        later = (
            at for at, step in enumerate(self.steps, 1) if _IN_ORDER.index(step) >= _IN_ORDER.index(name)
        )
        return next(later, len(self.steps))


def route_of(*, lesson: str = "", path: str = "") -> Route:
    """The route that a link names; a lesson before a path, the whole course where it names none.

    Example:
        >>> [step.value for step in route_of(lesson="b").steps], len(route_of().steps) == len(STEPS)
        (['token', 'pool'], True)
    """
    if lesson:
        return Route(steps=tuple(map(StepName, SYLLABUS[lesson].steps)), lesson=lesson)
    if path:
        return Route(steps=tuple(map(StepName, PATHS[path].steps)), path=path)
    return Route(steps=STEPS)


def routes() -> tuple[Route, ...]:
    """All routes to choose from: the whole course, the paths, the lessons."""
    return (
        route_of(),
        *(route_of(path=path) for path in PATHS),
        *(route_of(lesson=lesson) for lesson in SYLLABUS),
    )


def lesson_with(name: StepName) -> str:
    """The letter of the lesson that a step belongs to.

    Example:
        >>> lesson_with(StepName.POOL)
        'b'
    """
    return next(letter for letter, lesson in SYLLABUS.items() if name.value in lesson.steps)


def lesson_after(letter: str) -> str:
    """The letter of the next lesson; "" after the last."""
    letters = list(SYLLABUS)
    at = letters.index(letter) + 1
    return letters[at] if at < len(letters) else ""


def lesson_before(letter: str) -> str:
    """The letter of the lesson before; "" before the first."""
    letters = list(SYLLABUS)
    at = letters.index(letter)
    return letters[at - 1] if at else ""
