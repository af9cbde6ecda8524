"""Requests of a mix that come at random, where no trace with times is known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Final

from kvcore.replay.trace import TraceRequest

SEED: Final = 20_240_117


def random_arrivals(
    cells: Sequence[tuple[int, int, int]], *, per_second: float, requests: int
) -> tuple[TraceRequest, ...]:
    """Poisson arrivals of requests drawn as (prompt, answer, how many) says; none shares a token with another.

    Example:
        >>> trace = random_arrivals([(100, 20, 3), (900, 5, 1)], per_second=2, requests=1000)
        >>> 400 < trace[-1].arrival < 600, 700 < sum(one.answer_tokens == 20 for one in trace) < 800
        (True, True)
    """
    random = Random(SEED)
    chosen = random.choices(cells, cum_weights=list(accumulate(count for *_, count in cells)), k=requests)
    now, found = 0.0, []
    for at, (prompt, answer, _) in enumerate(chosen):
        now += random.expovariate(per_second)
        piece = (f"own {at}", max(1, prompt))
        found.append(TraceRequest(id=f"{at}", arrival=now, prompt=(piece,), answer_tokens=max(1, answer)))
    return tuple(found)
