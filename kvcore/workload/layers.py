"""The objects within a record of a log: fields by plain names, wherever they are in it, and values at paths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from json.scanner import make_scanner
from typing import Any, Final, cast

from kvcore.base.errors import shorten
from kvcore.base.untrusted import MAX_JSON_DEPTH, json_depth
from kvcore.workload.requests import Reading, field_name, number_of, plain_name, tables

MAX_LAYERS: Final = 16
"""Objects within one record that are read."""
MAX_INNER_CHARACTERS: Final = 1 << 20
"""Characters of JSON inside a text."""
SHOWN_FIELDS: Final = 12
SHOWN_NAME: Final = 40
SHOWN_DEPTH: Final = 2
"""Fields of a refused record that are named, their characters, and objects in objects."""
MAX_SECONDS: Final = 1e11
"""A larger time is not in seconds but in a smaller unit."""
_UNITS: Final = ((1e17, 1e9), (1e14, 1e6), (MAX_SECONDS, 1e3))
"""Times above the first number have so many units a second: nano-, micro- and milliseconds."""
READING: Final = Reading()
_SCAN: Final = make_scanner(cast(Any, json.JSONDecoder()))
Layer = Mapping[str, Any]
Layers = tuple[list[Layer], list[Layer]]
"""Objects of a record, with plain names: those with counts, and all others."""


def parsed_json(text: str) -> Any:
    """Parses like `json.loads`, with its scanner alone: on a short line the rest of `json.loads` takes as long.

    Raises ValueError, also for deeper nesting than any log has, since later steps recurse.
    """
    text = text.strip(" \t\n\r")
    if json_depth(text) > MAX_JSON_DEPTH:
        raise ValueError
    try:
        found, end = _SCAN(text, 0)
    except StopIteration:
        raise ValueError from None
    if end != len(text):
        raise ValueError
    return found


def value_at(record: Mapping[str, Any], path: str) -> Any:
    """The value at a path of names with dots, through JSON in texts and places in lists; None where there is none.

    Example:
        >>> value_at({"ai": {"usage": '{"in": [5, 7]}'}}, "ai.usage.in.1")
        7
    """
    value: Any = record
    for part in path.split(".", MAX_LAYERS):
        if isinstance(value, list) and part.isdecimal() and len(part) < 6 and int(part) < len(value):
            value = value[int(part)]
            continue
        value = opened(value).get(part)
    return value


def field_names(line: bytes) -> tuple[str, ...]:
    """The fields of a JSON line, with dots for those within others, as they stand there.

    Example:
        >>> field_names(b'{"id": 1, "x": {"tokens": 5, "more": [1]}}')
        ('id', 'x.tokens', 'x.more')
    """
    try:
        record = parsed_json(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return ()
    record = record[0] if isinstance(record, list) and record else record
    return tuple(islice(_paths(record, ""), SHOWN_FIELDS)) if isinstance(record, dict) else ()


_WORLDS: Final = (
    (
        ("gen_ai", "resourcespans", "spans", "traceid", "spanid"),
        "gen_ai.usage.input_tokens, gen_ai.usage.output_tokens",
    ),
    (("llm.", "openinference", "span_kind"), "llm.token_count.prompt, llm.token_count.completion"),
    (("usagemetadata", "candidates"), "usageMetadata.promptTokenCount, candidatesTokenCount"),
    (("modelid", "inputbody", "schematype"), "input.inputTokenCount, output.outputTokenCount"),
    (("usagedetails", "observation"), "usageDetails.input, usageDetails.output"),
)
"""What the records of a world have in their names, and what those of counts are called there."""


def missing_of(fields: Iterable[str]) -> str:
    """The fields with counts that a record would have, as its world calls them.

    Example:
        >>> missing_of(("traceId", "name")), missing_of(("id", "model"))
        ('gen_ai.usage.input_tokens, gen_ai.usage.output_tokens', 'usage.prompt_tokens, usage.completion_tokens')
    """
    said = " ".join(fields).lower()
    found = (counts for names, counts in _WORLDS if any(name in said for name in names))
    return next(found, "usage.prompt_tokens, usage.completion_tokens")


def _paths(record: Mapping[str, Any], before: str, depth: int = 0) -> Iterator[str]:
    for key, value in islice(record.items(), SHOWN_FIELDS):
        path = f"{before}{shorten(str(key), SHOWN_NAME)}"
        if isinstance(value, dict) and value and depth < SHOWN_DEPTH:
            yield from _paths(value, f"{path}.", depth + 1)
        else:
            yield path


def names_that_decide() -> frozenset[str]:
    """Plain names of fields that tell whether a record counts: of its status, its error, its kind, of sums."""
    names = READING.names
    return frozenset((*names.error, *names.status, *names.sums, *names.kind, *names.path))


def as_object(value: object) -> dict[str, Any]:
    """Turns OpenTelemetry's list of keys and typed values into a dict."""
    if isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict) and "key" in one:
            said = one.get("value")
            found[str(one["key"])] = next(iter(said.values()), None) if isinstance(said, dict) else said
    return found


def layers_of(record: Mapping[str, Any]) -> Layers:
    """Objects of a record, with plain names: those with counts, and all others; outer before inner."""
    inside = tables().inside
    usages: list[Layer] = []
    others: list[Layer] = []
    queue: list[tuple[bool, str, Mapping[str, Any]]] = [(False, "", record)]
    for is_usage, place, one in queue:
        found: dict[str, Any] = {}
        renamed = tables().within.get(place, {})
        for key, value in one.items():
            name = field_name(key)
            name = renamed.get(name, name)
            if place == "fields" and type(value) is list and len(value) == 1:
                # OpenSearch gives the values of each field.
                value = value[0]
            # A number with its unit, as AIPerf writes it.
            found.setdefault(name, value["value"] if type(value) is dict and "value" in value else value)
            if (
                (within := name in inside.usage)
                or name in inside.other
                or holds_records(name, value, is_usage)
            ):
                inner = opened(value)
                if inner and len(queue) < MAX_LAYERS:
                    queue.append((within or is_usage, name, inner))
        (usages if is_usage else others).append(found)
    return usages, others


def holds_records(name: str, value: object, is_usage: bool = False) -> bool:
    """Whether a field that mostly holds a list or texts is an object with lists or counts: Bedrock's `input`, the usage
    of each model."""
    if not isinstance(value, dict):
        return False
    found = tables()
    if name in found.inside.counts or (is_usage and name not in found.inside.other):
        return not {*found.names.prompt, *found.names.completion}.isdisjoint(map(plain_name, value))
    return name in found.inside.many or name in found.inside.envelopes


def opened(value: object) -> dict[str, Any]:
    if isinstance(value, str) and value[:1] == "{" and len(value) <= MAX_INNER_CHARACTERS:
        try:
            value = parsed_json(value)
        except (ValueError, RecursionError):
            return {}
    return as_object(value)


def number_in(value: object) -> float | None:
    if isinstance(value, str):
        return number_of(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def seconds_of(value: object) -> float | None:
    """A time in seconds, from a number of seconds to nanoseconds or from ISO 8601; None for anything else.

    Example:
        >>> seconds_of("2023-11-16 18:17:03.9799600"), seconds_of(1760000000123), seconds_of("x")
        (1700158623.97996, 1760000000.123, None)
    """
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    number = number_in(value)
    if number is not None and 0 <= number < 1e20:
        return next((number / unit for above, unit in _UNITS if number > above), float(number))
    if not isinstance(value, str) or not 8 <= len(value) <= 40:
        return None
    text, dot, fraction = value.strip().partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    try:
        found = datetime.fromisoformat(text + (f".{digits[:6]:0<6}" if dot else "") + fraction[len(digits) :])
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
