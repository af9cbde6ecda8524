"""Request logs -> how long prompts and answers are: JSON lines, tables, vLLM's own lines, traces, exports.

A record may carry token counts, or text that is counted by the model's tokenizer or a stated approximation. Only counts
are kept; every line is either counted or accounted for.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, cast

from msgspec import Struct

from kvcore.errors import WorkloadError
from kvcore.workload.collector import Collector
from kvcore.workload.columns import (
    MAX_ROW_BYTES,
    Columns,
    columns_of,
    decoded_head,
    header_names,
    row_request,
)
from kvcore.workload.database.cells import is_cells, read_cells_csv
from kvcore.workload.engine_lines import EngineLines
from kvcore.workload.fields import READING, forget_names, json_requests, record_requests
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.opening import MAX_LINE_BYTES, is_parquet, lines_of, parquet_rows
from kvcore.workload.requests import Reading, Request, Unusable, UnusableLineError, tables
from kvcore.workload.streams import Streams, records_of_lines
from kvcore.workload.traffic import MARK, Traffic, read_traffic

SHOWN_BAD_LINES: Final = 5
SHOWN_COLUMNS: Final = 8
PROGRESS_BYTES: Final = 1 << 20

Progress = Callable[[int], None]
"""Called with how many bytes were read."""


class RequestLog(Struct, frozen=True, kw_only=True):
    """What a request log says about lengths, and what of it was not usable."""

    traffic: Traffic
    estimated: int
    """How many prompts were counted from text by the approximation."""
    unusable: int
    unusable_lines: tuple[int, ...]
    """The first few line numbers that could not be used."""
    reasons: tuple[tuple[Unusable, int], ...]
    """How many lines could not be used for which reason."""
    other_lines: int
    """Lines of an engine's log that do not speak of a request."""
    failed: int = 0
    """Requests that failed; they are in none of the counts."""
    not_counted: int = 0
    """Images and audio of prompts, which are in none of the counts."""
    by_text: int = 0
    """How many prompts were counted from text, by a tokenizer or by the approximation."""

    @property
    def without_answer(self) -> int:
        """Requests whose answer the log does not tell."""
        return self.traffic.requests - self.traffic.answers.requests

    @property
    def counted_by(self) -> str:
        """What counted the prompts, the log's own counts, a tokenizer or the approximation, or some of each."""
        shares = {
            "usage": self.traffic.requests - self.by_text,
            "tokenizer": self.by_text - self.estimated,
            "approximation": self.estimated,
        }
        return ", ".join(name for name, share in shares.items() if share)


def read_request_log(
    lines: Iterable[bytes], progress: Progress | None = None, reading: Reading = READING
) -> RequestLog:
    """Lengths of all usable records of one file. Raises as `read_request_logs`.

    Example:
        >>> log = read_request_log([b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}', b'oops'])
        >>> log.traffic.requests, log.traffic.taken.longest_tokens, log.unusable_lines
        (1, 980, (2,))
    """
    return read_request_logs([lines], progress, reading)


def read_request_logs(
    files: Iterable[Iterable[bytes]], progress: Progress | None = None, reading: Reading = READING
) -> RequestLog:
    """Lengths of all usable records of several files, each in a format of its own.

    Raises WorkloadError: `request-log-too-large`, `request-log-too-long`, `request-log-not-text`, and where no line is
    a usable request `request-log-columns`, `request-log-no-length`, `request-log-absurd` or `request-log-empty`.
    """
    tally = _Tally(reading)
    meter = _Meter(progress, reading)
    try:
        for source in files:
            if is_parquet(source):
                _read_parquet(cast(Any, source), tally)
            else:
                _read_file(meter.lines(lines_of(source)), tally)
    finally:
        forget_names()
    if not tally.collector.requests:
        raise tally.refusal()
    return tally.log()


@dataclass(slots=True)
class _Meter:
    """Counts bytes over all files."""

    progress: Progress | None
    reading: Reading
    read: int = 0
    reported: int = 0
    lines_read: int = 0

    def lines(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.read += len(line)
            most_bytes, most = self.reading.max_bytes, self.reading.max_requests
            if most_bytes is not None and self.read > most_bytes:
                raise WorkloadError("request-log-too-large", limit=f"{most_bytes >> 20} MiB")
            self.lines_read += 1
            if most is not None and self.lines_read > most:
                raise _too_many(most)
            if self.progress is not None and self.read >= self.reported + PROGRESS_BYTES:
                self.reported = self.read
                self.progress(self.read)
            yield line


def _too_many(most: int) -> WorkloadError:
    return WorkloadError("request-log-too-long", limit=f"{most:,}")


@dataclass(slots=True)
class _Tally:
    """Counts over all files; its size is bounded, whatever the logs have."""

    reading: Reading
    collector: Collector = field(default_factory=Collector)
    reasons: Counter[Unusable] = field(default_factory=Counter)
    bad_lines: list[int] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    estimated: int = 0
    other_lines: int = 0
    failed: int = 0
    not_counted: int = 0
    by_text: int = 0

    def add(self, request: Request) -> None:
        most = self.reading.max_requests
        if most is not None and self.collector.requests >= most:
            raise _too_many(most)
        self.collector.add(request)
        if request.by_text:
            self.by_text += 1
            self.estimated += request.estimated
            self.not_counted += request.not_counted

    def drop(self, reason: Unusable, line: int, lines: int = 1) -> None:
        if reason is Unusable.FAILED:
            self.failed += lines
            return
        self.reasons[reason] += lines
        if len(self.bad_lines) < SHOWN_BAD_LINES:
            self.bad_lines.append(line)

    def refusal(self) -> WorkloadError:
        lines = self.reasons.total()
        if self.reasons[Unusable.ABSURD_LENGTH] * 2 > lines:
            return WorkloadError("request-log-absurd", lines=lines, limit=f"{MAX_TOKENS:,}")
        if self.reasons[Unusable.NO_LENGTH] * 2 > lines:
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
            not_counted=self.not_counted,
            by_text=self.by_text,
        )


def _read_file(lines: Iterator[bytes], tally: _Tally) -> None:
    for number, line in enumerate(lines, start=1):
        if number == 1 and b"\x00" in line[:4096]:
            raise WorkloadError("request-log-not-text")
        if line.strip():
            head, encoding = decoded_head(line)
            if head.startswith('{"' + MARK):
                tally.collector.take(read_traffic(b"".join([line, *lines]).decode("utf-8", "replace")))
            elif is_cells(head):
                cells = read_cells_csv(b"".join([line, *lines]).decode(encoding, "replace"))
                tally.collector.take(cells.traffic())
                tally.reasons[Unusable.NO_LENGTH] += cells.unusable
            elif (columns := columns_of(head, tally.reading)) is not None:
                _read_table(columns, _rows(lines, encoding, number, tally), number, tally)
            else:
                known = tally.collector.requests
                _read_lines(chain([line], lines), number, tally)
                if tally.collector.requests == known and not tally.columns:
                    tally.columns = header_names(head)
            return


def _read_parquet(source: Any, tally: _Tally) -> None:
    names, found = tally.reading.names, tables()
    wanted = frozenset(
        chain(
            *(getattr(names, one) for one in names.__struct_fields__),
            found.inside.usage,
            found.inside.other,
            found.texts.prompt,
            found.texts.answer,
            *found.plus.values(),
        )
    )
    for number, row in enumerate(parquet_rows(source, wanted, tally.reading.max_requests), start=1):
        try:
            for request in record_requests(row, tally.reading):
                tally.add(request)
        except UnusableLineError as error:
            tally.drop(error.reason, number)


def _rows(lines: Iterator[bytes], encoding: str, head: int, tally: _Tally) -> Iterator[str]:
    """The rows below a head as text; one that no table has is counted as unusable and left empty."""
    for number, row in enumerate(lines, start=head + 1):
        if len(row) > MAX_ROW_BYTES:
            tally.drop(Unusable.NOT_A_RECORD, number)
            yield "\n"
        else:
            yield row.decode(encoding, "replace")


def _read_table(columns: Columns, rows: Iterator[str], number: int, tally: _Tally) -> None:
    reader = csv.reader(rows, delimiter=columns.delimiter, strict=True)
    while True:
        before = reader.line_num
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            tally.drop(Unusable.NOT_A_RECORD, number + before + 1, max(1, reader.line_num - before))
            continue
        if "".join(cells).strip():
            try:
                tally.add(row_request(cells, columns, tally.reading))
            except UnusableLineError as error:
                tally.drop(error.reason, number + before + 1)


def _read_lines(lines: Iterator[bytes], first: int, tally: _Tally) -> None:
    engine, streams = EngineLines(), Streams()
    others: list[int] = []
    other_count = 0
    for number, text in records_of_lines(lines, first):
        if len(text) > MAX_LINE_BYTES:
            tally.drop(Unusable.NOT_A_RECORD, number)
        elif text.startswith((b"{", b"[", b"\xef\xbb\xbf")):
            try:
                for request in json_requests(text, tally.reading):
                    tally.add(request)
            except UnusableLineError as error:
                tally.drop(error.reason, number)
        elif (events := streams.take(text)) is not None:
            for record in events:
                try:
                    for request in record_requests(record, tally.reading):
                        tally.add(request)
                except UnusableLineError as error:
                    tally.drop(error.reason, number)
        elif engine.take(text.decode("utf-8", "replace")):
            for request in engine.overflow():
                tally.add(request)
        else:
            other_count += 1
            if len(others) < SHOWN_BAD_LINES:
                others.append(number)
    for request in engine.rest():
        tally.add(request)
    if engine.without_length:
        tally.drop(Unusable.NO_LENGTH, first, engine.without_length)
    if engine.spoke or streams.spoke:
        tally.other_lines += other_count
    elif other_count:
        tally.reasons[Unusable.NOT_A_RECORD] += other_count
        tally.bad_lines = sorted({*tally.bad_lines, *others})[:SHOWN_BAD_LINES]
