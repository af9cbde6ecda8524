"""Work that is done once for all who ask for the same, in slices, one piece after the other.

A server plans for many people on few cores, and its threads share one interpreter: forty threads that each work out the
same table keep everybody's buttons waiting for all of them. Here each piece of work has a key. Whoever asks for a key
that is being worked on waits for that; whoever asks for another waits in line; what was found is kept, and the least
recently used goes first. The one thread that works lets the others through after every slice.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeAlias, TypeVar

from kvcore.base.errors import ScenarioError

T = TypeVar("T")
Progress: TypeAlias = tuple[int, int]
"""How much of the work is done, and how much there is in all."""
Work: TypeAlias = Callable[[], Generator[Progress, None, T]]
"""Starts the work: yields after each slice, and returns what it found."""

PAUSE_SECONDS: Final = 0.0005
"""Between two slices. Any sleep hands the interpreter over; without one a thread keeps it for 5 ms at a time."""


class Asked(Generic[T]):
    """One piece of work that somebody waits for."""

    def __init__(self, key: str, work: Work[T], *, is_kept: bool) -> None:
        self.key, self.work, self.is_kept = key, work, is_kept
        self.progress: Progress = (0, 0)
        self.waiting = 1
        self.found: list[T] = []
        self.error: Exception | None = None
        self.finished = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Waits until it is finished, at most so long; whether it is."""
        return self.finished.wait(seconds)

    def result(self) -> T:
        """What was found, once it is finished. Raises what the work raised."""
        self.finished.wait()
        if self.error is not None:
            raise self.error
        return self.found[0]


class SharedWork(Generic[T]):
    """The pieces of work of one process, and what was found.

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
        self.bytes_of, self.most_bytes, self.longest_line = bytes_of, most_bytes, longest_line
        self.bytes_kept = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, T]] = OrderedDict()
        self._going: dict[str, Asked[T]] = {}
        self._line: deque[Asked[T]] = deque()
        self._is_working = False

    @contextmanager
    def asked(self, key: str, work: Work[T], *, is_kept: bool = True) -> Iterator[Asked[T]]:
        """The work of that key: found before, being worked on, or put in line. What nobody waits for is given up.

        `is_kept=False` forgets what was found when the last of those who wait has it. Raises ScenarioError
        `server-busy` when too many different pieces are in line.
        """
        asked = self._join(key, work, is_kept=is_kept)
        try:
            yield asked
        finally:
            self._leave(asked)

    def _join(self, key: str, work: Work[T], *, is_kept: bool) -> Asked[T]:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                asked = Asked(key, work, is_kept=True)
                asked.found.append(self._kept[key][1])
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
            if not asked.waiting and self._going.get(asked.key) is asked:
                del self._going[asked.key]
                if asked in self._line:
                    self._line.remove(asked)

    def _work_off(self) -> None:
        """Everything in line, then the thread ends."""
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
            ) as error:  # The thread works for others too: who asked for this piece gets the error.
                asked.error = error
            with self._lock:
                if self._going.get(asked.key) is asked:
                    del self._going[asked.key]
            asked.finished.set()

    def _do(self, asked: Asked[T]) -> None:
        slices = asked.work()
        while asked.waiting:
            try:
                asked.progress = next(slices)
            except StopIteration as end:
                asked.found.append(end.value)
                if asked.is_kept:
                    self._keep(asked.key, end.value)
                return
            time.sleep(PAUSE_SECONDS)
        slices.close()

    def _keep(self, key: str, found: T) -> None:
        size = self.bytes_of(found)
        with self._lock:
            self.bytes_kept += size - self._kept.pop(key, (0, found))[0]
            self._kept[key] = size, found
            while self.bytes_kept > self.most_bytes:
                self.bytes_kept -= self._kept.popitem(last=False)[1][0]
