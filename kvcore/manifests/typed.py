"""Arguments as text -> fields of a request: as written, and as a plan takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from kvcore.base.errors import ScenarioError, shorten
from kvcore.base.untrusted import check_json
from kvcore.flags import FLAGS, Kind, LogRule
from kvcore.manifests.arguments import Given, is_secret, without_login
from kvcore.manifests.unknowns import has_mark, is_mark, shown
from kvcore.manifests.values import graph_flags, is_planned, read_value
from kvcore.scenario import SpeculativeConfig, nested

SHOWN_CHARACTERS: Final = 60
MAX_JSON: Final = 1 << 16
MAX_JSON_VALUES: Final = 2000

_UNSET: Final = ("", "none", "null")
_GRAPHS: Final = frozenset(name for name, flag in FLAGS.items() if flag.log is LogRule.GRAPHS)
_OBJECTS: Final = frozenset(
    name
    for name, flag in FLAGS.items()
    if flag.kind in (Kind.OBJECT, Kind.TEXT_OR_OBJECT) and "." not in name
) | {"compilation_config", "eplb_config"}
_OF_OBJECTS: Final = {
    flag.cli[0].lstrip("-").replace("-", "_"): name
    for name, flag in FLAGS.items()
    if flag.cli and "." in flag.cli[0]
}
"""Fields of a request that are fields of an argument's object: `eplb_config.num_redundant_experts`."""
_MODEL: Final = ("model", "model_tag", "served_model_name", "config", "runner_type", "pooler_config")


class Typed(Struct, frozen=True, kw_only=True):
    """The arguments of one server."""

    request: Mapping[str, Any]
    """Fields of a request as written; None where an undefined variable hides the value."""
    planned: Mapping[str, Any]
    """The same as a plan takes them: without values that are none of their field."""
    other: Mapping[str, Any]
    """Arguments that change no plan."""
    unusable: tuple[str, ...]
    """Arguments whose value is none of theirs, as typed."""
    lines: Mapping[str, int]
    """The line of each field."""


def typed(given: Iterable[Given]) -> Typed:
    """Arguments as fields of a request, the last of two first in force.

    Example:
        >>> typed([Given(name="max_model_len", value="200k"), Given(name="kv_cache_dtype", value="fp8")]).planned
        {'max_model_len': 200000, 'kv_cache_dtype': 'fp8'}
    """
    texts: dict[str, Given] = {}
    objects: dict[str, dict[str, Any]] = {}
    for one in given:
        head, dot, key = one.name.partition(".")
        if head in _OBJECTS:
            made = _placed(key, _scalar(one.value)) if dot else _object(one)
            if made is not None:
                before = objects.get(head) if dot else None
                objects[head] = _merged(before or {}, made)
                texts.pop(head, None)
                texts[head] = one
                continue
            objects.pop(head, None)
        texts.pop(one.name, None)
        texts[one.name] = one
    return _read(texts, objects)


def _read(texts: Mapping[str, Given], objects: Mapping[str, Mapping[str, Any]]) -> Typed:
    request: dict[str, Any] = {}
    planned: dict[str, Any] = {}
    other: dict[str, Any] = {}
    unusable: list[str] = []
    lines: dict[str, int] = {}
    for name, one in texts.items():
        held = objects.get(name)
        text = json.dumps(held) if held is not None else one.value
        for field, value, plain in _fields(name, text, held):
            request[field] = value
            lines[field] = one.line
            planned.pop(field, None)
            if plain is not None:
                planned[field] = plain
        if name in _MODEL or name in request or name in _GRAPHS:
            if name in request and request[name] is not None and name not in planned and not has_mark(text):
                unusable.append(_shown(one))
            continue
        if name in ("compilation_config", "eplb_config") and held is not None:
            continue
        if is_planned(name) and text.lower() not in _UNSET:
            unusable.append(_shown(one))
        elif not is_secret(name):
            other[name] = _clear(held) if held is not None else _scalar(without_login(shown(text)))
    return Typed(request=request, planned=planned, other=other, unusable=tuple(unusable), lines=lines)


def _fields(name: str, text: str, held: Mapping[str, Any] | None) -> Iterable[tuple[str, Any, Any]]:
    """Fields that one argument sets: name, value as written, value as a plan takes it."""
    if name == "eplb_config" and held is not None:
        for key, value in held.items():
            field = _OF_OBJECTS.get(f"{name}.{key}")
            if field is not None:
                read = read_value(field, str(value))
                yield field, read, read
        return
    graphs = graph_flags(name, text if held is None else json.dumps(held, separators=(",", ":")))
    for field, value in graphs.items():
        plain = list(value) if isinstance(value, tuple) else value
        yield field, plain, plain
    if graphs or name in ("compilation_config", "eplb_config"):
        return
    if not is_planned(name) and name not in _GRAPHS:
        return
    if held is None and has_mark(text):
        yield name, None, None
        return
    if text.lower() in _UNSET:
        return
    read = read_value(
        name, "".join(text.split()) if held is None else json.dumps(held, separators=(",", ":"))
    )
    plain = _plain(read)
    if held is not None:
        yield name, _clear(held), plain
    elif plain is not None:
        yield name, plain, plain


def _clear(value: Any) -> Any:
    """A value without marks: what is not known at all is None, a text with a variable in it names that."""
    if isinstance(value, dict):
        return {key: _clear(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_clear(one) for one in value]
    if isinstance(value, str) and has_mark(value):
        return None if is_mark(value) else shown(value)
    return value


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, SpeculativeConfig):
        return {name: one for name, one in asdict(value).items() if one is not None}
    if isinstance(value, Mapping):
        return nested(value)
    return list(value) if isinstance(value, tuple) else value


def _object(one: Given) -> dict[str, Any] | None:
    """The object that a value is: JSON, or `image=4 video=2`; None for others."""
    text = one.value.strip()
    if text[:1] == "{" and len(text) <= MAX_JSON:
        try:
            check_json(text, max_values=MAX_JSON_VALUES)
            found = json.loads(text)
        except (ValueError, ScenarioError):
            return None
        return found if isinstance(found, dict) else None
    pairs = [item for word in one.items or (text,) for item in word.strip("'\"").split(",") if item]
    if pairs and all("=" in item and "{" not in item for item in pairs):
        return {key: _scalar(value) for key, _, value in (item.partition("=") for item in pairs)}
    return None


def _placed(path: str, value: Any) -> dict[str, Any]:
    """The object with one value at a path of keys."""
    for key in reversed(path.split(".")[:8]):
        value = {key: value}
    return dict(value)


def _merged(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(one)
    for key, value in other.items():
        before = made.get(key)
        made[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return made


def _scalar(text: str) -> Any:
    """A number, a switch, JSON, or the text itself."""
    low = text.strip()
    if low in ("True", "true"):
        return True
    if low in ("False", "false"):
        return False
    if low[:1] in ("[", "{") and len(low) <= MAX_JSON:
        try:
            check_json(low, max_values=MAX_JSON_VALUES)
            return json.loads(low)
        except (ValueError, ScenarioError):
            return text
    try:
        number = float(low) if low and len(low) < 24 and low[0] in "-.0123456789" else None
    except ValueError:
        return text
    if number is None:
        return text
    return int(number) if number.is_integer() and "." not in low and "e" not in low.lower() else number


def _shown(one: Given) -> str:
    hides = is_secret(one.name)
    word = one.word or f"--{one.name.replace('_', '-')}"
    return shorten(word if hides else f"{word} {shown(one.value)}", SHOWN_CHARACTERS)
