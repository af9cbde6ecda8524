"""The answer of the query: cells of the joint histogram, from a database or from a pasted or dropped CSV.

A cell is a prompt and an answer, each rounded up to BITS leading bits, and its number of requests. The prompt UNKNOWN
stands for rows without a usable length, the answer UNKNOWN for requests whose answer is not in the table.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from msgspec import Struct

from kvcore.base.errors import WorkloadError
from kvcore.workload.histogram import MAX_TOKENS, LengthHistogram, error_of
from kvcore.workload.traffic import Traffic, traffic_of_counts

BITS: Final = 7
"""Leading bits of a length: at most 1/64 above the true one, and exact up to 128."""
UNKNOWN: Final = -1
COLUMNS: Final = ("prompt", "answer", "requests")
MAX_CELLS: Final = 1 << 20
MAX_REQUESTS: Final = 1 << 53
MAX_CSV_CELLS: Final = 1 << 18
"""Cells of a visitor's CSV. The query gives at most 960 different prompts up to a million tokens, and a log has few of
their pairs with answers."""
MAX_CSV_BYTES: Final = 12 << 20
MAX_DIGITS: Final = 17


class Cells(Struct, frozen=True, kw_only=True):
    """A joint histogram from a database."""

    counts: tuple[tuple[int, int | None, int], ...]
    """Prompt, answer (None: unknown) and requests, ascending."""
    unusable: int
    """Rows without a usable length."""

    @property
    def requests(self) -> int:
        """Rows counted."""
        return sum(count for _, _, count in self.counts)

    def traffic(self) -> Traffic:
        """Lengths of the requests, with their error.

        Example:
            >>> found = read_cells([(900, 80, 3), (20, -1, 1)]).traffic()
            >>> found.taken.lengths, found.answers.requests, found.error
            ((20, 980), 3, 0.015625)
        """
        found = traffic_of_counts({(prompt, answer, None): count for prompt, answer, count in self.counts})
        error = lengths_error(found.taken)
        return replace(found, error=error, joint_error=error).bounded()


def lengths_error(taken: LengthHistogram) -> float:
    """Largest relative error of the lengths of cells; 0 if all are short enough to be exact.

    Example:
        >>> [lengths_error(LengthHistogram.from_lengths([longest])) for longest in (128, 129)]
        [0.0, 0.015625]
    """
    return error_of(BITS) if taken.longest_tokens > 1 << BITS else 0.0


def read_cells(rows: Iterable[tuple[int, int, int]], most: int | None = None) -> Cells:
    """Cells from the rows of an answer, at most `most` rows, or MAX_CELLS.

    Raises WorkloadError `cells-unreadable`, `cells-too-many`, and `database-no-lengths` where no row has a length.

    Example:
        >>> read_cells([(900, 80, 3), (20, -1, 1), (-1, -1, 2)])
        Cells(counts=((20, None, 1), (900, 80, 3)), unusable=2)
    """
    most = MAX_CELLS if most is None else most
    counts: Counter[tuple[int, int]] = Counter()
    for number, (prompt, answer, requests) in enumerate(rows, start=1):
        whole = type(prompt) is type(answer) is type(requests) is int
        usable = whole and 1 <= prompt <= MAX_TOKENS and UNKNOWN <= answer <= MAX_TOKENS
        if not (usable or (whole and prompt == answer == UNKNOWN)) or not 1 <= requests <= MAX_REQUESTS:
            raise WorkloadError("cells-unreadable", line=number)
        if number > most:
            raise WorkloadError("cells-too-many", limit=f"{most:,}")
        counts[prompt, answer] += requests
    unusable = counts.pop((UNKNOWN, UNKNOWN), 0)
    if not counts:
        raise WorkloadError("database-no-lengths", rows=f"{unusable:,}")
    # One sort of all of them would keep the interpreter from everyone else.
    by_prompt: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for (prompt, answer), number in counts.items():
        by_prompt[prompt].append((answer, number))
    found = [
        (prompt, None if answer == UNKNOWN else answer, number)
        for prompt in sorted(by_prompt)
        for answer, number in sorted(by_prompt[prompt])
    ]
    return Cells(counts=tuple(found), unusable=unusable)


def is_cells(head: str) -> bool:
    """Whether a text starts like the CSV of an answer.

    Example:
        >>> is_cells('"PROMPT","ANSWER","REQUESTS"'), is_cells("prompt_tokens,answer,requests")
        (True, False)
    """
    first = head.lstrip("\ufeff \r\n").split("\n", 1)[0]
    return (
        tuple(name.strip(" \r\"'").lower() for name in first.replace("\t", ",").replace(";", ",").split(","))
        == COLUMNS
    )


def read_cells_csv(text: str) -> Cells:
    """Cells of a pasted or dropped CSV, separated by commas, semicolons or tabs. Raises as `read_cells`.

    Example:
        >>> read_cells_csv("prompt,answer,requests\\n900,80,3\\n").requests
        3
    """
    if len(text) > MAX_CSV_BYTES:
        raise WorkloadError("cells-too-many", limit=f"{MAX_CSV_CELLS:,}")
    if not is_cells(text[:200]):
        raise WorkloadError("cells-unreadable", line=1)
    head, _, body = text.lstrip("\ufeff \r\n").partition("\n")
    delimiter = next((mark for mark in "\t;" if mark in head), ",")
    return read_cells(_rows(csv.reader(io.StringIO(body), delimiter=delimiter)), MAX_CSV_CELLS)


def _rows(rows: Iterable[list[str]]) -> Iterable[tuple[int, int, int]]:
    iterator = iter(rows)
    number = 1
    while True:
        number += 1
        try:
            row = next(iterator)
        except StopIteration:
            return
        except csv.Error:
            raise WorkloadError("cells-unreadable", line=number) from None
        if row:
            if len(row) != len(COLUMNS):
                raise WorkloadError("cells-unreadable", line=number)
            prompt, answer, requests = row
            yield _whole(prompt, number), _whole(answer, number), _whole(requests, number)


def _whole(cell: str, line: int) -> int:
    if cell.isdecimal() and len(cell) <= MAX_DIGITS:
        return int(cell)
    text = cell.strip()
    if not 0 < len(text) <= MAX_DIGITS or not text.removeprefix("-").isdecimal():
        raise WorkloadError("cells-unreadable", line=line)
    return int(text)
