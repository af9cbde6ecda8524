"""Reads the requests of a record by the names of its fields (requests.toml), wherever they are in it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, Final, cast

from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.layers import (
    READING,
    Layer,
    Layers,
    as_object,
    layers_of,
    number_in,
    parsed_json,
    seconds_of,
    value_at,
)
from kvcore.workload.picking import is_asked
from kvcore.workload.requests import (
    Names,
    Reading,
    Request,
    Unusable,
    UnusableLineError,
    checked_tokens,
    field_name,
    names_with,
    plain_name,
    tables,
)
from kvcore.workload.texts import conversation, text_tokens

MAX_VALUES: Final = 1 << 20
"""Values of one line, so that one call of the parser takes hundredths of a second."""
MAX_SESSION_CHARACTERS: Final = 200
MAX_BLOCKS: Final = 1 << 16
"""Blocks of one prompt: a million tokens in blocks of 16."""
MAX_INNER_DEPTH: Final = 6
"""Lists of records in lists of records."""
LONGEST_PATH: Final = 400
"""Characters of an address that are looked at."""
FAILURES: Final = frozenset(
    ("failure", "failed", "error", "errored", "cancelled", "canceled", "expired", "timeout", "aborted", "false",
     "statuscodeerror")
)  # fmt: skip
_NO_ERROR: Final = frozenset(("", "0", "-", "none", "null", "nan", "false", "[]", "{}", "ok"))
_PLAIN: Final = frozenset(
    ("usage", "prompt_tokens", "completion_tokens", "total_tokens", "max_tokens", "created", "model")
)
WHOLE: Final = ("conversations", "conversation", "resourcespans", "inputlens", "outputlens")
Found = Request | Unusable
"""A request, or why one of several records is none."""


def json_requests(line: bytes, reading: Reading = READING) -> Iterator[Found]:
    """The requests of one line: one record, a list of records, or an export with many of them.

    Raises UnusableLineError where the line has none.

    Example:
        >>> next(json_requests(b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}')).completion_tokens
        80
    """
    try:
        if line.count(b",") + line.count(b"[") + line.count(b"{") > MAX_VALUES:
            raise UnusableLineError(Unusable.NOT_A_RECORD)
        parsed = parsed_json(line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise UnusableLineError(Unusable.NOT_A_RECORD) from None
    if isinstance(parsed, dict):
        return record_requests(parsed, reading)
    if isinstance(parsed, list) and parsed and all(isinstance(record, dict) for record in parsed):
        return _each(parsed, reading) if len(parsed) > 1 else record_requests(parsed[0], reading)
    raise UnusableLineError(Unusable.NOT_A_RECORD)


def _each(records: Iterable[Mapping[str, Any]], reading: Reading, depth: int = 0) -> Iterator[Found]:
    """The requests of several records: one without a length ends nothing."""
    for record in records:
        try:
            yield from record_requests(record, reading, depth)
        except UnusableLineError as error:
            yield error.reason


def record_requests(record: Mapping[str, Any], reading: Reading = READING, depth: int = 0) -> Iterator[Found]:
    """The requests of one record. Raises UnusableLineError.

    Example:
        >>> usage = {"input_tokens": 10, "cache_read_input_tokens": 900, "output_tokens": 80}
        >>> [request[:3] for request in record_requests({"usage": usage, "max_tokens": 512})]
        [(910, 80, 512)]
    """
    if (plain := _plain_request(record, reading)) is not None:
        yield plain
        return
    if reading.unseen:
        reading.note([{*map(plain_name, record)}])
    prompts, answers = record.get("input_lens"), record.get("output_lens")
    if isinstance(prompts, list) and isinstance(answers, list) and len(prompts) == len(answers) > 0:
        # Source: vllm/benchmarks/serve.py (0.33.0), `--save-detailed`.
        yield from _benchmark(prompts, answers, record)
    elif "resourceSpans" in record:
        yield from _spans(record, reading)
    elif "conversations" in record or "conversation" in record:
        session = str(record.get("conversation_id", record.get("id", "")))[:MAX_SESSION_CHARACTERS] or None
        turns = [
            Request(max(1, prompt), answer, estimated=reading.counter is None, by_text=True, session=session)
            for prompt, answer in conversation(record, reading.counter)
        ]
        if not turns:
            raise UnusableLineError(Unusable.NO_LENGTH)
        yield from turns
    else:
        layers = layers_of(record)
        inner = _inner_records(layers, reading) if depth < MAX_INNER_DEPTH else []
        number = 0
        for found in _of_inner(inner, layers, reading, depth):
            number += 1
            yield found
        if not number:
            yield _request(record, layers, reading)


def _benchmark(prompts: list[Any], answers: list[Any], record: Mapping[str, Any]) -> Iterator[Found]:
    """Requests of a benchmark whose lengths are lists. Source: vllm/benchmarks/serve.py (0.33.0), `--save-detailed`."""
    columns = []
    for name in ("errors", "start_times"):
        column = record.get(name)
        fits = isinstance(column, list) and len(column) == len(prompts)
        columns.append(cast(list[Any], column) if fits else [None] * len(prompts))
    for prompt, answer, error, start in zip(prompts, answers, *columns, strict=True):
        if error:
            yield Unusable.FAILED
            continue
        yield Request(checked_tokens(prompt, 1), checked_tokens(answer), seconds=seconds_of(start))


def _inner_records(layers: Layers, reading: Reading) -> list[Unusable | Mapping[str, Any]]:
    """The records in lists of a record that has no counts of its own, and one failure for each failed request there."""
    inside, (usages, others) = tables().inside, layers
    lists = [
        (name, value)
        for layer in others
        for name in (*inside.many, *inside.failed)
        if isinstance(value := layer.get(name), list)
    ]
    if not lists or any(name in layer for layer in (*usages, *others) for name in reading.names.prompt):
        return []
    found: list[Unusable | Mapping[str, Any]] = []
    for name, value in lists:
        if name in inside.failed:
            found += [Unusable.FAILED] * len(value)
        else:
            found += [one for one in map(_as_record, value) if one is not None]
    return found if any(map(_may_count, found)) else []


def _as_record(value: object) -> Mapping[str, Any] | None:
    """A record of a list: an object, Loki's pair of a time and a line, or the fields of CloudWatch Insights."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or len(value) < 2:
        return None
    if isinstance(value[1], str) and value[1][:1] == "{":
        return {"timestamp": value[0], "message": value[1]}
    if all(isinstance(one, dict) and "field" in one for one in value):
        return {str(one["field"]): one.get("value") for one in value}
    return None


def _may_count(one: Unusable | Mapping[str, Any]) -> bool:
    """Whether a record has counts in it, or lists of further records."""
    if isinstance(one, Unusable):
        return True
    usages, others = layers_of(one)
    found = tables()
    counts = {*found.names.prompt, *found.inside.many}
    return any(not counts.isdisjoint(layer) for layer in (*usages, *others)) or any(
        "input" in layer for layer in usages
    )


def _of_inner(
    inner: Iterable[Unusable | Mapping[str, Any]], layers: Layers, reading: Reading, depth: int
) -> Iterator[Found]:
    """The requests of inner records, with the outer one's session. A user's message is none."""
    session = _session(layers[1], reading.names.session) if inner else None
    for one in inner:
        for found in [one] if isinstance(one, Unusable) else _each([one], reading, depth + 1):
            if isinstance(found, Request):
                if not found.by_text:
                    yield found if found.session is not None else found._replace(session=session)
            elif found in (Unusable.FAILED, Unusable.SUM, Unusable.NOT_ASKED):
                yield found


def _plain_request(record: Mapping[str, Any], reading: Reading) -> Request | None:
    """Reads a record with OpenAI's usage and no other field that counts, as most are; None for any other."""
    usage, model = record.get("usage", record), record.get("model", "")
    if (
        reading.columns
        or reading.picks
        or reading.prefixes
        or type(usage) is not dict
        or type(model) is not str
    ):
        return None
    prompt, answer, wanted = (
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        record.get("max_tokens"),
    )
    if type(prompt) is not int or type(answer) is not int or not 0 < prompt <= MAX_TOKENS >= answer >= 0:
        return None
    if wanted is not None and (type(wanted) is not int or not 0 < wanted <= MAX_TOKENS):
        return None
    for layer in (record,) if usage is record else (record, usage):
        for key, value in layer.items():
            if value is not None and key not in _PLAIN and _says_something(key):
                return None
    created = record.get("created")
    seconds = seconds_of(created) if created is not None else None
    return Request(prompt, answer, wanted, seconds=seconds, model=model)


@lru_cache(maxsize=4096)
def _says_something(key: str) -> bool:
    found, name = tables(), field_name(key)
    names = chain(
        *(getattr(found.names, one) for one in found.names.__struct_fields__),
        found.inside.usage,
        found.inside.other,
        found.inside.counts,
        found.inside.envelopes,
    )
    return name in (*names, *WHOLE, "done")


def forget_names() -> None:
    """Empties the caches that have names of a visitor's fields."""
    names_with.cache_clear()
    field_name.cache_clear()
    plain_name.cache_clear()
    _says_something.cache_clear()


def _spans(record: Mapping[str, Any], reading: Reading) -> Iterator[Found]:
    """Source: opentelemetry-proto, opentelemetry/proto/trace/v1/trace.proto (1.5.0), as JSON."""
    inside: list[Any] = [record]
    for name in ("resourceSpans", "scopeSpans", "spans"):
        lists = [one.get(name) for one in inside if isinstance(one, dict)]
        inside = [one for many in lists if isinstance(many, list) for one in many]
    number = 0
    counts = {*reading.names.prompt, *reading.names.completion}
    for span in inside:
        attributes = span.get("attributes") if isinstance(span, dict) else None
        if not counts.isdisjoint(map(plain_name, as_object(attributes))):
            number += 1
            yield from _each([span], reading, MAX_INNER_DEPTH)
    if not number:
        raise UnusableLineError(Unusable.NO_LENGTH)


def _request(record: Mapping[str, Any], layers: Layers, reading: Reading) -> Request:
    names, texts, counter = reading.names, tables().texts, reading.counter
    usages, others = layers
    if reading.dotted:
        named = {plain_name(path): value_at(record, path) for path in reading.dotted}
        others = [named, *others]
        usages = [named, *usages] if usages else usages
    counted = [*usages, *others]
    reading.note(counted)
    if _is_other(others, names):
        raise UnusableLineError(Unusable.OTHER_KIND)
    if _has_failed(others, names):
        raise UnusableLineError(Unusable.FAILED)
    if any((number_in(layer.get(name)) or 0) > 1 for layer in others for name in names.sums):
        raise UnusableLineError(Unusable.SUM)
    seconds = _seconds(others, names.seconds, names.blocks)
    if reading.picks and not is_asked(record, others, reading, seconds):
        raise UnusableLineError(Unusable.NOT_ASKED)
    prompt = _count(counted, names.prompt, least=1)
    answer = _count(counted, names.completion)
    if prompt is None:
        prompt, answer = _shares(usages, "input"), _shares(usages, "output") if answer is None else answer
    said = None
    if prompt is None:
        said = _first(others, lambda layer: text_tokens(layer, texts.prompt, counter))
        if said is None:
            raise UnusableLineError(Unusable.NO_LENGTH)
        prompt = max(1, said.tokens)
        if answer is None:
            written = _first(others, lambda layer: text_tokens(layer, texts.answer, counter))
            answer = written.tokens if written is not None else None
    if reading.prefixes is not None:
        reading.prefixes.add(others, prompt)
    return Request(
        prompt_tokens=prompt,
        completion_tokens=answer,
        max_tokens=_asked(others, names.max_tokens),
        estimated=said is not None and counter is None,
        cached_tokens=_count(counted, names.cached) or 0,
        session=_session(others, names.session),
        seconds=seconds,
        blocks=_blocks(others, names.blocks),
        not_counted=said.not_counted if said is not None else 0,
        by_text=said is not None,
        model=_model(others, names.model),
        call=call_of(record) if usages else "",
    )


def _model(layers: Iterable[Layer], names: tuple[str, ...]) -> str:
    for layer in layers:
        for name in names:
            value = layer.get(name)
            if isinstance(value, str) and value:
                return value
    return ""


def call_of(record: Mapping[str, Any]) -> str:
    """The id of a message with usage, which each of its parts has a line of; empty for other records.

    Source: Claude Code's session files: a line for each block of an answer, with one message id.
    """
    message = record.get("message")
    if isinstance(message, dict) and isinstance(message.get("usage"), dict):
        found = message.get("id")
        return found[:MAX_SESSION_CHARACTERS] if isinstance(found, str) else ""
    return ""


def _is_other(layers: Iterable[Layer], names: Names) -> bool:
    """Whether a record is of a kind that is no request, has the path of one that does not generate, is a part of a
    streamed answer (Ollama) or says where the next one belongs (Elasticsearch's bulk files)."""
    other = tables().other
    for layer in layers:
        if layer.get("done") is False or (len(layer) == 1 and isinstance(layer.get("index"), dict)):
            return True
        for name in names.kind:
            value = layer.get(name)
            if isinstance(value, str) and plain_name(value) in other.kinds:
                return True
        for name in names.path:
            value = layer.get(name)
            if isinstance(value, str) and any(part in value[:LONGEST_PATH] for part in other.paths):
                return True
    return False


def _first(layers: Iterable[Layer], read: Callable[[Layer], Any]) -> Any:
    return next((found for layer in layers if (found := read(layer)) is not None), None)


def _count(layers: Iterable[Layer], names: tuple[str, ...], least: int = 0) -> int | None:
    plus = tables().plus
    for layer in layers:
        for name in names:
            value = layer.get(name)
            if value is not None and number_in(value) is not None:
                more = sum(
                    checked_tokens(layer[one]) for one in plus.get(name, ()) if number_in(layer.get(one))
                )
                return checked_tokens(checked_tokens(value, 0 if more else least) + more, least)
    return None


def _shares(usages: Iterable[Layer], kind: str) -> int | None:
    """Sums Langfuse's usageDetails: keys with `input` are parts of the prompt, with `output` of the answer."""
    for layer in usages:
        if number_in(layer.get(kind)) is not None:
            parts = (value for name, value in layer.items() if kind in name and number_in(value) is not None)
            return checked_tokens(sum(map(checked_tokens, parts)), 1 if kind == "input" else 0)
    return None


def _asked(layers: Iterable[Layer], names: tuple[str, ...]) -> int | None:
    """The first max_tokens above 0; 0 and -1 mean no limit."""
    for layer in layers:
        for name in names:
            value = number_in(layer.get(name))
            if value is not None and value > 0:
                return checked_tokens(layer[name])
    return None


def _has_failed(layers: Iterable[Layer], names: Names) -> bool:
    for layer in layers:
        if any(_is_error(layer.get(name)) for name in names.error):
            return True
        for name in names.status:
            value = layer.get(name)
            if isinstance(value, dict):
                # OpenTelemetry: STATUS_CODE_ERROR
                value = "error" if value.get("code") in (2, "STATUS_CODE_ERROR", "ERROR") else None
            code = number_in(value)
            if (code is not None and 400 <= code < 600) or value is False:
                return True
            if isinstance(value, str) and plain_name(value) in FAILURES:
                return True
    return False


def _is_error(value: object) -> bool:
    """Whether what stands for an error says that there was one."""
    return bool(value) and (not isinstance(value, str) or value.strip().lower() not in _NO_ERROR)


def _session(layers: Iterable[Layer], names: tuple[str, ...]) -> str | None:
    for layer in layers:
        for name in names:
            value = layer.get(name)
            if isinstance(value, str | int) and value != "":
                return str(value)[:MAX_SESSION_CHARACTERS]
    return None


def _seconds(layers: Iterable[Layer], names: tuple[str, ...], blocks: tuple[str, ...]) -> float | None:
    for layer in layers:
        for name in names:
            found = seconds_of(layer.get(name))
            if found is not None:
                # Mooncake's traces have milliseconds since their start.
                return found / 1e3 if blocks[0] in layer and found < 1e8 else found
    return None


def _blocks(layers: Iterable[Layer], names: tuple[str, ...]) -> tuple[str, ...]:
    for layer in layers:
        value = next((layer[name] for name in names if name in layer), None)
        if isinstance(value, list):
            if len(value) > MAX_BLOCKS:
                raise UnusableLineError(Unusable.ABSURD_LENGTH)
            kinds = {*map(type, value)}
            if kinds <= {int, str}:
                return tuple(value) if int not in kinds else tuple(map(str, value))
    return ()
