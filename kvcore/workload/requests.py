"""One request of a log: its lengths in tokens, out of a record as JSON or a row of a table, and why a line has none."""

from __future__ import annotations

import codecs
import csv
import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

from kvcore.toml_files import file_text
from kvcore.versioned import Amount, Count, Pattern, Source, convert, read_toml
from kvcore.workload.histogram import MAX_TOKENS

MAX_DIGITS: Final = 9
"""Digits of a count that is read without further ado."""
MAX_VALUES: Final = 1 << 20
"""Of one line: what one call of the parser is given is done in some hundredths of a second."""
TEXT_SLICE: Final = 1 << 18
DELIMITERS: Final = (",", ";", "\t")
MAX_DELIMITERS: Final = 512
"""Of the head of a table."""
LONGEST_NAME: Final = 60
_WRAPPERS: Final = ("request", "response", "body", "params", "data")
_NUMBERS: Final = (int, float)
_NOT_IN_A_NAME: Final = re.compile(r"[\s_\-.()（）#]+")
_CJK: Final = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")

Name = Annotated[str, Pattern(r"\w{1,60}", "a name")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """What counts of tokens are called, each preferred to the next."""

    prompt: tuple[Name, ...]
    completion: tuple[Name, ...]
    max_tokens: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Tokens of a text whose tokenizer is not available, and of what a chat template adds to a message."""

    cjk_characters_per_token: Amount
    other_characters_per_token: Amount
    tokens_per_message: Count
    sources: tuple[Source, ...]
    checked: datetime.date


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestTables:
    """requests.toml."""

    keys: Names
    columns: Names
    estimate: Estimate


@cache
def _tables() -> RequestTables:
    text = file_text("kvcore.workload", "requests.toml")
    tables: RequestTables = convert(read_toml(text, "requests.toml"), RequestTables, "requests.toml")
    return tables


class Unusable(StrEnum):
    """Why a line is not counted."""

    NOT_A_RECORD = "not-a-record"
    NO_LENGTH = "no-length"
    ABSURD_LENGTH = "absurd-length"


class UnusableLineError(Exception):
    """A line that is not counted; raised and caught inside this package."""

    def __init__(self, reason: Unusable) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Request(NamedTuple):
    """One record: its lengths in tokens, and what else it tells. A tuple, because a log has a million of them."""

    prompt_tokens: int
    completion_tokens: int | None = None
    max_tokens: int | None = None
    estimated: bool = False
    """Whether the prompt was counted from its text by the approximation."""
    cached_tokens: int = 0
    """Prompt tokens that a cache answered; they are part of `prompt_tokens`."""
    session: str | None = None
    seconds: float | None = None
    """When it came, since 1970 or since the log's own beginning."""
    blocks: tuple[int | str, ...] = ()
    """Hashes of the prompt's blocks, each of all tokens up to its end."""


def checked_tokens(value: object, least: int = 0) -> int:
    """A token count of a log: a whole number from `least` to 2**24, also as text or as 900.0.

    Raises UnusableLineError, `absurd-length` for a number out of this range, else `no-length`.

    Example:
        >>> checked_tokens("1,712"), checked_tokens(900.0)
        (1712, 900)
    """
    if isinstance(value, str):
        if value.isdecimal() and len(value) <= MAX_DIGITS and least <= (count := int(value)) <= MAX_TOKENS:
            return count
        value = int(value) if value.isdecimal() and len(value) <= MAX_DIGITS else _number(value)
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise UnusableLineError(Unusable.NO_LENGTH)
    if not least <= value <= MAX_TOKENS or value != int(value):
        raise UnusableLineError(Unusable.ABSURD_LENGTH)
    return int(value)


def _number(text: str, longest: int = 24) -> float | None:
    digits = text.strip().replace(",", "")
    if not digits or len(digits) > longest:
        return None
    try:
        return float(digits)
    except ValueError:
        return None


def json_requests(line: bytes) -> tuple[Request, ...]:
    """The requests of one line: one record, a list of records, or the detailed result of vLLM's benchmark.

    Raises UnusableLineError.

    Example:
        >>> json_requests(b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}')[0].completion_tokens
        80
    """
    try:
        if line.count(b",") + line.count(b"[") + line.count(b"{") > MAX_VALUES:
            raise UnusableLineError(Unusable.NOT_A_RECORD)
        parsed = json.loads(line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise UnusableLineError(Unusable.NOT_A_RECORD) from None
    if isinstance(parsed, dict):
        many = _benchmark(parsed)
        return many if many else (_request(parsed),)
    if isinstance(parsed, list) and parsed and all(isinstance(record, dict) for record in parsed):
        return tuple(_request(record) for record in parsed)
    raise UnusableLineError(Unusable.NOT_A_RECORD)


def _benchmark(record: Mapping[str, Any]) -> tuple[Request, ...]:
    """Source: vllm/benchmarks/serve.py (0.33.0), `--save-detailed`."""
    prompts, answers = record.get("input_lens"), record.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(answers, list) or len(prompts) != len(answers):
        return ()
    return tuple(
        Request(prompt_tokens=checked_tokens(prompt, 1), completion_tokens=checked_tokens(answer))
        for prompt, answer in zip(prompts, answers, strict=True)
    )


def _request(record: Mapping[str, Any]) -> Request:
    # A record, what wraps a request or a response in it, and their bodies.
    wrapped = [inner for name in _WRAPPERS if isinstance(inner := record.get(name), dict)]
    layers = [record, *wrapped, *(body for one in wrapped if isinstance(body := one.get("body"), dict))]
    usages = [usage for layer in layers if isinstance(usage := layer.get("usage"), dict)]
    counted, keys = [*usages, *layers], _tables().keys
    prompt = _count(counted, keys.prompt, least=1)
    estimated = prompt is None
    if prompt is None:
        prompt = next((count for layer in layers if (count := _prompt_text_tokens(layer)) is not None), None)
    if prompt is None:
        raise UnusableLineError(Unusable.NO_LENGTH)
    return Request(
        prompt_tokens=prompt,
        completion_tokens=_count(counted, keys.completion),
        max_tokens=_count(layers, keys.max_tokens),
        estimated=estimated,
    )


def _count(layers: Iterable[Mapping[str, Any]], names: tuple[str, ...], least: int = 0) -> int | None:
    for layer in layers:
        for name in names:
            value = layer.get(name)
            if value is not None and isinstance(value, _NUMBERS) and not isinstance(value, bool):
                return checked_tokens(value, least)
    return None


def _prompt_text_tokens(layer: Mapping[str, Any]) -> int | None:
    prompt = layer.get("prompt")
    if isinstance(prompt, str):
        return max(1, estimated_tokens(prompt))
    messages = layer.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    total = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            total += estimated_tokens(text) if isinstance(text, str) else 0
        total += _tables().estimate.tokens_per_message
    return total


def estimated_tokens(text: str) -> int:
    """Tokens of `text` by the stated approximation, rounded up. Source: requests.toml.

    Example:
        >>> estimated_tokens("a" * 35), estimated_tokens("显存容量规划")
        (10, 4)
    """
    rates, cjk = _tables().estimate, 0
    if not text.isascii():
        slices = (text[at : at + TEXT_SLICE] for at in range(0, len(text), TEXT_SLICE))
        cjk = sum(len(_CJK.findall(part)) for part in slices)
    tokens = cjk / rates.cjk_characters_per_token + (len(text) - cjk) / rates.other_characters_per_token
    return -int(-tokens // 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Where a table has its counts."""

    delimiter: str
    prompt: int
    completion: int | None
    max_tokens: int | None


def header_names(line: str) -> tuple[str, ...]:
    """The cells of what may be the head of a table; none when it is something else.

    Example:
        >>> header_names("time;prompt_tokens;completion_tokens"), header_names('{"a": 1, "b": 2}')
        (('time', 'prompt_tokens', 'completion_tokens'), ())
    """
    if line.lstrip().startswith(("{", "[")):
        return ()
    delimiter = max(DELIMITERS, key=line.count)
    if line.count(delimiter) > MAX_DELIMITERS:
        return ()
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return ()
    names = tuple(cell.strip() for cell in cells)
    are_names = len(names) > 1 and all(len(name) <= LONGEST_NAME for name in names)
    return names if are_names and all(_number(name, LONGEST_NAME) is None for name in names) else ()


def columns_of(line: str) -> Columns | None:
    """The columns of a head line, or None when none of them has prompt tokens.

    Example:
        >>> columns_of("TIMESTAMP,ContextTokens,GeneratedTokens")
        Columns(delimiter=',', prompt=1, completion=2, max_tokens=None)
    """
    known = _tables().columns
    names = header_names(line)
    if not names and _plain(line) in known.prompt:
        names = (line,)
    plain = [_plain(name) for name in names]
    prompt, completion, max_tokens = (
        next((at for at, name in enumerate(plain) if name in wanted), None)
        for wanted in (known.prompt, known.completion, known.max_tokens)
    )
    if prompt is None:
        return None
    delimiter = max(DELIMITERS, key=line.count)
    return Columns(delimiter=delimiter, prompt=prompt, completion=completion, max_tokens=max_tokens)


def row_request(cells: Sequence[str], columns: Columns) -> Request:
    """The request of one row. Raises UnusableLineError."""
    if columns.prompt >= len(cells):
        raise UnusableLineError(Unusable.NOT_A_RECORD)
    return Request(
        prompt_tokens=checked_tokens(cells[columns.prompt], 1),
        completion_tokens=_optional(cells, columns.completion),
        max_tokens=_optional(cells, columns.max_tokens),
    )


def _optional(cells: Sequence[str], column: int | None) -> int | None:
    if column is None or column >= len(cells) or not cells[column].strip():
        return None
    return checked_tokens(cells[column])


def _plain(name: str) -> str:
    return _NOT_IN_A_NAME.sub("", name.strip().strip("\ufeff\"'")).lower()
