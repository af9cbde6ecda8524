"""Processes that compute answers, so that the event loop, and pages in the same process, never wait for one.

The kernel ends a worker that computes for longer than its limit, and the server one that waits too long; the next
question starts another. Which question is next: line.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Final

from kvcore.api.limits import MIB, Settings
from kvcore.api.line import Line, Turn
from kvcore.api.operations import Answered, Asked
from kvcore.api.worker import LENGTHS, frame
from kvcore.base.errors import ScenarioError

GRACE_SECONDS: Final = 1.0
"""How long a question is still worked on whose client has gone: to end a worker and start another costs more."""
MUCH_SECONDS: Final = 2.0
"""A client that has used so much lately is served by the coldest worker."""
LARGE_BODY_BYTES: Final = 4 * MIB
START_SECONDS: Final = 1.0
"""What a worker's start counts for, for the client that made it necessary: about what it takes."""
START: Final = """
import os
try:
    os.nice(5)
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")
except (AttributeError, OSError):
    pass
from kvcore.api.worker import main
main()
"""
"""A worker's program: pages, where a person waits, go before answers to programs, and before a worker's imports. Logs
that are counted apart (10) come after both. Where memory ends, the kernel ends those first, then a worker."""
LONG: Final = frozenset(("batch", "sweep", "log", "workload", "check"))


class Pool:
    """The workers of one server, each started when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.waiting = 0
        """Questions that wait or are being answered."""
        self._idle: list[Process] = []
        self._alive = 0
        """Workers that were started and not ended."""
        self._is_closed = False
        self._line = Line(settings.workers, settings.wait_seconds)

    async def answered(self, asked: Asked, client: str = "") -> Answered:
        """The answer to a question. Raises ScenarioError `api-busy`, `api-waited` or `answer-too-slow`."""
        if self.waiting >= self.settings.longest_line:
            raise ScenarioError("api-busy")
        began = asyncio.Event()
        job = asyncio.create_task(self._in_turn(asked, client, began))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            if began.is_set():
                asyncio.get_running_loop().call_later(GRACE_SECONDS, job.cancel)
                job.add_done_callback(_forget)
            else:
                job.cancel()
            raise

    async def _in_turn(self, asked: Asked, client: str, began: asyncio.Event) -> Answered:
        self.waiting += 1
        try:
            async with self._line.turn(client, asked.operation in LONG) as turn:
                began.set()
                return await self._worked_out(asked, turn)
        finally:
            self.waiting -= 1

    async def _worked_out(self, asked: Asked, turn: Turn) -> Answered:
        started = time.monotonic()
        worker = await self._worker(is_first=turn.used < MUCH_SECONDS)
        try:
            async with asyncio.timeout(self.settings.answer_seconds):
                found, turn.seconds = await _exchange(worker, asked, self.settings.cpu_seconds)
        except BaseException as error:  # the answer would be read as that to the next question
            turn.seconds = time.monotonic() - started + START_SECONDS
            await self._replace(worker)
            if isinstance(error, (TimeoutError, asyncio.IncompleteReadError, ConnectionError)):
                raise ScenarioError("answer-too-slow", limit=f"{self.settings.cpu_seconds:g}") from None
            raise
        if len(asked.body) > LARGE_BODY_BYTES:
            await self._replace(worker)  # it keeps the memory that a large log took
        else:
            self._idle.insert(0, worker)
        return found

    async def _worker(self, *, is_first: bool) -> Process:
        """A worker: the last that answered, or for a client that has used much the last that was started.

        That one may still read its tables; and a client whose questions end workers shall end no warm one.
        """
        while self._idle:
            worker = self._idle.pop(0 if is_first else -1)
            if worker.returncode is None:
                break
            self._alive -= 1
        else:
            worker = await self._started()
        if not self._idle and self._alive < self.settings.workers:
            self._idle.append(await self._started())  # the next question need not wait for a start
        return worker

    async def _started(self) -> Process:
        self._alive += 1
        # A session of its own: Ctrl-C is for the server, and a worker ends when its pipe does.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", START, stdin=PIPE, stdout=PIPE, start_new_session=True,
            env=self.settings.worker_environment(),
        )  # fmt: skip

    async def _replace(self, worker: Process) -> None:
        """Ends a worker and starts another, for which the next client then need not wait."""
        _end(worker)
        await worker.wait()
        self._alive -= 1
        if not self._is_closed:
            self._idle.append(await self._started())

    async def close(self) -> None:
        """Ends the idle workers."""
        self._is_closed = True
        while self._idle:
            worker = self._idle.pop()
            _end(worker)
            await worker.wait()


def _forget(job: asyncio.Task[Answered]) -> None:
    """Nobody wants to know how an abandoned question ended."""
    if not job.cancelled():
        job.exception()


def _end(worker: Process) -> None:
    if worker.returncode is None:
        worker.kill()


async def _exchange(worker: Process, asked: Asked, cpu_seconds: float) -> tuple[Answered, float]:
    """An answer, and the seconds of computing that it took."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    options: Mapping[str, str] = asked.options or {}
    head = {
        "operation": asked.operation,
        "media": asked.media,
        "options": options,
        "cpu_seconds": cpu_seconds,
    }
    worker.stdin.write(frame(head, asked.body))
    await worker.stdin.drain()
    head_bytes, body_bytes = LENGTHS.unpack(await worker.stdout.readexactly(LENGTHS.size))
    facts = json.loads(await worker.stdout.readexactly(head_bytes))
    seconds = facts.pop("seconds")
    return Answered(body=await worker.stdout.readexactly(body_bytes), **facts), seconds
