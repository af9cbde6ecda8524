"""The engines that a goal of latency needs: which settings are tried, and the answer as JSON, text and cards."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count, share_text, short_number
from kvcore.base.units import rounded
from kvcore.base.words import Words
from kvcore.charts.link_figures import MOST_OF_LINK, LinkFigures
from kvcore.charts.replay_figures import bound_clock
from kvcore.charts.summary import Card
from kvcore.engine.records import MetricRole
from kvcore.evidence.carry import carried_over
from kvcore.planning import Plan, plan
from kvcore.replay.clock import Clock, FittedClock
from kvcore.replay.goals import (
    Answer,
    Choice,
    Goal,
    Search,
    at,
    best_of,
    carried,
    clock_error,
    interval,
    searching,
)
from kvcore.replay.routing import Routed, Routing
from kvcore.replay.settings import settings_of
from kvcore.replay.trace import TraceRequest
from kvcore.scenario import Scenario

SEATS: Final = (128, 32)
BATCHES: Final = (2048, 8192)
SIZES: Final = (1, 2, 4, 8)
HOURS: Final = 24
MOST_OF_HOUR: Final = 400
"""Requests of the busiest stretch of an hour of the day."""
DAY_HOURS: Final = 24


class Reached(Struct, frozen=True, kw_only=True):
    """All answers for a goal, and how much more traffic the best one carries."""

    goal: Goal
    answers: tuple[Answer, ...]
    best: Answer | None
    factor: float
    """Multiple of the traffic up to which the goal is kept."""
    limit: Routed | None
    """The replay at that multiple."""
    requests: int
    """Requests that were replayed."""
    of_requests: int
    refused: tuple[tuple[str, KvPlannerError], ...] = ()
    """Settings that cannot be replayed, and why."""
    hours: tuple[tuple[int, int, float, int | None], ...] = ()
    """Hour of the day (UTC), requests, requests a second in its busiest stretch, engines."""


def choices_of(planned: Plan, clock: Clock) -> list[Choice]:
    """The engine as planned, with fewer requests at once and other batches, and with other tensor parallel sizes.

    Raises WorkloadError as `settings_of` for the plan itself; of the others those that do not start are left out.
    """
    base, resolved = planned.scenario, planned.resolved
    size = base.parallel.tensor_parallel_size
    found = [Choice(tensor_parallel_size=size, settings=settings_of(planned), clock=clock)]
    others: list[tuple[Scenario, int]] = [
        (replace(base, max_num_seqs=seats), size) for seats in SEATS if seats < resolved.max_num_seqs
    ]
    others += [
        (replace(base, max_num_batched_tokens=batch), size)
        for batch in BATCHES
        if batch != resolved.max_num_batched_tokens
    ]
    if isinstance(clock, FittedClock):
        others += [
            (replace(base, parallel=replace(base.parallel, tensor_parallel_size=other)), other)
            for other in SIZES
            if other != size
        ]
    for scenario, other in others:
        try:
            made = plan(carried_over(base, scenario))
            used = clock if other == size else carried(clock, bound_clock(planned), bound_clock(made))
            if used is not None:
                found.append(
                    Choice(
                        tensor_parallel_size=other,
                        settings=settings_of(made),
                        clock=used,
                        is_scaled=other != size,
                    )
                )
        except KvPlannerError:
            continue
    return found


def reaching(
    planned: Plan,
    requests: Sequence[TraceRequest],
    goal: Goal,
    clock: Clock,
    routing: Routing | None = None,
    starts: float | None = None,
) -> Generator[tuple[int, int], None, Reached]:
    """The fewest engines for a goal over all `choices_of`, and the headroom of the best.

    Without a routing the requests go to replicas in turn, and of the best also to one deployment with data parallel,
    which sends each to the least loaded engine; not for a mixture of experts, whose engines wait for each other.
    With the Unix time at which the trace `starts`, also the engines of every hour of the day.

    Raises WorkloadError as `searching` and `settings_of`.
    """
    refused: list[tuple[str, KvPlannerError]] = []
    search, answers = yield from searching(
        requests, goal, choices_of(planned, clock), routing or Routing.ROUND_ROBIN,
        lambda choice, error: refused.append((choice_name(choice), error)),
    )  # fmt: skip
    best = best_of(answers)
    if routing is None and best is not None and (best.engines or 0) > 1 and not has_experts(planned):
        search.routing = Routing.LEAST_LOADED
        answers.append((yield from search.engines(best.choice, best.engines or 1)))
        best = best_of(answers)
    factor, limit = 1.0, None
    hours: list[tuple[int, int, float, int | None]] = []
    if best is not None:
        search.routing = best.routing
        factor, limit = yield from search.headroom(best)
        if starts is not None:
            hours = yield from _by_hour(requests, best, search, starts)
    return Reached(
        goal=goal,
        answers=tuple(answers),
        best=best,
        factor=factor,
        limit=limit,
        requests=len(search.trace),
        of_requests=len(requests),
        refused=tuple(refused),
        hours=tuple(hours),
    )


def has_experts(planned: Plan) -> bool:
    """Whether the model is a mixture of experts, whose data parallel engines step together."""
    return planned.architecture.moe is not None


def _by_hour(
    requests: Sequence[TraceRequest], best: Answer, search: Search, starts: float
) -> Generator[tuple[int, int], None, list[tuple[int, int, float, int | None]]]:
    """Engines for the busiest stretch of each hour of the day."""
    found = []
    for hour in range(HOURS):
        own = [one for one in requests if time.gmtime(starts + one.arrival).tm_hour == hour]
        if not own:
            continue
        small = Search(own, search.goal, best.routing, most=MOST_OF_HOUR)
        answer = yield from small.engines(best.choice, interval=False)
        span = small.trace[-1].arrival - small.trace[0].arrival
        found.append((hour, len(own), len(small.trace) / max(span, 1.0), answer.engines))
    return found


def choice_name(choice: Choice) -> str:
    """The settings as flags."""
    return (
        f"--tensor-parallel-size {choice.tensor_parallel_size} --max-num-seqs {choice.settings.max_num_seqs} "
        f"--max-num-batched-tokens {choice.settings.max_num_batched_tokens}"
    )


def answer_report(answer: Answer, goal: Goal) -> dict[str, Any]:
    """One answer as JSON."""
    settings, error = answer.choice.settings, clock_error(answer.choice.clock)
    is_parallel = answer.routing is Routing.LEAST_LOADED
    latencies = {
        f"{name}_seconds": None
        if (value := at(values, goal.percent)) is None
        else {
            f"p{goal.percent:g}": rounded(value),
            "interval": [rounded(end) for end in interval(values, goal.percent, error) or ()],
        }
        for name, values in (("ttft", answer.found.ttfts), ("tpot", answer.found.tpots))
    }
    return {
        "engines": answer.engines,
        "interval": [answer.low, answer.high],
        "replicas": 1 if is_parallel and answer.engines else answer.engines,
        "data_parallel_size": answer.engines if is_parallel else 1,
        "tensor_parallel_size": answer.choice.tensor_parallel_size,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "routing": answer.routing.value,
        "gpus": answer.gpus,
        "clock": "scaled" if answer.choice.is_scaled else answer.choice.clock.kind.value,
        "keeps_goal": answer.engines is not None,
        "preemptions": answer.found.preemptions,
        **latencies,
    }


def goal_report(found: Reached, planned: Plan, price: float | None = None) -> dict[str, Any]:
    """The whole answer as JSON; `price` is that of a GPU for an hour."""
    best, goal = found.best, found.goal
    metrics = planned.resolved.engine.metrics(planned.resolved.version, planned.resolved.is_v0)
    threshold = {
        metrics[role].name: rounded(value)
        for role, value in (
            (MetricRole.KV_CACHE_USAGE, found.limit.kv_usage if found.limit is not None else None),
            (MetricRole.WAITING, found.limit.waiting if found.limit is not None else None),
        )
        if value is not None and role in metrics
    }
    return {
        "ttft_seconds": goal.ttft if goal.ttft < float("inf") else None,
        "tpot_seconds": goal.tpot if goal.tpot < float("inf") else None,
        "percent": goal.percent,
        "requests": found.requests,
        "of_requests": found.of_requests,
        "replicas": None if best is None else best.engines,
        "interval": [None, None] if best is None else [best.low, best.high],
        "gpus": None if best is None else best.gpus,
        "cost_per_day": None
        if price is None or best is None
        else rounded((best.gpus or 0) * price * DAY_HOURS),
        "headroom": None if best is None else found.factor,
        "best": None if best is None else answer_report(best, goal),
        "answers": [answer_report(one, goal) for one in found.answers],
        "refused": [
            {"settings": name, "code": error.code, "message": str(error)} for name, error in found.refused
        ],
        "scale_out_above": threshold,
        "hours": [
            {"hour_utc": hour, "requests": number, "busiest_per_second": rounded(rate), "replicas": engines}
            for hour, number, rate, engines in found.hours
        ],
    }


def goal_table(found: Reached, planned: Plan, price: float | None = None) -> str:
    """The answer as text for a terminal."""
    report, best = goal_report(found, planned, price), found.best
    asked = ", ".join(
        f"P{found.goal.percent:g} {name.upper()} under {limit:g} s"
        for name, limit in (("ttft", found.goal.ttft), ("tpot", found.goal.tpot))
        if limit < float("inf")
    )
    lines = [f"goal: {asked}, on {found.requests:,} of {found.of_requests:,} requests, the busiest stretch"]
    if best is None:
        return "\n".join((*lines, "no setting that was tried keeps it"))
    low, high = report["interval"]
    lines.append(
        f"{best.engines} engines ({low or '?'} to {high or 'more'} by the clock's error), {best.gpus} GPUs: "
        f"{choice_name(best.choice)}, {best.routing.value}"
    )
    if report["cost_per_day"] is not None:
        lines.append(f"{report['cost_per_day']:,.2f} a day")
    more = "or more" if found.factor >= 8 else ""
    lines.append(f"the goal holds up to {found.factor:g} x this traffic {more}".rstrip())
    for one in report["answers"]:
        ttft, tpot = (
            (one[f"{name}_seconds"] or {}).get(f"p{found.goal.percent:g}") for name in ("ttft", "tpot")
        )
        engines, is_scaled = one["engines"] or "-", one["clock"] == "scaled"
        lines.append(
            f"  tp {one['tensor_parallel_size']} seqs {one['max_num_seqs']:>5} "
            f"batch {one['max_num_batched_tokens']:>6} {one['routing']:<13} engines {engines:>3}  "
            f"TTFT {ttft or 0:7.3f} s  TPOT {tpot or 0:7.4f} s"
            + "  (clock scaled from another size)"
            * is_scaled
        )
    lines += [f"scale out above {name} {value:g}" for name, value in report["scale_out_above"].items()]
    lines += [
        f"  {row['hour_utc']:02} h UTC: {row['busiest_per_second']:.2f} requests a second, "
        f"{row['replicas'] or '-'} replicas"
        for row in report["hours"]
    ]
    return "\n".join(lines)


class GoalFigures(LinkFigures, frozen=True, kw_only=True):
    """The answer in so few numbers that a link carries it; the log itself is in no link.

    Example:
        >>> GoalFigures.decode("0123abcd_95_2_0.05_3_2_4_3_1.5_0.4_0.03_0.25_150_0").engines
        3
    """

    parameter = "goal"
    percent: float
    asked_ttft: float
    asked_tpot: float
    engines: int
    low: int
    high: int
    """0 where more engines are needed than were tried."""
    gpus: int
    factor: float
    ttft: float
    tpot: float
    kv_usage: float
    requests: int
    is_parallel: int
    """1 where one deployment sends to its least loaded engine."""


def figures_of(found: Reached, worked_on: str) -> GoalFigures | None:
    """The figures of an answer; None where no setting keeps the goal."""
    best, goal = found.best, found.goal
    if best is None or best.engines is None:
        return None
    return GoalFigures(
        worked_on=worked_on,
        percent=goal.percent,
        asked_ttft=min(goal.ttft, MOST_OF_LINK),
        asked_tpot=min(goal.tpot, MOST_OF_LINK),
        engines=best.engines,
        low=best.low or 1,
        high=best.high or 0,
        gpus=best.gpus or 0,
        factor=found.factor,
        ttft=at(best.found.ttfts, goal.percent) or 0.0,
        tpot=at(best.found.tpots, goal.percent) or 0.0,
        kv_usage=min(1.0, best.found.kv_usage),
        requests=found.requests,
        is_parallel=int(best.routing is Routing.LEAST_LOADED),
    ).as_in_link()


def goal_cards(found: GoalFigures, price: float | None, t: Words) -> tuple[Card, ...]:
    """The answer as cards."""
    cost = "" if not price else t("{cost} a day", cost=short_number(found.gpus * price * DAY_HOURS))
    cards = (
        (
            t("Engines, data parallel") if found.is_parallel else t("Replicas for this goal"),
            count(found.engines),
            t("{low} to {high} by the clock's error", low=count(found.low),
              high=count(found.high) if found.high else t("more")),
        ),
        (t("GPUs"), count(found.gpus), cost),
        (t("Headroom"), f"{found.factor:g} ×", t("traffic up to which the goal holds")),
        (
            t("P{percent} TTFT", percent=f"{found.percent:g}"),
            f"{found.ttft:.2f} s",
            t("TPOT {tpot} ms, KV cache {share} in use", tpot=f"{1e3 * found.tpot:.0f}",
              share=share_text(found.kv_usage, t)),
        ),
    )  # fmt: skip
    return tuple(Card(label=label, value=value, note=note) for label, value, note in cards)
