"""A table as CSV: which columns have token counts, and the request of a row."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvcore.workload.lengths import Request, Unusable, UnusableLineError, checked_tokens

DELIMITERS: Final = (",", ";", "\t")
LONGEST_NAME: Final = 60
_NOT_IN_A_NAME: Final = re.compile(r"[\s_\-.()（）#]+")
_PROMPT: Final = frozenset(
    ("prompttokens", "inputtokens", "contexttokens", "requesttokens", "prompttokencount", "inputtokencount",
     "numprompttokens", "numinputtokens", "promptlength", "inputlength", "promptlen", "inputlen", "usageprompttokens",
     "usageinputtokens", "tokensin", "输入token", "输入token数", "输入tokens", "输入长度", "提示词token数")
)  # fmt: skip
_COMPLETION: Final = frozenset(
    ("completiontokens", "outputtokens", "generatedtokens", "responsetokens", "completiontokencount",
     "outputtokencount", "numcompletiontokens", "numoutputtokens", "numgenerationtokens", "generationtokens",
     "completionlength", "outputlength", "completionlen", "outputlen", "usagecompletiontokens", "usageoutputtokens",
     "tokensout", "输出token", "输出token数", "输出tokens", "输出长度", "生成token数")
)  # fmt: skip
_MAX_TOKENS: Final = frozenset(
    ("maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens", "最大输出token数")
)


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
    if line.count(delimiter) > 512:
        return ()
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return ()
    names = tuple(cell.strip() for cell in cells)
    are_names = len(names) > 1 and all(len(name) <= LONGEST_NAME for name in names)
    return names if are_names and not any(_is_number(name) for name in names) else ()


def columns_of(line: str) -> Columns | None:
    """The columns of a head line, or None when none of them has prompt tokens.

    Example:
        >>> columns_of("TIMESTAMP,ContextTokens,GeneratedTokens")
        Columns(delimiter=',', prompt=1, completion=2, max_tokens=None)
    """
    names = header_names(line)
    if not names and _plain(line) in _PROMPT:
        names = (line,)
    plain = [_plain(name) for name in names]
    prompt = _first(plain, _PROMPT)
    if prompt is None:
        return None
    return Columns(
        delimiter=max(DELIMITERS, key=line.count),
        prompt=prompt,
        completion=_first(plain, _COMPLETION),
        max_tokens=_first(plain, _MAX_TOKENS),
    )


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


def _first(names: Sequence[str], wanted: frozenset[str]) -> int | None:
    return next((index for index, name in enumerate(names) if name in wanted), None)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True
