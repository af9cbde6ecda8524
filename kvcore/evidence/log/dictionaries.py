"""The fields of a dictionary, a call or a dataclass as it stands in a log: cut, never evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_VALUE_CHARACTERS: Final = 4096

_OPENING: Final = {"(": ")", "[": "]", "{": "}"}


def cut_fields(text: str, closing: str) -> Iterator[tuple[str, str]]:
    """Names and values of `name=value` or `'name':value`, cut at the commas of the outermost level.

    Ends at `closing` on that level, or with the text.
    """
    depth: list[str] = []
    quote = ""
    escaped = False
    begin = 0
    for at, character in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth.append(_OPENING[character])
        elif depth:
            if character == depth[-1]:
                depth.pop()
        elif character == "," or (closing and character == closing):
            yield _pair(text[begin:at])
            begin = at + 1
            if character != ",":
                return
    if not closing and not quote and not depth:
        yield _pair(text[begin:])


def _pair(text: str) -> tuple[str, str]:
    """A field's name without quotes, and its value."""
    if text[:1] in ("'", '"'):
        name, _, value = text[1:].partition(text[0])
        return name, value.removeprefix(":")
    name, _, value = text.partition("=")
    return name, value


def pairs(text: str, most: int = MAX_VALUE_CHARACTERS) -> Iterator[tuple[str, str]]:
    """The fields of a dictionary, or of a dataclass as it prints itself; none of a text above `most` characters."""
    opening = min((at for at in (text.find("{"), text.find("(")) if at >= 0), default=-1)
    if opening >= 0 and len(text) <= most:
        yield from cut_fields(text[opening + 1 :], _OPENING[text[opening]])


def unquoted(text: str) -> str:
    """A text without the quotes around it."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace('\\"', '"')
    return text
