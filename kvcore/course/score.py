"""What a student has answered, as a text that a link carries and nothing else keeps: a letter a step.

A letter stands for three marks of two bits each, in the order of the questions. Letters stand in the order of the
steps; those of steps behind the last answered one are left out.
"""

from __future__ import annotations

from typing import Final

from kvcore.course.lesson import STEPS, StepName
from kvcore.course.questions import ASKED

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
NOTHING: Final = LETTERS[0]
OPEN, AT_ONCE, LATER, SHOWN = range(4)
"""Not answered; right at the first guess; right after hints; given up."""


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
