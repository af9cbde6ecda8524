"""python -m tools.soak --minutes 30 --sessions 50: a server of our own, many visitors, killed once in the middle.

Beside them somebody floods it with messages and somebody else has its API work without end (benchmarks/fairness.py).

Prints a table and ends with status 1 when anything went wrong: an exception shown, something of one visitor's shown
to another, a session that its link did not bring back after `kill -9`, memory that keeps growing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tools.server import ROOT, Server, free_port, running_server
from tools.soak.guest import INTERNAL_ERROR, Findings, Guest
from tools.soak.visitor import Visitor

EMPTY_PAGE = """import streamlit as st
value = st.slider("value", 0, 100, 50, key="value")
st.write(f"value {value}")
"""
ATTACKS = ("messages", "API hog")
ENVIRONMENT = {"KVPLANNER_PROXIES": "1"}
"""One proxy, which the visitors are: each has a name of its own."""
PAUSE_SECONDS = (2.0, 10.0)
SAMPLE_SECONDS = 2.0
WARM_UP = 1 / 3
"""Share of the run that is warm-up: caches fill, and Streamlit keeps sessions of closed tabs for two minutes."""
EMPTY_SHARE = 1 / 6
"""Share of the run that visits the empty page."""
EMPTY_SECONDS = 20.0
"""At least."""
TRACES = ("Traceback (most recent call last)", f"{INTERNAL_ERROR}:")
"""Texts that the server writes about a defect."""
GROWTH_LIMIT = 1.15
"""Largest growth of memory after the warm-up; not checked in runs under TREND_MINUTES, which are all warm-up."""
TREND_MINUTES = 20.0


class Memory(NamedTuple):
    """Resident memory of one server, in bytes: (seconds since its start, bytes)."""

    samples: list[tuple[float, int]]

    def around(self, share: float) -> int:
        """The median around that share of the server's life."""
        last = self.samples[-1][0]
        near = [
            size for at, size in self.samples if abs(at - share * last) <= max(0.05 * last, SAMPLE_SECONDS)
        ]
        return round(statistics.median(near or [self.samples[-1][1]]))

    @property
    def start(self) -> int:
        """After the warm-up."""
        return self.around(WARM_UP)

    @property
    def end(self) -> int:
        """At the end."""
        return self.around(1.0)


def main() -> int:
    """Exit status 1 when anything went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument(
        "--seed", type=int, default=None, help="what the visitors do; printed, random without it"
    )
    parser.add_argument("--log", type=Path, default=None, help="keep what the server writes in this file")
    options = parser.parse_args()
    seed = random.randrange(10_000) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "server.log"
        empty = asyncio.run(
            soak_empty(
                Path(folder), max(EMPTY_SECONDS, options.minutes * 60 * EMPTY_SHARE), options.sessions, seed
            )
        )
        findings, memories, back = asyncio.run(soak_app(log, options.minutes * 60, options.sessions, seed))
        written = log.read_text(errors="replace")
        tracebacks = sum(map(written.count, TRACES))
    lines, wrong = table(findings, memories, empty, back, tracebacks, options.minutes, options.sessions)
    print("\n".join((f"soak: {options.sessions} sessions, {options.minutes:g} minutes, seed {seed}", *lines)))
    for title, found_here in (
        ("errors", findings.errors),
        ("leaks", findings.leaks),
        ("lost", findings.lost),
    ):
        for text in found_here[:20]:
            print(f"  {title}: {text[:400]}", file=sys.stderr)
    print("  " + ("all is well" if not wrong else f"FAILED: {', '.join(wrong)}"))
    return 1 if wrong else 0


async def soak_app(
    log: Path, seconds: float, sessions: int, seed: int
) -> tuple[Findings, list[Memory], float]:
    """The whole run: half of it, `kill -9`, a new server on the same port, the other half.

    Gives the findings, the memory of both servers, and the seconds until every session was back.
    """
    findings, memories, port = Findings(), [], free_port()
    guests = [Guest(f"http://127.0.0.1:{port}", number, findings, seed) for number in range(sessions)]
    try:
        with running_server(log, port=port, environment=ENVIRONMENT) as server:
            beside = await _attackers(server.address)
            memory, sampler = _sampled(server)
            await _all(guest.arrive for guest in guests)
            await _all((lambda guest=guest: _live(guest, seconds / 2)) for guest in guests)
            await _all(guest.before_the_kill for guest in guests)
            sampler.cancel()
            memories.append(memory)
            await _stopped(beside, findings)
            server.kill()
        with running_server(log, port=port, environment=ENVIRONMENT) as server:
            beside = await _attackers(server.address)
            memory, sampler = _sampled(server)
            started = time.monotonic()
            await _all(guest.after_the_kill for guest in guests)
            back = time.monotonic() - started
            await _all((lambda guest=guest: _live(guest, seconds / 2)) for guest in guests)
            sampler.cancel()
            memories.append(memory)
            await _all(guest.visitor.leave for guest in guests)
            await _stopped(beside, findings)
    finally:
        await asyncio.gather(*(guest.visitor.leave() for guest in guests), return_exceptions=True)
    return findings, memories, back


async def _attackers(address: str) -> list[Process]:
    """Those who take all that can be had, in processes of their own."""
    return [
        await asyncio.create_subprocess_exec(
            "nice", "-n", "10", sys.executable, "-m", "benchmarks.fairness", "--attack", name, "--address", address,
            stdout=PIPE, cwd=ROOT,
        )
        for name in ATTACKS
    ]  # fmt: skip


async def _stopped(attackers: list[Process], findings: Findings) -> None:
    """Ends the attacks; what they were answered is the last line of what they write."""
    for one in attackers:
        if one.returncode is None:
            one.terminate()
        said, _ = await one.communicate()
        findings.attackers.update(json.loads(said.decode().strip().rpartition("\n")[2] or "{}"))


async def soak_empty(folder: Path, seconds: float, sessions: int, seed: int) -> list[float]:
    """Seconds of each action of the same driver, sessions and pauses on a page with only a slider."""
    script = folder / "empty.py"
    script.write_text(EMPTY_PAGE)
    taken: list[float] = []

    async def one(number: int, address: str) -> None:
        chance = random.Random(seed * 1000 + number)
        deadline = time.monotonic() + seconds
        async with Visitor(address) as visitor:
            await visitor.visit()
            while await _pause(chance, deadline):
                started = time.perf_counter()
                await visitor.set("value", chance.randint(0, 100))
                taken.append(time.perf_counter() - started)

    with running_server(folder / "empty.log", script=script) as server:
        await _all((lambda number=number: one(number, server.address)) for number in range(sessions))
    return taken


async def _live(guest: Guest, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while await _pause(guest.random, deadline):
        await guest.act()


async def _pause(chance: random.Random, deadline: float) -> bool:
    """Waits as a person does; False when the time is over."""
    pause = chance.uniform(*PAUSE_SECONDS)
    left = deadline - time.monotonic()
    await asyncio.sleep(max(0.0, min(pause, left)))
    return pause < left


async def _all(started: object) -> None:
    calls: list[Callable[[], Awaitable[None]]] = list(started)  # type: ignore[call-overload]
    await asyncio.gather(*(call() for call in calls))


def _sampled(server: Server) -> tuple[Memory, asyncio.Task[None]]:
    memory, started = Memory([]), time.monotonic()

    async def sample() -> None:
        while True:
            memory.samples.append((time.monotonic() - started, server.resident_bytes()))
            await asyncio.sleep(SAMPLE_SECONDS)

    return memory, asyncio.create_task(sample())


def table(
    findings: Findings,
    memories: list[Memory],
    empty: list[float],
    back: float,
    tracebacks: int,
    minutes: float,
    sessions: int,
) -> tuple[list[str], list[str]]:
    """The lines of the table, and a sentence for each failure."""
    taken = findings.all_seconds()
    p50, p95 = quantile(taken, 0.5), quantile(taken, 0.95)
    empty50, empty95 = quantile(empty, 0.5), quantile(empty, 0.95)
    rows = [
        ("sessions opened", str(findings.sessions_opened)),
        ("actions", f"{len(taken)}, uploads {findings.uploads}, pins {findings.pins}"),
        ("errors", str(len(findings.errors) + tracebacks)),
        ("leaks", f"{len(findings.leaks)}; own marks seen by {len(findings.own_seen)} of {sessions} visitors, "
                  f"cards checked {findings.numbers_checked} times"),
        ("after kill -9", f"{sessions - len(findings.lost)} of {sessions} sessions back, {back:.1f} s for all"),
        ("attackers were told", ", ".join(f"{n} × {code}" for code, n in findings.attackers.most_common(4)) or "-"),
        *((f"memory, server {number}", f"{memory.start >> 20} MiB after warm-up, {memory.end >> 20} MiB at the end")
          for number, memory in enumerate(memories, start=1)),
        ("action, p50 / p95", f"{p50 * 1000:.0f} / {p95 * 1000:.0f} ms"),
        ("empty page, p50 / p95", f"{empty50 * 1000:.0f} / {empty95 * 1000:.0f} ms of {len(empty)} actions; "
                                  f"ours {p50 / empty50:.1f} × / {p95 / empty95:.1f} ×"),
        *((f"  {name}", f"{quantile(times, 0.5) * 1000:.0f} / {quantile(times, 0.95) * 1000:.0f} ms of {len(times)}")
          for name, times in sorted(findings.seconds.items())),
    ]  # fmt: skip
    found_here = {"errors": findings.errors, "leaks": findings.leaks, "lost sessions": findings.lost}
    wrong = [name for name, found in found_here.items() if found]
    wrong += ["tracebacks in the server's log"] if tracebacks else []
    wrong += ["no mark was ever seen"] if not findings.own_seen or not findings.numbers_checked else []
    grown = minutes >= TREND_MINUTES and any(memory.end > GROWTH_LIMIT * memory.start for memory in memories)
    wrong += ["memory grows"] if grown else []
    wrong += ["no attack met a limit"] if not any("too-many" in code for code in findings.attackers) else []
    width = max(len(name) for name, _ in rows)
    return [f"  {name:{width}}  {text}" for name, text in rows], wrong


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of them lies; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


if __name__ == "__main__":
    raise SystemExit(main())
