"""Random batches of a length mix in the pool of a plan: how many requests fit at once, how often a batch does not.

A request of length L takes 1 / C(L) of the pool, with C(L) the engine's own concurrency at that length, so the same
rule applies to every kind of cache. Batches are drawn with a fixed seed; the error of the draw is given with the share.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from statistics import NormalDist
from typing import Final

from kvcore.cache.capacity import max_concurrency_at
from kvcore.kept import kept
from kvcore.planning import Plan, stage_kv_bytes
from kvcore.workload.histogram import LengthHistogram

SEED: Final = 20_240_117
BATCHES: Final = 500
MAX_DRAWS: Final = 400_000
FEWEST_BATCHES: Final = 40
_Z95: Final = 1.959963984540054


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A share that was drawn, and the 95 % interval of the draw."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """How many requests each of the drawn batches had room for when the next one did not fit; ascending."""

    held: tuple[int, ...]

    @property
    def mean_requests(self) -> float:
        """Requests that fit at once, on average over the batches."""
        return sum(self.held) / len(self.held)

    def requests_in(self, percent: float) -> int:
        """The most requests that `percent` of the batches have room for.

        Example:
            >>> Batches(held=(8, 9, 10, 10)).requests_in(75)
            9
        """
        return self.held[math.floor((1 - percent / 100) * len(self.held) + 1e-9)]

    def overflow(self, requests: int) -> Share:
        """Share of the batches that have no room for `requests` at once, with its Wilson interval.

        Example:
            >>> Batches(held=(8, 9, 10, 10)).overflow(10).value
            0.5
        """
        failing, drawn = bisect_left(self.held, requests), len(self.held)
        share, weight = failing / drawn, _Z95**2 / drawn
        center = (share + weight / 2) / (1 + weight)
        reach = _Z95 * math.sqrt(share * (1 - share) / drawn + weight / (4 * drawn)) / (1 + weight)
        return Share(
            value=share, low=max(0.0, min(share, center - reach)), high=min(1.0, max(share, center + reach))
        )


def pool_shares(planned: Plan, histogram: LengthHistogram) -> tuple[float, ...]:
    """What share of the pool a request of each length takes; 0 where nothing is kept of a request."""
    lengths = tuple(max(1, length) for length in histogram.lengths)
    concurrency = max_concurrency_at(
        planned.specs, stage_kv_bytes(planned.stage_kv), planned.resolved, planned.scenario.parallel, lengths
    )
    return tuple(1 / value if value else math.inf for value in concurrency)


def batches_of(planned: Plan, histogram: LengthHistogram) -> Batches | None:
    """Random batches of the mix in the pool of `planned`; None without a pool, or where requests take nothing."""
    if planned.cache is None or planned.cache.num_blocks <= 0 or (planned.available_kv_bytes or 0) <= 0:
        return None
    shares = pool_shares(planned, histogram)
    return _drawn(histogram, shares) if any(shares) else None


@kept
def _drawn(histogram: LengthHistogram, shares: tuple[float, ...]) -> Batches:
    return draw_batches(shares, histogram.counts)


def draw_batches(shares: tuple[float, ...], counts: tuple[int, ...]) -> Batches:
    """Requests drawn one after another until the pool is full, in up to 500 batches.

    Every batch has random numbers of its own, so a mix of longer requests never has room for more in any of
    them. Of a pool
    that stores too many to draw them one by one, the batches follow the normal law of their sum instead.

    Example:
        >>> draw_batches((0.25,), (1,)).held[:3]
        (4, 4, 4)
    """
    cumulative = tuple(accumulate(counts))
    mean = sum(share * count for share, count in zip(shares, counts, strict=True)) / cumulative[-1]
    expected = 1 / mean if mean and math.isfinite(mean) else 1.0
    if expected > MAX_DRAWS / FEWEST_BATCHES:
        return _many_held(shares, counts, mean)
    batches = max(FEWEST_BATCHES, min(BATCHES, int(MAX_DRAWS / max(1.0, expected))))
    chunk = int(expected * 1.1) + 8
    held = (_held(Random(SEED + index), shares, cumulative, chunk) for index in range(batches))
    return Batches(held=tuple(sorted(held)))


def _many_held(shares: tuple[float, ...], counts: tuple[int, ...], mean: float) -> Batches:
    """Batches at even steps of the normal law that the number of requests in a full pool nears as it grows.

    mean 1 / m, variance v / m³, with m and v the mean and variance of one request's share (renewal theory).
    """
    variance = sum((share - mean) ** 2 * count for share, count in zip(shares, counts, strict=True)) / sum(
        counts
    )
    law = NormalDist(1 / mean, math.sqrt(variance / mean**3))
    steps = ((index + 0.5) / BATCHES for index in range(BATCHES))
    return Batches(held=tuple(math.floor(law.inv_cdf(step) if law.stdev else law.mean) for step in steps))


def _held(random: Random, shares: tuple[float, ...], cumulative: tuple[int, ...], chunk: int) -> int:
    taken, held = 0.0, 0
    while held < 4 * MAX_DRAWS:
        sums = list(accumulate(random.choices(shares, cum_weights=cumulative, k=chunk), initial=taken))
        fitting = bisect_left(sums, 1 + 1e-9, lo=1) - 1
        held += fitting
        if fitting < chunk:
            return held
        taken = sums[-1]
    return held
