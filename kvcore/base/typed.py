"""Documents read as typed records, by msgspec, with the place of what is refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import ValidationError

Hook = Callable[[Any, Any], Any]
"""Reads a value of a type that msgspec does not know; raises ValueError."""

ONE_AT_A_TIME: Final = threading.RLock()
"""Held while msgspec reads a value as a type. At a type's first use msgspec builds what it knows of the type, and
another thread that comes meanwhile ends the whole process by a segmentation fault: visitors of a fresh server do."""
_AT: Final = " - at "
_PLACE: Final = re.compile(r" - at (`key` in )?`\$(\S*)`$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def typed(value: Any, kind: Any, hook: Hook | None = None) -> Any:
    """`value` as `kind`. Raises ValueError, which `place_and_reason` takes apart.

    Example:
        >>> typed({"a": 1}, dict[str, int])
        {'a': 1}
    """
    try:
        with ONE_AT_A_TIME:
            return msgspec.convert(value, kind, dec_hook=hook)
    except ValidationError as error:
        raise ValueError(_with_keys(value, kind, hook, str(error))) from None


def placed(error: ValueError, place: str) -> ValueError:
    """`error` one place further out."""
    return ValueError(f"{error}{_AT}{place}")


def place_and_reason(error: ValueError) -> tuple[str, str]:
    """Place and reason of a refusal.

    Example:
        >>> try:
        ...     typed({"rows": [{"a": "x"}]}, dict[str, list[dict[str, int]]])
        ... except ValueError as error:
        ...     print(place_and_reason(error))
        (' rows[0] a', 'Expected `int`, got `str`')
    """
    reason, *places = str(error).split(_AT)
    return "".join(reversed(places)), reason


# msgspec names fields and indices, but says `[...]` for a key of a mapping: it is that of the entry that alone is
# refused for the same reason.


def _with_keys(value: Any, kind: Any, hook: Hook | None, reason: str) -> str:
    """`reason` with its place as in ` rows[0] name`."""
    place = _PLACE.search(reason)
    if place is None:
        return reason
    path: list[Any] = []
    at = value
    for name, index in (*_STEP.findall(place[2]), *([("", "...")] if place[1] else [])):
        if index == "...":
            alone = (key for key in at if _refusal(value, kind, hook, path, {key: at[key]}) == reason)
            path.append(next(alone, index))
        else:
            path.append(name or int(index))
        at = at[path[-1]] if path[-1] != "..." else {}
    shown = "".join(f"[{step}]" if isinstance(step, int) else f" {step}" for step in path)
    return f"{reason[: place.start()]}{_AT}{shown}"


def _refusal(value: Any, kind: Any, hook: Hook | None, path: list[Any], part: Any) -> str:
    """The reason why `value` is refused with `part` at `path`; "" where it is not."""

    def replaced(at: Any, steps: list[Any]) -> Any:
        if not steps:
            return part
        copy = at.copy()
        copy[steps[0]] = replaced(at[steps[0]], steps[1:])
        return copy

    try:
        with ONE_AT_A_TIME:
            msgspec.convert(replaced(value, path), kind, dec_hook=hook)
    except ValidationError as error:
        return str(error)
    return ""
