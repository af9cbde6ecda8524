"""Replays a trace with its arrival times: KV use, running and waiting requests and preemptions over time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import WorkloadError
from kvcore.replay.clock import Clock, ClockKind, FittedClock
from kvcore.replay.hybrid import scheduler_of
from kvcore.replay.settings import Settings
from kvcore.replay.steps import check_fits
from kvcore.replay.trace import TraceRequest, busiest, copied, knows_texts
from kvcore.replay.work import check_work

T = TypeVar("T")
POINTS: Final = 480
"""Points of a series; when there are twice as many, neighbours are merged."""
MOST_REPLAYED: Final = 50_000_000
"""Steps of a replay whose work was estimated too low."""
SLICE: Final = 2000
"""Steps between two reports of progress."""


@dataclass(slots=True)
class Point:
    """An interval: sums over its steps, weighted by their duration, and maxima."""

    start: float
    seconds: float = 0.0
    used: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    most_used: int = 0
    most_waiting: int = 0
    preempted: int = 0

    def add(self, other: Point) -> None:
        """Adds the next interval."""
        self.seconds += other.seconds
        self.used += other.used
        self.running += other.running
        self.waiting += other.waiting
        self.most_used = max(self.most_used, other.most_used)
        self.most_waiting = max(self.most_waiting, other.most_waiting)
        self.preempted += other.preempted


class Latency(Struct, frozen=True, kw_only=True):
    """Percentiles over the requests, in seconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency | None:
        """Percentiles by nearest rank; None without values.

        Example:
            >>> Latency.of([3.0, 1.0, 2.0]).p50
            2.0
        """
        if not values:
            return None
        ordered = sorted(values)
        p50, p95, p99 = (ordered[max(0, -(-percent * len(ordered) // 100) - 1)] for percent in (50, 95, 99))
        return cls(p50=p50, p95=p95, p99=p99)


class Replay(Struct, frozen=True, kw_only=True):
    """Result of a trace on one replica."""

    clock: ClockKind
    requests: int
    seconds: float
    steps: int
    usable_blocks: int
    points: tuple[Point, ...]
    preemptions: int
    first_preemption: float | None
    """Seconds after the first arrival."""
    query_tokens: int
    hit_tokens: int
    knows_texts: bool
    """Whether the trace says which prompts begin alike."""
    answers_cut: int
    ttft: Latency | None
    """Time from arrival to the first token; only with a measured clock."""
    tpot: Latency | None
    """Seconds per token after the first."""

    @property
    def hit_rate(self) -> float | None:
        """Share of the looked-up prompt tokens that the cache had; None where none was, or no text is known."""
        return self.hit_tokens / self.query_tokens if self.query_tokens and self.knows_texts else None

    @property
    def peak_usage(self) -> float:
        """Largest share of the blocks in use."""
        return max((point.most_used for point in self.points), default=0) / self.usable_blocks

    @property
    def mean_running(self) -> float:
        """Mean number of running requests over time."""
        return self._mean("running")

    @property
    def mean_waiting(self) -> float:
        """Mean number of waiting requests over time."""
        return self._mean("waiting")

    def _mean(self, name: str) -> float:
        total = sum(point.seconds for point in self.points)
        return sum(getattr(point, name) for point in self.points) / total if total else 0.0

    @property
    def keeps_up(self) -> bool:
        """Whether nothing is preempted, and less than one request waits on average."""
        return not self.preemptions and self.mean_waiting < 1


class Replays(Struct, frozen=True, kw_only=True):
    """Result of a trace on one or several replicas."""

    parts: tuple[Replay, ...]

    @property
    def peak_usage(self) -> float:
        """Largest share of the blocks in use on any replica."""
        return max((part.peak_usage for part in self.parts), default=0.0)

    @property
    def mean_running(self) -> float:
        """Mean number of running requests on a replica while it works."""
        points = [point for part in self.parts for point in part.points]
        total = sum(point.seconds for point in points)
        return sum(point.running for point in points) / total if total else 0.0

    @property
    def preemptions(self) -> int:
        """Sum over the replicas."""
        return sum(part.preemptions for part in self.parts)

    @property
    def hit_rate(self) -> float | None:
        """Share of the looked-up prompt tokens that the caches had; None where that is not known."""
        known = [part for part in self.parts if part.hit_rate is not None]
        query = sum(part.query_tokens for part in known)
        return sum(part.hit_tokens for part in known) / query if query else None

    @property
    def seconds(self) -> float:
        """Time from the first arrival to the end of the last replica."""
        return max((part.seconds for part in self.parts), default=0.0)


def replayed(requests: Sequence[TraceRequest], settings: Settings, clock: Clock) -> Replay:
    """Runs the whole replay. Raises WorkloadError as `replaying`."""
    return ended(replaying(requests, settings, clock))


def ended(work: Generator[tuple[int, int], None, T]) -> T:
    """Runs work to its end, without a word on the way."""
    while True:
        try:
            next(work)
        except StopIteration as stopped:
            found: T = stopped.value
            return found


def replaying(
    requests: Sequence[TraceRequest], settings: Settings, clock: Clock, *, starts: float | None = None
) -> Generator[tuple[int, int], None, Replay]:
    """Runs a replay in slices: yields the number of ended requests and of all.

    `starts` is when time 0 is; without it the first arrival.

    Raises WorkloadError `replay-never-fits`, `replay-prompt-too-long`, `replay-too-much-work` and `replay-too-long`.
    """
    trace = tuple(requests)
    check_fits(settings, trace)
    check_work(trace, settings, clock)
    scheduler = scheduler_of(settings, trace)
    if starts is None:
        starts = min((request.arrival for request in trace), default=0.0)
    now = 0.0
    ended = steps = at = 0
    points = [Point(0.0)]
    width = 0.0
    first_tokens: list[float] = [0.0] * len(trace)
    ttfts: list[float] = []
    tpots: list[float] = []
    first_preemption: float | None = None
    outside = clock.outside if isinstance(clock, FittedClock) else 0.0
    while at < len(trace) or scheduler.running or scheduler.waiting:
        if not scheduler.running and not scheduler.waiting:
            now = max(now, trace[at].arrival - starts)
        while at < len(trace) and trace[at].arrival - starts <= now:
            scheduler.add(at, trace[at])
            at += 1
        scheduler.step()
        seconds = clock.seconds(scheduler) if scheduler.tokens else 0.0
        if scheduler.preempted and first_preemption is None:
            first_preemption = now
        used, running, waiting = scheduler.used_blocks, scheduler.running_requests, scheduler.waiting_requests
        point = points[-1]
        if now - point.start >= width and point.seconds:
            point = Point(now)
            points.append(point)
            if len(points) > 2 * POINTS:
                width = max(2 * width, (now + seconds) / POINTS)
                points = _halved(points)
                point = points[-1]
        point.seconds += seconds
        point.used += used * seconds
        point.running += running * seconds
        point.waiting += waiting * seconds
        point.most_used = max(point.most_used, used)
        point.most_waiting = max(point.most_waiting, waiting)
        point.preempted += scheduler.preempted
        # Async, a request is found ended a step after the one that computed its last token.
        last = now if settings.async_scheduling else now + seconds
        now += seconds
        for request in scheduler.started:
            first_tokens[request.at] = now
            ttfts.append(now - (request.trace.arrival - starts) + outside)
        for request in scheduler.finished:
            ended += 1
            if request.trace.answer_tokens > 1:
                tpots.append((last - first_tokens[request.at]) / (request.trace.answer_tokens - 1))
        steps += 1
        if steps % SLICE == 0:
            yield ended, len(trace)
            if steps > MOST_REPLAYED:
                raise WorkloadError("replay-too-long", field="requests", limit=f"{MOST_REPLAYED:,}")
    totals = scheduler.totals
    is_measured = clock.kind is not ClockKind.BOUND
    return Replay(
        clock=clock.kind,
        requests=len(trace),
        seconds=now,
        steps=steps,
        usable_blocks=settings.usable_blocks,
        points=tuple(points),
        preemptions=totals.preemptions,
        first_preemption=first_preemption,
        query_tokens=totals.query_tokens,
        hit_tokens=totals.hit_tokens,
        knows_texts=knows_texts(trace),
        answers_cut=totals.answers_cut,
        ttft=Latency.of(ttfts) if is_measured else None,
        tpot=Latency.of(tpots) if is_measured else None,
    )


def over_replicas(
    requests: Sequence[TraceRequest], settings: Settings, clock: Clock, replicas: int
) -> Generator[tuple[int, int], None, Replays]:
    """Spreads a trace over several replicas, which take the requests in turn; each replays its own part.

    Raises WorkloadError as `replaying`.
    """
    found: list[Replay] = []
    done = 0
    for first in range(replicas):
        part = requests[first::replicas]
        if not part:
            continue
        work = replaying(part, settings, clock, starts=requests[0].arrival)
        while True:
            try:
                ended, _ = next(work)
            except StopIteration as stopped:
                found.append(stopped.value)
                break
            yield done + ended, len(requests)
        done += len(part)
    return Replays(parts=tuple(found))


def _halved(points: list[Point]) -> list[Point]:
    """Merges each two neighbours."""
    found = points[::2]
    for point, after in zip(found, points[1::2], strict=False):
        point.add(after)
    return found


def sped_up(requests: Sequence[TraceRequest], factor: float) -> tuple[TraceRequest, ...]:
    """The requests with arrivals `factor` times as fast.

    Example:
        >>> one = TraceRequest(id="a", arrival=10.0, prompt=(("a", 5),), answer_tokens=2)
        >>> sped_up([one], 4)[0].arrival
        2.5
    """
    return tuple(replace(request, arrival=request.arrival / factor) for request in requests)


def most_rate(
    requests: Sequence[TraceRequest], settings: Settings, clock: Clock, factors: Sequence[float]
) -> Generator[tuple[int, int], None, float | None]:
    """The largest of the rising `factors` at which nothing is preempted; None if even the first one preempts."""
    low, high = 0, len(factors)
    tried = 0
    while low < high:
        middle = (low + high) // 2
        found = yield from replaying(sped_up(requests, factors[middle]), settings, clock)
        tried += 1
        low, high = (low, middle) if found.preemptions else (middle + 1, high)
    return factors[low - 1] if low else None


MOST_TIMES: Final = 16
"""Largest multiple of a traffic that `times_carried` tries."""
MOST_COPIED: Final = 4000
"""Requests of one of its replays, which bounds its time."""


def times_carried(
    requests: Sequence[TraceRequest],
    settings: Settings,
    clock: Clock,
    found: Replay,
    most: int = MOST_COPIED,
) -> Generator[tuple[int, int], None, int]:
    """How many times the traffic of `found` one replica carries: as often as its peak goes into the pool, if a replay
    of so many copies of its busiest part keeps up too, else half of that; 0 where it does not carry it once.

    Raises WorkloadError as `replaying`.
    """
    times = min(MOST_TIMES, int(1 / found.peak_usage) if found.peak_usage else 1)
    times = min(times, max(1, most // min(len(requests), FEWEST_COPIED)))
    for tried in (times, times // 2) if found.keeps_up else ():
        part = busiest(requests, most // tried) if tried > 1 else ()
        if part and (yield from replaying(copied(part, tried), settings, clock)).keeps_up:
            return tried
    return int(found.keeps_up)


FEWEST_COPIED: Final = 200
"""Requests of the busiest part at least."""
