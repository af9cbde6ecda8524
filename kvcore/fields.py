"""Fields of a request, read by their rows of the registry: each of its kind and between its bounds, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvcore.errors import ScenarioError
from kvcore.flags import MAX_LISTED, Flag, Kind, fields_of

Json = Mapping[str, Any]


class Fields:
    """The fields of an object of a request. Raises ScenarioError `unknown-field` for one that has no row."""

    def __init__(self, raw: Json, parent: str = "") -> None:
        self.raw = raw
        self.flags = fields_of(parent)
        prefix = f"{parent}." if parent else ""
        for name in raw:
            if name not in self.flags:
                raise ScenarioError("unknown-field", field=prefix + str(name)[:80])

    def read(self, key: str) -> Any:
        """The value of a field, None where nothing is said. Raises ScenarioError `invalid-value`.

        Example:
            >>> Fields({"max_num_seqs": 64}).read("max_num_seqs")
            64
        """
        value = self.raw.get(key)
        flag = self.flags[key]
        return None if value is None else _READERS[flag.kind](flag, value)

    def given(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """The values of those of `keys` that are said."""
        return {key: value for key in keys if (value := self.read(key)) is not None}


def refuse(flag: Flag, reason: str, value: object) -> ScenarioError:
    """The refusal of a value, by the name of its field."""
    return ScenarioError("invalid-value", field=flag.name, value=value, reason=reason)


def _integer(flag: Flag, value: object) -> int:
    if flag.auto is not None and value in ("auto", flag.auto):
        return flag.auto
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(flag, "it must be a whole number", value)
    low, high = flag.bounds
    if not low <= value <= high:
        raise refuse(flag, f"it must lie between {low} and {high}", value)
    return value


def _number(flag: Flag, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(flag, "it must be a number", value)
    low, high = flag.bounds
    if not low <= value <= high:
        raise refuse(flag, f"it must lie between {low:g} and {high:g}", value)
    return float(value)


def _boolean(flag: Flag, value: object) -> bool:
    if not isinstance(value, bool):
        raise refuse(flag, "it must be true or false", value)
    return value


def _text(flag: Flag, value: object) -> str:
    limit = flag.characters
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise refuse(flag, f"it must be a text of at most {limit} printable characters", value)
    return value


def _choice(flag: Flag, value: object) -> str:
    text, choices = _text(flag, value), flag.choices
    if text not in choices:
        raise refuse(flag, f"it must be one of {', '.join(choices)}", value)
    return text


def _integers(flag: Flag, value: object) -> tuple[int, ...]:
    """Positive whole numbers, ascending, each once."""
    low, high = flag.bounds
    is_list = isinstance(value, list) and value and all(type(v) is int and low <= v <= high for v in value)
    if not isinstance(value, list) or not is_list:
        raise refuse(flag, "it must be a list of positive whole numbers", value)
    if len(value) > MAX_LISTED:
        raise refuse(flag, f"it must have at most {MAX_LISTED:,} numbers", value)
    return tuple(sorted(set(value)))


def _names(flag: Flag, value: object) -> tuple[str, ...]:
    """Some of the choices, in their order."""
    if not isinstance(value, list) or not all(isinstance(one, str) and one in flag.choices for one in value):
        raise refuse(flag, "it must be a list of parts that are given here", value)
    return tuple(one for one in flag.choices if one in value)


def _object(flag: Flag, value: object) -> Json:
    if not isinstance(value, dict):
        raise refuse(flag, "it must be an object", value)
    return value


def _text_or_object(flag: Flag, value: object) -> str | Json:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise refuse(flag, "it must be a catalogue id or an object", value)
    return _text(flag, value)


_READERS: Final[Mapping[Kind, Callable[[Flag, object], Any]]] = {
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.CHOICE: _choice,
    Kind.TEXT: _text,
    Kind.INTEGERS: _integers,
    Kind.NAMES: _names,
    Kind.OBJECT: _object,
    Kind.TEXT_OR_OBJECT: _text_or_object,
}
