"""One visitor and one client of the API beside somebody who takes all that can be had, on one server.

Each attack runs for as long as the others are measured, from an address of its own. Alone and attacked are measured
in one run, turn by turn: `at most 3 times` is about the 95th percentile of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx2
from streamlit.proto.BackMsg_pb2 import BackMsg
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tools.server import Server, running_server
from tools.soak.visitor import VisitError, Visitor

QUERY: Final = "model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&gpu_memory_utilization=0.7"
SLIDER: Final = "gpu_memory_utilization.slider"
PLAN: Final = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 2}
CELL: Final = {"models": ["Qwen/Qwen3-32B"], "accelerators": ["H100-80GB"], "tensor_parallel_sizes": [2]}
SWEEP: Final = {"accelerators": ["H100-80GB", "L40S-48GB", "A100-80GB", "H200-141GB"]}
VISITOR, CLIENT, ATTACKER = "198.51.100.1", "198.51.100.2", "203.0.113.9"
MOST: Final = 3.0
ENVIRONMENT: Final = {"KVPLANNER_PROXIES": "1", "KVPLANNER_API_RATE": "40", "KVPLANNER_API_BURST": "4000"}
"""One proxy, which is this program: it names the three clients. Allowances that let all of them ask much."""
AGAIN_SECONDS: Final = 0.2
BEGUN_SECONDS: Final = 8.0


class Attack:
    """Somebody who takes all that can be had, and what is answered."""

    def __init__(self, address: str, name: str = ATTACKER) -> None:
        self.address, self.name = address, name
        self.answers: Counter[str] = Counter()

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        raise NotImplementedError

    def web(self) -> httpx2.AsyncClient:
        """A client with the attacker's name."""
        return httpx2.AsyncClient(
            base_url=self.address, timeout=300, trust_env=False, headers={"X-Forwarded-For": self.name}
        )

    def told(self, answer: httpx2.Response) -> None:
        """Counts a coded answer."""
        code = ""
        with suppress(ValueError, AttributeError):
            code = answer.json().get("code", "")
        self.answers[f"{answer.status_code} {code}".strip()] += 1


class Messages(Attack):
    """Five pages that send 20 changes a second each."""

    pages = 5
    seconds = 0.05

    async def run(self) -> None:
        await asyncio.gather(*(self._page() for _ in range(self.pages)))

    async def _page(self) -> None:
        while True:
            with suppress(ConnectionClosed, InvalidStatus, VisitError, TimeoutError, OSError):
                await self._flood()
            await asyncio.sleep(0.2)

    async def _flood(self) -> None:
        visitor = Visitor(self.address, client=self.name)
        try:
            await visitor.visit(QUERY)
        except BaseException:
            await visitor.leave()
            raise
        socket = visitor.socket
        reading = asyncio.create_task(self._read(visitor.socket))
        number = 0
        try:
            while True:
                number += 1
                state = visitor.changed(SLIDER, 0.5 + number % 40 / 100)
                await socket.send(BackMsg(rerun_script=state).SerializeToString())
                await asyncio.sleep(self.seconds)
        except ConnectionClosed:
            self.answers[await reading] += 1
        finally:
            await visitor.leave()

    async def _read(self, socket: ClientConnection) -> str:
        try:
            while True:
                message = await socket.recv()
                if b"too-many-messages" in message:
                    self.answers["notice too-many-messages"] += 1
        except ConnectionClosed as closed:
            return f"closed {closed.rcvd.code} {closed.rcvd.reason}" if closed.rcvd else "closed"


class Uploads(Attack):
    """One page that puts files until nothing is taken any more, and then goes on."""

    size = 20 << 20

    async def run(self) -> None:
        visitor = Visitor(self.address, client=self.name)
        await visitor.visit(QUERY, page="workload")
        content = b"x" * self.size

        async def fill() -> None:
            while True:
                async with turn:
                    (place,) = await visitor.places(1)
                self.told(await visitor.put(place.upload_url, "log", content))

        turn = asyncio.Lock()
        try:
            await asyncio.gather(*(fill() for _ in range(4)))
        finally:
            await visitor.leave()


class Aborted(Attack):
    """Uploads that are broken off."""

    async def run(self) -> None:
        visitor = Visitor(self.address, client=self.name)
        await visitor.visit(QUERY, page="workload")

        async def half() -> AsyncIterator[bytes]:
            yield b"x" * 100_000
            raise ConnectionError

        try:
            while True:
                (place,) = await visitor.places(1)
                with suppress(ConnectionError, httpx2.HTTPError):
                    await visitor.web.put(
                        place.upload_url,
                        content=half(),
                        headers={"Content-Length": "1000000", **visitor.token()},
                    )
                self.answers["broken off"] += 1
                await asyncio.sleep(0.02)
        finally:
            await visitor.leave()


class Hog(Attack):
    """Sixteen large sweeps at once, again and again."""

    async def run(self) -> None:
        async with self.web() as web:

            async def ask() -> None:
                while True:
                    self.told(await web.post("/api/sweep", json=SWEEP))

            await asyncio.gather(*(ask() for _ in range(24)))


class Gone(Attack):
    """Large sweeps of clients that hang up at once."""

    async def run(self) -> None:
        async with self.web() as web:
            while True:
                with suppress(httpx2.TimeoutException):
                    self.told(await web.post("/api/sweep", json=SWEEP, timeout=0.2))
                self.answers["hung up"] += 1


ATTACKS: Final[dict[str, type[Attack]]] = {
    "messages": Messages,
    "uploads": Uploads,
    "aborted uploads": Aborted,
    "API hog": Hog,
    "API hang-ups": Gone,
}


async def slider(visitor: Visitor, times: int) -> list[float]:
    """Seconds of each step of a slider."""
    taken = []
    for number in range(times):
        started = time.perf_counter()
        await visitor.set(SLIDER, 0.6 + number % 20 / 100)
        taken.append(time.perf_counter() - started)
        await asyncio.sleep(0.1)
    return taken


async def calls(web: httpx2.AsyncClient, path: str, body: Any, times: int) -> list[float]:
    """Seconds of each call of the API."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        answer = await web.post(path, json=body)
        taken.append(time.perf_counter() - started)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:200]}")
    return taken


@asynccontextmanager
async def attacked(address: str, name: str | None, answers: Counter[str]) -> AsyncIterator[None]:
    """While somebody attacks, in a process of its own that gives way to the measured ones."""
    if name is None:
        yield
        return
    process = await asyncio.create_subprocess_exec(
        "nice", "-n", "10", sys.executable, "-m", "benchmarks.fairness", "--attack", name, "--address", address,
        stdin=PIPE, stdout=PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()  # it has begun
    await asyncio.sleep(BEGUN_SECONDS)  # and met its limits
    try:
        yield
    finally:
        process.terminate()
        answers.update(json.loads((await process.stdout.read()).decode() or "{}"))
        await process.wait()


async def attack(name: str, address: str, client: str = ATTACKER) -> None:
    """Attacks until it is terminated, and says what was answered."""
    found = ATTACKS[name](address, client)

    async def again() -> None:
        while True:
            try:
                await found.run()
            except ConnectionClosed as closed:
                found.answers[
                    f"closed {closed.rcvd.code} {closed.rcvd.reason}" if closed.rcvd else "closed"
                ] += 1
            except (InvalidStatus, VisitError, TimeoutError, OSError, httpx2.HTTPError) as error:
                found.answers[type(error).__name__] += 1
            await asyncio.sleep(AGAIN_SECONDS)

    task = asyncio.create_task(again())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    print("begun", flush=True)
    with suppress(asyncio.CancelledError):
        await task
    print(json.dumps(found.answers), flush=True)


async def measured(
    address: str, name: str | None, times: int, answers: Counter[str]
) -> dict[str, list[float]]:
    """Seconds of the slider, of a plan and of a sweep of one cell."""
    async with (
        Visitor(address, client=VISITOR) as visitor,
        httpx2.AsyncClient(
            base_url=address, timeout=300, trust_env=False, headers={"X-Forwarded-For": CLIENT}
        ) as web,
    ):
        await visitor.visit(QUERY)
        await calls(web, "/api/plan", PLAN, 3)
        await calls(web, "/api/sweep", CELL, 3)
        async with attacked(address, name, answers):
            return {
                "slider": await slider(visitor, times),
                "plan": await calls(web, "/api/plan", PLAN, times),
                "sweep": await calls(web, "/api/sweep", CELL, times),
            }


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(values, n=20)[-1]


async def compared(server: Server, names: list[str], times: int) -> int:
    """Prints a line for each attack and measure; the number of those above the limit."""
    bad = 0
    print(f"fairness: p95 of {times}, alone and under attack, in ms")
    for name in names:
        found: Counter[str] = Counter()
        alone = await measured(server.address, None, times, found)
        under = await measured(server.address, name, times, found)
        for what in alone:
            ratio = p95(under[what]) / p95(alone[what])
            bad += ratio > MOST
            print(
                f"  {name:16} {what:7} {p95(alone[what]) * 1000:7.0f} {p95(under[what]) * 1000:7.0f}  {ratio:5.2f} ×"
                f"{'  ABOVE' if ratio > MOST else ''}",
                flush=True,
            )
        answers = ", ".join(f"{count} × {code}" for code, count in found.most_common(5))
        print(
            f"  {'':16} answers: {answers or 'none'}; server {server.resident_bytes() >> 20} MiB", flush=True
        )
    return bad


def main() -> int:
    """Exit status 1 where somebody takes more than that times as long as alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help=json.dumps(list(ATTACKS)))
    parser.add_argument("--log", type=Path, default=None)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--client", default=ATTACKER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        asyncio.run(attack(options.attack, options.address, options.client))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "server.log"
        with running_server(log, environment=ENVIRONMENT) as server:
            bad = asyncio.run(compared(server, options.attacks.split(","), options.times))
        print(f"  log of the server: {log.stat().st_size} bytes")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
