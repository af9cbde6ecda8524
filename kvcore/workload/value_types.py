"""Types of the values in a log's records: what may stand in their place and be read the same way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from operator import attrgetter
from typing import Annotated, Any, Final

from msgspec import Meta

from kvcore.workload.fields import MAX_BLOCKS, WHOLE
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.requests import Reading, field_name, tables

MAX_DEPTH: Final = 3
"""Layers of a value that means nothing."""
COUNT: Final = r"^(?:0|[1-9][0-9]{0,6})\Z"
POSITIVE: Final = r"^[1-9][0-9]{0,6}\Z"
_SECONDS_TEXT: Final = r"^(?:(?:0|[1-9][0-9]{0,12})(?:\.[0-9]{1,9})?+|[1-9][0-9]{13,18})\Z"
_SECONDS: Final = Annotated[int, Meta(ge=0, le=10**18)] | Annotated[float, Meta(ge=0, lt=1e18)]
_FILLED: Final = Annotated[str, Meta(min_length=1)]
_NO_OBJECT: Final = Annotated[str, Meta(pattern=r"^(?!\{)")]
_EMPTY: Final = Annotated[list[Any], Meta(max_length=0)]
_BLOCKS: Final = Annotated[list[int], Meta(max_length=MAX_BLOCKS)]
# Only dates of every year: the 29th of February is left to the general reader.
_DAY: Final = (
    "[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?+"
_DATE: Final = re.compile(f"{_DAY}([T ])({_CLOCK})(Z|[+-][0-9]{{2}}:[0-9]{{2}})?")


class NoLayoutError(Exception):
    """A line whose layout cannot be learned; raised and caught in this module."""


class Kind(Enum):
    """Meaning of a value, by the name of its field."""

    COUNT = auto()
    """A number of tokens."""
    ASKED = auto()
    """max_tokens."""
    SESSION = auto()
    MODEL = auto()
    SECONDS = auto()
    BLOCKS = auto()
    STATE = auto()
    """Whether the request failed."""


class Value:
    """A value of a record that may count: where it is, its type, and what it is for."""

    def __init__(
        self, path: tuple[Any, ...], attribute: str, kind: Kind, value: Any, *, is_cell: bool = False
    ) -> None:
        self.path, self.kind, self.value = path, kind, value
        self.get = attrgetter(attribute)
        """Reads the value from a decoded record."""
        self.is_fixed = _is_fixed(value, kind)
        """Whether every record of the layout has this value."""
        self.date = _DATE.fullmatch(value) if kind is Kind.SECONDS and isinstance(value, str) else None
        """A time written as a date."""
        self.least = 1 if kind is Kind.ASKED else 0
        """Smallest count."""
        self._is_cell = is_cell
        """Whether the value is a text that is converted to its type."""

    @property
    def type(self) -> Any:
        """The type of such values. Raises NoLayoutError for a value that the general reader has to judge."""
        value, kind = self.value, self.kind
        if self.is_fixed:
            # An Enum is checked while decoding; a Literal would keep the visitor's text in a cache of typing.
            return type(value) if self.is_compared or value is None else Enum("Fixed", {"VALUE": value})
        if kind is Kind.SESSION and isinstance(value, str | int):
            return int if isinstance(value, int) else _FILLED
        if kind is Kind.MODEL and isinstance(value, str):
            return _FILLED
        if kind is Kind.BLOCKS and isinstance(value, list) and {*map(type, value)} == {int}:
            return _BLOCKS
        if kind is Kind.SECONDS and isinstance(value, int | float):
            return _SECONDS
        if self.date is not None:
            return Annotated[str, Meta(pattern=f"^{_DAY}{self.date[1]}{_CLOCK}{re.escape(self.zone)}\\Z")]
        if kind is Kind.SECONDS and isinstance(value, str):
            return Annotated[str, Meta(pattern=_SECONDS_TEXT)]
        if kind in (Kind.COUNT, Kind.ASKED) and isinstance(value, str | int):
            if isinstance(value, int) or self._is_cell:
                return Annotated[int, Meta(ge=self.least, le=MAX_TOKENS)]
            return Annotated[str, Meta(pattern=POSITIVE if self.least else COUNT)]
        raise NoLayoutError

    @property
    def is_compared(self) -> bool:
        """Whether a decoded record has to be compared with the fixed value."""
        return self.is_fixed and isinstance(self.value, bool | float | list | dict)

    @property
    def zone(self) -> str:
        """The time zone behind a date."""
        return "" if self.date is None else self.date[3] or ""

    def other(self) -> Any:
        """A value of the same type that means another request."""
        match self.kind:
            case Kind.COUNT | Kind.ASKED:
                return self.of(int(self.value) + 1)
            case Kind.BLOCKS:
                return [1, 2, 3] if self.value != [1, 2, 3] else [3, 2, 1]
            case Kind.SECONDS if self.date is None:
                return self.of(5 if float(self.value) != 5 else 7)
            case _:
                text = str(self.value)
                changed = ("3" if text.startswith("2") else "2") + text[1:]
                return changed if isinstance(self.value, str) else int(changed)

    def of(self, number: int) -> Any:
        """`number` as this record writes its numbers."""
        return str(number) if isinstance(self.value, str) else number

    def column(self, records: Sequence[Any]) -> list[Any]:
        """The values of decoded records; counts as numbers."""
        found = list(map(self.get, records))
        is_text = self.kind in (Kind.COUNT, Kind.ASKED) and isinstance(self.value, str) and not self._is_cell
        return list(map(int, found)) if is_text else found


def _is_fixed(value: Any, kind: Kind) -> bool:
    """Whether a value means nothing, or fails a request, unless it is exactly this. Raises NoLayoutError."""
    is_nothing = value is None or value is True or value is False or value in ("", [], {})
    if kind is Kind.COUNT:
        if is_nothing and value not in (None, ""):
            raise NoLayoutError
        return is_nothing
    return is_nothing or kind is Kind.STATE or (kind is Kind.ASKED and value in (0, -1, "0", "-1"))


class Roles:
    """The kinds of the fields of a log, by their plain names."""

    def __init__(self, reading: Reading) -> None:
        names, found = reading.names, tables()
        asked = {
            name for field, _ in reading.only for name in (*getattr(names, field, ()), field_name(field))
        }
        counts = {*names.prompt, *names.completion, *names.cached}.union(*found.plus.values())
        self._asked = frozenset(asked)
        """Names of fields whose value decides whether a request was asked for."""
        self._kinds = (
            (Kind.COUNT, counts),
            (Kind.ASKED, {*names.max_tokens}),
            (Kind.SESSION, {*names.session}),
            (Kind.MODEL, {*names.model}),
            (Kind.SECONDS, {*names.seconds}),
            (Kind.BLOCKS, {*names.blocks}),
            (Kind.STATE, {*names.error, *names.status, *names.sums, *names.kind, *names.path, "done"}),
        )
        self.usage, self.inside = {*found.inside.usage}, {*found.inside.usage, *found.inside.other}

    def kind(self, name: str, is_usage: bool = False) -> Kind | None:
        """The kind of a field; None: it means nothing. Raises NoLayoutError for a name with two meanings."""
        if name in self._asked:
            return Kind.STATE
        found = [kind for kind, names in self._kinds if name in names]
        if len(found) > 1 or (found and name in self.inside) or name in WHOLE:
            raise NoLayoutError
        shares = is_usage and name not in self.inside and ("input" in name or "output" in name)
        return found[0] if found else Kind.COUNT if shares else None


def nothing_inside(value: Any) -> Any:
    """The type of a value that could be an object with counts, or a text of one, and is neither."""
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        return type(value)
    if value == []:
        return _EMPTY
    if isinstance(value, str) and not value.startswith("{"):
        return _NO_OBJECT
    raise NoLayoutError


def depth_of(value: Any) -> int:
    """Layers of lists and objects in a value."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def any_value(depth: int) -> Any:
    """The type of any JSON of at most so many layers. Raises NoLayoutError beyond MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise NoLayoutError
    scalar = str | int | float | bool | None
    return scalar if not depth else scalar | list[any_value(depth - 1)] | dict[str, any_value(depth - 1)]  # type: ignore[misc]
