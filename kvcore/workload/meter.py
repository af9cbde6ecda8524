"""Counts the bytes and lines of logs while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kvcore.base.errors import WorkloadError
from kvcore.workload.requests import Reading

PROGRESS_BYTES: Final = 1 << 20
Progress = Callable[[int], None]
"""Called with the number of bytes read."""


@dataclass(slots=True)
class Meter:
    """Counts bytes and lines over all files, and enforces their limits."""

    progress: Progress | None
    reading: Reading
    read: int = 0
    reported: int = 0
    lines_read: int = 0

    def slices(self, slices: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
        for lines in slices:
            self.read += sum(map(len, lines))
            most_bytes, most = self.reading.max_bytes, self.reading.max_requests
            if most_bytes is not None and self.read > most_bytes:
                raise WorkloadError("request-log-too-large", limit=f"{most_bytes >> 20} MiB")
            self.lines_read += len(lines)
            if most is not None and self.lines_read > most:
                raise too_many(most)
            if self.progress is not None and self.read >= self.reported + PROGRESS_BYTES:
                self.reported = self.read
                self.progress(self.read)
            yield lines


def too_many(most: int) -> WorkloadError:
    """The error of a log above a limit of lines or requests."""
    return WorkloadError("request-log-too-long", limit=f"{most:,}")
