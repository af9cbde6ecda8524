"""A client made of an OpenAPI document alone: a type a schema, a method an operation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

HEAD = '''"""Generated."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Literal, NotRequired, TypedDict, Union


class ApiError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem["detail"])
        self.problem = problem


class Client:
    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    def _ask(self, method: str, path: str, body: object, query: dict[str, str | int | None]) -> Any:
        given = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
        data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        kind = "text/plain" if isinstance(body, str) else "application/json"
        asked = urllib.request.Request(
            self.address + path + (f"?{given}" if given else ""), data, {"Content-Type": kind}, method=method
        )
        try:
            with urllib.request.urlopen(asked) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ApiError(json.load(error)) from None
'''
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def module(document: Mapping[str, Any]) -> str:
    """The text of the client's module."""
    lines = [HEAD]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += _method(path, method, operation)
    for name, schema in document["components"]["schemas"].items():
        lines += ["", "", *_type(name, schema)]
    return "\n".join(lines) + "\n"


def _method(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    answer = _named(operation["responses"]["200"]["content"]["application/json"]["schema"])
    arguments, query = ["self"], []
    body = "None"
    if "requestBody" in operation:
        contents = operation["requestBody"]["content"].values()
        kinds = dict.fromkeys(_named(content["schema"]) for content in contents)
        arguments.append(f"body: {' | '.join(kinds)}")
        body = "body"
    for parameter in operation.get("parameters", ()):
        arguments.append(f"{parameter['name']}: {_named(parameter['schema'])} | None = None")
        query.append(f"{parameter['name']!r}: {parameter['name']}")
    yield ""
    yield f"    def {operation['operationId']}({', '.join(arguments)}) -> {answer}:"
    yield f'        """{operation["summary"]}."""'
    yield f"        found: {answer} = self._ask({method.upper()!r}, {path!r}, {body}, {{{', '.join(query)}}})"
    yield "        return found"


def _type(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    parts = schema.get("allOf")
    if parts:
        bases = [_named(part) for part in parts if "$ref" in part]
        own = {key: value for part in parts if "$ref" not in part for key, value in part.items()}
        yield from _record(name, own, bases)
    elif "properties" in schema:
        yield from _record(name, schema, ["TypedDict"])
    else:
        yield f"{name} = {_named(schema, quotes=True)}"


def _record(name: str, schema: Mapping[str, Any], bases: list[str]) -> Iterator[str]:
    yield f"class {name}({', '.join(bases)}):"
    required = schema.get("required", ())
    for key, value in schema["properties"].items():
        kind = _named(value)
        yield f"    {key}: {kind if key in required else f'NotRequired[{kind}]'}"


def _named(schema: Mapping[str, Any], *, quotes: bool = False) -> str:
    """A schema as a type; what is not said is anything."""
    if "$ref" in schema:
        name = str(schema["$ref"].rpartition("/")[2])
        return f'"{name}"' if quotes else name
    if "oneOf" in schema:
        kinds = [_named(one, quotes=quotes) for one in schema["oneOf"]]
        return f"Union[{', '.join(kinds)}]"
    if "enum" in schema or "const" in schema:
        values = [
            "None" if one is None else json.dumps(one) for one in schema.get("enum", [schema.get("const")])
        ]
        return f"Literal[{', '.join(values)}]"
    kinds = schema.get("type")
    if kinds is None:
        return "Any"
    found = [_plain(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return found[0] if len(found) == 1 else f"Union[{', '.join(found)}]"


def _plain(kind: str, schema: Mapping[str, Any]) -> str:
    if kind == "array":
        return f"list[{_named(schema.get('items', {}))}]"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"dict[str, {_named(inner) if isinstance(inner, dict) else 'Any'}]"
    return PLAIN[kind]
