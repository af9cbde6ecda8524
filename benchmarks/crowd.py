"""Many sessions that open Explore at the same moment, against one alone, each on a fresh server.

Visitors speak the app's own protocol, without a browser: what counts is when the server has sent the whole page.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from tools.server import running_server
from tools.soak.visitor import Visitor

SESSIONS = 40
ROUNDS = 3
QUERY = "model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2"
MATRIX = "explore_matrix"
"""The figure that the page is about: without it a page was not seen."""


async def _opened(address: str) -> float:
    """Seconds until a new session has its page. Raises RuntimeError where it is not the page."""
    start = time.perf_counter()
    async with Visitor(address) as visitor:
        await visitor.visit(QUERY, page="explore")
        seconds = time.perf_counter() - start
        shown = list(visitor.elements("plotly_chart"))
        if visitor.errors or not any(MATRIX in chart.id for chart in shown):
            raise RuntimeError(f"Explore was not shown: {visitor.errors}")
    return seconds


async def _together(address: str, sessions: int) -> list[float]:
    return await asyncio.gather(*(_opened(address) for _ in range(sessions)))


def on_a_fresh_server(sessions: int, log: Path) -> list[float]:
    """Seconds of each of `sessions` that open the page at once on a server that has served nobody."""
    with running_server(log) as server:
        return asyncio.run(_together(server.address, sessions))


def main() -> None:
    """Prints the time of one session, and of the last and the median of many."""
    alone: list[float] = []
    last: list[float] = []
    middle: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "server.log"
        for _ in range(ROUNDS):
            alone += on_a_fresh_server(1, log)
            crowd = on_a_fresh_server(SESSIONS, log)
            last.append(max(crowd))
            middle.append(statistics.median(crowd))
    one = statistics.median(alone)
    print(f"crowd: Explore on a fresh server, medians of {ROUNDS} rounds")
    print(f"  one session alone      {one:6.2f} s")
    for words, found in (
        (f"{SESSIONS} at once, the median", middle),
        (f"{SESSIONS} at once, the last", last),
    ):
        seconds = statistics.median(found)
        print(f"  {words:22} {seconds:6.2f} s  {seconds / one:5.2f} × one alone")


if __name__ == "__main__":
    main()
