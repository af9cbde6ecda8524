"""Opens log files: their lines in slices, unpacked and decoded as they are read, each line bounded.

First bytes tell gzip, zstd, UTF-16 and Parquet. Only as much is unpacked as is read.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, BinaryIO, Final, cast

from kvcore.base.errors import WorkloadError
from kvcore.workload.requests import field_name

MAX_LINE_BYTES: Final = 8 << 20
"""A longer line is cut."""
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BINARY: Final = b"\x00"
HEAD_BYTES: Final = 4096
MAX_LAYERS: Final = 2
"""How often a packed file may be packed again."""
BATCH_ROWS: Final = 1 << 16
FEWEST_ROWS: Final = 16
BATCH_BYTES: Final = 8 << 20
"""Bytes of a batch if the file states its sizes correctly: long rows are read fewer at a time."""
ARROW_BYTES: Final = 2
"""Unpacked bytes allowed for each byte of a text log: a count takes eight bytes however few digits it has."""
TAKEN_ROWS: Final = 64
"""Rows of a Parquet file that are Python objects at a time."""
SHOWN_COLUMNS: Final = 24
"""Columns that are named of a Parquet file without known ones: a person chooses from them."""
SLICE_BYTES: Final = 1 << 18
"""A slice takes longer than the interpreter's switch interval. With short reads alone other threads would wait for
0.2 s, because their wait starts again at each read."""


def slices_of(source: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines of a file, or of an iterable of lines, several at a time. Raises WorkloadError `request-log-not-text`,
    `request-log-damaged` for a packed file that is cut or broken, `request-log-needs` where a package is missing.

    Example:
        >>> import gzip, io
        >>> list(slices_of(io.BytesIO(gzip.compress(b"one\\ntwo"))))
        [[b'one\\n', b'two']]
    """
    if not hasattr(source, "read"):
        return _slices_of_lines(iter(source))
    return _bounded_slices(io.BufferedReader(cast(Any, _Raw(cast(BinaryIO, source)))))


class Lines:
    """The lines of a file, taken one by one or several at a time."""

    def __init__(self, slices: Iterator[list[bytes]], lines: list[bytes], number: int) -> None:
        self._slices = slices
        self.slice = lines
        self.at = 0
        """Place of the next line in its slice."""
        self.number = number
        """Number of the next line in its file."""

    def more(self) -> bool:
        """Whether there is a next line."""
        while self.at >= len(self.slice):
            found = next(self._slices, None)
            if found is None:
                return False
            self.slice, self.at = found, 0
        return True

    def take(self, lines: int = 1) -> bytes:
        """Returns the next line and moves on by `lines`, within its slice."""
        found = self.slice[self.at]
        self.at, self.number = self.at + lines, self.number + lines
        return found

    def rest(self) -> bytes:
        """The remaining lines."""
        parts = [b"".join(self.slice[self.at :]), *map(b"".join, self._slices)]
        self.at = len(self.slice)
        return b"".join(parts)


def _slices_of_lines(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    found: list[bytes] = []
    size = 0
    for line in lines:
        found.append(line)
        size += len(line)
        if size >= SLICE_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def needed(module: str, what: str) -> Any:
    """Imports an optional package. Raises WorkloadError `request-log-needs`."""
    try:
        return import_module(module)
    except ImportError:
        raise WorkloadError("request-log-needs", format=what, package=module.partition(".")[0]) from None


class _Raw(io.RawIOBase):
    """A visitor's file as a raw stream, so that a buffer can peek into it."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _unpacked(source: io.BufferedReader, layers: int = 0) -> io.BufferedReader:
    head = source.peek(HEAD_BYTES)[:HEAD_BYTES]
    if head.startswith((_GZIP, _ZSTD)) and layers < MAX_LAYERS:
        inner = gzip.GzipFile(fileobj=source, mode="rb") if head.startswith(_GZIP) else _zstd(source)
        return _unpacked(io.BufferedReader(cast(Any, inner)), layers + 1)
    if head.startswith(_UTF16):
        return io.BufferedReader(cast(Any, _Recoded(source)))
    if _BINARY in head:
        raise WorkloadError("request-log-not-text")
    return source


def _zstd(source: io.BufferedReader) -> Any:
    zstandard = needed("zstandard", "zstd")
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(source, read_across_frames=True)


class _Recoded(io.RawIOBase):
    """UTF-16 as UTF-8."""

    def __init__(self, source: io.BufferedReader) -> None:
        self._reader = codecs.getreader("utf-16")(source, "replace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = self._reader.read(1 << 15, 1 << 15).encode("utf-8", "replace")
        data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def _bounded_slices(packed: io.BufferedReader) -> Iterator[list[bytes]]:
    """Slices of lines; the rest of a line that is too long is skipped."""
    try:
        source = _unpacked(packed)
        while found := source.read(SLICE_BYTES):
            if not found.endswith(b"\n"):
                found += source.readline(MAX_LINE_BYTES + 1)
            if len(found) > MAX_LINE_BYTES and _LIST_OF_OBJECTS.match(found):
                yield from _members(found, source)
                continue
            *lines, last = io.BytesIO(found).readlines()
            line, more = last[: MAX_LINE_BYTES + 1], last[MAX_LINE_BYTES + 1 :]
            yield [*lines, line]
            while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                line = (
                    more if more.endswith(b"\n") else more + source.readline(MAX_LINE_BYTES + 1 - len(more))
                )
                more = b""
                yield [b""]
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(error) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "zstandard":
            raise _damaged(error) from None
        raise


_LIST_OF_OBJECTS: Final = re.compile(rb"(?:\xef\xbb\xbf)?\[\s{0,80}\{")
_MARK: Final = re.compile(rb'["{}\[\]]')
_IN_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def _members(first: bytes, source: BinaryIO) -> Iterator[list[bytes]]:
    """The members of a list that is one long line, each as a line, then what follows it.

    Of a member beyond MAX_LINE_BYTES only the beginning is given, which is no record.

    Example:
        >>> rest = io.BytesIO(b'}"}, {"b": [7]}]\\nnext\\n')
        >>> [line for lines in _members(b'[{"a": "', rest) for line in lines]
        [b'{"a": "}"}\\n', b'{"b": [7]}\\n', b'\\n', b'next\\n']
    """
    parts: list[bytes] = []
    depth = size = 0
    in_text, data = False, first
    while data:
        at = start = 0
        lines: list[bytes] = []
        while at < len(data):
            if in_text:
                at = cast(re.Match[bytes], _IN_TEXT.match(data, at)).end()
                if data[at : at + 1] != b'"':
                    break  # the text goes on, perhaps with the second half of an escape
                at, in_text = at + 1, False
            if (found := _MARK.search(data, at)) is None:
                at = len(data)
                break
            at = found.end()
            if found[0] == b'"':
                in_text = True
            elif found[0] in b"{[":
                depth += 1
                start = found.start() if depth == 2 else start
            else:
                depth -= 1
                if depth == 1:
                    end = data[start:at] if size <= MAX_LINE_BYTES else b""
                    lines.append(b"".join((*parts, end, b"\n")))
                    parts, size = [], 0
                elif not depth:
                    yield lines
                    rest = data[at:] + source.readline(MAX_LINE_BYTES + 1)
                    yield io.BytesIO(rest).readlines()
                    return
        if depth > 1 and size <= MAX_LINE_BYTES:
            parts.append(data[start:at])
            size += at - start
        yield lines
        more = source.read(SLICE_BYTES)
        data = data[at:] + more if more else b""
    yield [b"".join(parts)]


def _damaged(error: Exception) -> WorkloadError:
    return WorkloadError("request-log-damaged", reason=str(error))


def is_parquet(source: object) -> bool:
    """Whether a file is Parquet; its position does not change."""
    if not hasattr(source, "seek") or not hasattr(source, "read"):
        return False
    try:
        head = source.read(4)
        source.seek(0)
    except (OSError, ValueError):
        return False
    return bool(head == _PARQUET)


def parquet_batches(
    source: BinaryIO, wanted: frozenset[str], most_rows: int | None, most_bytes: int | None = None
) -> Iterator[Any]:
    """The record batches of a Parquet file, with the columns whose plain names are `wanted`.

    ARROW_BYTES times `most_bytes` is unpacked at most: a few bytes may stand for gigabytes of it, and the file's own
    sizes do not tell. Arrow unpacks a page before anything can be counted, so a stranger's file is read under a limit
    of memory too.

    Raises WorkloadError `request-log-damaged`, `request-log-too-large`, `request-log-too-long`, `request-log-columns`,
    `request-log-needs`.
    """
    pyarrow, parquet = needed("pyarrow", "Parquet"), needed("pyarrow.parquet", "Parquet")
    try:
        file = parquet.ParquetFile(source)
        if most_rows is not None and file.metadata.num_rows > most_rows:
            raise WorkloadError("request-log-too-long", limit=f"{most_rows:,}")
        names = file.schema_arrow.names
        columns = [name for name in names if field_name(name) in wanted]
        if not columns:
            raise WorkloadError("request-log-columns", columns=", ".join(names[:SHOWN_COLUMNS]))
        unpacked, most_bytes = 0, None if most_bytes is None else ARROW_BYTES * most_bytes
        rows = _batch_rows(file.metadata)
        for batch in file.iter_batches(batch_size=rows, columns=columns, use_threads=False):
            unpacked += batch.nbytes
            if most_bytes is not None and unpacked > most_bytes:
                raise WorkloadError("request-log-too-large", limit=f"{most_bytes >> 20} MiB")
            yield batch
    except WorkloadError:
        raise
    except (pyarrow.ArrowException, OSError, MemoryError, ValueError, OverflowError) as error:
        if isinstance(error, MemoryError) and most_bytes is not None:
            raise WorkloadError("request-log-too-large", limit=f"{most_bytes >> 20} MiB") from None
        # ValueError: a name or a text that is no UTF-8; OverflowError: a time that Python has no year for.
        raise _damaged(error) from None


def parquet_columns(source: BinaryIO) -> tuple[str, ...]:
    """The columns of a Parquet file that was just read."""
    source.seek(0)
    return tuple(needed("pyarrow.parquet", "Parquet").ParquetFile(source).schema_arrow.names)


def batch_rows(batch: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a record batch, a few of them Python objects at a time."""
    for at in range(0, batch.num_rows, TAKEN_ROWS):
        yield from batch.slice(at, TAKEN_ROWS).to_pylist()


def _batch_rows(metadata: Any) -> int:
    """Rows to unpack at a time, by the size that the file states for its first rows."""
    first = metadata.row_group(0) if metadata.num_row_groups else None
    if first is None or first.num_rows <= 0 or first.total_byte_size <= 0:
        return BATCH_ROWS
    rows: int = BATCH_BYTES * first.num_rows // first.total_byte_size
    return max(FEWEST_ROWS, min(BATCH_ROWS, rows))
