"""How many engines a traffic needs for a goal of latency, which of several settings needs the fewest GPUs, and how much
more traffic they carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError, WorkloadError, invalid
from kvcore.replay.clock import BoundClock, Clock, FittedClock
from kvcore.replay.routing import Allowance, Routed, Routing, routed
from kvcore.replay.series import sped_up
from kvcore.replay.settings import Settings
from kvcore.replay.trace import TraceRequest, busiest

MOST_ENGINES: Final = 64
MOST_REQUESTS: Final = 2000
"""Requests of a longer trace that are replayed: those that came in the shortest time."""
MOST_STEPS: Final = 3_000_000
"""Steps of all replays for one answer, which bounds its time."""
FACTORS: Final = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""Multiples of a traffic that are tried."""
CONFIDENCE: Final = 1.28
"""Standard deviations of an interval of 80 %."""
Work = Generator[tuple[int, int], None, Routed]


class Goal(Struct, frozen=True, kw_only=True):
    """Latencies that a share of the requests must keep, in seconds; infinite where nothing is asked."""

    ttft: float = math.inf
    tpot: float = math.inf
    percent: float = 95.0

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            if not getattr(self, name) > 0:
                raise invalid(name, getattr(self, name), "it is a time above 0 seconds")
        if math.isinf(self.ttft) and math.isinf(self.tpot):
            raise invalid("goal", None, "it needs a TTFT or a TPOT")
        if not 50 <= self.percent <= 99.9:
            raise invalid("percent", self.percent, "it lies between 50 and 99.9")

    def eased(self, factor: float) -> Goal:
        """The goal with times so many times as long."""
        return replace(self, ttft=self.ttft * factor, tpot=self.tpot * factor)

    def is_met(self, found: Routed) -> bool:
        """Whether a replay keeps it."""
        return found.is_whole and all(
            (at(values, self.percent) or 0.0) <= limit
            for values, limit in ((found.ttfts, self.ttft), (found.tpots, self.tpot))
        )


def at(values: Sequence[float], percent: float) -> float | None:
    """A percentile by nearest rank; None without values.

    Example:
        >>> at([3.0, 1.0, 2.0], 50)
        2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent * len(ordered) / 100 - 1e-9) - 1)] if ordered else None


def interval(values: Sequence[float], percent: float, error: float) -> tuple[float, float] | None:
    """The 80 % interval of a percentile: by the number of requests (order statistics), widened by the clock's error."""
    if not values:
        return None
    number, share = len(values), percent / 100
    reach = 100 * CONFIDENCE * math.sqrt(share * (1 - share) / number)
    low, high = at(values, max(0.0, percent - reach)), at(values, min(100.0, percent + reach))
    return (low or 0.0) * (1 - error), (high or 0.0) * (1 + error)


class Choice(Struct, frozen=True, kw_only=True):
    """Settings of one engine to try, and the clock of its steps."""

    tensor_parallel_size: int
    settings: Settings
    clock: Clock
    is_scaled: bool = False
    """Whether the clock was carried over from another tensor parallel size by what the card can do at most."""


class Answer(Struct, frozen=True, kw_only=True):
    """The fewest engines with some settings that keep a goal."""

    choice: Choice
    routing: Routing
    engines: int | None
    """None where even MOST_ENGINES do not keep it."""
    low: int | None
    high: int | None
    """Engines where the clock is off by its error to either side; None where too many are needed."""
    found: Routed
    """The replay with `engines`, or the last one."""

    @property
    def gpus(self) -> int | None:
        """Cards of all engines."""
        return None if self.engines is None else self.engines * self.choice.tensor_parallel_size


def clock_error(clock: Clock) -> float:
    """Relative error of a clock's percentiles on requests that it was not fitted to; 10 % of rates that a person
    states, which nobody has compared."""
    if isinstance(clock, FittedClock):
        return min(0.9, max(abs(clock.held_out.ttft_p95), abs(clock.held_out.tpot_p95)))
    return 0.1


def carried(clock: Clock, here: BoundClock, there: BoundClock) -> Clock | None:
    """A clock for another tensor parallel size: each of its times changes as the fastest possible one does.

    The time that cards take to talk to each other is not in it. None for a clock that has no such parts.
    """
    if not isinstance(clock, FittedClock):
        return None
    tokens = (there.flops_per_token / there.peak_flops) / (here.flops_per_token / here.peak_flops or 1.0)
    return replace(
        clock,
        a=clock.a * (there.weight_bytes / there.bandwidth) / (here.weight_bytes / here.bandwidth),
        b=clock.b * (tokens or 1.0),
        c=clock.c * there.kv_bytes_per_token / (here.kv_bytes_per_token or 1.0),
    )


class Search:
    """Replays of one trace for one goal, within MOST_STEPS in all."""

    def __init__(
        self, requests: Sequence[TraceRequest], goal: Goal, routing: Routing, most: int = MOST_REQUESTS
    ) -> None:
        self.trace = busiest(requests, most)
        self.goal = goal
        self.routing = routing
        self.steps_left = MOST_STEPS

    def replayed(self, choice: Choice, engines: int, ease: float, factor: float = 1.0) -> Work:
        """The trace, `factor` times as fast, on so many engines; given up where even the eased goal is missed."""
        eased = self.goal.eased(ease)
        late = int(len(self.trace) * (1 - self.goal.percent / 100))
        found = yield from routed(
            sped_up(self.trace, factor), choice.settings, choice.clock, engines, self.routing,
            allowance=Allowance(ttft=eased.ttft, tpot=eased.tpot, requests=late), most_steps=self.steps_left,
        )  # fmt: skip
        self.steps_left -= found.steps
        if self.steps_left <= 0:
            raise WorkloadError("replay-too-long", field="requests", limit=f"{MOST_STEPS:,}")
        return found

    def engines(
        self, choice: Choice, most: int = MOST_ENGINES, *, interval: bool = True
    ) -> Generator[tuple[int, int], None, Answer]:
        """The fewest engines that keep the goal, at most `most`; and with the clock's error to either side."""
        error = clock_error(choice.clock) if interval else 0.0
        runs: dict[int, Routed] = {}
        counts: list[int | None] = []
        for ease in (1 + error, 1.0, 1 - error):
            goal = self.goal.eased(ease)
            if len(counts) == 2:
                if counts[1] is None:
                    counts.append(None)
                    break
                most = MOST_ENGINES
            low, high = 0, max(1, counts[-1] or 1) if counts else 1
            while True:
                met = yield from self._is_met(choice, high, goal, 1 + error, runs)
                if met or high >= most:
                    break
                low, high = high, min(most, 2 * high)
            if not met:
                counts.append(None)
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if (yield from self._is_met(choice, middle, goal, 1 + error, runs)):
                    high = middle
                else:
                    low = middle
            counts.append(high)
        engines = counts[1]
        found = runs[engines] if engines is not None else runs[max(runs)]
        return Answer(
            choice=choice, routing=self.routing, engines=engines, low=counts[0], high=counts[2], found=found
        )

    def _is_met(
        self, choice: Choice, engines: int, goal: Goal, ease: float, runs: dict[int, Routed]
    ) -> Generator[tuple[int, int], None, bool]:
        if engines not in runs:
            runs[engines] = yield from self.replayed(choice, engines, ease)
        return goal.is_met(runs[engines])

    def headroom(self, answer: Answer) -> Generator[tuple[int, int], None, tuple[float, Routed]]:
        """How many times the traffic keeps the goal with these engines: the last of FACTORS, 1 where none does; and
        the replay at it."""
        best, found = 1.0, answer.found
        for factor in FACTORS if answer.engines is not None else ():
            tried = yield from self.replayed(answer.choice, answer.engines or 1, 1.0, factor)
            if not self.goal.is_met(tried):
                break
            best, found = factor, tried
        return best, found


def best_of(answers: Sequence[Answer]) -> Answer | None:
    """The answer with the fewest cards, then the lowest TTFT; one whose clock is measured before those that are not.

    None where no setting keeps the goal.
    """
    met = [one for one in answers if one.gpus is not None]
    measured = [one for one in met if not one.choice.is_scaled]
    return min(
        measured or met,
        key=lambda one: (one.gpus or 0, at(one.found.ttfts, 95) or 0.0),
        default=None,
    )


def searching(
    requests: Sequence[TraceRequest],
    goal: Goal,
    choices: Sequence[Choice],
    routing: Routing,
    told: Callable[[Choice, KvPlannerError], None] | None = None,
) -> Generator[tuple[int, int], None, tuple[Search, list[Answer]]]:
    """Answers for each of several settings; one that needs more cards than the best so far is given up early.

    Raises WorkloadError `goal-without-clock` for a clock that is only a bound, and as `routed` where all fail.
    """
    if any(isinstance(one.clock, BoundClock) for one in choices):
        raise WorkloadError("goal-without-clock", field="clock")
    search = Search(requests, goal, routing)
    answers: list[Answer] = []
    failed: KvPlannerError | None = None
    for choice in choices:
        most = MOST_ENGINES
        best = best_of([one for one in answers if not one.choice.is_scaled])
        if best is not None and best.gpus is not None and not choice.is_scaled:
            most = max(1, min(most, math.ceil(best.gpus / choice.tensor_parallel_size)))
        try:
            answers.append((yield from search.engines(choice, most)))
        except KvPlannerError as error:
            failed = error
            if told is not None:
                told(choice, error)
            if search.steps_left <= 0:
                break
    if not answers and failed is not None:
        raise failed
    return search, answers
