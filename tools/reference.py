"""Pages of the site that are made of the program itself: fields, codes of errors, commands, addresses.

`docs/conf.py` puts each in place of `<!-- generated: NAME -->`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kvcore import cli
from kvcore.api.openapi import openapi
from kvcore.base.errors import MESSAGES
from kvcore.flags import FLAGS, Flag, Kind, explained

GIVEN: Final = (Kind.CHOICE, Kind.NAMES)


def fields() -> str:
    """Every field of a request, in the order of the launch command."""
    head = ("field", "flag", "takes", "default", "is")
    rows = (
        (
            _code(flag.name),
            " ".join(map(_code, flag.cli)),
            _takes(flag),
            _default(flag),
            " ".join(explained(flag)),
        )
        for flag in FLAGS.values()
        if flag.kind is not Kind.ANY
    )
    return _table(head, rows)


def _takes(flag: Flag) -> str:
    if flag.kind in GIVEN:
        return ", ".join(map(_code, flag.choices))
    if flag.minimum is None:
        return {Kind.BOOLEAN: "true, false", Kind.TEXT: "a text"}.get(flag.kind, flag.kind.value)
    low, high = flag.bounds
    word = " or `auto`" if flag.auto is not None else ""
    return f"{low:,} to {high:,}{word}"


def _default(flag: Flag) -> str:
    return "" if flag.default is None else _code(json.dumps(flag.default))


def errors() -> str:
    """Every code of an error or a notice, with its words."""
    rows = ((_code(code), _code(one.text), _code(one.next_step)) for code, one in sorted(MESSAGES.items()))
    return _table(("code", "message", "next step"), rows)


def commands() -> str:
    """Every command with its options."""
    parsers: dict[str, argparse.ArgumentParser] = {}
    cli.parser_of("", parsers, with_flags=False)
    own: dict[str, argparse.ArgumentParser] = {}
    cli.parser_of("", own, with_flags=True)
    parts = []
    for name in parsers:
        text = cli.COMMANDS[name][1]
        options = _options(own[name]) if name in cli.TYPED else _options(parsers[name])
        if name in cli.TYPED:
            named = {action.option_strings[0] for action in own[name]._actions if action.dest == "given"}
            options = [row for row in options if row[0].strip("`").split("`")[0] not in named]
        parts.append(f"## {name}\n\n{text[0].upper()}{text[1:]}.\n\n{_table(('option', 'is'), options)}")
    return "\n\n".join(parts)


def _options(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    rows = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or action.dest == "help":
            continue
        names = action.option_strings or [str(action.metavar or action.dest)]
        choices = ", ".join(map(_code, map(str, action.choices))) if action.choices else ""
        text = "; ".join(filter(None, ((action.help or "").replace("%%", "%"), choices)))
        rows.append((" ".join(map(_code, names)), text))
    return rows


def addresses() -> str:
    """Every address of the API, with the fields of what it answers."""
    document = json.loads(openapi())
    parts = [
        f"## {method.upper()} {path}\n\n{operation['summary']}.\n\n{_answer(operation)}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = document["components"]["schemas"]
    tables = (
        f"### {name}\n\n{schema.get('description', '')}\n\n{_schema_table(schema)}"
        for name, schema in schemas.items()
        if "properties" in schema and name not in ("Request", "SweepRequest")
    )
    return "\n\n".join([*parts, "## Types", *tables])


def _answer(operation: Mapping[str, Any]) -> str:
    content = operation["responses"]["200"]["content"]["application/json"]["schema"]
    body = operation.get("requestBody", {}).get("content", {})
    asked = [f"`{media}`: {_type(given['schema'])}" for media, given in body.items()]
    options = [f"`{one['name']}`: {one.get('description', '')}" for one in operation.get("parameters", ())]
    lines = [f"Answers {_type(content)}."]
    lines += [f"Takes {'; '.join(asked)}."] if asked else []
    lines += [f"Options: {'; '.join(options)}."] if options else []
    return " ".join(lines)


def _schema_table(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = (
        (_code(name), _type(one), "" if name in required else "may be absent", one.get("description", ""))
        for name, one in schema["properties"].items()
    )
    return _table(("field", "type", "", "is"), rows)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _code(schema["$ref"].rpartition("/")[2])
    if "oneOf" in schema:
        return " or ".join(_type(one) for one in schema["oneOf"])
    if "enum" in schema:
        return ", ".join(_code(json.dumps(one).strip('"')) for one in schema["enum"])
    kinds = schema.get("type", "anything")
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


def _code(text: str) -> str:
    """A text as code, whatever is in it."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def lines() -> Iterator[str]:
        yield f"| {' | '.join(head)} |"
        yield "|" + "---|" * len(head)
        for row in rows:
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in row)} |"

    return "\n".join(lines())


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "fields": fields,
    "errors": errors,
    "commands": commands,
    "addresses": addresses,
}
