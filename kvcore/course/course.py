"""Lessons and paths: which steps a class goes through, in which order, and where one stands."""

from __future__ import annotations

from msgspec import Struct

from kvcore.base.words import Words, msg
from kvcore.course.lesson import STEPS, StepName
from kvcore.texts import PATHS, SYLLABUS

WHOLE = msg("The whole course")


class Route(Struct, frozen=True, kw_only=True):
    """Steps one after the other: of a lesson, of a path, or of the whole course."""

    steps: tuple[StepName, ...]
    lesson: str = ""
    """Its letter; "" of a path and of the whole course."""
    path: str = ""
    """Its minutes; "" of a lesson and of the whole course."""

    def title(self, t: Words) -> str:
        """As the page offers it."""
        if self.lesson:
            return f"{self.lesson} · {t(SYLLABUS[self.lesson].title)}"
        return t(PATHS[self.path].title) if self.path else t(WHOLE)

    def at(self, number: int) -> StepName:
        """The step of a number from one on; a number that there is not means the nearest.

        Example:
            >>> route_of(lesson="e").at(99).value
            'limits'
        """
        return self.steps[min(max(number, 1), len(self.steps)) - 1]

    def number_of(self, name: StepName) -> int:
        """The number of a step, of a step that is not on the way that of the next one that is; the last otherwise.

        Example:
            >>> route_of(path="20").number_of(StepName.BUDGET)
            2
        """
        later = (at for at, step in enumerate(self.steps, 1) if STEPS.index(step) >= STEPS.index(name))
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
    """Everything that there is to choose: the whole course, the paths, the lessons."""
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
