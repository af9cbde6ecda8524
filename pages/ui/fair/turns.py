"""Runs of pages, in turn by client: whoever has used least begins next, and nobody's runs fill the interpreter.

Python computes one thing at a time, so a client with ten pages would have ten shares of it and a visitor with one page
one. Of each client one run begins at a time; a long one lets the next begin beside it. A client that has used much
gives way to a run, just begun, of one that has used little: none of its own begins, and those that go on pause between
two of their elements.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvcore.api.line import Used
from pages.ui.fair.limits import (
    COMPUTING_SHARE,
    FRESH_RUNS,
    FRESH_SECONDS,
    LOOK_SECONDS,
    MUCH_SECONDS,
    REST_SECONDS,
    RUNS,
    RUNS_OF_CLIENT,
    SENDING_SECONDS,
)


def _computed_by(thread: int) -> Callable[[], float]:
    """Seconds that a thread has computed; where the system does not tell, those that have passed."""
    try:
        clock = time.pthread_getcpuclockid(thread)
        time.clock_gettime(clock)
    except (AttributeError, OSError):
        return time.monotonic
    return lambda: time.clock_gettime(clock)


@dataclass(eq=False, kw_only=True)
class Run:
    """A run that waits or computes."""

    client: str
    session: str
    may_start: threading.Event = field(default_factory=threading.Event)
    is_abandoned: bool = False
    computed: Callable[[], float] = time.monotonic
    began: float = 0.0
    computed_before: float = 0.0
    is_resting: bool = False
    rested: float = 0.0
    """Seconds that it has paused."""

    def begin(self, now: float) -> None:
        """Its turn has come."""
        self.began, self.computed_before = now, self.computed()
        self.may_start.set()

    def seconds(self) -> float:
        """Seconds that it has computed."""
        return max(0.0, self.computed() - self.computed_before)

    def passed(self, now: float) -> float:
        """Seconds since it began, without those that it has paused."""
        return now - self.began - self.rested

    def is_fresh(self, now: float) -> bool:
        """Whether it has just begun."""
        return self.passed(now) < FRESH_SECONDS

    def computes(self, now: float) -> bool:
        """Whether it takes time from others."""
        return not self.is_resting and (
            self.is_fresh(now) or self.seconds() > COMPUTING_SHARE * self.passed(now)
        )


class Turns:
    """All runs of one server. Methods may be called by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._of_thread: dict[int, Run] = {}
        self._sending: dict[str, float] = {}
        """Client -> when what its last run has drawn must be sent."""
        self._coming: Counter[str] = Counter()
        self._waiting: list[Run] = []
        self._running: list[Run] = []
        self._used = Used(clock)

    @contextmanager
    def turn(self, client: str, session: str) -> Iterator[bool]:
        """Waits for a turn; False where the session has left meanwhile, and nothing is to be run."""
        thread = threading.get_ident()
        run = Run(client=client, session=session, computed=_computed_by(thread))
        with self._lock:
            self._waiting.append(run)
            self._admit()
        while not run.may_start.wait(SENDING_SECONDS if self._sending else LOOK_SECONDS):
            with self._lock:
                self._admit()
        self._of_thread[thread] = run
        try:
            yield not run.is_abandoned
        finally:
            del self._of_thread[thread]
            with self._lock:
                self._running.remove(run)
                self._used.add(client, run.seconds())
                self._sending[client] = self._clock() + SENDING_SECONDS
                self._admit()
                self._ended.notify_all()

    def rest(self) -> None:
        """Pauses the run of this thread while one that has just begun goes before it, REST_SECONDS in all at most."""
        run = self._of_thread.get(threading.get_ident())
        if run is None or not (len(self._running) > 1 or self._sending):
            return
        with self._lock:
            now = self._clock()
            while run.rested < REST_SECONDS and self._gives_way(run.client, now):
                run.is_resting, since = True, now
                self._ended.wait(SENDING_SECONDS)
                now = self._clock()
                run.rested += now - since
            run.is_resting = False

    def comes(self, session: str, *, is_there: bool) -> None:
        """A thread that will ask for a turn has been made, or has ended."""
        with self._lock:
            self._coming[session] += 1 if is_there else -1
            if self._coming[session] <= 0:
                del self._coming[session]

    def waits(self, session: str) -> bool:
        """Whether a run of the session has not begun yet."""
        with self._lock:
            running = sum(run.session == session for run in self._running)
            return self._coming[session] > running if session in self._coming else False

    def left(self, session: str) -> None:
        """The session has no page any more: its runs that wait are not worth a turn."""
        with self._lock:
            for run in self._waiting:
                run.is_abandoned |= run.session == session
            self._admit()

    def _admit(self) -> None:
        now = self._clock()
        for run in [run for run in self._waiting if run.is_abandoned]:
            self._start(run, now)
        while self._waiting:
            computing = [run for run in self._running if run.computes(now)]
            fresh = [run.client for run in computing if run.is_fresh(now)]
            if len(computing) >= RUNS or len(set(fresh)) >= FRESH_RUNS:
                return
            resting = [run.client for run in self._running if run.is_resting]
            of_client = Counter([*(run.client for run in computing), *resting])
            able = [
                run
                for run in self._waiting
                if run.client not in (*fresh, *resting) and of_client[run.client] < RUNS_OF_CLIENT
            ]
            if not able:
                return
            # Of one client's the first comes first: `min` keeps the order of the list.
            run = min(able, key=lambda run: self._used.seconds(run.client))
            if self._gives_way(run.client, now):
                return
            self._start(run, now)

    def _gives_way(self, client: str, now: float) -> bool:
        """Whether a run of somebody who has used much less has just begun, or has ended and is being sent."""
        self._sending = {one: until for one, until in self._sending.items() if until > now}
        most = self._used.seconds(client) - MUCH_SECONDS
        if most <= 0:
            return False
        first = {run.client for run in self._running if run.computes(now) and run.is_fresh(now)}
        return any(self._used.seconds(one) < most for one in (*first, *self._sending))

    def _start(self, run: Run, now: float) -> None:
        self._waiting.remove(run)
        self._running.append(run)
        run.begin(now)
