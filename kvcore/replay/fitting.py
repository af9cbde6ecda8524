"""Fits a clock to a benchmark, and tells how far it is from requests that it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul
from statistics import median
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import WorkloadError
from kvcore.replay.bench import BenchRequest, StepSample, answer_samples, bench_requests, step_samples
from kvcore.replay.clock import FEWEST_SAMPLES, FittedClock, HeldOut, Sample, least_squares
from kvcore.replay.hybrid import scheduler_of
from kvcore.replay.series import Latency
from kvcore.replay.settings import TABLE, Settings, rules_of
from kvcore.replay.trace import TraceRequest

FEWEST_REQUESTS: Final = 20
MAX_REPLAYED: Final = 1000
"""Requests of a replay of a fit, which bounds its time."""
MAX_STEPS: Final = 40_000
MAX_TRIED: Final = 200
"""Requests by whose steps max_num_batched_tokens is found."""
MAX_SAMPLES: Final = 8000
"""Steps of a fit without prompts, and with; of more, every so many."""
BUDGETS: Final = (2048, 8192, 16384, 32768)
"""Values of max_num_batched_tokens that vLLM takes by itself, by card and use.

Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.32.0)."""
CLEARLY: Final = 0.5
"""Share of the plan's error below which another value is that of the benchmark."""
OUTLIERS: Final = 4.0
"""Median deviations beyond which a step is taken for a stall and left out."""
LEAST_SPREAD: Final = 0.01
LEAST_MORE: Final = 16
"""Tokens that a step has at least more than others for a token's time to be known."""
MOST_UNCERTAIN: Final = 0.25
"""Share of the time of a prompt that may be uncertain before a token's time counts as unknown."""
_MANY: Final = 1 << 40
"""Bytes and blocks without a limit."""


def fitted_clock(
    result: Mapping[str, Any] | Sequence[BenchRequest], settings: Settings | None = None
) -> FittedClock:
    """Fits a clock to the result of a benchmark of vLLM with the times of each request.

    The steps behind the gaps between tokens are found, each with the prompts that it computed; where a result has only
    means of each request, all steps of an answer together. The error is that of a fit to the first half of the
    requests, replayed over the arrivals and compared on the second half.

    Raises WorkloadError as `bench_requests`, `bench-unusable`, and `bench-all-alike` where the time of a token cannot
    be told from that of a step.

    Example:
        >>> gaps = [[0.01 + 2e-5 + 1e-8 * (1000 + token) for token in range(20)] for _ in range(40)]
        >>> result = {"start_times": [*range(40)], "input_lens": [1000] * 40, "ttfts": [0.1] * 40, "itls": gaps}
        >>> fitted_clock(result).held_out.ttft < 0.01
        True
    """
    rows = bench_requests(result) if isinstance(result, Mapping) else tuple(result)
    settings = settings or _without_limits()
    rows = tuple(row for row in rows if row.prompt < settings.max_model_len)
    if len(rows) < FEWEST_REQUESTS:
        raise WorkloadError("bench-unusable", field="bench", steps=len(rows), least=FEWEST_REQUESTS)
    settings = replace(settings, enable_prefix_caching=False)
    first = rows[: len(rows) // 2]
    with_gaps = sum(row.gaps is not None for row in rows) * 2 >= len(rows)
    settings = replace(
        settings,
        max_num_batched_tokens=_budget(rows, settings) if with_gaps else settings.max_num_batched_tokens,
    )
    samples = step_samples(rows, settings.max_num_batched_tokens) if with_gaps else answer_samples(rows)
    until = first[-1].start + first[-1].ttft
    half = _fit([one for one in samples if one.end <= until] or samples, first, settings)
    tokens = settings.max_num_batched_tokens if with_gaps else 0
    held_out = _held_out(rows, half, settings)
    return replace(_fit(samples, rows, settings), held_out=held_out, batched_tokens=tokens)


_UNKNOWN: Final = HeldOut(requests=0, ttft=math.nan, tpot=math.nan, ttft_p95=math.nan, tpot_p95=math.nan)


def _without_limits() -> Settings:
    """An engine in whose cache everything fits, with vLLM's own number of tokens a step."""
    return Settings(
        num_blocks=_MANY, max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=1 << 24,
        rules=rules_of(TABLE.load().reviewed), enable_prefix_caching=False,
    )  # fmt: skip


def _fit(found: Sequence[StepSample], rows: Sequence[BenchRequest], settings: Settings) -> FittedClock:
    """A fit to steps, without those far from it, in which the engine stalled; and, by a replay, the part of TTFTs that
    is in no step."""
    if len(found) < FEWEST_SAMPLES:
        raise WorkloadError("bench-unusable", field="bench", steps=len(found), least=FEWEST_SAMPLES)
    found = [
        one
        for kind in (False, True)
        for one in _thinned([sample for sample in found if (sample.prefill > 0) is kind])
    ]
    kept = list(found)
    for _ in range(3):
        samples = list(map(_sample, kept))
        rates = least_squares(samples)
        off = [(one, _off(_sample(one), rates)) for one in found]
        # Prompts are in few steps: they are judged among themselves.
        usual = {
            kind: OUTLIERS * median(errors) + LEAST_SPREAD
            for kind in (False, True)
            if (errors := [error for one, error in off if (one.prefill > 0) is kind])
        }
        kept = [one for one, error in off if error <= usual[one.prefill > 0]]
    _check_told_apart(samples, rates)
    a, b, c, _ = rates
    clock = FittedClock(a=a, b=b, c=c, held_out=_UNKNOWN)
    part = rows[:MAX_REPLAYED]
    times = replayed_times(part, settings, clock)
    late = [row.ttft - seen for row, seen in zip(part, times.ttft, strict=True) if seen is not None]
    return replace(clock, outside=max(0.0, median(late)) if late else 0.0)


def _thinned(samples: Sequence[StepSample]) -> Sequence[StepSample]:
    """Every so many of them, so that there are at most MAX_SAMPLES."""
    return samples[:: 1 + len(samples) // MAX_SAMPLES]


def _budget(rows: Sequence[BenchRequest], settings: Settings) -> int:
    """max_num_batched_tokens of the benchmark: that of the plan, unless its steps clearly say another of BUDGETS."""

    given = settings.max_num_batched_tokens
    tried = {
        budget: list(map(_sample, step_samples(rows[:MAX_TRIED], budget)))
        for budget in dict.fromkeys((given, *BUDGETS))
    }
    most = max(map(len, tried.values()))
    if min(map(len, tried.values())) < FEWEST_SAMPLES:
        return given
    errors = {}
    for budget, samples in tried.items():
        rates = least_squares(samples)
        # A step that a budget has no room for is wholly wrong.
        errors[budget] = (sum(_off(one, rates) for one in samples) + most - len(samples)) / most
    best = min(errors, key=lambda budget: (errors[budget], -budget))
    return best if errors[best] + LEAST_SPREAD / 10 < CLEARLY * errors[given] else given


def _sample(one: StepSample) -> Sample:
    return float(one.steps), float(one.tokens), one.context, float(one.idle), one.seconds


def _off(sample: Sample, rates: Sequence[float]) -> float:
    """Relative error of a sample."""
    return float(abs(sum(map(mul, rates, sample)) / sample[4] - 1))


def _check_told_apart(samples: Sequence[Sample], rates: Sequence[float]) -> None:
    """Raises WorkloadError `bench-all-alike` where a token's time is not known: where no step has twice the tokens of
    others, or steps with more do not tell it within MOST_UNCERTAIN."""
    tokens = sorted(sample[1] / sample[0] for sample in samples)
    low, high = tokens[len(tokens) // 100], tokens[-1 - len(tokens) // 1000]
    large = [sample for sample in samples if sample[1] / sample[0] > (low + high) / 2]
    off = [_off(one, rates) for one in large]
    if high < 2 * low + LEAST_MORE or median(off) / math.sqrt(len(off)) > MOST_UNCERTAIN:
        raise WorkloadError("bench-all-alike", field="bench", most=int(high))


class Times(Struct, frozen=True, kw_only=True):
    """TTFT and TPOT of each request of a replay, in seconds; None for one that did not end."""

    ttft: list[float | None]
    tpot: list[float | None]


def replayed_times(rows: Sequence[BenchRequest], settings: Settings, clock: FittedClock) -> Times:
    """The times of a benchmark's requests when its arrivals are replayed, up to MAX_STEPS."""
    trace = [
        TraceRequest(
            id=str(at), arrival=row.start - rows[0].start, prompt=((f"own {at}", row.prompt),),
            answer_tokens=row.answer,
        )
        for at, row in enumerate(rows)
    ]  # fmt: skip
    scheduler = scheduler_of(settings, trace)
    times = Times(ttft=[None] * len(trace), tpot=[None] * len(trace))
    firsts: list[float] = [0.0] * len(trace)
    now, at = 0.0, 0
    for _ in range(MAX_STEPS):
        if not scheduler.running and not scheduler.waiting:
            if at == len(trace):
                break
            now = max(now, trace[at].arrival)
        while at < len(trace) and trace[at].arrival <= now:
            scheduler.add(at, trace[at])
            at += 1
        scheduler.step()
        seconds = clock.seconds(scheduler) if scheduler.tokens else 0.0
        # Async, a request is found ended a step after the one that computed its last token.
        last = now if settings.async_scheduling else now + seconds
        now += seconds
        for request in scheduler.started:
            firsts[request.at] = now
            times.ttft[request.at] = now - request.trace.arrival + clock.outside
        for request in scheduler.finished:
            if request.trace.answer_tokens > 1:
                tokens = request.trace.answer_tokens - 1
                times.tpot[request.at] = (last - firsts[request.at]) / tokens
    return times


def _held_out(rows: Sequence[BenchRequest], clock: FittedClock, settings: Settings) -> HeldOut:
    start = len(rows) // 2
    # The requests before those that are judged fill the engine.
    begin = 0 if start <= MAX_REPLAYED else start - MAX_REPLAYED // 2
    part = rows[begin : start + MAX_REPLAYED]
    found = replayed_times(part, settings, clock)
    pairs: dict[str, list[tuple[float, float]]] = {"ttft": [], "tpot": []}
    for at, row in enumerate(part):
        for name, seen in (("ttft", found.ttft[at]), ("tpot", found.tpot[at])):
            true = getattr(row, name)
            if begin + at >= start and seen is not None and true > 0:
                pairs[name].append((seen, true))
    return HeldOut(
        requests=len(pairs["ttft"]),
        ttft=_median_off(pairs["ttft"]),
        tpot=_median_off(pairs["tpot"]),
        ttft_p95=_p95_off(pairs["ttft"]),
        tpot_p95=_p95_off(pairs["tpot"]),
    )


def _median_off(pairs: Sequence[tuple[float, float]]) -> float:
    return median(abs(seen / true - 1) for seen, true in pairs) if pairs else math.nan


def _p95_off(pairs: Sequence[tuple[float, float]]) -> float:
    found, true = Latency.of([seen for seen, _ in pairs]), Latency.of([true for _, true in pairs])
    return found.p95 / true.p95 - 1 if found is not None and true is not None else math.nan
