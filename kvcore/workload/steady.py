"""Requests that a KV cache pool runs in the steady state, under load that never ends.

At a random moment a running request is one of the mix in proportion to its steps, and anywhere within its answer. So
with w requests of each (prompt p, answer a), and s(L) the share of the pool that L tokens take,

    m = Σ w Σ_j s(p + j) / Σ w a,  j from 0 to a - 1

is the mean share of one running request, whatever is preempted and computed again in between. s is what a request
holds while it decodes (`held.py`); what it must find free to be admitted decides how much of the pool stays free.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import itemgetter
from random import Random
from statistics import NormalDist
from typing import Final

from msgspec import Struct

from kvcore.cache.spec import CacheKind
from kvcore.workload.held import Holding, Moment
from kvcore.workload.recall import Recall

PARTS: Final = 16
"""Evenly spread moments of an answer that are evaluated."""
BITS: Final = 8
"""Leading bits of lengths: exact to 0.8 %."""
PREEMPTED: Final = 0.05
"""Preemptions per request that count as rare."""
EARNED: Final = 0.05
"""Deviation from the replay that nearly all of eight mixes on models of every cache kind keep to, and that none exceeds
by running fewer (`python -m benchmarks.steady`)."""
GENERATIONS: Final = 10
"""Requests in a row on one seat after which what began together counts as still together."""
MAX_SEATS: Final = 1 << 20
_Z80: Final = NormalDist().inv_cdf(0.9)
HEADS: Final = 1000
"""Requests that one after another wait at the head of the queue, of which the free share is the mean."""
SEARCHES: Final = 30
"""Times that requests that run and what they find are worked out from each other."""
ROUNDS: Final = 4
"""Times that prompts under way, and the requests that run beside them, are worked out from each other."""


class Steady(Struct, frozen=True, kw_only=True):
    """The distribution of the running request at a random moment."""

    shares: tuple[float, ...]
    weights: tuple[float, ...]
    """Probabilities of the shares; they sum to 1."""
    growth: float
    """Mean growth of a request from admission to end, as a share of the pool; what it takes for a moment counts."""
    first_share: float
    """Mean share of a request on admission."""
    free_share: float
    """Mean share of the pool that no decoding request holds while others wait: kept free until the next one may be
    admitted, or held for some steps by prompts under way."""
    step_tokens: float
    """Mean tokens per step of one running request: its own, and its part of the prompts."""
    batch_tokens: float
    """Tokens of a step."""
    admitted_share: float = 0.0
    """Mean share that must be free to admit a request."""
    last_share: float = 0.0
    """Mean share of a request when its answer ends."""
    step_share: float = 0.0
    """Share of the pool that one request may take in a step: a block of every group."""
    last_deviation: float = 0.0
    """Its standard deviation."""
    in_step: float = 0.0
    """How far requests that began together still grow together after GENERATIONS: 1 where all answers are of one
    length, 0 where they are not alike."""
    spread: float
    """Relative standard error of the mean share, by the number of requests counted."""
    found: tuple[tuple[int, float], ...] = ()
    """Numbers of requests, with the mean tokens of a prompt that one of the last so many had too, beyond those that all
    share."""
    entering: float = 0.0
    """Requests that enter in a step, for each that runs."""
    taken_share: float = 0.0
    """Mean share of the pool that a request leaves to be found, if it finds nothing itself."""
    token_share: float = 0.0
    """Share of the pool that a token takes which is not found."""
    stays: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """Times from admission until a request gives back what is found again, as multiples of the mean stay, with their
    probabilities."""

    @property
    def mean_share(self) -> float:
        """m: mean share of the pool of a running request."""
        return sum(share * weight for share, weight in zip(self.shares, self.weights, strict=True))

    @property
    def admission_binds(self) -> bool:
        """Whether a request must find more free than it then holds: windows, chunks and states."""
        return self.admitted_share > 1.05 * self.first_share

    def preemptions(self, seats: int) -> float:
        """Preemptions per request with `seats` requests running all the time: of requests whose ends have nothing to
        do with each other, or of those that began together and end together, whichever are more."""
        return max(self._scattered(seats), self._together(seats))

    def _together(self, seats: int) -> float:
        """Preemptions per request of requests that grow together, because their answers are of one length.

        What `seats` requests at their largest take beyond the pool, and one request more since only whole ones are
        preempted, as a share of what they take: the mean excess of a sum of them, as normally distributed.
        """
        if not self.in_step:
            return 0.0
        peak = self.mean_share + self.in_step * (self.last_share - self.mean_share)
        mean, deviation = seats * peak, math.sqrt(seats) * self.last_deviation
        if deviation > 0:
            sums = NormalDist(mean, deviation)
            above = 1 - sums.cdf(1)
            excess = (mean - 1) * above + deviation**2 * sums.pdf(1)
        else:
            above, excess = float(mean > 1), max(0.0, mean - 1)
        return min(self.most_preemptions, self.in_step * (excess + above * peak) / mean)

    def _scattered(self, seats: int) -> float:
        """Preemptions per request of requests that are anywhere within their answers.

        P(sum > 1 - step) × growth / (first + growth / 2): as long as `seats` requests would take more than the pool, it
        stays full, and each growth by what the newest request takes costs one preemption. The probability is the
        saddlepoint approximation for a sum of `seats` independent requests.

        Example:
            >>> half = Steady(shares=(0.05, 0.15), weights=(0.5, 0.5), growth=0.1, first_share=0.05,
            ...               free_share=0, step_tokens=1, batch_tokens=9, spread=0)
            >>> half.preemptions(5) < half.preemptions(8) < half.preemptions(10) < half.most_preemptions
            True
        """
        room = 1 - self.step_share
        if seats * max(self.shares) <= room:
            return 0.0
        if seats * min(self.shares) >= room:
            return self.most_preemptions
        theta = self._tilt(room / seats)
        log_mean, _, variance = self._tilted(theta)
        level = math.exp(min(seats * log_mean - theta * room, 0.0))
        reach = min(abs(theta) * math.sqrt(seats * variance), 30.0)
        tail = min(0.5, level * math.exp(reach * reach / 2) * NormalDist().cdf(-reach))
        return (tail if theta > 0 else 1 - tail) * self.most_preemptions

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
            >>> one = Steady(shares=(0.1, 0.2), weights=(0.5, 0.5), growth=0.1, first_share=0.1, free_share=0,
            ...              step_tokens=1, batch_tokens=9, spread=0)
            >>> one.most_seats(), one.most_seats(preempted=1)
            (5, None)
        """
        if self.most_preemptions <= preempted:
            return None
        low, high = 1, 2
        while high < MAX_SEATS and self.preemptions(high) <= preempted:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.preemptions(middle) <= preempted else (low, middle)
        return low

    def running(self, seats: int) -> float:
        """Requests that run on average while others always wait: bounded by seats, tokens of a step, and the pool.

        The pool has room for (1 - free) / m. What it has free beside requests that are bounded otherwise keeps the
        blocks of those that have ended, which prompts find: then steps compute less of each, and more of them run.
        """
        pool = max(1.0, (1 - self.free_share) / self.mean_share)
        most = min(float(seats), pool)
        low, high = min(most, self.batch_tokens / self.step_tokens), most
        for _ in range(SEARCHES if self.found and low < high else 0):
            middle = (low + high) / 2
            left = max(1.0, self.step_tokens - self.entering * self.found_tokens(middle))
            low, high = (middle, high) if self.batch_tokens / left > middle else (low, middle)
        return low

    def found_tokens(self, running: float) -> float:
        """Mean tokens that a prompt finds of an earlier one while so many requests run.

        Since that one entered, as many came in between as run for its stay, and after it ended as many as take the
        rest of the pool.
        """
        room, tokens = max(0.0, 1 - running * self.mean_share), 0.0
        for _ in range(ROUNDS):
            kept = room / max(self.step_share, self.taken_share - self.token_share * tokens)
            tokens = sum(weight * self._within(running * stay + kept) for stay, weight in self.stays)
        return tokens

    def _within(self, ago: float) -> float:
        at = bisect_right(self.found, ago, key=itemgetter(0))
        return self.found[at - 1][1] if at else 0.0

    def reach(self) -> float:
        """Half of the 80 % interval of these figures, as a share: what was earned, and the sample of the log."""
        return math.hypot(EARNED, _Z80 * self.spread)


def steady_state(
    cells: Iterable[tuple[int, int, int]],
    holding: Holding,
    limit_tokens: int,
    *,
    shared_tokens: int = 0,
    recall: Recall | None = None,
) -> Steady | None:
    """The steady state of requests as (prompt, answer, how many), none longer than `limit_tokens`.

    With async scheduling a request stays a step longer: its last token is on the way. `shared_tokens` of every prompt
    are stored once, and found; `recall` says what prompts share with single ones before them.

    None where nothing is kept of a request, there is none with an answer, or what is shared fills the pool.

    Example:
        >>> from kvcore.cache.capacity import CacheGroup
        >>> from kvcore.cache.spec import CacheKind
        >>> full = CacheGroup(kind=CacheKind.FULL_ATTENTION, layers=1, block_size=1, block_tokens=1,
        ...                   page_size_bytes=1, blocks_per_request=1)
        >>> pool = Holding(blocks=1000, groups=(full,), batch_tokens=8192, is_async=False)
        >>> found = steady_state([(100, 50, 1)], pool, 4096)
        >>> round(found.mean_share, 6), round(found.growth, 6)
        (0.1245, 0.049)
    """
    pool = holding.blocks - holding.stored_once(shared_tokens)
    if pool <= 0:
        return None

    def share(tokens: int) -> float:
        return holding.own(tokens, shared_tokens) / pool

    bins: dict[int, tuple[float, float]] = {}
    ends: list[tuple[int, int, int]] = []
    moments: list[Moment] = []
    for prompt, answer, count in cells:
        if prompt >= limit_tokens or not count:
            continue
        answer = max(1, min(answer, limit_tokens - prompt))
        ends.append((prompt, prompt + answer - 1, count))
        moments.append(holding.admission(max(1, prompt), shared_tokens))
        for length, weight in _moments(prompt, answer, moments[-1].steps - 1 + holding.is_async):
            key = length >> max(0, length.bit_length() - BITS)
            key |= length.bit_length() << BITS
            tokens, weights = bins.get(key, (0.0, 0.0))
            bins[key] = tokens + length * weight * count, weights + weight * count
    if not bins:
        return None
    found = [share(max(1, round(tokens / weight))) for tokens, weight in bins.values()]
    if not any(found):
        return None
    total = sum(weight for _, weight in bins.values())
    requests = sum(count for _, _, count in ends)
    first = [moment.kept / pool for moment in moments]
    last = [share(max(1, end)) for _, end, _ in ends]
    growth = sum((b - a) * n for a, b, (_, _, n) in zip(first, last, ends, strict=True)) / requests
    passing = sum(
        (holding.renewed(p, end) + moment.unreserved) * count
        for (p, end, count), moment in zip(ends, moments, strict=True)
    ) / requests / pool  # fmt: skip
    last_share, last_deviation = _mean_and_deviation(last, [count for _, _, count in ends])
    stay, unlike = _mean_and_deviation([end - p + 1 for p, end, _ in ends], [count for _, _, count in ends])
    prompts = sum(max(1, p - holding.found(min(shared_tokens, p - 1))) * count for p, _, count in ends)
    cells_of = _merged(found, [weight / total for _, weight in bins.values()])
    return Steady(
        shares=tuple(share for share, _ in cells_of),
        weights=tuple(weight for _, weight in cells_of),
        growth=max(0.0, growth) + passing,
        first_share=sum(a * end[2] for a, end in zip(first, ends, strict=True)) / requests,
        free_share=_free_share(
            [(one.needed / pool, one.kept / pool, one.passing * one.steps / pool) for one in moments],
            [count for _, _, count in ends], sum(share * weight for share, weight in cells_of), total / requests,
        ),
        step_tokens=(prompts + (1 + holding.drafts) * sum((end - p) * count for p, end, count in ends))
        / total,
        batch_tokens=holding.usable_tokens(),
        admitted_share=sum(one.needed * end[2] for one, end in zip(moments, ends, strict=True)) / requests / pool,
        last_share=last_share,
        step_share=min(0.5, len(holding.groups) / pool),
        last_deviation=last_deviation,
        in_step=_in_step(unlike / stay),
        spread=_spread(ends, requests),
        found=_beyond(recall, holding, shared_tokens),
        entering=requests / total,
        taken_share=sum(holding.taken(p, end, shared_tokens) * count for p, end, count in ends) / requests / pool,
        stays=_stays(moments, ends, holding),
        token_share=holding.token_blocks() / pool,
    )  # fmt: skip


def _stays(
    moments: Sequence[Moment], ends: Sequence[tuple[int, int, int]], holding: Holding
) -> tuple[tuple[float, float], ...]:
    """Times until blocks are given back that are found again: at the end; states as soon as the prompt is computed."""
    steps = [
        (one.steps + end - p, one.steps, count) for one, (p, end, count) in zip(moments, ends, strict=True)
    ]
    requests = sum(count for *_, count in steps)
    mean = sum(whole * count for whole, _, count in steps) / requests
    has_states = any(group.kind is CacheKind.MAMBA for group in holding.groups)
    found: Counter[int] = Counter()
    for whole, of_prompt, count in steps:
        found[round(PARTS * (of_prompt if has_states else whole) / mean)] += count
    return tuple((part / PARTS, count / requests) for part, count in found.items())


def _beyond(recall: Recall | None, holding: Holding, shared_tokens: int) -> tuple[tuple[int, float], ...]:
    """What the cache of a plan gives of a recall, beyond the tokens that all prompts share."""
    shared = holding.found(shared_tokens)
    return () if recall is None else recall.found(lambda tokens: max(0, holding.found(tokens) - shared))


def _mean_and_deviation(values: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    total = sum(counts)
    mean = sum(value * count for value, count in zip(values, counts, strict=True)) / total
    square = sum((value - mean) ** 2 * count for value, count in zip(values, counts, strict=True))
    return mean, math.sqrt(square / total)


def _in_step(variation: float) -> float:
    """exp(-2 pi² n v²): the first harmonic of the ends of requests that began together, after n of them in a row, when
    their lengths vary by v; 0 below 1 %.

    Example:
        >>> _in_step(0), round(_in_step(0.05), 2), _in_step(0.3)
        (1.0, 0.61, 0.0)
    """
    found = math.exp(-2 * math.pi**2 * GENERATIONS * variation**2)
    return found if found >= 0.01 else 0.0


def _free_share(
    moments: Sequence[tuple[float, float, float]], counts: Sequence[int], mean_share: float, stay: float
) -> float:
    """Mean share of the pool that no decoding request holds while others wait.

    The request at the head of the queue waits until what it needs is free, and takes what it keeps. The pool empties at
    an even rate, so that from f free to n needed takes a time as n - f, in which (n + f) / 2 is free on average. The
    prompts under way hold blocks for some steps more, which cannot be used meanwhile.
    """
    total = sum(counts)
    passing = sum(steps * count for (_, _, steps), count in zip(moments, counts, strict=True)) / total
    heads = Random(7).choices(moments, cum_weights=list(accumulate(counts)), k=HEADS)
    free = 0.0
    for _ in range(ROUNDS):
        under_way = min(0.5, passing / stay * max(1.0, (1 - free) / mean_share)) if mean_share else 0.0
        now = waited = area = 0.0
        for needed, kept, _ in heads:
            goal = min(1.0, needed + under_way)
            if goal > now:
                waited += goal - now
                area += (goal * goal - now * now) / 2
                now = goal
            now -= kept
        free = min(0.9, area / waited) if waited else 0.0
    return free


def _merged(shares: Sequence[float], weights: Sequence[float]) -> list[tuple[float, float]]:
    """Shares within 3 % of each other as one, at their mean."""
    found: dict[int, tuple[float, float]] = {}
    for share, weight in zip(shares, weights, strict=True):
        key = round(24 * math.log2(share)) if share else -(1 << 20)
        before, sum_before = found.get(key, (0.0, 0.0))
        found[key] = before + share * weight, sum_before + weight
    return [(total / weight, weight) for total, weight in found.values()]


def _moments(prompt: int, answer: int, further: int) -> Iterable[tuple[int, float]]:
    """Lengths of a request at moments spread over its stay, each with the steps that it stands for; `further` steps
    give it no token."""
    steps = answer + further
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
