"""Duration of an engine step: the shortest that the card allows, by rates of the user, or fitted to a benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain, combinations
from operator import mul
from typing import Final, Protocol

from msgspec import Struct

from kvcore.base.errors import WorkloadError, invalid
from kvcore.replay.scheduler import Scheduler

FEWEST_SAMPLES: Final = 30


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


class HeldOut(Struct, frozen=True, kw_only=True):
    """How far a fit to the first half of a benchmark is from the other half, replayed: relative errors."""

    requests: int
    """Requests of that half."""
    ttft: float
    """Median error of a request's TTFT."""
    tpot: float
    """Median error of a request's TPOT."""
    ttft_p95: float
    """Error of the 95th percentile, with its sign."""
    tpot_p95: float


class FittedClock(Struct, frozen=True, kw_only=True):
    """a + b × tokens + c × context, fitted to the steps of a benchmark."""

    a: float
    b: float
    c: float
    outside: float = 0.0
    """Seconds of every TTFT that are in no step: the way to the engine and back, and the tokenizer."""
    batched_tokens: int = 0
    """max_num_batched_tokens of the benchmark, by its steps; 0 where that is not known."""
    held_out: HeldOut
    kind: ClockKind = ClockKind.FITTED

    def seconds(self, step: Scheduler) -> float:
        """a + b × tokens of the step + c × cached tokens of the running requests."""
        return self.a + self.b * step.tokens + self.c * step.context_tokens


Sample = tuple[float, float, float, float, float]
"""Number of steps, their tokens, context tokens of the running requests, sendings in their time, seconds."""


def least_squares(samples: Sequence[Sample]) -> tuple[float, float, float, float]:
    """a, b, c and d of a x steps + b x tokens + c x context + d x sendings, all at least 0, with the least relative
    squares.

    Raises WorkloadError `bench-unusable`.

    Example:
        >>> rows = [(1, n, k, 0, 0.01 + 2e-5 * n + 1e-8 * k) for n in (1, 8, 64) for k in (1000, 50_000)]
        >>> [f"{value:.1e}" for value in least_squares(rows)]
        ['1.0e-02', '2.0e-05', '1.0e-08', '0.0e+00']
    """
    best: tuple[float, list[float]] | None = None
    columns = [at for at in range(4) if any(sample[at] for sample in samples)]
    for used in chain.from_iterable(combinations(columns, number) for number in range(len(columns), 0, -1)):
        found = _solve(samples, used)
        if found is None or not all(math.isfinite(value) and value >= 0 for value in found):
            continue
        error = sum((sum(map(mul, found, sample)) / sample[4] - 1) ** 2 for sample in samples)
        if best is None or error < best[0] * (1 - 1e-9):
            best = error, found
        if len(used) == len(columns):
            break  # no fit with fewer is nearer
    if best is None:
        raise WorkloadError("bench-unusable", field="bench", steps=len(samples), least=FEWEST_SAMPLES)
    a, b, c, d = best[1]
    return a, b, c, d


def _solve(samples: Sequence[Sample], used: Sequence[int]) -> list[float] | None:
    """The normal equations of the columns `used`, by elimination; None if they are singular."""
    size = len(used)
    scale = [max(sample[at] for sample in samples) or 1.0 for at in used]
    rows = [
        [sample[at] / (sample[4] * width) for at, width in zip(used, scale, strict=True)]
        for sample in samples
    ]
    columns = list(zip(*rows, strict=True))
    matrix = [[sum(map(mul, one, other)) for other in columns] + [sum(one)] for one in columns]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) <= 1e-12 * max(1.0, abs(matrix[0][0])):
            return None
        for r in range(size):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [x - factor * y for x, y in zip(matrix[r], matrix[i], strict=True)]
    found = [0.0] * 4
    for i, at in enumerate(used):
        found[at] = matrix[i][size] / matrix[i][i] / scale[i]
    return found
