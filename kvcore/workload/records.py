"""Request logs -> how long prompts and answers are: JSON lines, a table as CSV, or the engine's own request lines.

A record may carry token counts (`usage`, `prompt_tokens`, `completion_tokens`), or text (`prompt`, `messages`) that
is counted by a stated approximation. Only counts are kept; every line is either counted or accounted for.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from kvcore.errors import WorkloadError
from kvcore.workload.engine_lines import EngineLines
from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.json_record import json_requests
from kvcore.workload.lengths import MAX_TOKENS, Request, Unusable, UnusableLineError
from kvcore.workload.table_rows import columns_of, header_names, row_request

MAX_LOG_BYTES: Final = 50 << 20
MAX_LINE_BYTES: Final = 8 << 20
MAX_REQUESTS: Final = 1_000_000
"""Lines, or requests where a line has many."""
MAX_ROW_BYTES: Final = 1 << 16
"""Of a table; its head is not looked at beyond them either."""
SHOWN_BAD_LINES: Final = 5
SHOWN_COLUMNS: Final = 8
PROGRESS_BYTES: Final = 1 << 20

Progress = Callable[[int], None]
"""Called with how many bytes were read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLog:
    """What a request log says about lengths."""

    prompts: LengthHistogram
    """Prompt tokens of each request."""
    completions: LengthHistogram
    """Completion tokens, where the log has them."""
    max_tokens: LengthHistogram
    """The `max_tokens` that requests asked for, where they did."""
    taken: LengthHistogram
    """Tokens that each request takes when its answer ends."""
    needed: LengthHistogram
    """The smallest max_model_len that serves each request in full."""
    running_tokens: float
    """What a running request takes on average: at a random step of a random answer. 0 without answers."""
    estimated: int
    """How many prompts were counted from text by the approximation."""
    unusable: int
    unusable_lines: tuple[int, ...]
    """The first few line numbers that could not be used."""
    reasons: tuple[tuple[Unusable, int], ...]
    """How many lines could not be used for which reason."""
    other_lines: int
    """Lines of an engine's log that do not speak of a request."""

    @property
    def without_answer(self) -> int:
        """Requests whose answer the log does not tell."""
        return self.prompts.requests - self.completions.requests


def read_request_log(lines: Iterable[bytes], progress: Progress | None = None) -> RequestLog:
    """Lengths of all usable records of one file. Raises as `read_request_logs`.

    Example:
        >>> log = read_request_log([b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}', b'oops'])
        >>> log.prompts.requests, log.taken.longest_tokens, log.unusable_lines
        (1, 980, (2,))
    """
    return read_request_logs([lines], progress)


def read_request_logs(files: Iterable[Iterable[bytes]], progress: Progress | None = None) -> RequestLog:
    """Lengths of all usable records of several files, each in a format of its own.

    Raises WorkloadError: `request-log-too-large`, `request-log-too-long`, `request-log-not-text`, and where no line is
    a usable request `request-log-columns`, `request-log-no-length`, `request-log-absurd` or `request-log-empty`.
    """
    tally = _Tally()
    meter = _Meter(progress)
    for lines in files:
        _read_file(meter.lines(lines), tally)
    if not tally.prompts:
        raise tally.refusal()
    return tally.log()


@dataclass(slots=True)
class _Meter:
    """Counts bytes over all files."""

    progress: Progress | None
    read: int = 0
    reported: int = 0
    lines_read: int = 0

    def lines(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.read += len(line)
            if self.read > MAX_LOG_BYTES:
                raise WorkloadError("request-log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
            self.lines_read += 1
            if self.lines_read > MAX_REQUESTS:
                raise _too_many()
            if self.progress is not None and self.read >= self.reported + PROGRESS_BYTES:
                self.reported = self.read
                self.progress(self.read)
            yield line


def _too_many() -> WorkloadError:
    return WorkloadError("request-log-too-long", limit=f"{MAX_REQUESTS:,}")


@dataclass(slots=True)
class _Tally:
    """Counts over all files; its size grows with the number of different lengths, not with the logs."""

    prompts: dict[int, int] = field(default_factory=dict)
    completions: dict[int, int] = field(default_factory=dict)
    wanted: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    needed: dict[int, int] = field(default_factory=dict)
    reasons: dict[Unusable, int] = field(default_factory=dict)
    bad_lines: list[int] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    estimated: int = 0
    other_lines: int = 0
    steps: int = 0
    held_token_steps: int = 0
    requests: int = 0

    def add(self, request: Request) -> None:
        self.requests += 1
        if self.requests > MAX_REQUESTS:
            raise _too_many()
        _count(self.prompts, request.prompt_tokens)
        _count(self.taken, request.taken_tokens)
        _count(self.needed, request.needed_tokens)
        self.estimated += request.estimated
        if request.max_tokens is not None:
            _count(self.wanted, request.max_tokens)
        answer = request.completion_tokens
        if answer is not None:
            _count(self.completions, answer)
            self.steps += answer
            self.held_token_steps += answer * request.prompt_tokens + answer * (answer + 1) // 2

    def drop(self, reason: Unusable, line: int, lines: int = 1) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + lines
        if len(self.bad_lines) < SHOWN_BAD_LINES:
            self.bad_lines.append(line)

    def refusal(self) -> WorkloadError:
        lines = sum(self.reasons.values())
        for reason, code in (
            (Unusable.ABSURD_LENGTH, "request-log-absurd"),
            (Unusable.NO_LENGTH, "request-log-no-length"),
        ):
            if self.reasons.get(reason, 0) * 2 > lines:
                return WorkloadError(code, lines=lines, limit=f"{MAX_TOKENS:,}")
        if self.columns:
            return WorkloadError("request-log-columns", columns=", ".join(self.columns[:SHOWN_COLUMNS]))
        return WorkloadError("request-log-empty", lines=lines)

    def log(self) -> RequestLog:
        return RequestLog(
            prompts=LengthHistogram.from_counts(self.prompts),
            completions=LengthHistogram.from_counts(self.completions),
            max_tokens=LengthHistogram.from_counts(self.wanted),
            taken=LengthHistogram.from_counts(self.taken),
            needed=LengthHistogram.from_counts(self.needed),
            running_tokens=self.held_token_steps / self.steps if self.steps else 0.0,
            estimated=self.estimated,
            unusable=sum(self.reasons.values()),
            unusable_lines=tuple(self.bad_lines),
            reasons=tuple(self.reasons.items()),
            other_lines=self.other_lines,
        )


def _count(counts: dict[int, int], value: int) -> None:
    counts[value] = counts.get(value, 0) + 1


def _read_file(lines: Iterator[bytes], tally: _Tally) -> None:
    for number, line in enumerate(lines, start=1):
        if number == 1 and b"\x00" in line[:4096]:
            raise WorkloadError("request-log-not-text")
        if line.strip():
            head, encoding = _decoded_head(line)
            if columns_of(head) is not None:
                _read_table(head, _rows(lines, encoding, number, tally), number, tally)
            else:
                known = len(tally.prompts)
                _read_lines(chain([line], lines), number, tally)
                if len(tally.prompts) == known and not tally.columns:
                    tally.columns = header_names(head)
            return


def _decoded_head(line: bytes) -> tuple[str, str]:
    """A spreadsheet in China writes GB 18030 where it does not write UTF-8."""
    head = line[:MAX_ROW_BYTES]
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            decoder = codecs.getincrementaldecoder(encoding)()
            return decoder.decode(head, final=len(line) <= len(head)).strip(), encoding.removesuffix("-sig")
        except UnicodeDecodeError:
            continue
    return head.decode("utf-8", "replace").strip(), "utf-8"


def _rows(lines: Iterator[bytes], encoding: str, head: int, tally: _Tally) -> Iterator[str]:
    """The rows below a head as text; one that no table has is counted as unusable and left empty."""
    for number, row in enumerate(lines, start=head + 1):
        if len(row) > MAX_ROW_BYTES:
            tally.drop(Unusable.NOT_A_RECORD, number)
            yield "\n"
        else:
            yield row.decode(encoding, "replace")


def _read_table(head: str, rows: Iterator[str], number: int, tally: _Tally) -> None:
    columns = columns_of(head)
    if columns is None:
        return
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
                tally.add(row_request(cells, columns))
            except UnusableLineError as error:
                tally.drop(error.reason, number + before + 1)


def _read_lines(lines: Iterator[bytes], first: int, tally: _Tally) -> None:
    engine = EngineLines()
    spoke = False
    others: list[int] = []
    other_count = 0
    for number, line in enumerate(lines, start=first):
        text = line.strip()
        if not text:
            continue
        if len(line) > MAX_LINE_BYTES:
            tally.drop(Unusable.NOT_A_RECORD, number)
        elif text.startswith((b"{", b"[", b"\xef\xbb\xbf")):
            try:
                for request in json_requests(text):
                    tally.add(request)
            except UnusableLineError as error:
                tally.drop(error.reason, number)
        elif engine.take(text.decode("utf-8", "replace")):
            spoke = True
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
    if spoke:
        tally.other_lines += other_count
    elif other_count:
        tally.reasons[Unusable.NOT_A_RECORD] = tally.reasons.get(Unusable.NOT_A_RECORD, 0) + other_count
        tally.bad_lines = sorted({*tally.bad_lines, *others})[:SHOWN_BAD_LINES]
