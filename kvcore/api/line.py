"""The line before the workers: who has used least goes first, and nobody holds all workers.

Used seconds of computing fade, so that a client which asked much an hour ago is like any other.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from kvcore.api.limits import CLIENTS
from kvcore.base.errors import ScenarioError

FADING_SECONDS: Final = 30.0
"""Time after which a second of computing counts for 1/e of it: a choice, a few times what the longest answer takes."""
EXPECTED_SECONDS: Final = 1.0
"""What a question that is being answered counts for, as long as nobody knows what it takes."""


class Used:
    """Seconds of computing that each of the latest clients has used, fading.

    Example:
        >>> now = [0.0]
        >>> used = Used(clock=lambda: now[0])
        >>> used.add("192.0.2.1", 10.0)
        >>> now[0] = FADING_SECONDS
        >>> round(used.seconds("192.0.2.1"), 2), used.seconds("192.0.2.2")
        (3.68, 0.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds(self, client: str) -> float:
        """What a client has used."""
        used, then = self._found.get(client, (0.0, 0.0))
        return used * math.exp((then - self._clock()) / FADING_SECONDS) if used else 0.0

    def add(self, client: str, seconds: float) -> None:
        """Adds what an answer took."""
        self._found[client] = (self.seconds(client) + seconds, self._clock())
        self._found.move_to_end(client)
        if len(self._found) > CLIENTS:
            self._found.popitem(last=False)


@dataclass(eq=False, kw_only=True)
class Turn:
    """A question in the line, or at a worker."""

    client: str
    is_long: bool
    ready: asyncio.Future[None]
    seconds: float = field(default=0.0)
    """Seconds of computing that its answer took, written by whoever works it out."""
    used: float = field(default=0.0)
    """Seconds that its client had used when its time came."""


class Line:
    """The questions before `workers` workers. One worker is always left for short questions, where there are two.

    Of one client all workers but one are busy at most, and all but two with long questions.
    """

    def __init__(self, workers: int, wait_seconds: float) -> None:
        self.wait_seconds = wait_seconds
        self._free = workers
        self._long_left = max(1, workers - 1)
        self._of_one = max(1, workers - 1)
        self._long_of_one = max(1, workers - 2)
        self._waiting: list[Turn] = []
        self._busy: Counter[tuple[str, bool]] = Counter()
        self._used = Used()

    @asynccontextmanager
    async def turn(self, client: str, is_long: bool) -> AsyncIterator[Turn]:
        """A worker's time for one question. Raises ScenarioError `api-waited` after `wait_seconds` without one."""
        turn = Turn(client=client, is_long=is_long, ready=asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._admit()
        try:
            async with asyncio.timeout(self.wait_seconds):
                await turn.ready
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:  # its time came in the same moment
                self._leave(turn)
            if isinstance(error, TimeoutError):
                raise ScenarioError("api-waited", limit=f"{self.wait_seconds:g}") from None
            raise
        try:
            yield turn
        finally:
            self._used.add(client, turn.seconds)
            self._leave(turn)

    def _admit(self) -> None:
        while self._free and (able := [turn for turn in self._waiting if self._may_start(turn)]):
            turn = min(able, key=self._expected)  # of equals the first, since it is first in the list
            self._waiting.remove(turn)
            self._free -= 1
            self._long_left -= turn.is_long
            self._busy[turn.client, turn.is_long] += 1
            turn.used = self._used.seconds(turn.client)
            turn.ready.set_result(None)

    def _leave(self, turn: Turn) -> None:
        self._free += 1
        self._long_left += turn.is_long
        self._busy -= Counter({(turn.client, turn.is_long): 1})
        self._admit()

    def _may_start(self, turn: Turn) -> bool:
        longs = self._busy[turn.client, True]
        if turn.ready.done() or longs + self._busy[turn.client, False] >= self._of_one:
            return False
        return not turn.is_long or (self._long_left > 0 and longs < self._long_of_one)

    def _expected(self, turn: Turn) -> float:
        busy = self._busy[turn.client, True] + self._busy[turn.client, False]
        return self._used.seconds(turn.client) + busy * EXPECTED_SECONDS
