"""The JSON Schema of a request, from the rows of the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvcore.flags import (
    DRIVER_VERSION,
    ENVIRONMENT_NAME,
    FLAGS,
    KEPT_NAME,
    MAX_LISTED,
    TRUE,
    WORD,
    Flag,
    Kind,
    explained,
    fields_of,
)

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def request_schema() -> Schema:
    """The schema of a request. It cannot say everything: an unknown model passes it, and is refused later.

    Example:
        >>> request_schema()["properties"]["max_loras"]
        {'type': ['integer', 'null'], 'minimum': 1, 'maximum': 4096, 'default': 1}
    """
    return {
        "$schema": DRAFT,
        "title": "A request of KV Planner",
        "description": "One deployment to plan. A field that is absent or null takes the engine's default.",
        **_object_of("", ("model", "config")),
    }


def _object_of(parent: str, one_of: tuple[str, ...] = ()) -> Schema:
    """An object whose fields are rows of the registry, one of `one_of` not null among them."""
    properties = {key: _schema(flag) for key, flag in fields_of(parent).items()}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if parent and FLAGS[parent].is_open:
        schema |= {"propertyNames": {"pattern": f"^{KEPT_NAME}$"}, "additionalProperties": True}
    if one_of:
        schema["anyOf"] = [
            {"required": [key], "properties": {key: {"not": {"type": "null"}}}} for key in one_of
        ]
    return schema


def _schema(flag: Flag) -> Schema:
    texts = {"title": flag.label, "description": _description(flag), "default": flag.default}
    return {**_KINDS[flag.kind](flag), **{key: text for key, text in texts.items() if text not in ("", None)}}


def _description(flag: Flag) -> str:
    said = " ".join(explained(flag))
    return said if said.startswith("`") or not (said and flag.cli) else f"`{flag.spelling}`: {said}"


def _boolean(flag: Flag) -> Schema:
    plain: Schema = {"type": ["boolean", "null"]}
    return {"anyOf": [plain, {"enum": [0, *TRUE]}]} if flag.is_lenient else plain


def _number(flag: Flag) -> Schema:
    low, high = flag.bounds
    schema: Schema = {"type": [flag.kind.value, "null"], "minimum": low, "maximum": high}
    if flag.is_lenient:
        return {"anyOf": [schema, {"enum": [value for value in (False, True) if low <= value <= high]}]}
    return schema if flag.auto is None else {"anyOf": [schema, {"enum": ["auto", flag.auto]}]}


def _integers(flag: Flag) -> Schema:
    low, high = flag.bounds
    items = {"type": "integer", "minimum": low, "maximum": high}
    return {"type": ["array", "null"], "items": items, "minItems": 1, "maxItems": MAX_LISTED}


def _object(flag: Flag) -> Schema:
    if flag.name == "env":
        values = {"type": ["string", "number", "boolean"]}
        names = {"pattern": f"^{ENVIRONMENT_NAME}$"}
        return {"type": ["object", "null"], "propertyNames": names, "additionalProperties": values}
    if not any(other.parent == flag.name for other in FLAGS.values()):
        return {"type": ["object", "null"]}
    return {"anyOf": [{"type": "null"}, _object_of(flag.name, flag.one_of)]}


def _text(flag: Flag) -> Schema:
    schema: Schema = {"type": ["string", "null"], "maxLength": flag.characters}
    form = WORD if flag.is_word else DRIVER_VERSION if flag.is_driver_version else ""
    return {**schema, "pattern": f"^{form}$"} if form else schema


def _count(flag: Flag) -> Schema:
    low, high = flag.bounds
    count: Schema = {"type": "integer", "minimum": low, "maximum": high}
    inner = _object_of(flag.name)
    return {"anyOf": [count, {**inner, "properties": {"count": count, **inner["properties"]}}]}


_KINDS: Final[Mapping[Kind, Callable[[Flag], Schema]]] = {
    Kind.INTEGER: _number,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.CHOICE: lambda flag: {"enum": [*flag.choices, None]},
    Kind.TEXT: _text,
    Kind.INTEGERS: _integers,
    Kind.NAMES: lambda flag: {"type": ["array", "null"], "items": {"enum": list(flag.choices)}},
    Kind.COUNT: _count,
    Kind.OBJECT: _object,
    Kind.TEXT_OR_OBJECT: lambda flag: {"anyOf": [_text(flag), _object(flag)]},
    Kind.ANY: lambda _: {},
}
