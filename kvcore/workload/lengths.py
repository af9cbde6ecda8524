"""One request of a log: its lengths in tokens, and why a line may have none."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

MAX_TOKENS: Final = 1 << 24
"""Longer than any context in use; a greater figure is a mistake of the log."""
_NUMBERS: Final = (int, float)
MAX_DIGITS: Final = 9
"""Digits of a count that is read without further ado."""


class Unusable(StrEnum):
    """Why a line is not counted."""

    NOT_A_RECORD = "not-a-record"
    NO_LENGTH = "no-length"
    ABSURD_LENGTH = "absurd-length"


class UnusableLineError(Exception):
    """A line that is not counted; raised and caught inside this package."""

    def __init__(self, reason: Unusable) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Request(NamedTuple):
    """The lengths of one record, in tokens. A tuple, because a log has a million of them."""

    prompt_tokens: int
    completion_tokens: int | None = None
    max_tokens: int | None = None
    estimated: bool = False

    @property
    def taken_tokens(self) -> int:
        """What the request takes when its answer ends: prompt + answer; where the log has no answer, the longest one
        that it asked for.

        Example:
            >>> Request(prompt_tokens=900, completion_tokens=80, max_tokens=512).taken_tokens
            980
        """
        answer = self.completion_tokens if self.completion_tokens is not None else self.max_tokens
        return self.prompt_tokens + (answer or 0)

    @property
    def needed_tokens(self) -> int:
        """The smallest max_model_len that serves it in full: prompt + max_tokens where it asked for that, else
        prompt + answer, and never less than prompt + 1.

        Source: vllm/entrypoints/openai/serving_engine.py:_validate_input (0.11.0), and for the one token of an answer
        without max_tokens the same function.

        Example:
            >>> Request(prompt_tokens=900, completion_tokens=80, max_tokens=512).needed_tokens
            1412
        """
        answer = self.max_tokens if self.max_tokens is not None else self.completion_tokens
        return self.prompt_tokens + max(answer or 0, self.completion_tokens or 0, 1)


def checked_tokens(value: object, least: int = 0) -> int:
    """A token count of a log: a whole number from `least` to 2**24, also as text or as 900.0.

    Raises UnusableLineError, `absurd-length` for a number out of this range, else `no-length`.

    Example:
        >>> checked_tokens("1,712"), checked_tokens(900.0)
        (1712, 900)
    """
    if isinstance(value, str):
        if value.isdecimal() and len(value) <= MAX_DIGITS and least <= (count := int(value)) <= MAX_TOKENS:
            return count
        value = int(value) if value.isdecimal() and len(value) <= MAX_DIGITS else _number(value)
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise UnusableLineError(Unusable.NO_LENGTH)
    if not least <= value <= MAX_TOKENS:
        raise UnusableLineError(Unusable.ABSURD_LENGTH)
    if value != int(value):
        raise UnusableLineError(Unusable.ABSURD_LENGTH)
    return int(value)


def _number(text: str) -> float | None:
    digits = text.strip().replace(",", "")
    if not digits or len(digits) > 24:
        return None
    try:
        return float(digits)
    except ValueError:
        return None
