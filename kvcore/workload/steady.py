"""Requests that a KV cache pool runs in the steady state, under load that never ends.

At a random moment a running request is one of the mix in proportion to its steps, and anywhere within its answer. So
with w requests of each (prompt p, answer a), and s(L) the share of the pool that L tokens take,

    m = Σ w Σ_j s(p + j) / Σ w a,  j from 0 to a - 1

is the mean share of one running request, whatever is preempted and computed again in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import Final

from msgspec import Struct

PARTS: Final = 16
"""Evenly spread moments of an answer that are evaluated."""
BITS: Final = 8
"""Leading bits of lengths: exact to 0.8 %."""
PREEMPTED: Final = 0.05
"""Preemptions per request that count as rare."""
EARNED: Final = 0.05
"""Largest deviation from the replay, over mixes of every kind (tests/test_steady.py)."""
FULL: Final = 0.75
"""Share of the time with demand above the pool in which the pool is really full: large prompts wait while blocks are
free. Fitted on the replay of eight mixes."""
MAX_SEATS: Final = 1 << 20
_Z80: Final = NormalDist().inv_cdf(0.9)
Shares = Callable[[Sequence[int]], Sequence[float]]
"""Returns the share of the pool that a request of each length takes."""


class Steady(Struct, frozen=True, kw_only=True):
    """The distribution of the running request at a random moment."""

    shares: tuple[float, ...]
    weights: tuple[float, ...]
    """Probabilities of the shares; they sum to 1."""
    growth: float
    """Mean growth of a request from admission to end, as a share of the pool."""
    first_share: float
    """Mean share of a request on admission."""
    first_squares: float
    """Mean of its square."""
    step_tokens: float
    """Mean tokens per step of one running request: its own, and its part of the prompts."""
    spread: float
    """Relative standard error of the mean share, by the number of requests counted."""

    @property
    def mean_share(self) -> float:
        """m: mean share of the pool of a running request."""
        return sum(share * weight for share, weight in zip(self.shares, self.weights, strict=True))

    def preemptions(self, seats: int) -> float:
        """Preemptions per request with `seats` requests running all the time.

        0.75 P(sum > 1) × growth / (first + growth / 2): as long as `seats` requests would take more than the pool, it
        stays full, and each growth by what the newest request takes costs one preemption. The probability is the
        saddlepoint approximation for a sum of `seats` independent requests.

        Example:
            >>> half = Steady(shares=(0.05, 0.15), weights=(0.5, 0.5), growth=0.1, first_share=0.05,
            ...               first_squares=0.0025, step_tokens=1, spread=0)
            >>> half.preemptions(5) < half.preemptions(8) < half.preemptions(10) < half.most_preemptions
            True
        """
        if seats * max(self.shares) <= 1:
            return 0.0
        if seats * min(self.shares) >= 1:
            return FULL * self.most_preemptions
        theta = self._tilt(1 / seats)
        log_mean, _, variance = self._tilted(theta)
        level = math.exp(min(seats * log_mean - theta, 0.0))
        reach = min(abs(theta) * math.sqrt(seats * variance), 30.0)
        tail = min(0.5, level * math.exp(reach * reach / 2) * NormalDist().cdf(-reach))
        return FULL * (tail if theta > 0 else 1 - tail) * self.most_preemptions

    @property
    def most_preemptions(self) -> float:
        """Preemptions per request in a pool that is always full: growth / (first + growth / 2)."""
        return self.growth / (self.first_share + self.growth / 2)

    def _tilt(self, mean: float) -> float:
        """The tilt at which a request takes `mean` on average; between the smallest and the largest share."""
        scale = 1 / max(self.shares)
        low, high = -scale, scale
        while self._tilted(low)[1] > mean and low > -1e9 * scale:
            low *= 2
        while self._tilted(high)[1] < mean and high < 1e9 * scale:
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            if self._tilted(middle)[1] < mean:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def _tilted(self, theta: float) -> tuple[float, float, float]:
        """log E[exp(theta x share)], and mean and variance of the share under that weight."""
        most = max(theta * min(self.shares), theta * max(self.shares))
        total = first = second = 0.0
        for share, weight in zip(self.shares, self.weights, strict=True):
            part = weight * math.exp(theta * share - most)
            total += part
            first += part * share
            second += part * share * share
        mean = first / total
        return math.log(total) + most, mean, max(0.0, second / total - mean * mean)

    def most_seats(self, preempted: float = PREEMPTED) -> int | None:
        """The largest max_num_seqs with no more than `preempted` preemptions a request; None where any number is.

        Example:
            >>> one = Steady(shares=(0.1, 0.2), weights=(0.5, 0.5), growth=0.1, first_share=0.1, first_squares=0.01,
            ...              step_tokens=1, spread=0)
            >>> one.most_seats(), one.most_seats(preempted=1)
            (5, None)
        """
        if FULL * self.most_preemptions <= preempted:
            return None
        low, high = 1, 2
        while high < MAX_SEATS and self.preemptions(high) <= preempted:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.preemptions(middle) <= preempted else (low, middle)
        return low

    def running(self, seats: int, batched_tokens: int) -> float:
        """Requests that run on average while others always wait: bounded by seats, tokens of a step, and the pool.

        What is free is less than the next request needs, half of it on average, and large ones wait longest:
        (1 - E[first²] / (2 E[first])) / m.
        """
        free = min(0.5, self.first_squares / (2 * self.first_share))
        pool = max(1.0, (1 - free) / self.mean_share)
        return min(float(seats), batched_tokens / self.step_tokens, pool)

    def reach(self) -> float:
        """Half of the 80 % interval of these figures, as a share: what was earned, and the sample of the log."""
        return math.hypot(EARNED, _Z80 * self.spread)


def steady_state(
    cells: Iterable[tuple[int, int, int]],
    shares: Shares,
    limit_tokens: int,
    *,
    is_async: bool,
    shared_tokens: int = 0,
) -> Steady | None:
    """The steady state of requests as (prompt, answer, how many), none longer than `limit_tokens`.

    With async scheduling a request stays a step longer: its last token is on the way. `shared_tokens` of every prompt
    are found in the cache.

    None where nothing is kept of a request, or there is none with an answer.

    Example:
        >>> found = steady_state([(100, 50, 1)], lambda lengths: [length / 1000 for length in lengths], 4096,
        ...                      is_async=False)
        >>> round(found.mean_share, 6), round(found.growth, 6)
        (0.1245, 0.049)
    """
    bins: dict[int, tuple[float, float]] = {}
    ends: list[tuple[int, int, int]] = []
    for prompt, answer, count in cells:
        if prompt >= limit_tokens or not count:
            continue
        answer = max(1, min(answer, limit_tokens - prompt))
        ends.append((prompt, prompt + answer - 1, count))
        for length, weight in _moments(prompt, answer, is_async):
            key = length >> max(0, length.bit_length() - BITS)
            key |= length.bit_length() << BITS
            tokens, weights = bins.get(key, (0.0, 0.0))
            bins[key] = tokens + length * weight * count, weights + weight * count
    if not bins:
        return None
    lengths = [max(1, round(tokens / weight)) for tokens, weight in bins.values()]
    found = shares([*lengths, *(max(1, p) for p, _, _ in ends), *(max(1, end) for _, end, _ in ends)])
    total = sum(weight for _, weight in bins.values())
    requests = sum(count for _, _, count in ends)
    first = found[len(lengths) : len(lengths) + len(ends)]
    last = found[len(lengths) + len(ends) :]
    if not any(found):
        return None
    growth = sum((b - a) * end[2] for a, b, end in zip(first, last, ends, strict=True)) / requests
    prompts = sum(max(1, p - shared_tokens) * count for p, _, count in ends)
    cells_of = _merged(found[: len(lengths)], [weight / total for _, weight in bins.values()])
    return Steady(
        shares=tuple(share for share, _ in cells_of),
        weights=tuple(weight for _, weight in cells_of),
        growth=growth,
        first_share=sum(a * end[2] for a, end in zip(first, ends, strict=True)) / requests,
        first_squares=sum(a * a * end[2] for a, end in zip(first, ends, strict=True)) / requests,
        step_tokens=(prompts + sum((end - p) * count for p, end, count in ends)) / total,
        spread=_spread(ends, requests),
    )


def _merged(shares: Sequence[float], weights: Sequence[float]) -> list[tuple[float, float]]:
    """Shares within 3 % of each other as one, at their mean."""
    found: dict[int, tuple[float, float]] = {}
    for share, weight in zip(shares, weights, strict=True):
        key = round(24 * math.log2(share)) if share else -(1 << 20)
        before, sum_before = found.get(key, (0.0, 0.0))
        found[key] = before + share * weight, sum_before + weight
    return [(total / weight, weight) for total, weight in found.values()]


def _moments(prompt: int, answer: int, is_async: bool) -> Iterable[tuple[int, float]]:
    """Lengths of a request at moments spread over its stay, each with the steps that it stands for."""
    steps = answer + is_async
    parts = min(PARTS, steps)
    for part in range(parts):
        at = min(answer - 1, ((2 * part + 1) * steps) // (2 * parts))
        yield prompt + at, steps / parts


def _spread(ends: Sequence[tuple[int, int, int]], requests: int) -> float:
    """Relative standard error of Σ tokens x steps / Σ steps over the requests of the log."""
    steps = sum((end - p + 1) * count for p, end, count in ends)
    mean = sum((p + end) / 2 * (end - p + 1) * count for p, end, count in ends) / steps
    squares = sum((((p + end) / 2 - mean) * (end - p + 1)) ** 2 * count for p, end, count in ends)
    return math.sqrt(squares) / (steps * mean) if mean and requests else 0.0
