"""The fields of an object of a request, read by their rows of the registry."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvcore.base.errors import ScenarioError, invalid, not_among, out_of_bounds, shorten
from kvcore.base.untrusted import is_json
from kvcore.flags import DRIVER_VERSION, FLAGS, KEPT_NAME, MAX_LISTED, TRUE, WORD, Flag, Kind, fields_of

Json = Mapping[str, Any]
_WORD: Final = re.compile(WORD)
_KEPT: Final = re.compile(KEPT_NAME)
_DRIVER_VERSION: Final = re.compile(DRIVER_VERSION)


class Fields:
    """The fields of an object of a request.

    Raises ScenarioError `unknown-field` for a field without a row, but in an object that keeps them.
    """

    def __init__(self, raw: Json, parent: str = "") -> None:
        self.raw = raw
        self.flags = fields_of(parent)
        is_open = bool(parent) and FLAGS[parent].is_open
        prefix = f"{parent}." if parent else ""
        for name in raw:
            if name not in self.flags and not (is_open and _KEPT.fullmatch(str(name))):
                raise ScenarioError("unknown-field", field=prefix + str(name)[:80])

    def read(self, key: str) -> Any:
        """The value of a field, None for null or nothing. Raises ScenarioError `invalid-value`.

        Example:
            >>> Fields({"max_num_seqs": 64}).read("max_num_seqs")
            64
        """
        value = self.raw.get(key)
        flag = self.flags[key]
        return None if value is None else _READERS[flag.kind](flag, value)

    def given(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """The values of `keys` that are not null."""
        raw = self.raw
        return {key: value for key in keys if key in raw and (value := self.read(key)) is not None}


def read_integer(flag: Flag, value: object) -> int:
    if flag.auto is not None and value in ("auto", flag.auto):
        return flag.auto
    if isinstance(value, bool) and flag.is_lenient:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(flag.name, value, "it must be a whole number")
    low, high = flag.bounds
    if not low <= value <= high:
        raise out_of_bounds(flag.name, value, low, high)
    return value


def _number(flag: Flag, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(flag.name, value, "it must be a number")
    low, high = flag.bounds
    if not low <= value <= high:
        raise out_of_bounds(flag.name, value, float(low), float(high))
    return float(value)


def _boolean(flag: Flag, value: object) -> bool:
    if flag.is_lenient and isinstance(value, str | int):
        value = True if value in TRUE else False if value == 0 else value
    if not isinstance(value, bool):
        raise invalid(flag.name, value, "it must be true or false")
    return value


def _text(flag: Flag, value: object) -> str:
    limit = flag.characters
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise invalid(flag.name, value, f"it must be a text of at most {limit} printable characters")
    if flag.is_word and _WORD.fullmatch(value) is None:
        raise invalid(flag.name, value, "it must be of letters, digits, '_', '.' and '-' only")
    if flag.is_driver_version and _DRIVER_VERSION.fullmatch(value) is None:
        raise invalid(flag.name, value, "it must be a version such as 570.86.15, ROCm 7.2 or 25.0.rc1")
    return value


def _choice(flag: Flag, value: object) -> str:
    text, choices = _text(flag, value), flag.choices
    if text not in choices:
        raise not_among(flag.name, value, choices)
    return text


def _integers(flag: Flag, value: object) -> tuple[int, ...]:
    """Positive whole numbers, ascending, each once."""
    low, high = flag.bounds
    is_list = isinstance(value, list) and value and all(type(v) is int and low <= v <= high for v in value)
    if not isinstance(value, list) or not is_list:
        raise invalid(flag.name, value, "it must be a list of positive whole numbers")
    if len(value) > MAX_LISTED:
        raise invalid(flag.name, value, f"it must have at most {MAX_LISTED:,} numbers")
    return tuple(sorted(set(value)))


def _names(flag: Flag, value: object) -> tuple[str, ...]:
    """Names among the choices, in the order of the choices."""
    if not isinstance(value, list) or not all(isinstance(one, str) and one in flag.choices for one in value):
        raise invalid(flag.name, value, "it must be a list of parts that are given here")
    return tuple(one for one in flag.choices if one in value)


def _object(flag: Flag, value: object) -> Json:
    if not isinstance(value, dict):
        raise invalid(flag.name, value, "it must be an object")
    return value


def _text_or_object(flag: Flag, value: object) -> str | Json:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise invalid(flag.name, value, "it must be a catalogue id or an object")
    return _text(flag, value)


_READERS: Final[Mapping[Kind, Callable[[Flag, object], Any]]] = {
    Kind.INTEGER: read_integer,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.CHOICE: _choice,
    Kind.TEXT: _text,
    Kind.INTEGERS: _integers,
    Kind.NAMES: _names,
    Kind.OBJECT: _object,
    Kind.TEXT_OR_OBJECT: _text_or_object,
}


MAX_OBJECT_CHARACTERS: Final = 2000
"""Longest object that is kept as JSON: all valid ones are shorter."""


def read_object(raw: Json, name: str) -> str | None:
    """The object `name` as normalised JSON; None for an empty one.

    Raises ScenarioError `unknown-field` or `invalid-value`.

    Example:
        >>> read_object({"refresh": True, "eplb_config": {"num_redundant_experts": 16}}, "additional_config")
        '{"refresh":true,"eplb_config":{"num_redundant_experts":16}}'
    """
    if not raw:
        return None
    values = _nested_values(raw, name)
    if not is_json(values):
        raise invalid(name, shorten(values), "it must be plain JSON")
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    if len(text) > MAX_OBJECT_CHARACTERS:
        raise invalid(name, shorten(text, 80), f"it must have at most {MAX_OBJECT_CHARACTERS:,} characters")
    return text if values else None


def _nested_values(raw: Json, parent: str) -> dict[str, Any]:
    """The values of an object and of the objects in it, without nulls."""
    inner = Fields(raw, parent)
    return {
        key: _nested_value(inner.flags.get(key), inner, key)
        for key, value in raw.items()
        if value is not None
    }


def _nested_value(flag: Flag | None, inner: Fields, key: str) -> Any:
    """The value of a field of an object; as it is where it has no row, or one that takes anything."""
    if flag is None or flag.kind is Kind.ANY:
        return inner.raw[key]
    value = inner.read(key)
    return _nested_values(value, flag.name) if flag.kind is Kind.OBJECT else value
