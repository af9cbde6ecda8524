"""A live server: one visitor sends the same hostile input again and again while another works, and it stays well.

Seconds on the clock depend on what else the machine does, so that nothing here is measured in them alone: a health
check that took longer than it may is held against the CPU time that the server itself used until it answered. On an
idle machine the two are the same; where others keep all cores busy only the second is the server's own doing.
"""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import pytest

from tests import hostile_inputs as hostile
from tools.server import Server, running_server
from tools.soak.visitor import MODEL_SOURCES, Visitor

HEALTH_SECONDS = 0.5
TIMES = 2
"""How often each input is sent."""
LONGEST_SECONDS = 300
"""Only a server that hangs takes as long."""
WORK = urlencode(hostile.CARD)

Send = Callable[[Visitor], Awaitable[None]]


class Live:
    """One server for all inputs; another where an input took it away."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack = folder, ExitStack()
        self.started: Server | None = None

    def server(self) -> Server:
        """A server that answers."""
        if self.started is None:
            log = self.folder / "server.log"
            self.started = self.stack.enter_context(running_server(log))
            asyncio.run(warm(self.started))
        return self.started

    def give_up(self) -> None:
        """Ends a server that an input has stopped."""
        if self.started is not None:
            self.started.kill()
        self.stack.close()
        self.started = None


class Health(threading.Thread):
    """Asks the server for its health, one check after another."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server, self.is_over, self.checks, self.longest = server, threading.Event(), 0, 0.0
        """`longest`: of all checks, in seconds that the server itself is to blame for."""

    def run(self) -> None:
        """Until it is told to end."""
        while not self.is_over.wait(0.02):
            used, started = self.server.cpu_seconds(), time.monotonic()
            with urllib.request.urlopen(
                f"{self.server.address}/_stcore/health", timeout=LONGEST_SECONDS
            ) as answer:
                assert answer.status == 200
            waited, worked = time.monotonic() - started, self.server.cpu_seconds() - used
            self.longest = max(self.longest, min(waited, worked) if used else waited)
            self.checks += 1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        self.join(LONGEST_SECONDS)


async def warm(server: Server) -> None:
    """The first visit loads what every visit needs."""
    async with Visitor(server.address) as visitor:
        for page in ("", "check", "workload", "explore"):
            await visitor.visit(WORK, page)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    held = Live(tmp_path_factory.mktemp("live"))
    yield held
    held.stack.close()


def link(name: str, page: str = "") -> Send:
    query = urlencode(hostile.LINKS[name], errors="surrogateescape")
    return lambda visitor: visitor.visit(query, page)


def config(name: str) -> Send:
    text = {**hostile.CONFIGS, **hostile.LONG_CONFIGS}[name]

    async def send(visitor: Visitor) -> None:
        await visitor.visit(WORK)
        await visitor.set(MODEL_SOURCES, True)
        await visitor.upload("config_file", ("config.json", text.encode()))

    return send


def log(name: str) -> Send:
    async def send(visitor: Visitor) -> None:
        await visitor.visit(WORK, "check")
        await visitor.set("check.text", hostile.COMMANDS[name])

    return send


def command(name: str) -> Send:
    async def send(visitor: Visitor) -> None:
        await visitor.visit(WORK)
        await visitor.set("command_source", True)
        await visitor.set("command_text", hostile.COMMANDS[name])
        await visitor.press("use_command")

    return send


def file(name: str, page: str, widget: str) -> Send:
    async def send(visitor: Visitor) -> None:
        await visitor.visit(WORK, page)
        await visitor.upload(widget, ("server.log", hostile.FILES[name]))

    return send


SENDS: dict[str, Send] = {
    **{f"link: {name}": link(name) for name in hostile.LINKS},
    **{f"explore: {name}": link(name, "explore") for name in ("the deepest model", *hostile.PATTERNS)},
    **{f"upload: {name}": config(name) for name in (*hostile.PATTERNS, *hostile.LONG_CONFIGS)},
    **{f"log: {name}": log(name) for name in hostile.COMMANDS},
    **{f"command: {name}": command(name) for name in ("docker run, 14,000 times", "33,000 flags")},
    **{f"check: {name}": file(name, "check", "check.upload") for name in hostile.FILES},
    **{f"workload: {name}": file(name, "workload", "workload.upload.0") for name in hostile.FILES},
}


async def attack(server: Server, send: Send) -> tuple[list[str], list[dict[str, str]]]:
    """Sends while another visitor moves between two plans; gives the errors shown and the cards that the other saw."""
    errors: list[str] = []
    seen: list[dict[str, str]] = []

    async def stranger() -> None:
        async with Visitor(server.address) as visitor:
            for _ in range(TIMES):
                await send(visitor)
                errors.extend(visitor.errors)

    async with Visitor(server.address) as worker:
        await worker.visit(WORK)
        attacker = asyncio.create_task(stranger())
        while not attacker.done() or len(seen) < 2:
            await worker.set("gpu_memory_utilization.slider", 0.8 if len(seen) % 2 else 0.9)
            seen.append(worker.metrics())
        await attacker
        errors.extend(worker.errors)
    return errors, seen


def test_a_page_that_keeps_the_interpreter_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("import re\nimport streamlit as st\nre.match('(a+)+b', 'a' * 25)\nst.text('over')\n")
    with running_server(tmp_path / "server.log", script=script) as server, Health(server) as health:

        async def visit() -> None:
            async with Visitor(server.address) as visitor:
                await visitor.visit()
                assert "over" in visitor.texts()

        asyncio.run(visit())
    assert health.longest > HEALTH_SECONDS


@pytest.mark.parametrize("name", SENDS)
def test_the_server_answers_others_meanwhile(live: Live, name: str) -> None:
    longest = min_of_two(lambda: longest_health_check(live, SENDS[name]))
    assert longest < HEALTH_SECONDS


def min_of_two(measure: Callable[[], float]) -> float:
    """A second measurement where the first is too long: what an input keeps the interpreter for, it does each time."""
    first = measure()
    return first if first < HEALTH_SECONDS else min(first, measure())


def longest_health_check(live: Live, send: Send) -> float:
    """While a visitor sends and another sees the right cards; in seconds."""
    server = live.server()
    try:
        with Health(server) as health:
            errors, seen = asyncio.run(asyncio.wait_for(attack(server, send), LONGEST_SECONDS))
    except TimeoutError:
        live.give_up()
        pytest.fail(f"the server did not answer for {LONGEST_SECONDS} seconds")
    assert errors == []
    assert seen[0] != seen[1]
    assert all(cards == seen[turn % 2] for turn, cards in enumerate(seen))
    assert health.checks
    return health.longest
