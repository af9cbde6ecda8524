"""A trace over several engines, each with its own scheduler and cache, behind one router: latencies of every request.

Source: vllm/v1/engine/core_client.py:DPLBAsyncMPClient.get_core_engine_for_request (0.32.0) for the least loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from kvcore.base.errors import WorkloadError
from kvcore.replay.clock import Clock, FittedClock
from kvcore.replay.hybrid import scheduler_of
from kvcore.replay.settings import Settings
from kvcore.replay.steps import check_fits
from kvcore.replay.trace import Contents, TraceRequest
from kvcore.replay.work import check_work

WAITING_WEIGHT: Final = 6.0
"""What a waiting request weighs more for each share of the cache in use above half."""
MOST_UNEVEN: Final = 8
"""Requests by which an engine that knows a prefix may be busier than the least busy one."""
SLICE: Final = 2000
"""Steps between two reports of progress."""


class Routing(StrEnum):
    """Where a request goes."""

    ROUND_ROBIN = "round-robin"
    """To each engine in turn."""
    LEAST_LOADED = "least-loaded"
    """To the engine with the fewest requests, those that wait counted more the fuller its cache is: vLLM's own data
    parallel."""
    PREFIX_AWARE = "prefix-aware"
    """To the engine that has served the longest part of its prompt, unless that one is busier by 8 requests."""


class Allowance(Struct, frozen=True, kw_only=True):
    """Latencies that may be exceeded by a number of requests, before a replay is given up."""

    ttft: float
    tpot: float
    requests: int


class Routed(Struct, frozen=True, kw_only=True):
    """Latencies of all requests of a trace, in seconds; of those that were replayed where it was given up."""

    ttfts: tuple[float, ...]
    tpots: tuple[float, ...]
    is_whole: bool
    """Whether it was replayed to its end."""
    steps: int
    preemptions: int
    kv_usage: float
    """Share of the blocks in use on average while an engine works."""
    waiting: float
    """Requests that wait for an engine on average while it works."""
    seconds: float


class _Engine:
    """One engine with its own time."""

    def __init__(self, settings: Settings, contents: Contents, clock: Clock) -> None:
        self.scheduler = scheduler_of(settings, (), contents)
        self.clock = clock
        self.is_async = settings.async_scheduling
        self.usable = settings.usable_blocks
        self.outside = clock.outside if isinstance(clock, FittedClock) else 0.0
        self.now = self.busy = self.used = self.waited = 0.0
        self.steps = 0
        self.first: dict[int, float] = {}
        self.ttfts: list[float] = []
        self.tpots: list[float] = []
        self.prefixes: set[int] = set()

    @property
    def load(self) -> float:
        """Requests, and those that wait once more in proportion to the cache in use above half."""
        waiting, used = len(self.scheduler.waiting), self.scheduler.used_blocks / self.usable
        return len(self.scheduler.running) + waiting + waiting * WAITING_WEIGHT * max(0.0, used - 0.5)

    @property
    def is_idle(self) -> bool:
        """Whether it has no request."""
        return not self.scheduler.running and not self.scheduler.waiting

    def add(self, at: int, request: TraceRequest) -> None:
        """Takes a request that has just arrived."""
        if self.is_idle:
            self.now = max(self.now, request.arrival)
        self.scheduler.add(at, request)

    def step(self) -> None:
        """One step; latencies of the requests that it starts and ends are kept."""
        scheduler = self.scheduler
        scheduler.step()
        seconds = self.clock.seconds(scheduler) if scheduler.tokens else 0.0
        self.busy += seconds
        self.used += scheduler.used_blocks * seconds
        self.waited += scheduler.waiting_requests * seconds
        last = self.now if self.is_async else self.now + seconds
        self.now += seconds
        self.steps += 1
        for request in scheduler.started:
            self.first[request.at] = self.now
            self.ttfts.append(self.now - request.trace.arrival + self.outside)
        for request in scheduler.finished:
            first = self.first.pop(request.at, self.now)
            if request.trace.answer_tokens > 1:
                self.tpots.append((last - first) / (request.trace.answer_tokens - 1))


def routed(
    requests: Sequence[TraceRequest],
    settings: Settings,
    clock: Clock,
    engines: int,
    routing: Routing = Routing.ROUND_ROBIN,
    *,
    allowance: Allowance | None = None,
    most_steps: int = 2_000_000,
) -> Generator[tuple[int, int], None, Routed]:
    """Replays a trace on so many engines: yields the number of ended requests and of all.

    With an `allowance` it ends as soon as more requests are slower than that. Raises WorkloadError as `replaying`.
    """
    trace = tuple(requests)
    check_fits(settings, trace)
    check_work(trace, settings, clock)
    contents = Contents(trace, settings.hash_block_size)
    pool = [_Engine(settings, contents, clock) for _ in range(engines)]
    told, slow = 0, False

    def is_slow() -> bool:
        if allowance is None:
            return False
        late = sum(one > allowance.ttft for engine in pool for one in engine.ttfts)
        late_tokens = sum(one > allowance.tpot for engine in pool for one in engine.tpots)
        return max(late, late_tokens) > allowance.requests

    at = 0
    while not slow and (at < len(trace) or any(not engine.is_idle for engine in pool)):
        until = trace[at].arrival if at < len(trace) else float("inf")
        for engine in pool:
            while not engine.is_idle and engine.now < until:
                engine.step()
                steps = sum(one.steps for one in pool) if engine.steps % SLICE == 0 else 0
                if steps > most_steps:
                    raise WorkloadError("replay-too-long", field="requests", limit=f"{most_steps:,}")
                if steps:
                    yield sum(len(one.ttfts) for one in pool), len(trace)
                    slow = is_slow()
                    if slow:
                        break
            if slow:
                break
        if at < len(trace):
            engine = pool[_chosen(routing, pool, trace[at], at)]
            engine.add(at, trace[at])
            at += 1
            if at - told >= CHECKED:
                told, slow = at, is_slow()
    busy = sum(engine.busy for engine in pool)
    return Routed(
        ttfts=tuple(one for engine in pool for one in engine.ttfts),
        tpots=tuple(one for engine in pool for one in engine.tpots),
        is_whole=not slow,
        steps=sum(engine.steps for engine in pool),
        preemptions=sum(engine.scheduler.totals.preemptions for engine in pool),
        kv_usage=sum(engine.used for engine in pool) / settings.usable_blocks / busy if busy else 0.0,
        waiting=sum(engine.waited for engine in pool) / busy if busy else 0.0,
        seconds=max(engine.now for engine in pool) - (trace[0].arrival if trace else 0.0),
    )


CHECKED: Final = 50
"""Arrivals after which the allowance is looked at again."""


def _chosen(routing: Routing, pool: Sequence[_Engine], request: TraceRequest, at: int) -> int:
    if routing is Routing.ROUND_ROBIN or len(pool) == 1:
        return at % len(pool)
    least = min(range(len(pool)), key=lambda one: (pool[one].load, (one - at) % len(pool)))
    if routing is Routing.LEAST_LOADED:
        return least
    names: list[int] = []
    key = 0
    for name, tokens in request.prompt:
        key = hash((key, name, tokens))
        names.append(key)
    best, longest = least, 0
    for place, engine in enumerate(pool):
        known = next((number for number, one in enumerate(names) if one not in engine.prefixes), len(names))
        if known > longest and engine.load <= pool[least].load + MOST_UNEVEN:
            best, longest = place, known
    pool[best].prefixes.update(names)
    return best
