"""Duration of an engine step: the shortest that the card allows, by rates of the user, or fitted to a benchmark."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final, Protocol

from msgspec import Struct

from kvcore.base.errors import WorkloadError, invalid
from kvcore.replay.scheduler import Scheduler

MAX_SAMPLES: Final = 20_000
"""Steps of a benchmark that a clock is fitted to."""
FEWEST_SAMPLES: Final = 30
SHORTEST_GAP: Final = 1e-6
"""Seconds; after a shorter gap the token came in one message with the one before it."""
MAX_BENCH_BYTES: Final = 64 << 20
"""Size of a result file on the command line; the page takes less."""
MAX_BENCH_VALUES: Final = 1 << 22
"""Values of a result file, which has the gaps between the tokens of all answers."""


class ClockKind(StrEnum):
    """Source of the step times."""

    BOUND = "bound"
    USER = "user"
    FITTED = "fitted"


class Clock(Protocol):
    """Gives the duration of a step by its tokens."""

    @property
    def kind(self) -> ClockKind:
        """Source of the times; latencies are given only for measured times."""

    def seconds(self, step: Scheduler) -> float:
        """Duration of the step just scheduled."""


class BoundClock(Struct, frozen=True, kw_only=True):
    """Shortest possible step: it reads the weights and the KV cache of the running requests once. Gives no latency.

    max((weights + kv × context) / bandwidth, flops × tokens / peak)
    """

    weight_bytes: float
    """Bytes read in every step, on one rank."""
    kv_bytes_per_token: float
    bandwidth: float
    """Bytes per second, from the data sheet."""
    flops_per_token: float = 0.0
    peak_flops: float = math.inf
    kind: ClockKind = ClockKind.BOUND

    def seconds(self, step: Scheduler) -> float:
        """The longer of bytes / bandwidth and operations / peak."""
        memory = (self.weight_bytes + self.kv_bytes_per_token * step.context_tokens) / self.bandwidth
        return max(memory, self.flops_per_token * step.tokens / self.peak_flops)


class UserClock(Struct, frozen=True, kw_only=True):
    """Rates given by the user: prompt tokens per second of the engine, answer tokens per second of one request."""

    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    kind: ClockKind = ClockKind.USER

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_second", "decode_tokens_per_second"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 1e-3 <= value <= 1e9):
                raise invalid(name, value, "it must lie between 0.001 and 10^9 tokens a second")

    def seconds(self, step: Scheduler) -> float:
        """prompt tokens / prefill rate, plus one decoding step if any request decodes."""
        decoding = step.tokens > step.prefill_tokens
        return step.prefill_tokens / self.prefill_tokens_per_second + decoding / self.decode_tokens_per_second


class FittedClock(Struct, frozen=True, kw_only=True):
    """a + b × tokens + c × context, fitted to the steps of a benchmark."""

    a: float
    b: float
    c: float
    off: float
    """Median relative error on the second half of the benchmark, of a fit to the first half."""
    kind: ClockKind = ClockKind.FITTED

    def seconds(self, step: Scheduler) -> float:
        """a + b × tokens of the step + c × cached tokens of the running requests."""
        return self.a + self.b * step.tokens + self.c * step.context_tokens


Sample = tuple[float, float, float]
"""Tokens of a step, context tokens of the running requests, seconds."""


def fitted_clock(result: Mapping[str, Any]) -> FittedClock:
    """Fits a clock to the detailed result of `vllm bench serve --save-result --save-detailed`.

    The gaps between the tokens of a stream are steps; what else ran then follows from the starts and streams of all
    requests. Raises WorkloadError `bench-unusable`.

    Example:
        >>> gaps = [[0.01 + 2e-5 + 1e-8 * (1000 + token) for token in range(20)] for _ in range(4)]
        >>> result = {"start_times": [0, 1, 2, 3], "input_lens": [1000] * 4, "ttfts": [0.1] * 4, "itls": gaps}
        >>> fitted_clock(result).off < 0.01
        True

    Source: vllm/benchmarks/serve.py:main_async, result keys input_lens, ttfts, itls, start_times (0.19.0, 0.32.0).
    """
    samples = _samples(result)
    if len(samples) < FEWEST_SAMPLES:
        raise WorkloadError("bench-unusable", field="bench", steps=len(samples), least=FEWEST_SAMPLES)
    half = len(samples) // 2
    a, b, c = least_squares(samples[:half])
    errors = sorted(
        abs(a + b * tokens + c * context - time) / time for tokens, context, time in samples[half:]
    )
    off = errors[len(errors) // 2]
    a, b, c = least_squares(samples)
    return FittedClock(a=a, b=b, c=c, off=off)


def _samples(result: Mapping[str, Any]) -> list[Sample]:
    columns = [result.get(name) for name in ("start_times", "input_lens", "ttfts", "itls")]
    if not all(isinstance(column, list) and column for column in columns):
        raise WorkloadError("bench-unusable", field="bench", steps=0, least=FEWEST_SAMPLES)
    rows: list[tuple[float, int, list[float]]] = []
    for start, prompt, first, gaps in zip(*columns, strict=False):
        if not (_is_time(start) and _is_time(first) and type(prompt) is int and isinstance(gaps, list)):
            continue
        if all(map(_is_time, gaps)) and 0 < prompt < 1 << 26:
            rows.append((start + first, prompt, gaps))
    events: list[tuple[float, int, int, int]] = []
    for first_token, prompt, gaps in rows:
        end = first_token + sum(gaps)
        events.append((first_token, 1, prompt, prompt))
        events.append((end, -1, -prompt - len(gaps), 0))
    return _walked(sorted(events), sorted(rows, key=lambda row: row[0]))


def _walked(
    events: list[tuple[float, int, int, int]], rows: list[tuple[float, int, list[float]]]
) -> list[Sample]:
    """Samples from the gaps of the streams: requests that decode, and prompts that reach their first token in a gap."""
    gaps: list[tuple[float, float]] = []
    stride = 1 + sum(len(row[2]) for row in rows) // MAX_SAMPLES
    seen = 0
    for start, _, times in rows:
        at = start
        for gap in times:
            seen += 1
            if gap >= SHORTEST_GAP and seen % stride == 0:
                gaps.append((at, at + gap))
            at += gap
    found: list[Sample] = []
    times = [event[0] for event in events]
    begun = [0, *accumulate(event[3] for event in events)]
    running = context = at_event = 0
    for start, end in sorted(gaps):
        while at_event < len(events) and times[at_event] <= start:
            running += events[at_event][1]
            context += events[at_event][2]
            at_event += 1
        prompts = begun[bisect_right(times, end)] - begun[at_event]
        found.append((float(running + prompts), float(max(0, context) + prompts), end - start))
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def least_squares(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """a, b and c of a + b x tokens + c x context, all at least 0, with the least relative squares.

    Example:
        >>> rows = [(n, k, 0.01 + 2e-5 * n + 1e-8 * k) for n in (1, 8, 64) for k in (1000, 50_000)]
        >>> [f"{value:.1e}" for value in least_squares(rows)]
        ['1.0e-02', '2.0e-05', '1.0e-08']
    """
    best: tuple[float, tuple[float, float, float]] | None = None
    for used in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,)):
        found = _solve(samples, used)
        if found is None or not all(math.isfinite(value) and value >= 0 for value in found):
            continue
        error = sum(((found[0] + found[1] * n + found[2] * k) / time - 1) ** 2 for n, k, time in samples)
        if best is None or error < best[0] * (1 - 1e-9):
            best = error, found
    if best is None:
        raise WorkloadError("bench-unusable", field="bench", steps=len(samples), least=FEWEST_SAMPLES)
    return best[1]


def _solve(samples: Sequence[Sample], used: Sequence[int]) -> tuple[float, float, float] | None:
    """The normal equations of the columns `used`, by elimination; None if they are singular."""
    size = len(used)
    scale = [max((1.0, n, k)[at] for n, k, _ in samples) or 1.0 for at in used]
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for n, k, time in samples:
        row = [(1.0, n, k)[at] / (time * width) for at, width in zip(used, scale, strict=True)]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += row[i] * row[j]
            matrix[i][size] += row[i]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) <= 1e-12 * max(1.0, abs(matrix[0][0])):
            return None
        for r in range(size):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [x - factor * y for x, y in zip(matrix[r], matrix[i], strict=True)]
    found = [0.0, 0.0, 0.0]
    for i, at in enumerate(used):
        found[at] = matrix[i][size] / matrix[i][i] / scale[i]
    return found[0], found[1], found[2]
