"""Long work done once for all who ask for the same: in a queue, by one thread, in slices, its results cached.

A server plans for many people on few cores, and its threads share one interpreter: forty threads that each compute the
same table make everyone wait for all forty. Here each piece of work has a key. Who asks for a key that is being worked
on waits for that result; any other key waits in the queue. Results are cached, and the least recently used goes first.
The one worker thread lets the others run after every slice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Generic, TypeAlias, TypeVar

from cachetools import LRUCache

from kvcore.base.errors import ScenarioError

T = TypeVar("T")
Progress: TypeAlias = tuple[int, int]
"""Units of work done, and units in all."""
Work: TypeAlias = Callable[[], Generator[Progress, None, T]]
"""Starts the work: yields after each slice, and returns the result."""

PAUSE_SECONDS: Final = 0.0005
"""Between two slices. Any sleep releases the interpreter; without one a thread keeps it for 5 ms at a time."""


class Asked(Generic[T]):
    """A piece of work that somebody waits for."""

    def __init__(self, key: str, work: Work[T], *, is_kept: bool) -> None:
        self.key, self.work, self.is_kept = key, work, is_kept
        self.progress: Progress = (0, 0)
        self.waiting = 1
        """How many wait for it; the work is given up when nobody does."""
        self.found: list[T] = []
        """The result, once there is one."""
        self.error: Exception | None = None
        self.finished = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the work, at most so long; whether it has ended."""
        return self.finished.wait(seconds)

    def result(self) -> T:
        """Waits for the result. Raises what the work raised."""
        self.finished.wait()
        if self.error is not None:
            raise self.error
        return self.found[0]


class SharedWork(Generic[T]):
    """The queue of work of one kind in this process, and the cached results.

    Example:
        >>> def work():
        ...     yield 1, 1
        ...     return "found"
        >>> shared = SharedWork(bytes_of=len, most_bytes=100, longest_line=8)
        >>> with shared.asked("key", work) as asked:
        ...     asked.result()
        'found'
        >>> shared.bytes_kept
        5
    """

    def __init__(self, *, bytes_of: Callable[[T], int], most_bytes: int, longest_line: int) -> None:
        self.longest_line = longest_line
        self._lock = threading.Lock()
        self._kept: LRUCache[str, T] = LRUCache(most_bytes, bytes_of)
        self._going: dict[str, Asked[T]] = {}
        self._line: deque[Asked[T]] = deque()
        self._is_working = False

    @property
    def bytes_kept(self) -> int:
        """Bytes of the cached results."""
        return int(self._kept.currsize)

    @contextmanager
    def asked(self, key: str, work: Work[T], *, is_kept: bool = True) -> Iterator[Asked[T]]:
        """The work of that key: cached, going on, or added to the queue. It is given up when nobody waits any more.

        With `is_kept=False` the result is not cached. Raises ScenarioError `server-busy` when `longest_line` other
        pieces are in the queue.
        """
        asked = self._join(key, work, is_kept=is_kept)
        try:
            yield asked
        finally:
            self._leave(asked)

    def _join(self, key: str, work: Work[T], *, is_kept: bool) -> Asked[T]:
        with self._lock:
            if key in self._kept:
                asked = Asked(key, work, is_kept=True)
                asked.found.append(self._kept[key])
                asked.finished.set()
                return asked
            if key in self._going:
                self._going[key].waiting += 1
                return self._going[key]
            if len(self._line) >= self.longest_line:
                raise ScenarioError("server-busy", limit=self.longest_line)
            asked = self._going[key] = Asked(key, work, is_kept=is_kept)
            self._line.append(asked)
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work_off, name="kvcore-shared-work", daemon=True).start()
            return asked

    def _leave(self, asked: Asked[T]) -> None:
        with self._lock:
            asked.waiting -= 1
            if not asked.waiting:
                self._close(asked)
                if asked in self._line:
                    self._line.remove(asked)

    def _close(self, asked: Asked[T]) -> None:
        """Who asks for its key from now on does not wait for this piece."""
        if self._going.get(asked.key) is asked:
            del self._going[asked.key]

    def _work_off(self) -> None:
        """Works on the queue until it is empty; then the thread ends."""
        while True:
            with self._lock:
                if not self._line:
                    self._is_working = False
                    return
                asked = self._line.popleft()
            try:
                self._do(asked)
            except (
                Exception
            ) as error:  # the thread works for others too: who asked for this piece gets the error
                asked.error = error
            with self._lock:
                self._close(asked)
            asked.finished.set()

    def _do(self, asked: Asked[T]) -> None:
        slices = asked.work()
        while asked.waiting:
            try:
                asked.progress = next(slices)
            except StopIteration as end:
                asked.found.append(end.value)
                # ValueError: it is larger than all that is cached may be.
                with self._lock, suppress(ValueError):
                    if asked.is_kept:
                        self._kept[asked.key] = end.value
                return
            time.sleep(PAUSE_SECONDS)
        slices.close()
