"""JSON from outside, bounded before it is parsed; text as a link carries it, bounded before it is inflated."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from itertools import accumulate
from typing import Any, Final

from kvcore.base.errors import ScenarioError

MAX_JSON_BYTES: Final = 9 << 20
"""A request: a config of the largest size, and a MiB for everything else."""
MAX_JSON_DEPTH: Final = 64
MAX_JSON_VALUES: Final = 1 << 19
"""Most values of a text, lists and objects included: parsed they take about 60 bytes each, at worst 180."""
MAX_INTEGER_DIGITS: Final = 40
"""Most digits of a whole number: far above every count of bytes, and within what a float takes."""
MAX_PACKED_CHARACTERS: Final = 32 << 10
"""Longest text that is unpacked at all."""
MAX_UNPACKED_BYTES: Final = 1 << 20
_MANY_DIGITS: Final = re.compile(rf"[-0-9][0-9]{{{MAX_INTEGER_DIGITS}}}")
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]*")


_as_strict_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class _TooLong:
    """Stands where a whole number has too many digits, until the place is named."""


def _place_of_too_long(parsed: object) -> tuple[str, ...]:
    """The keys and indices that lead to the first number with too many digits."""
    if isinstance(parsed, _TooLong):
        return ()
    inside = (
        parsed.items() if isinstance(parsed, dict) else enumerate(parsed) if isinstance(parsed, list) else ()
    )
    for key, value in inside:
        if isinstance(value, _TooLong):
            return (str(key),)
        if isinstance(value, dict | list) and (rest := _place_of_too_long(value)):
            return (str(key), *rest)
    return ()


def parse_json_object(
    text: str, *, max_bytes: int = MAX_JSON_BYTES, max_values: int = MAX_JSON_VALUES, field: str = ""
) -> dict[str, Any]:
    """One JSON object from untrusted text.

    NaN and Infinity are read as Python writes them: config.json files of state-space models have them.

    Raises ScenarioError `input-too-large`, `input-too-deep`, `too-many-values`, `number-too-long` or `invalid-json`,
    whatever the text, in time linear in its size.

    Example:
        >>> parse_json_object('{"model": "Qwen/Qwen3-32B"}')
        {'model': 'Qwen/Qwen3-32B'}
    """
    if len(text) > max_bytes:
        raise ScenarioError("input-too-large", field=field, limit=f"{max_bytes >> 20} MiB")
    check_json(text, max_values=max_values, field=field)
    too_long: list[str] = []

    def integer(digits: str) -> int | _TooLong:
        if len(digits) <= MAX_INTEGER_DIGITS:
            return int(digits)
        too_long.append(digits)
        return _TooLong()

    try:
        # A parser with a reader of its own for numbers is made anew each time.
        parsed = json.loads(text, parse_int=integer) if _MANY_DIGITS.search(text) else json.loads(text)
    except ValueError as error:
        raise ScenarioError("invalid-json", field=field, reason=str(error)) from None
    if too_long:
        place = ".".join((*((field,) if field else ()), *_place_of_too_long(parsed)))
        raise ScenarioError("number-too-long", field=place, value=too_long[0][:20], limit=MAX_INTEGER_DIGITS)
    if not isinstance(parsed, dict):
        raise ScenarioError("invalid-json", field=field, reason="one JSON object is expected")
    return parsed


def check_json(
    text: str, *, max_depth: int = MAX_JSON_DEPTH, max_values: int = MAX_JSON_VALUES, field: str = ""
) -> None:
    """Raises ScenarioError `input-too-deep` or `too-many-values` for what would be too much to parse."""
    if json_values(text, max_values) > max_values:
        raise ScenarioError("too-many-values", field=field, limit=f"{max_values:,}")
    if json_depth(text) > max_depth:
        raise ScenarioError("input-too-deep", field=field, limit=MAX_JSON_DEPTH)


def utf8_text(data: bytes, *, field: str = "") -> str:
    """The text of a file. Raises ScenarioError `not-utf8`.

    Example:
        >>> utf8_text("模型".encode())
        '模型'
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError("not-utf8", field=field, offset=f"{error.start:,}") from None


def is_json(value: object) -> bool:
    """Whether any JSON parser reads `value` back as it is: no NaN, no infinity, no half of a surrogate pair.

    Example:
        >>> is_json("a"), is_json(float("nan")), is_json("\\ud800")
        (True, False, False)
    """
    try:
        _as_strict_json(value).encode()
    except ValueError:
        return False
    return True


JSON_REASONS: Final = tuple(
    f"{problem}: line {{line}} column {{column}} (char {{char}})"
    for problem in (
        "Expecting value", "Expecting property name enclosed in double quotes", "Expecting ':' delimiter",
        "Expecting ',' delimiter", "Extra data", "Unterminated string starting at", "Invalid control character at",
        "Invalid \\escape", "Invalid \\uXXXX escape", "Illegal trailing comma before end of object",
        "Illegal trailing comma before end of array", "Unexpected UTF-8 BOM (decode using utf-8-sig)",
    )
)  # fmt: skip
"""Messages of the json module, for the pages to translate. Source: Lib/json/decoder.py (3.11 to 3.14)."""

_TEXT: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A text with the brackets in it; the last one may not end."""
_BRACKETS: Final = re.compile(r"[\[\]{}]+")
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


def json_depth(text: str) -> int:
    """How deep brackets nest, strings apart: counted before parsing, because the parser recurses.

    Example:
        >>> json_depth('{"a": ["[[["]}' + " " * 3 + "[" * 70)
        70
    """
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return 0
    brackets = "".join(_BRACKETS.findall(_TEXT.sub("", text)))
    return max(accumulate(map(_STEP.__getitem__, brackets), initial=0))


def json_values(text: str, enough: int = 0) -> int:
    """At least as many values as JSON has, by its commas and opening brackets: counted before parsing.

    Those in strings count too while all together are no more than `enough`.

    Example:
        >>> json_values('{"a": [1, "2, 3", {}]}')
        5
    """
    found = sum(map(text.count, ",[{"))
    return found if found <= enough else sum(map(_TEXT.sub("", text).count, ",[{"))


def unquoted(text: str) -> str:
    """`text` without the pair of quotes around it.

    Example:
        >>> unquoted('"8k"'), unquoted("8k")
        ('8k', '8k')
    """
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace('\\"', '"')
    return text


def pack(text: str) -> str:
    """`text` deflated, with a checksum, in letters that a link takes as they are.

    Example:
        >>> unpack(pack('{"model_type": "llama"}'), "config")
        '{"model_type": "llama"}'
    """
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def unpack(text: str, field: str) -> str:
    """The text that `pack` made this of; reads at most MAX_UNPACKED_BYTES, whatever it would inflate to.

    Raises ScenarioError `input-too-large`, or `unreadable-packed-config` for what is damaged or cut short.
    """
    if len(text) > MAX_PACKED_CHARACTERS:
        raise ScenarioError("input-too-large", field=field, limit=f"{MAX_PACKED_CHARACTERS >> 10} KiB")
    if _BASE64.fullmatch(text) is None:
        raise ScenarioError("unreadable-packed-config", field=field)
    inflater = zlib.decompressobj()
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacked = inflater.decompress(raw, MAX_UNPACKED_BYTES + 1)
        if len(unpacked) > MAX_UNPACKED_BYTES:
            raise ScenarioError("input-too-large", field=field, limit=f"{MAX_UNPACKED_BYTES >> 20} MiB")
        if not inflater.eof:
            raise ScenarioError("unreadable-packed-config", field=field)
        return unpacked.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        raise ScenarioError("unreadable-packed-config", field=field) from None
