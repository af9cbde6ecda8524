"""Reads how long prompts and answers are from JSON lines, tables, vLLM's own lines, traces and exports.

A record has token counts, or text that is counted by the model's tokenizer or a stated approximation. Only counts are
kept; each line is either counted or reported as unusable.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError, WorkloadError, defect
from kvcore.workload.collector import Collector
from kvcore.workload.columnar import ColumnReader
from kvcore.workload.columns import (
    MAX_ROW_BYTES,
    Columns,
    columns_of,
    decoded_head,
    header_names,
    row_request,
)
from kvcore.workload.database.cells import is_cells, read_cells_csv
from kvcore.workload.fields import forget_names, json_requests, record_requests
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.layers import READING, field_names, missing_of
from kvcore.workload.layouts import JsonForm, Layouts, RowForm
from kvcore.workload.meter import Meter, Progress, too_many
from kvcore.workload.opening import (
    MAX_LINE_BYTES,
    Lines,
    batch_rows,
    is_parquet,
    parquet_batches,
    parquet_columns,
    slices_of,
)
from kvcore.workload.requests import Reading, Request, Rows, Unusable, UnusableLineError, tables
from kvcore.workload.streams import EngineLines, Records, Streams, json_at, json_within, pairs_in
from kvcore.workload.timeline import Timeline
from kvcore.workload.traffic import MARK, Traffic, read_traffic

SHOWN_BAD_LINES: Final = 5
MAX_COMMENTS: Final = 64
"""Lines before a header."""
SHOWN_COLUMNS: Final = 8
MAX_CALLS: Final = 32
"""Calls that wait for their last line: lines of one call stand close together."""

_SEPARATOR: Final = re.compile(r"sep=.", re.IGNORECASE)
_LIST: Final = re.compile(rb"\[\s{0,80}(?:[{\]]|$)")
"""The beginning of a list of records; a date may begin with a bracket too."""


class RequestLog(Struct, frozen=True, kw_only=True):
    """Lengths from a request log, and the lines of it that were not usable."""

    traffic: Traffic
    estimated: int
    """Prompts counted from text by the approximation."""
    unusable: int
    unusable_lines: tuple[int, ...]
    """Numbers of the first unusable lines."""
    reasons: tuple[tuple[Unusable, int], ...]
    """Unusable lines by reason."""
    other_lines: int
    """Lines of an engine's log that are not about a request."""
    failed: int = 0
    """Requests that failed; they are in none of the counts."""
    other_kinds: int = 0
    """Records of embeddings, tools and the like, and of agents and chains that sum up their calls: in no count."""
    cut_tokens: int = 0
    """The length at which the log may have cut prompts and answers; 0 where nothing looks like it."""
    not_counted: int = 0
    """Images and audio of prompts, which are in none of the counts."""
    by_text: int = 0
    """Prompts counted from text, by a tokenizer or by the approximation."""
    unseen: tuple[str, ...] = ()
    """Field names given by the user that no record has."""
    timeline: Timeline = Timeline()
    """When its requests came, where it has times."""
    models: tuple[tuple[str, int], ...] = ()
    """Models that it names, with the number of their requests, the most first; "" stands for all beyond MAX_MODELS."""
    not_asked: int = 0
    """Requests of another model, kind, status or time than was asked for; they are in none of the counts."""

    @property
    def without_answer(self) -> int:
        """Requests whose answer length is unknown."""
        return self.traffic.requests - self.traffic.answers.requests

    @property
    def counted_by(self) -> str:
        """Source of the prompt lengths: usage, tokenizer, approximation, or several of them."""
        shares = {
            "usage": self.traffic.requests - self.by_text,
            "tokenizer": self.by_text - self.estimated,
            "approximation": self.estimated,
        }
        return ", ".join(name for name, share in shares.items() if share)


def read_logs_here(
    files: Iterable[Iterable[bytes]], progress: Progress | None = None, reading: Reading = READING
) -> RequestLog:
    """Reads logs as `read_request_logs` does, but always in this process."""
    reading = replace(reading, seen=set())
    tally = _Tally(reading)
    meter = Meter(progress, reading)
    try:
        for source in files:
            if is_parquet(source):
                _read_parquet(cast(Any, source), tally)
            else:
                _read_file(meter.slices(slices_of(source)), tally)
        tally.finish()
        if not tally.collector.requests:
            raise tally.refusal()
        return tally.log()
    finally:
        forget_names()


@dataclass(slots=True)
class _Tally:
    """Counts over all files, in bounded memory."""

    reading: Reading
    collector: Collector = field(default_factory=Collector)
    reasons: Counter[Unusable] = field(default_factory=Counter)
    bad_lines: list[int] = field(default_factory=list)
    is_parquet: bool = False
    """Whether a Parquet file has given no length: its columns are named then."""
    columns: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """Of the first record that was lost."""
    estimated: int = 0
    other_lines: int = 0
    failed: int = 0
    other_kinds: int = 0
    cut_tokens: int = 0
    not_counted: int = 0
    not_asked: int = 0
    by_text: int = 0
    calls: OrderedDict[str, Request] = field(default_factory=OrderedDict)
    """The last line of each call that several lines may be about."""
    defects: int = 0
    """Records that the reader failed on by a fault of its own; the first one is in the server's log."""

    def add(self, request: Request) -> None:
        most = self.reading.max_requests
        if most is not None and self.collector.requests >= most:
            raise too_many(most)
        self.collector.add(request)
        if request.by_text:
            self.by_text += 1
            self.estimated += request.estimated
            self.not_counted += request.not_counted

    def take(self, found: Request | Unusable, number: int) -> None:
        """Counts a request, or why there is none; requests of calls that go on wait for their last line."""
        if isinstance(found, Unusable):
            self.drop(found, number)
        elif found.call:
            self.calls.pop(found.call, None)
            self.calls[found.call] = found
            if len(self.calls) > MAX_CALLS:
                self.add(self.calls.pop(next(iter(self.calls))))
        else:
            self.add(found)

    def finish(self) -> None:
        """Counts the calls whose last line has come."""
        for request in self.calls.values():
            self.add(request)
        self.calls.clear()

    def add_rows(self, rows: Rows) -> None:
        most = self.reading.max_requests
        if most is not None and self.collector.requests + len(rows.prompts) > most:
            raise too_many(most)
        self.collector.add_rows(rows)

    def drop(self, reason: Unusable, line: int, lines: int = 1) -> None:
        if reason is Unusable.FAILED:
            self.failed += lines
            return
        if reason is Unusable.OTHER_KIND:
            self.other_kinds += lines
            return
        if reason is Unusable.NOT_ASKED:
            self.not_asked += lines
            return
        self.reasons[reason] += lines
        if len(self.bad_lines) < SHOWN_BAD_LINES:
            self.bad_lines.append(line)

    def lose(self, error: Exception, number: int) -> None:
        """Accounts for a record without a request. No error in one record ends the reading of a log."""
        if isinstance(error, UnusableLineError):
            self.drop(error.reason, number)
        elif isinstance(error, KvPlannerError | MemoryError):
            raise error
        else:
            if not self.defects:
                defect(error)
            self.defects += 1
            self.drop(Unusable.NOT_A_RECORD, number)

    def refusal(self) -> WorkloadError:
        lines = self.reasons.total()
        if self.not_asked:
            return WorkloadError("request-log-none-asked", requests=self.not_asked)
        if self.reasons[Unusable.SUM] * 2 > lines:
            return WorkloadError("request-log-sums", lines=self.reasons[Unusable.SUM])
        if self.reasons[Unusable.ABSURD_LENGTH] * 2 > lines:
            return WorkloadError("request-log-absurd", lines=lines, limit=f"{MAX_TOKENS:,}")
        if self.reasons[Unusable.NO_LENGTH] * 2 > lines and self.fields:
            return WorkloadError(
                "request-log-fields",
                lines=lines,
                fields=", ".join(self.fields),
                missing=missing_of(self.fields),
            )
        if self.reasons[Unusable.NO_LENGTH] * 2 > lines and not self.is_parquet:
            return WorkloadError("request-log-no-length", lines=lines, limit=f"{MAX_TOKENS:,}")
        if self.columns:
            return WorkloadError("request-log-columns", columns=", ".join(self.columns[:SHOWN_COLUMNS]))
        return WorkloadError("request-log-empty", lines=lines)

    def log(self) -> RequestLog:
        return RequestLog(
            traffic=self.collector.traffic(),
            estimated=self.estimated,
            unusable=self.reasons.total(),
            unusable_lines=tuple(self.bad_lines),
            reasons=tuple(self.reasons.items()),
            other_lines=self.other_lines,
            failed=self.failed,
            other_kinds=self.other_kinds,
            cut_tokens=self.cut_tokens,
            not_counted=self.not_counted,
            by_text=self.by_text,
            unseen=self.reading.unseen,
            timeline=self.collector.timeline(),
            models=tuple(self.collector.models.most_common()),
            not_asked=self.not_asked,
        )


def _read_file(slices: Iterator[list[bytes]], tally: _Tally) -> None:
    number = 1
    for found in slices:
        if number == 1 and b"\x00" in found[0][:4096]:
            raise WorkloadError("request-log-not-text")
        at = next((at for at, line in enumerate(found) if line.strip()), None)
        if at is not None:
            return _read_text(Lines(slices, found[at:], number + at), tally)
        number += len(found)
    return None


def _read_text(lines: Lines, tally: _Tally) -> None:
    """Reads a file from its first line that is not empty."""
    line = lines.slice[0]
    head, encoding = decoded_head(line)
    for _ in range(MAX_COMMENTS):
        # Excel's first line, about the cells of the others, and what an export says of itself.
        if _SEPARATOR.fullmatch(head) is None and not head.startswith("#"):
            break
        lines.take()
        if not lines.more():
            return
        line = lines.slice[lines.at]
        head, encoding = decoded_head(line)
    if head.startswith('{"' + MARK):
        tally.collector.take(read_traffic(lines.rest().decode("utf-8", "replace")))
    elif is_cells(head):
        cells = read_cells_csv(lines.rest().decode(encoding, "replace"))
        tally.collector.take(cells.traffic())
        tally.reasons[Unusable.NO_LENGTH] += cells.unusable
    elif (columns := columns_of(head, tally.reading)) is not None:
        lines.take()
        _Table(lines, columns, encoding, tally).read()
    else:
        known = tally.collector.requests
        _Log(lines, tally).read()
        if tally.collector.requests == known and not tally.columns:
            tally.columns = header_names(head)


def _read_parquet(source: Any, tally: _Tally) -> None:
    names, found = tally.reading.names, tables()
    wanted = frozenset(
        chain(
            *(getattr(names, one) for one in names.__struct_fields__),
            found.inside.usage,
            found.inside.other,
            found.inside.counts,
            found.inside.many,
            found.texts.prompt,
            found.texts.answer,
            *found.plus.values(),
        )
    )
    reading = tally.reading
    columns = ColumnReader(reading, tally.collector)
    number = 0
    for batch in parquet_batches(source, wanted, reading.max_requests, reading.max_bytes):
        rest, places, dropped = columns.take(batch)
        for reason, at, rows in dropped:
            tally.drop(reason, number + at + 1, rows)
        for at, row in zip(places, batch_rows(rest), strict=True):
            try:
                for request in record_requests(row, reading):
                    tally.take(request, number + at + 1)
            except Exception as error:
                tally.lose(error, number + at + 1)
        number += batch.num_rows
    columns.finish()
    if not tally.collector.requests:
        tally.columns, tally.is_parquet = parquet_columns(source), True


class _Table:
    """The rows below a header line."""

    def __init__(self, lines: Lines, columns: Columns, encoding: str, tally: _Tally) -> None:
        self._lines, self._columns, self._encoding, self._tally = lines, columns, encoding, tally
        self._reader = csv.reader(self._rows(), delimiter=columns.delimiter, strict=True)
        self._layouts = Layouts(RowForm(columns, encoding, tally.reading))

    def read(self) -> None:
        """All of them."""
        self._layouts.read(self._lines, self._alone, self._tally.add_rows)

    def _rows(self) -> Iterator[str]:
        """Rows as text; one that is too long counts as unusable and is left empty."""
        while self._lines.more():
            number, row = self._lines.number, self._lines.take()
            if len(row) > MAX_ROW_BYTES:
                self._tally.drop(Unusable.NOT_A_RECORD, number)
                yield "\n"
            else:
                yield row.decode(self._encoding, "replace")

    def _alone(self) -> bool:
        number, first = self._lines.number, self._lines.slice[self._lines.at]
        try:
            cells = next(self._reader)
        except StopIteration:
            return False
        except csv.Error:
            self._tally.drop(Unusable.NOT_A_RECORD, number, max(1, self._lines.number - number))
            return False
        if "".join(cells).strip():
            try:
                self._tally.add(row_request(cells, self._columns, self._tally.reading))
            except Exception as error:
                self._tally.lose(error, number)
            else:
                self._layouts.learn(first)
        return False


class _Log:
    """JSON, the events of streams, and the engine's own lines."""

    def __init__(self, lines: Lines, tally: _Tally) -> None:
        self._lines, self._tally, self._first = lines, tally, lines.number
        self._engine, self._streams, self._records = EngineLines(), Streams(), Records()
        self._layouts = Layouts(JsonForm(tally.reading))
        self._others: list[int] = []
        self._other_count = 0
        self._has_pairs = False

    def read(self) -> None:
        """All of them."""
        tally = self._tally
        self._layouts.read(self._lines, self._alone, tally.add_rows)
        for number, text in self._records.rest():
            self._take(number, text)
        for request in self._engine.rest():
            tally.add(request)
        tally.cut_tokens = self._engine.cut_tokens or tally.cut_tokens
        if self._engine.without_length:
            tally.drop(Unusable.NO_LENGTH, self._first, self._engine.without_length)
        if self._engine.spoke or self._streams.spoke or self._has_pairs:
            tally.other_lines += self._other_count
        elif self._other_count:
            tally.reasons[Unusable.NOT_A_RECORD] += self._other_count
            tally.bad_lines = sorted({*tally.bad_lines, *self._others})[:SHOWN_BAD_LINES]

    def _alone(self) -> bool:
        number, line = self._lines.number, self._lines.take()
        was_open = self._records.is_open
        for start, text in self._records.take(number, line):
            if self._take(start, text) and not was_open:
                self._layouts.learn(text)
        return self._records.is_open

    def _take(self, number: int, text: bytes) -> bool:
        """Reads a record; whether it was one request."""
        tally = self._tally
        known = tally.collector.requests
        if len(text) > MAX_LINE_BYTES:
            tally.drop(Unusable.NOT_A_RECORD, number)
        elif text.startswith((b"{", b"\xef\xbb\xbf")) or _LIST.match(text):
            try:
                for request in json_requests(text, tally.reading):
                    tally.take(request, number)
            except Exception as error:
                tally.fields = tally.fields or field_names(text)
                tally.lose(error, number)
            else:
                return text.startswith(b"{") and tally.collector.requests == known + 1
        elif (events := self._streams.take(text)) is not None:
            for record in events:
                self._take_record(number, record)
        elif self._engine.take(text.decode("utf-8", "replace")):
            for request in self._engine.overflow():
                tally.add(request)
        elif (at := json_at(text)) >= 0:
            return self._take(number, text[at:])
        elif within := json_within(text):
            return self._take(number, within)
        elif (pairs := pairs_in(text)) is not None:
            self._has_pairs = True
            self._take_record(number, pairs)
        else:
            self._other_count += 1
            if len(self._others) < SHOWN_BAD_LINES:
                self._others.append(number)
        return False

    def _take_record(self, number: int, record: dict[str, Any]) -> None:
        try:
            for request in record_requests(record, self._tally.reading):
                self._tally.take(request, number)
        except Exception as error:
            self._tally.lose(error, number)
