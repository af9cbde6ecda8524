"""Readers of parameters: one for each kind of value, whose error says what the text may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from kvcore.base.errors import invalid, not_among, out_of_bounds

Reader: TypeAlias = Callable[[str, str], Any]
"""Reads the value of a parameter from its name and text. Raises a KvPlannerError that says what it may be."""

Options: TypeAlias = Collection[Any] | Callable[[], Collection[Any]]
"""The options, or a function that returns them late: the catalogue is read when it is needed."""

LONGEST_TEXT: Final = 80
_WHOLE: Final = re.compile(r"\d{1,12}", re.ASCII)
_AMOUNT: Final = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)


def whole(low: int, high: int) -> Reader:
    """Whole numbers from `low` to `high`.

    Example:
        >>> whole(1, 8)("step", "3")
        3
    """

    def read(name: str, text: str) -> int:
        if _WHOLE.fullmatch(text) is None:
            raise invalid(name, text, "it must be a whole number")
        if not low <= int(text) <= high:
            raise out_of_bounds(name, text, low, high)
        return int(text)

    return read


def between(low: float, high: float) -> Reader:
    """Numbers from `low` to `high`, with up to six decimals.

    Example:
        >>> between(0.1, 100.0)("speed", "12.5")
        12.5
    """

    def read(name: str, text: str) -> float:
        if _AMOUNT.fullmatch(text) is None:
            raise invalid(name, text, "it must be a number")
        if not low <= float(text) <= high:
            raise out_of_bounds(name, text, float(low), float(high))
        return float(text)

    return read


def one_of(options: Options) -> Reader:
    """One of `options`, by its text.

    Example:
        >>> one_of((1, 2, 4))("gpus", "4")
        4
    """

    def read(name: str, text: str) -> Any:
        return _chosen(name, text, _by_text(options))

    return read


def some_of(options: Options, most: int = 1000) -> Reader:
    """At most `most` of `options` with commas between, in their own order.

    Example:
        >>> some_of(("nvidia", "amd", "intel"))("vendors", "intel,amd")
        ('amd', 'intel')
    """

    def read(name: str, text: str) -> tuple[Any, ...]:
        known, given = _by_text(options), text.split(",")
        for one in given:
            _chosen(name, one, known)
        if len(given) > most:
            raise invalid(name, text, f"it must name at most {most}")
        return tuple(option for key, option in known.items() if key in given)

    return read


def amounts(keys: Options, high: float) -> Reader:
    """Positive amounts for some of `keys`, as `key:amount` with commas between.

    Example:
        >>> dict(amounts(("L4-24GB", "H100-80GB"), 1000.0)("prices", "H100-80GB:2.5,L4-24GB:0.6"))
        {'H100-80GB': 2.5, 'L4-24GB': 0.6}
    """
    low = 0.0

    def read(name: str, text: str) -> Mapping[str, float]:
        known, found = _by_text(keys), {}
        for part in text.split(","):
            key, _, amount = part.rpartition(":")
            _chosen(name, key, known)
            if _AMOUNT.fullmatch(amount) is None:
                raise invalid(name, part, "it must be a number")
            if not low < float(amount) <= high:
                raise out_of_bounds(name, part, low, float(high))
            found[key] = float(amount)
        return MappingProxyType(found)

    return read


def switch(name: str, text: str) -> bool:
    """`true` or `false`."""
    if text not in ("true", "false"):
        raise invalid(name, text, "it must be true or false")
    return text == "true"


def words_of(name: str, text: str) -> str:
    """The text of a search field."""
    limit = LONGEST_TEXT
    if len(text) > limit or not text.isprintable():
        raise invalid(name, text, f"it must be a text of at most {limit} printable characters")
    return text


def _by_text(options: Options) -> dict[str, Any]:
    return {str(option): option for option in (options() if callable(options) else options)}


def _chosen(name: str, text: str, known: Mapping[str, Any]) -> Any:
    if text not in known:
        raise not_among(name, text, known)
    return known[text]
