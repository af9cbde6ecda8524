"""A replay as data: a chart over time, cards, rows of a comparison, JSON and a terminal table; prefix hits by cache
size."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from enum import IntEnum
from typing import Any, Final

from msgspec.structs import replace

from kvcore.advice.roofline import decode_bound, peak_flops, token_flops
from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.numbers import DASH, concurrency_text, count, share_text, short_number
from kvcore.base.units import GIB, rounded
from kvcore.base.words import Words, msg
from kvcore.charts import plotting as draw
from kvcore.charts.link_figures import LinkFigures
from kvcore.charts.summary import Card, Outcome, Sentence
from kvcore.evidence.carry import carried_over
from kvcore.planning import Plan, plan
from kvcore.replay.clock import BoundClock, Clock, FittedClock
from kvcore.replay.reuse import Reuse
from kvcore.replay.series import Latency, Replay, Replays, over_replicas
from kvcore.replay.settings import Settings, settings_of
from kvcore.replay.trace import TraceRequest
from kvcore.scenario import Scenario

HEIGHT: Final = 420
WAITING_COLOR: Final = "#E69F00"
_MANY_TOKENS: Final = 1_000_000
REPLICAS: Final = "replicas"
FIELDS: Final = ("max_num_seqs", "gpu_memory_utilization", "tensor_parallel_size", "kv_cache_dtype", REPLICAS)
"""Fields whose values the same trace can be replayed over; replicas take the requests in turn."""
REPLICA_COUNTS: Final = (1, 2, 4, 8)
OTHER_ENGINES: Final = frozenset({"tensor_parallel_size", "kv_cache_dtype"})
"""Fields whose change makes a benchmark of the first engine say nothing about the other."""


def bound_clock(planned: Plan) -> BoundClock:
    """A clock by which a step takes as long as reading its weights and its requests' keys and values, or as computing
    its tokens.

    Raises WorkloadError `replay-no-bandwidth` without the card's bandwidth.
    """
    bound = decode_bound(planned, 1, _MANY_TOKENS)
    if bound is None:
        raise WorkloadError("replay-no-bandwidth", field="accelerator", value=planned.accelerator.id)
    return BoundClock(
        weight_bytes=bound.weight_bytes,
        kv_bytes_per_token=bound.kv_bytes / _MANY_TOKENS,
        bandwidth=bound.bandwidth_bytes_per_second,
        flops_per_token=token_flops(planned),
        peak_flops=peak_flops(planned),
    )


def variants(base: Scenario, field: str) -> tuple[tuple[str, Scenario], ...]:
    """The scenario at several values of one of FIELDS, each with its name.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
        >>> [name for name, _ in variants(base, "tensor_parallel_size")]
        ['1', '2', '4', '8']
    """
    values: tuple[Any, ...]
    match field:
        case "tensor_parallel_size":
            values = (1, 2, 4, 8)
            made = [
                replace(base, parallel=replace(base.parallel, tensor_parallel_size=value)) for value in values
            ]
        case "kv_cache_dtype":
            values = ("auto", "fp8")
            made = [replace(base, kv_cache_dtype=value) for value in values]
        case "gpu_memory_utilization":
            values = (0.8, 0.85, 0.9, 0.95)
            made = [replace(base, gpu_memory_utilization=value) for value in values]
        case _:
            values = (16, 32, 64, 128, 256, 512)
            made = [replace(base, max_num_seqs=value) for value in values]
    return tuple((str(value), carried_over(base, one)) for value, one in zip(values, made, strict=True))


Compared = list[tuple[str, Replays | KvPlannerError]]


def comparing(
    planned: Plan, requests: Sequence[TraceRequest], clock: Clock, field: str
) -> Generator[tuple[int, int], None, Compared]:
    """Replays the trace at each value of one of FIELDS: its name, and the replay or the error.

    A bound is that of each engine; rates and a fit are kept, but a fit not for OTHER_ENGINES.
    """
    keeps_clock = not isinstance(clock, BoundClock) and not (
        isinstance(clock, FittedClock) and field in OTHER_ENGINES
    )
    found: Compared = []
    if field == REPLICAS:
        cases = [(str(number), planned.scenario, number) for number in REPLICA_COUNTS]
    else:
        cases = [(name, scenario, 1) for name, scenario in variants(planned.scenario, field)]
    for name, scenario, replicas in cases:
        try:
            one = planned if field == REPLICAS else plan(scenario)
            used = clock if keeps_clock else bound_clock(one)
            found.append((name, (yield from over_replicas(requests, settings_of(one), used, replicas))))
        except KvPlannerError as error:
            found.append((name, error))
    return found


def replay_report(found: Replay) -> dict[str, Any]:
    """The whole replay as JSON."""
    points = [
        {
            "seconds": rounded(point.start),
            "kv_usage": rounded(point.used / point.seconds / found.usable_blocks),
            "kv_usage_most": rounded(point.most_used / found.usable_blocks),
            "running": rounded(point.running / point.seconds),
            "waiting": rounded(point.waiting / point.seconds),
            "preemptions": point.preempted,
        }
        for point in found.points
        if point.seconds
    ]
    return {
        "clock": found.clock.value,
        "requests": found.requests,
        "seconds": rounded(found.seconds),
        "steps": found.steps,
        "kv_usage_most": rounded(found.peak_usage),
        "mean_running": rounded(found.mean_running),
        "preemptions": found.preemptions,
        "first_preemption_seconds": found.first_preemption,
        "prefix_hit_rate": None if found.hit_rate is None else rounded(found.hit_rate),
        "answers_cut": found.answers_cut,
        "ttft_seconds": _latency(found.ttft),
        "tpot_seconds": _latency(found.tpot),
        "series": points,
    }


def fit_report(fit: FittedClock) -> dict[str, Any]:
    """A fitted clock as JSON: seconds, and relative errors on requests held out."""
    held = fit.held_out
    return {
        "step_seconds": {"fixed": fit.a, "token": fit.b, "context_token": fit.c},
        "outside_seconds": fit.outside,
        "max_num_batched_tokens": fit.batched_tokens or None,
        "held_out": {
            "requests": held.requests,
            "ttft_median_error": known(held.ttft),
            "tpot_median_error": known(held.tpot),
            "ttft_p95_error": known(held.ttft_p95),
            "tpot_p95_error": known(held.tpot_p95),
        },
    }


def known(error: float) -> float | None:
    """A relative error as JSON has it; None where it is not known."""
    return rounded(error) if math.isfinite(error) else None


def fit_table(fit: FittedClock) -> str:
    """A fitted clock in lines for a terminal."""
    held = fit.held_out
    rows = [
        ("a step takes", f"{short_number(fit.a * 1e3)} ms + {short_number(fit.b * 1e6)} µs a token + "
                         f"{short_number(fit.c * 1e9)} ns a cached token"),
        ("TTFT outside of steps", f"{short_number(fit.outside * 1e3)} ms"),
        (f"off on {held.requests} held out", f"TTFT {error_text(held.ttft)}, TPOT {error_text(held.tpot)} in the "
            f"median; P95 {error_text(held.ttft_p95, '+')} and {error_text(held.tpot_p95, '+')}"),
    ]  # fmt: skip
    return "\n".join(f"{name:<24}{value}" for name, value in rows)


def error_text(error: float, sign: str = "") -> str:
    """A relative error in percent.

    Example:
        >>> error_text(0.0213), error_text(-0.4, "+")
        ('2.1 %', '-40.0 %')
    """
    return f"{100 * error:{sign}.1f} %" if math.isfinite(error) else DASH


def _latency(found: Latency | None) -> dict[str, float] | None:
    return None if found is None else {"p50": found.p50, "p95": found.p95, "p99": found.p99}


def replay_table(found: Replay) -> str:
    """The totals as a table for a terminal."""
    rows = [
        ("clock", found.clock.value),
        ("requests", count(found.requests)),
        ("seconds", f"{found.seconds:,.1f}"),
        ("steps", count(found.steps)),
        ("KV use at most", f"{100 * found.peak_usage:.1f} %"),
        ("running on average", f"{found.mean_running:.1f}"),
        ("preemptions", count(found.preemptions)),
        ("prefix hit rate", "unknown" if found.hit_rate is None else f"{100 * found.hit_rate:.1f} %"),
    ]
    for name, latency in (("TTFT", found.ttft), ("TPOT", found.tpot)):
        if latency is not None:
            rows.append(
                (
                    f"{name} P50 / P95 / P99",
                    " / ".join(map(short_number, (latency.p50, latency.p95, latency.p99))) + " s",
                )
            )
    return "\n".join(f"{name:<24}{value:>16}" for name, value in rows)


class Hits(IntEnum):
    """What is known of the prefix hit rate."""

    OFF = 0
    """Prefix caching is off."""
    UNKNOWN = 1
    """The log does not say which prompts begin alike."""
    KNOWN = 2


class ReplayFigures(LinkFigures, frozen=True, kw_only=True):
    """A replay in so few numbers that a link carries it; the log itself is in no link.

    Example:
        >>> ReplayFigures.decode("0123abcd_1_240_1_6000_0.25_3.5_0_0_0_1_0_16_0_0").peak_usage
        0.25
    """

    parameter = "replayed"
    is_logged: int
    """1 where the requests came at the times of a log, 0 where at random."""
    requests: int
    rate: float
    """Multiple of the log's own rate, or requests a second where they came at random."""
    usable_blocks: int
    peak_usage: float
    mean_running: float
    mean_waiting: float
    preemptions: int
    first_preemption: float
    """Seconds after the first arrival; 0 where nothing is preempted."""
    hits: int
    """One of Hits."""
    hit_rate: float
    times: int
    """How many times this traffic one replica carries; 0 where that is not known."""
    ttft_p95: float
    """Seconds; 0, as the next, where the clock says nothing of latency."""
    tpot_p95: float

    @property
    def keeps_up(self) -> bool:
        """Whether nothing is preempted, and less than one request waits on average."""
        return not self.preemptions and self.mean_waiting < 1


def replay_figures(
    found: Replay, times: int | None, worked_on: str, rate: float, *, is_logged: bool
) -> ReplayFigures:
    """The figures of a replay, as rounded as the link."""
    has_latency = found.ttft is not None and found.tpot is not None
    return ReplayFigures(
        worked_on=worked_on,
        is_logged=int(is_logged),
        requests=found.requests,
        rate=rate,
        usable_blocks=found.usable_blocks,
        peak_usage=found.peak_usage,
        mean_running=found.mean_running,
        mean_waiting=found.mean_waiting,
        preemptions=found.preemptions,
        first_preemption=found.first_preemption or 0.0,
        hits=int(known_hits(found)),
        hit_rate=found.hit_rate or 0.0,
        times=times or 0,
        ttft_p95=found.ttft.p95 if found.ttft is not None and has_latency else 0.0,
        tpot_p95=found.tpot.p95 if found.tpot is not None and has_latency else 0.0,
    ).as_in_link()


def replay_cards(found: ReplayFigures, t: Words) -> tuple[Card, ...]:
    """The totals of a replay as cards."""
    cards = [
        (t("KV use at most"), share_text(found.peak_usage, t),
         t("of {blocks} blocks", blocks=count(found.usable_blocks))),
        (t("Running on average"), concurrency_text(found.mean_running),
         t("{requests} {requests:request|requests} in all", requests=count(found.requests))),
        (t("Preemptions"), count(found.preemptions),
         t("the first after {seconds} s", seconds=f"{found.first_preemption:,.1f}") if found.preemptions
         else t("none")),
        (t("Prefix hit rate"), *_hit_texts(found.hits, found.hit_rate, t)),
    ]  # fmt: skip
    if found.ttft_p95:
        cards.append((t("TTFT, P95"), t("{seconds} s", seconds=short_number(found.ttft_p95)),
                      t("by the clock that you gave: an estimate")))  # fmt: skip
        cards.append((t("TPOT, P95"), t("{seconds} s", seconds=short_number(found.tpot_p95)),
                      t("by the clock that you gave: an estimate")))  # fmt: skip
    return tuple(Card(label=label, value=value, note=note) for label, value, note in cards)


def known_hits(found: Replay | Replays) -> Hits:
    """What a replay knows of its prefix hit rate."""
    if found.hit_rate is not None:
        return Hits.KNOWN
    parts = found.parts if isinstance(found, Replays) else (found,)
    return Hits.UNKNOWN if any(part.query_tokens for part in parts) else Hits.OFF


def hit_texts(found: Replay | Replays, t: Words) -> tuple[str, str]:
    """The prefix hit rate, and what it is of or why it is not known."""
    return _hit_texts(known_hits(found), found.hit_rate or 0.0, t)


def _hit_texts(hits: int, rate: float, t: Words) -> tuple[str, str]:
    if hits == Hits.KNOWN:
        return share_text(rate, t), t("of the prompt tokens that were looked up")
    if hits == Hits.UNKNOWN:
        return t("unknown"), t("the log does not say which prompts begin alike")
    return DASH, t("prefix caching is off")


def replay_verdict(found: ReplayFigures, t: Words) -> Sentence:
    """What a replay says of the deployment: whether one replica carries the traffic, and how many times."""
    peak = share_text(found.peak_usage, t)
    if found.preemptions:
        said = t(
            "The KV cache overflows: {count} {count:preemption|preemptions} in {requests} requests. One replica does "
            "not carry this traffic; compare replicas or other settings below.",
            count=count(found.preemptions), requests=count(found.requests),
        )  # fmt: skip
    elif not found.keeps_up:
        said = t(
            "{waiting} requests wait on average, while at most {peak} of the KV cache is in use: one replica does not "
            "keep up with this traffic.",
            waiting=concurrency_text(found.mean_waiting), peak=peak,
        )  # fmt: skip
    elif found.times > 1:
        said = t("At most {peak} of the KV cache is in use: one replica carries {times} times this traffic.",
                 peak=peak, times=str(found.times))  # fmt: skip
    else:
        said = t("At most {peak} of the KV cache is in use: one replica carries this traffic.", peak=peak)
    return Sentence(outcome=Outcome.FITS if found.keeps_up else Outcome.CAUTION, text=said)


def minute_sentence(found: Replay, arrivals: int, t: Words) -> str:
    """The same of the busiest minute of a log, in one line."""
    return t(
        "Busiest minute ({arrivals} requests): at most {peak} of the KV cache is in use.",
        arrivals=count(arrivals), peak=share_text(found.peak_usage, t),
    ) if found.keeps_up else t(
        "Busiest minute ({arrivals} requests): one replica does not keep up, with {peak} of the KV cache in use.",
        arrivals=count(arrivals), peak=share_text(found.peak_usage, t),
    )  # fmt: skip


_UNITS: Final = ((3600.0, msg("hours")), (60.0, msg("minutes")), (1.0, msg("seconds")))


def time_unit(seconds: float) -> tuple[float, str]:
    """The seconds of the unit in which a span of time reads well, and its name, to be translated.

    Example:
        >>> time_unit(170), time_unit(3500), time_unit(90000)
        ((1.0, 'seconds'), (60.0, 'minutes'), (3600.0, 'hours'))
    """
    return next((one for one in _UNITS if seconds >= 3 * one[0]), _UNITS[-1])


def replay_chart(found: Replay, t: Words) -> draw.Figure:
    """KV use above, requests that run and wait below, and preemptions as marks, over time."""
    points = [point for point in found.points if point.seconds]
    unit, name = time_unit(found.seconds)
    times = [point.start / unit for point in points]
    usage = [100 * point.most_used / found.usable_blocks for point in points]
    running = [point.running / point.seconds for point in points]
    waiting = [point.waiting / point.seconds for point in points]
    hit = [at for at, point in enumerate(points) if point.preempted]
    data = [
        draw.scatter("lines", times, usage, t("KV use {value} %", value="%{y:.1f}"), name="kv", yaxis="y2",
                     line=draw.stroke(draw.CURRENT_LINE, 2)),
        draw.scatter("lines", times, running, t("running {value}", value="%{y:.1f}"), name="running",
                     line=draw.stroke("#009E73", 2)),
        draw.scatter("lines", times, waiting, t("waiting {value}", value="%{y:.1f}"), name="waiting",
                     line=draw.stroke(WAITING_COLOR, 2, "dash")),
        draw.scatter("markers", [times[at] for at in hit], [usage[at] for at in hit],
                     [t("{count} preempted", count=count(points[at].preempted)) for at in hit], name="preempted",
                     yaxis="y2", marker={"color": draw.CAPACITY, "symbol": "x", "size": 7}),
    ]  # fmt: skip
    return draw.figure(
        data,
        HEIGHT,
        (56, 16, 16, 46),
        showlegend=False,
        hovermode="closest",
        xaxis=draw.axis(t(name), 6, anchor="y"),
        yaxis=draw.axis(t("requests"), 8, domain=[0, 0.46], rangemode="tozero"),
        yaxis2=draw.axis(t("KV use, %"), 8, domain=[0.54, 1], range=[0, 105]),
    )


REUSE_HEIGHT: Final = 300


def block_gib(planned: Plan) -> float:
    """The size of a block on all ranks of a replica, in GiB."""
    bytes_per_block = planned.cache.bytes_per_block if planned.cache is not None else 0
    parallel = planned.scenario.parallel
    return bytes_per_block * parallel.tensor_parallel_size / GIB


def reuse_report(found: Reuse, settings: Settings, gib: float) -> dict[str, Any]:
    """The hit rate by cache size as JSON; sizes in blocks and in GiB of the replica."""
    knee = found.knee_blocks()
    return {
        "sampled": found.sampled,
        "now": {
            "blocks": settings.usable_blocks,
            "hit_rate": rounded(found.hit_rate(settings.usable_blocks)),
        },
        "knee": {"blocks": knee, "gib": rounded(knee * gib), "hit_rate": rounded(found.hit_rate(knee))},
        "most": rounded(found.most),
        "curve": [
            {"blocks": blocks, "gib": rounded(blocks * gib), "hit_rate": rounded(rate)}
            for blocks, rate in found.curve()
        ],
    }


def reuse_table(report: dict[str, Any]) -> str:
    """Hit rates at the sizes that matter, as a table for a terminal."""
    now, knee = report["now"], report["knee"]
    rows = (
        ("hits of the pool now", f"{100 * now['hit_rate']:.1f} %"),
        ("hits at the knee", f"{100 * knee['hit_rate']:.1f} %"),
        ("cache at the knee", f"{knee['gib']:.1f} GiB"),
        ("hits at most", f"{100 * report['most']:.1f} %"),
    )
    return "\n".join(f"{name:<24}{value:>16}" for name, value in rows)


def reuse_chart(found: Reuse, settings: Settings, gib: float, t: Words) -> draw.Figure:
    """Hit rate over cache size, with the present pool and the knee marked."""
    curve = found.curve()
    sizes = [blocks * gib for blocks, _ in curve]
    rates = [100 * rate for _, rate in curve]
    knee, now = found.knee_blocks(), settings.usable_blocks
    data = [
        draw.scatter("lines", sizes, rates, t("{size} GiB find {rate} %", size="%{x:.2f}", rate="%{y:.1f}"),
                     name="curve", line=draw.stroke(draw.CURRENT_LINE, 2.5)),
        draw.scatter("markers+text", [knee * gib], [100 * found.hit_rate(knee)], name="knee", text=[t("knee")],
                     textposition="top left", marker={"color": draw.CAPACITY, "size": 10, "symbol": "diamond"}),
        draw.scatter("markers+text", [now * gib], [100 * found.hit_rate(now)], name="now", text=[t("now")],
                     textposition="bottom right", marker={"color": draw.OPERATING_POINT, "size": 10}),
    ]  # fmt: skip
    low, high = min(sizes[0], now * gib), max(sizes[-1], now * gib)
    return draw.figure(
        data,
        REUSE_HEIGHT,
        (56, 16, 16, 46),
        showlegend=False,
        hovermode="closest",
        xaxis=draw.log_axis(low * 0.9, high * 1.1, t("cache of a replica, GiB")),
        yaxis=draw.axis(t("prefix hit rate, %"), 8, range=[0, max(rates) * 1.15 + 1]),
    )


def reuse_sentence(
    found: Reuse, settings: Settings, gib: float, t: Words, knee_tier_gib: float | None = None
) -> str:
    """How much the cache finds now, at the knee and at most, and the tier in CPU memory that the knee takes."""
    knee, now = found.knee_blocks(), settings.usable_blocks
    said = t(
        "The {size} GiB of now find {rate} of the prompt tokens; {knee} GiB find {knee_rate}, and more buys less; a "
        "cache that forgets nothing finds {most}.",
        size=short_number(now * gib), rate=share_text(found.hit_rate(now), t), knee=short_number(knee * gib),
        knee_rate=share_text(found.hit_rate(knee), t), most=share_text(found.most, t),
    )  # fmt: skip
    if knee_tier_gib is not None:
        said += " " + t("A tier in CPU memory reaches it with {flag}: it keeps what the GPUs have too.",
                        flag=f"--kv-offloading-size {knee_tier_gib:g}")  # fmt: skip
    return said
