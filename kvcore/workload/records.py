"""Request logs -> how long prompts and answers are: JSON lines, a table as CSV, or the engine's own request lines.

A record may carry token counts (`usage`, `prompt_tokens`, `completion_tokens`), or text (`prompt`, `messages`) that
is counted by a stated approximation. Only counts are kept; every line is either counted or accounted for.

vLLM's own request lines, `--enable-log-requests` and `--enable-log-outputs`, print token ids: the INFO line up to 0.11,
later only the DEBUG line. A prompt is printed inside the line, so the fields behind it are looked for from the end.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from kvcore.errors import WorkloadError
from kvcore.workload.collector import Collector
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.requests import (
    Columns,
    Request,
    Unusable,
    UnusableLineError,
    columns_of,
    header_names,
    json_requests,
    row_request,
)
from kvcore.workload.traffic import MARK, Traffic, read_traffic

MAX_LOG_BYTES: Final = 50 << 20
MAX_LINE_BYTES: Final = 8 << 20
MAX_REQUESTS: Final = 1_000_000
"""Lines, or requests where a line has many."""
MAX_ROW_BYTES: Final = 1 << 16
"""Of a table; its head is not looked at beyond them either."""
SHOWN_BAD_LINES: Final = 5
SHOWN_COLUMNS: Final = 8
PROGRESS_BYTES: Final = 1 << 20
MAX_PENDING: Final = 100_000
"""Requests whose second line has not come yet; beyond that the oldest is counted as it is."""
HEAD_CHARACTERS: Final = 1024
"""Of a line, within which it says what it is; behind them stands the prompt."""
PARAMETER_CHARACTERS: Final = 1 << 16
_RECEIVED: Final = re.compile(r"Received request (\S{1,200}): ")
_DETAILS: Final = re.compile(r"Request (\S{1,200}) details: ")
_GENERATED: Final = re.compile(r"Generated response (\S{1,200}?)(?: \(streaming (complete|delta)\))?: ")
_MAX_TOKENS: Final = re.compile(r"\bmax_tokens=(\d{1,9})\b")
_PROMPT_IDS: Final = "prompt_token_ids: ["
_OUTPUT_IDS: Final = "output_token_ids: ["

Progress = Callable[[int], None]
"""Called with how many bytes were read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLog:
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

    @property
    def without_answer(self) -> int:
        """Requests whose answer the log does not tell."""
        return self.traffic.requests - self.traffic.answers.requests

    @property
    def counted_by(self) -> str:
        """What counted the prompts: the log's own counts, text by the approximation, or some of each."""
        if not self.estimated:
            return "usage"
        return "approximation" if self.estimated == self.traffic.requests else "usage, approximation"


def read_request_log(lines: Iterable[bytes], progress: Progress | None = None) -> RequestLog:
    """Lengths of all usable records of one file. Raises as `read_request_logs`.

    Example:
        >>> log = read_request_log([b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}', b'oops'])
        >>> log.traffic.requests, log.traffic.taken.longest_tokens, log.unusable_lines
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
    if not tally.collector.requests:
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
    """Counts over all files; its size is bounded, whatever the logs have."""

    collector: Collector = field(default_factory=Collector)
    reasons: Counter[Unusable] = field(default_factory=Counter)
    bad_lines: list[int] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    estimated: int = 0
    other_lines: int = 0

    def add(self, request: Request) -> None:
        if self.collector.requests >= MAX_REQUESTS:
            raise _too_many()
        self.collector.add(request)
        self.estimated += request.estimated

    def drop(self, reason: Unusable, line: int, lines: int = 1) -> None:
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
        )


class EngineLines:
    """Requests put together from the lines that speak of them.

    Source: vllm/entrypoints/logger.py:RequestLogger (0.11.0, 0.19.0), vllm/entrypoints/serve/utils/request_logger.py
    (0.33.0).

    Example:
        >>> lines = EngineLines()
        >>> lines.take("Received request a: prompt: 'x', params: SamplingParams(max_tokens=64), "
        ...            "prompt_token_ids: [1, 2]")
        True
        >>> lines.take("Generated response a: output: 'y', output_token_ids: [7], finish_reason: stop")
        True
        >>> [request[:3] for request in lines.rest()]
        [(2, 1, 64)]
    """

    def __init__(self) -> None:
        # A plain dictionary looks at every place that was emptied before it finds its first entry.
        self._pending: OrderedDict[str, tuple[int | None, int | None, int | None]] = OrderedDict()
        self.without_length = 0
        """Requests that were named and never given a length."""

    def take(self, line: str) -> bool:
        """Whether the line speaks of a request; what it says is kept until `rest`."""
        head = line[:HEAD_CHARACTERS]
        if (received := _RECEIVED.search(head)) is not None:
            tail = line[received.end() :]
            start = tail.rfind("SamplingParams(")
            wanted = _MAX_TOKENS.search(tail, start, start + PARAMETER_CHARACTERS) if start >= 0 else None
            self._merge(received[1], (_ids(tail, _PROMPT_IDS), None, int(wanted[1]) if wanted else None))
        elif (details := _DETAILS.search(head)) is not None:
            self._merge(details[1], (_ids(line, _PROMPT_IDS), None, None))
        elif (generated := _GENERATED.search(head)) is None:
            return False
        elif generated[2] != "delta":
            self._merge(generated[1], (None, _ids(line, _OUTPUT_IDS), None))
        return True

    def overflow(self) -> Iterator[Request]:
        """The oldest requests, once more are pending than are kept."""
        while len(self._pending) > MAX_PENDING:
            yield from self._finish(next(iter(self._pending)))

    def rest(self) -> Iterator[Request]:
        """All that are left, at the end of the log."""
        for request_id in list(self._pending):
            yield from self._finish(request_id)

    def _merge(self, request_id: str, found: tuple[int | None, int | None, int | None]) -> None:
        old = self._pending.get(request_id, (None, None, None))
        prompt, answer, wanted = (
            new if new is not None else past for new, past in zip(found, old, strict=True)
        )
        self._pending[request_id] = (prompt, answer, wanted)

    def _finish(self, request_id: str) -> Iterator[Request]:
        prompt, answer, wanted = self._pending.pop(request_id)
        if not prompt:
            self.without_length += 1
            return
        yield Request(prompt_tokens=prompt, completion_tokens=answer, max_tokens=wanted)


def _ids(text: str, name: str) -> int | None:
    """How many ids stand in the last list of that name; None without one."""
    start = text.rfind(name)
    end = text.find("]", start)
    if start < 0 or end < 0:
        return None
    inside = text[start + len(name) : end].strip()
    return inside.count(",") + 1 if inside else 0


def _read_file(lines: Iterator[bytes], tally: _Tally) -> None:
    for number, line in enumerate(lines, start=1):
        if number == 1 and b"\x00" in line[:4096]:
            raise WorkloadError("request-log-not-text")
        if line.strip():
            head, encoding = _decoded_head(line)
            if head.startswith('{"' + MARK):
                tally.collector.take(read_traffic(b"".join([line, *lines]).decode("utf-8", "replace")))
            elif (columns := columns_of(head)) is not None:
                _read_table(columns, _rows(lines, encoding, number, tally), number, tally)
            else:
                known = tally.collector.requests
                _read_lines(chain([line], lines), number, tally)
                if tally.collector.requests == known and not tally.columns:
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
        tally.reasons[Unusable.NOT_A_RECORD] += other_count
        tally.bad_lines = sorted({*tally.bad_lines, *others})[:SHOWN_BAD_LINES]
