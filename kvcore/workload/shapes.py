"""A line of a log, cut into what all lines of its layout have and what differs: text that stays, values that count,
and values of fields that say nothing.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kvcore.workload.columns import Columns
from kvcore.workload.fields import WHOLE, seconds_of
from kvcore.workload.requests import Reading, plain_name, tables


class Kind(Enum):
    """What a value is for."""

    COUNT = auto()
    """Of tokens, wherever they go."""
    ASKED = auto()
    SESSION = auto()
    SECONDS = auto()
    BLOCKS = auto()
    FIXED = auto()
    """Whether the request failed: as it stands, no other value is of this layout."""


class Piece(NamedTuple):
    """Part of a line, what may stand in its place, and what it is for; the pattern of a value has one group."""

    text: str
    pattern: str
    kind: Kind | None = None


class NoShapeError(Exception):
    """A line that is left to the general reader; raised and caught inside this package."""


MAX_DEPTH: Final = 3
"""Of a value that says nothing."""
COUNT: Final = "(0|[1-9][0-9]{0,6})"
POSITIVE: Final = "([1-9][0-9]{0,6})"
_WHOLE_NUMBER: Final = "(0|-?[1-9][0-9]{0,17})"
_SECONDS: Final = r"((?:0|[1-9][0-9]{0,12})(?:\.[0-9]{1,9})?+|[1-9][0-9]{13,18})"
# Only what is a time on every calendar: the 29th of February is left to the general reader.
_DAY: Final = (
    "[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?+"
_TIME: Final = re.compile(f"({_DAY})([T ])({_CLOCK})(Z|[+-][0-9]{{2}}:[0-9]{{2}})?")
_BLOCKS: Final = r"((?:(?:0|-?[1-9][0-9]{0,17})(?:, ?(?!\])|(?=\])))*+)"
# As Python's json reads it: no control characters, and no number of more digits than it converts.
_STRING: Final = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_SCALAR: Final = (
    rf"(?:{_STRING}|-?(?:0|[1-9][0-9]{{0,300}})(?:\.[0-9]+)?+(?:[eE][+-]?[0-9]+)?+|true|false|null)"
)
_SPACE: Final = "[ \\t]*+"


@lru_cache(maxsize=MAX_DEPTH + 1)
def _any_value(depth: int) -> str:
    """Any JSON of that many layers."""
    if not depth:
        return _SCALAR
    inner = _any_value(depth - 1)
    return (
        rf"(?:{_SCALAR}|\[{_SPACE}(?:{inner}{_SPACE}(?:,{_SPACE}(?!\])|(?=\])))*+\]"
        rf"|\{{{_SPACE}(?:{_STRING}{_SPACE}:{_SPACE}{inner}{_SPACE}(?:,{_SPACE}(?!\}})|(?=\}})))*+\}})"
    )


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _fixed(text: str) -> Piece:
    return Piece(text, re.escape(text))


class _Roles:
    """What the fields of a log are for, by their plain names."""

    def __init__(self, reading: Reading) -> None:
        names, found = reading.names, tables()
        counts = {*names.prompt, *names.completion, *names.cached}.union(*found.plus.values())
        self._kinds = (
            (Kind.COUNT, counts),
            (Kind.ASKED, {*names.max_tokens}),
            (Kind.SESSION, {*names.session}),
            (Kind.SECONDS, {*names.seconds}),
            (Kind.BLOCKS, {*names.blocks}),
            (Kind.FIXED, {*names.error, *names.status}),
        )
        self.usage, self.inside = {*found.inside.usage}, {*found.inside.usage, *found.inside.other}

    def kind(self, name: str, is_usage: bool = False) -> Kind | None:
        found = [kind for kind, names in self._kinds if name in names]
        if len(found) > 1 or (found and name in self.inside) or name in WHOLE:
            raise NoShapeError
        shares = is_usage and name not in self.inside and ("input" in name or "output" in name)
        return found[0] if found else Kind.COUNT if shares else None


def json_pieces(text: str, reading: Reading) -> list[Piece]:
    """Of a line with one object. Raises NoShapeError.

    Example:
        >>> [one.text for one in json_pieces('{"id": 7, "prompt_tokens": 900}', Reading())]
        ['{"id": ', '7', ', "prompt_tokens": ', '900', '}']
    """
    roles, decode = _Roles(reading), json.JSONDecoder().raw_decode
    pieces: list[Piece] = []
    said = 0

    def keep(piece_at: int, end: int, piece: Piece) -> None:
        nonlocal said
        pieces.append(_fixed(text[said:piece_at]))
        pieces.append(piece)
        said = end

    def walk(at: int, is_usage: bool) -> int:
        at += 1
        while text[at := _after_space(text, at)] != "}":
            key, at = decode(text, _after_space(text, at + 1) if text[at] == "," else at)
            at = _after_space(text, _after_space(text, at) + 1)
            value, end = decode(text, at)
            name = plain_name(key)
            kind = roles.kind(name, is_usage)
            if name in roles.inside and value and isinstance(value, dict):
                walk(at, is_usage or name in roles.usage)
            elif name in roles.inside and isinstance(value, str):
                if text[at + 1] in "{\\":
                    raise NoShapeError
                keep(at, end, Piece(text[at:end], r'(?!"[{\\])' + _STRING))
            elif name in roles.inside:
                if value and isinstance(value, list):
                    raise NoShapeError
            elif kind is None:
                if (depth := _depth(value)) > MAX_DEPTH:
                    raise NoShapeError
                keep(at, end, Piece(text[at:end], _any_value(depth)))
            elif (found := _value(text[at:end], value, kind)) is not None:
                before, piece = found
                keep(at + before, at + before + len(piece.text), piece)
            at = end
        return at

    try:
        walk(0, False)
    except (IndexError, ValueError, RecursionError):
        raise NoShapeError from None
    return [*pieces, _fixed(text[said:])]


def _after_space(text: str, at: int) -> int:
    while text[at] in " \t\r":
        at += 1
    return at


def _value(text: str, value: Any, kind: Kind) -> tuple[int, Piece] | None:
    """Of JSON, what may differ and where it begins; None where it stays as it is. Raises NoShapeError."""
    if value is None or value is True or value is False or value in ("", [], {}):
        if kind is Kind.COUNT and value is not None:
            raise NoShapeError
        return None
    if isinstance(value, dict) or (kind is not Kind.BLOCKS and isinstance(value, list)):
        raise NoShapeError
    if kind is Kind.BLOCKS:
        if not re.fullmatch(rf"\[{_BLOCKS}\]", text):
            raise NoShapeError
        return 1, Piece(text[1:-1], _BLOCKS, kind)
    if not isinstance(value, str):
        piece = _number(text, kind) if kind is not Kind.SESSION else _whole(text)
        return None if piece is None else (0, piece)
    if "\\" in text and kind is not Kind.FIXED:
        raise NoShapeError
    piece = _cell(text[1:-1], kind, r'[^"\\\x00-\x1f]')
    return None if piece is None else (1, piece)


def _whole(text: str) -> Piece:
    if not re.fullmatch(_WHOLE_NUMBER, text):
        raise NoShapeError
    return Piece(text, _WHOLE_NUMBER, Kind.SESSION)


def _number(text: str, kind: Kind) -> Piece | None:
    """Of a number; None where it stays as it is."""
    pattern = {Kind.COUNT: COUNT, Kind.ASKED: POSITIVE, Kind.SECONDS: _SECONDS}.get(kind)
    if pattern is None or (kind is Kind.ASKED and re.fullmatch("0|-1", text)):
        return None
    if not re.fullmatch(pattern, text):
        raise NoShapeError
    return Piece(text, pattern, kind)


def _cell(text: str, kind: Kind, character: str) -> Piece | None:
    """Of a text; None where it stays as it is."""
    if kind is Kind.SESSION:
        if not re.fullmatch(f"(?:{character})+", text):
            raise NoShapeError
        return Piece(text, f"({character}++)", kind)
    if kind is Kind.SECONDS and (time := _TIME.fullmatch(text)) is not None:
        if seconds_of(text) is None:
            raise NoShapeError
        day, between, clock, _ = time.groups()
        return Piece(day + between + clock, f"({_DAY}{between}{_CLOCK})", kind)
    if kind is Kind.BLOCKS:
        raise NoShapeError
    return _number(text, kind)


def row_pieces(text: str, columns: Columns, reading: Reading) -> list[Piece]:
    """Of a row of a table. Raises NoShapeError."""
    roles = _Roles(reading)
    free = rf'[^{columns.delimiter}"\x00-\x1f]'
    pieces: list[Piece] = []
    for at, cell in enumerate(text.split(columns.delimiter)):
        name = plain_name(columns.names[at]) if at < len(columns.names) else ""
        if at:
            pieces.append(_fixed(columns.delimiter))
        kind = roles.kind(name)
        if name in roles.inside:
            if cell.startswith("{"):
                raise NoShapeError
            pieces.append(Piece(cell, rf"(?!\{{){free}*+"))
        elif kind is None:
            pieces.append(Piece(cell, f"{free}*+"))
        elif not cell or (piece := _cell(cell, kind, free)) is None:
            pieces.append(_fixed(cell))
        else:
            pieces += [piece, _fixed(cell[len(piece.text) :])]
    return pieces
