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

from kvcore.api.limits import Settings
from kvcore.api.line import Line, Turn
from kvcore.api.operations import Answered, Asked
from kvcore.api.worker import LENGTHS, frame
from kvcore.base.errors import ScenarioError

LONG: Final = frozenset(("batch", "sweep", "log", "workload"))


class Pool:
    """The workers of one server, each started when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.waiting = 0
        """Questions that wait or are being answered."""
        self._idle: list[Process] = []
        self._line = Line(settings.workers, settings.wait_seconds)

    async def answered(self, asked: Asked, client: str = "") -> Answered:
        """The answer to a question. Raises ScenarioError `api-busy`, `api-waited` or `answer-too-slow`."""
        if self.waiting >= self.settings.longest_line:
            raise ScenarioError("api-busy")
        self.waiting += 1
        try:
            async with self._line.turn(client, asked.operation in LONG) as turn:
                return await self._worked_out(asked, turn)
        finally:
            self.waiting -= 1

    async def _worked_out(self, asked: Asked, turn: Turn) -> Answered:
        worker = await self._worker()
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.answer_seconds):
                found, turn.seconds = await _exchange(worker, asked, self.settings.cpu_seconds)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            turn.seconds = time.monotonic() - started
            _end(worker)
            raise ScenarioError("answer-too-slow", limit=f"{self.settings.cpu_seconds:g}") from None
        except BaseException:  # the client is gone: its answer would be read as that to the next question
            turn.seconds = time.monotonic() - started
            _end(worker)
            raise
        self._idle.append(worker)
        return found

    async def _worker(self) -> Process:
        while self._idle:
            worker = self._idle.pop()
            if worker.returncode is None:
                return worker
        # A session of its own: Ctrl-C is for the server, and a worker ends when its pipe does.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kvcore.api.worker", stdin=PIPE, stdout=PIPE, start_new_session=True,
            env=self.settings.worker_environment(),
        )  # fmt: skip

    async def close(self) -> None:
        """Ends the idle workers."""
        while self._idle:
            worker = self._idle.pop()
            _end(worker)
            await worker.wait()


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
