"""Tables of requests: columns are found by their names in the header line."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from kvcore.workload.fields import record_requests
from kvcore.workload.layers import READING
from kvcore.workload.opening import slices_of
from kvcore.workload.requests import (
    LONGEST_NAME,
    Reading,
    Request,
    Unusable,
    UnusableLineError,
    checked_tokens,
    field_name,
    number_of,
    plain_name,
    tables,
)

DELIMITERS: Final = (",", ";", "\t", "|")
MAX_DELIMITERS: Final = 512
"""Delimiters in a header line."""
MAX_ROW_BYTES: Final = 1 << 16
"""Bytes of a row; of a longer header only so many are read."""
_RESPONSE_TOKENS: Final = "responsetokens"
"""BurstGPT's column, where 0 means a failed request."""


class Columns(Struct, frozen=True, kw_only=True):
    """Columns with token counts. Without a column of prompts the cells are read as the fields of a record."""

    delimiter: str
    names: tuple[str, ...]
    prompt: int | None
    completion: int | None
    max_tokens: int | None
    plain: bool
    """Whether no other column says anything about a request."""


def decoded_head(line: bytes) -> tuple[str, str]:
    """The header line and its encoding: UTF-8, or GB 18030 as spreadsheets in China may write it."""
    head = line[:MAX_ROW_BYTES]
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            decoder = codecs.getincrementaldecoder(encoding)()
            return decoder.decode(head, final=len(line) <= len(head)).strip(), encoding.removesuffix("-sig")
        except UnicodeDecodeError:
            continue
    return head.decode("utf-8", "replace").strip(), "utf-8"


def header_names(line: str) -> tuple[str, ...]:
    """The cells of a header line; empty for a line that is no header.

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
    return names if are_names and all(number_of(name, LONGEST_NAME) is None for name in names) else ()


def columns_of_file(source: Iterable[bytes]) -> tuple[str, ...]:
    """The columns of a table by its header line; empty for any other file.

    Example:
        >>> columns_of_file([b"when,in_tok,out_tok", b"5,900,80"])
        ('when', 'in_tok', 'out_tok')
    """
    lines = (line for slices in slices_of(source) for line in slices if line.strip())
    return header_names(decoded_head(next(lines, b""))[0])


GUESSES: Final = {
    "prompt": ("prompt", "input", "in", "context", "request", "query", "提示", "输入", "请求"),
    "completion": ("completion", "output", "out", "generated", "generation", "response", "answer", "reply", "补全",
                   "输出", "回答", "生成"),
}  # fmt: skip
"""Words in the names of columns with the tokens of prompts and of answers."""
_TOKEN_WORDS: Final = ("tok", "tokens", "token", "len", "length", "toks", "长度")
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[\u4e00-\u9fff]+")


def guessed_columns(names: Sequence[str]) -> dict[str, str]:
    """The likeliest column of each length, by the words in its name; "" where none has such a word.

    Example:
        >>> guessed_columns(("in_ms", "when", "in_tok", "tokOut"))
        {'prompt': 'in_tok', 'completion': 'tokOut'}
    """
    found: dict[str, str] = {}
    for field, words in GUESSES.items():
        scores = {name: _score(name, words) for name in reversed(names) if name not in found.values()}
        best = max(scores, key=lambda name: scores[name], default="")
        found[field] = best if best and scores[best] else ""
    return found


def _score(name: str, words: Sequence[str]) -> int:
    parts = {part.lower() for part in _PARTS.findall(name)}
    fits = any(word in parts or (not word.isascii() and word in name) for word in words)
    counts = any(word in parts or (not word.isascii() and word in name) for word in _TOKEN_WORDS)
    return fits * (2 + counts)


def columns_of(line: str, reading: Reading = READING) -> Columns | None:
    """The columns of a header line, or None when none of them has prompt tokens.

    Example:
        >>> found = columns_of("TIMESTAMP,ContextTokens,GeneratedTokens")
        >>> found.prompt, found.completion, found.max_tokens
        (1, 2, None)
    """
    known = reading.names
    names = header_names(line)
    if not names and plain_name(line) in known.prompt:
        names = (line,)
    plain = tuple(field_name(name) for name in names)
    prompt, completion, max_tokens = (
        next((plain.index(name) for name in wanted if name in plain), None)
        for wanted in (known.prompt, known.completion, known.max_tokens)
    )
    if prompt is None and not any(name in tables().inside.usage for name in plain):
        return None
    reading.note([plain])
    others = {
        *known.cached,
        *known.session,
        *known.model,
        *(field_name(field) for field, _ in reading.only),
        *known.seconds,
        *known.status,
        *known.error,
        *known.sums,
        *known.kind,
        *known.path,
        *tables().plus["inputtokens"],
    }
    return Columns(
        delimiter=max(DELIMITERS, key=line.count),
        names=names,
        prompt=prompt,
        completion=completion,
        max_tokens=max_tokens,
        plain=prompt is not None
        and not reading.picks
        and others.isdisjoint(plain)
        and _RESPONSE_TOKENS not in plain,
    )


def row_request(cells: Sequence[str], columns: Columns, reading: Reading = READING) -> Request:
    """The request of one row. Raises UnusableLineError."""
    at = columns.prompt
    if at is not None and at >= len(cells):
        raise UnusableLineError(Unusable.NOT_A_RECORD)
    if columns.plain and at is not None:
        return Request(
            prompt_tokens=checked_tokens(cells[at], 1),
            completion_tokens=_optional(cells, columns.completion),
            max_tokens=_optional(cells, columns.max_tokens),
        )
    record: Mapping[str, Any] = {name: cell for name, cell in zip(columns.names, cells, strict=False) if cell}
    request = next(record_requests(record, reading))
    if isinstance(request, Unusable):
        raise UnusableLineError(request)
    if request.completion_tokens == 0 and any(plain_name(name) == _RESPONSE_TOKENS for name in record):
        raise UnusableLineError(Unusable.FAILED)
    return request


def _optional(cells: Sequence[str], column: int | None) -> int | None:
    if column is None or column >= len(cells) or not cells[column].strip():
        return None
    return checked_tokens(cells[column])
