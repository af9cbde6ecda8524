"""What a function found for one record, found again for every record that agrees in all that it read.

A sweep asks the same of many cards and sizes, and most answers do not look at them, or only at one or two of their
figures. Which those are is not declared anywhere, where it could be forgotten: they are noted while the function runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

R = TypeVar("R")
T = TypeVar("T")


class Reads:
    """Stands for a record, and notes what is read of it. As a whole it can be neither compared nor be a key.

    What was read is its own `__dict__`, so that it is found there when it is read again.
    """

    __slots__ = ("__dict__", "__record")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, record: object) -> None:
        self.__record = record

    def __eq__(self, other: object) -> bool:
        raise TypeError("only what is read of a record may decide")

    def __getattr__(self, name: str) -> object:
        value = self.__dict__[name] = getattr(self.__record, name)
        return value


class Answers(Generic[R, T]):
    """The answers to one question about records of one kind.

    Example:
        >>> from fractions import Fraction
        >>> asked, answers = [], Answers[Fraction, str]()
        >>> def question(number: Fraction) -> str:
        ...     asked.append(number)
        ...     return "odd" if number.numerator % 2 else "even"
        >>> [answers.of(Fraction(1, below), question) for below in (2, 3, 5)], len(asked)
        (['odd', 'odd', 'odd'], 1)
    """

    def __init__(self) -> None:
        self._known: list[tuple[dict[str, object], T]] = []

    def of(self, record: R, question: Callable[[R], T]) -> T:
        """What `question` finds for `record`, of which it may read attributes alone."""
        for read, found in self._known:
            if all(getattr(record, name) == value for name, value in read.items()):
                return found
        reads = Reads(record)
        found = question(cast(R, reads))
        self._known.append((vars(reads), found))
        return found
