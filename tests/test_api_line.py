"""The line before the workers: nobody is kept waiting by one who asks a lot."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress

import pytest

from kvcore.api.limits import Settings
from kvcore.api.line import Line
from kvcore.api.operations import Answered, Asked
from kvcore.api.routes import Api
from kvcore.base.errors import ScenarioError
from tests.api_in_process import ANSWER, Server, parts
from tests.test_api_limits import LARGEST_SWEEP
from tests.test_api_shares import call

PATIENT = ("wait_seconds", "answer_seconds", "cpu_seconds")
HOG, SECOND, THIRD = "192.0.2.1", "192.0.2.2", "192.0.2.3"


class Worker:
    """Questions that are answered when a test says so, and the order in which they were begun."""

    def __init__(self, workers: int = 3, wait_seconds: float = 300.0) -> None:
        self.line = Line(workers, wait_seconds)
        self.begun: list[str] = []
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def ask(
        self, client: str, seconds: float, *, is_long: bool, end: asyncio.Event | None = None
    ) -> None:
        async with self.line.turn(client, is_long) as turn:
            self.begun.append(client)
            self.now[client] += 1
            self.most[client] = max(self.most[client], self.now[client])
            turn.seconds = seconds
            await (asyncio.sleep(0) if end is None else end.wait())
            self.now[client] -= 1


def test_a_hog_leaves_a_worker_for_the_long_question_of_another() -> None:
    async def run() -> None:
        worker, end = Worker(), asyncio.Event()
        hogs = [asyncio.create_task(worker.ask(HOG, 20, is_long=True, end=end)) for _ in range(16)]
        await asyncio.sleep(0)
        await worker.ask(SECOND, 0.1, is_long=True)
        await worker.ask(THIRD, 0.1, is_long=False)
        assert worker.begun == [HOG, SECOND, THIRD]
        end.set()
        await asyncio.gather(*hogs)
        assert worker.most[HOG] == 1

    asyncio.run(run())


def test_turns_go_by_seconds_used_and_not_by_questions_asked() -> None:
    async def run() -> None:
        worker, end = Worker(workers=1), asyncio.Event()
        first = asyncio.create_task(worker.ask(HOG, 20, is_long=True, end=end))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(worker.ask(HOG, 20, is_long=True)) for _ in range(5)]
        waiting += [asyncio.create_task(worker.ask(SECOND, 0.1, is_long=True)) for _ in range(5)]
        await asyncio.sleep(0)
        end.set()
        await asyncio.gather(first, *waiting)
        assert worker.begun == [HOG, *[SECOND] * 5, *[HOG] * 5]

    asyncio.run(run())


def test_a_client_alone_has_all_workers_but_one() -> None:
    async def run() -> None:
        worker, end = Worker(), asyncio.Event()
        asked = [asyncio.create_task(worker.ask(HOG, 1, is_long=False, end=end)) for _ in range(4)]
        await asyncio.sleep(0)
        assert worker.begun == [HOG] * 2
        end.set()
        await asyncio.gather(*asked)

    asyncio.run(run())


def test_one_who_waits_for_too_long_is_told_so_and_leaves_the_line() -> None:
    async def run() -> None:
        worker, end = Worker(workers=1, wait_seconds=0.01), asyncio.Event()
        first = asyncio.create_task(worker.ask(HOG, 1, is_long=False, end=end))
        await asyncio.sleep(0)
        with pytest.raises(ScenarioError, match="no worker was free") as told:
            await worker.ask(SECOND, 1, is_long=False)
        assert told.value.code == "api-waited"
        end.set()
        await first
        worker.line.wait_seconds = 300
        await worker.ask(THIRD, 1, is_long=False)
        assert worker.begun == [HOG, THIRD]

    asyncio.run(run())


def test_one_who_leaves_the_line_leaves_its_place_to_the_next() -> None:
    async def run() -> None:
        worker, end = Worker(workers=1), asyncio.Event()
        first = asyncio.create_task(worker.ask(HOG, 1, is_long=False, end=end))
        await asyncio.sleep(0)
        gone = asyncio.create_task(worker.ask(SECOND, 1, is_long=False))
        await asyncio.sleep(0)
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        end.set()
        await first
        await worker.ask(THIRD, 1, is_long=False)
        assert worker.begun == [HOG, THIRD]

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/api/sweep", "/mcp"])
def test_a_question_is_given_up_when_its_client_goes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = call("sweep") if path == "/mcp" else b"{}"

    async def run() -> None:
        server = Server(monkeypatch)
        server.may_answer.clear()
        given_up, asked_now = asyncio.Event(), asyncio.Event()

        async def answered(asked: Asked, client: str = "") -> Answered:
            asked_now.set()
            try:
                await server.may_answer.wait()
            except asyncio.CancelledError:
                given_up.set()
                raise
            return Answered(status=200, media="application/json", body=ANSWER)

        monkeypatch.setattr(server.api.pool, "answered", answered)
        sent = iter(({"type": "http.request", "body": body, "more_body": False},))

        async def receive() -> dict[str, object]:
            for part in sent:
                return part
            await asked_now.wait()
            return {"type": "http.disconnect"}

        with suppress(IndexError):  # nothing was sent
            await server.post(path, receive)
        await asyncio.wait_for(given_up.wait(), 60)
        assert server.api.line.taken == 0

    asyncio.run(run())


def test_the_second_client_of_a_real_server_is_not_behind_the_first() -> None:
    """Real workers: five sweeps of seconds each by one client, then a plan and a sweep of one cell by another."""
    big = json.dumps(LARGEST_SWEEP).encode()
    small = json.dumps(
        {"models": ["Qwen/Qwen3-32B"], "accelerators": ["H100-80GB"], "tensor_parallel_sizes": [2]}
    ).encode()

    async def run() -> None:
        api = Api(Settings(rate=10_000, burst=100_000, **dict.fromkeys(PATIENT, 600.0)))
        order: list[str] = []

        async def ask(client: str, body: bytes) -> None:
            found = await api.answered(Asked(operation="sweep", body=body), client)
            order.append(f"{client} {found.status}")

        hogs = [asyncio.create_task(ask(HOG, big)) for _ in range(3)]
        await asyncio.sleep(0)
        await ask(SECOND, small)
        await asyncio.gather(*hogs)
        await api.pool.close()
        assert sorted(order) == [*[f"{HOG} 200"] * 3, f"{SECOND} 200"]
        assert f"{SECOND} 200" in order[:2]

    asyncio.run(run())


def test_parts_are_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        status, _, _ = await Server(monkeypatch).post("/api/sweep", parts([b"{", b"}"]))
        assert status == 200

    asyncio.run(run())
