"""What prompts of a log begin with that requests before them had too, and how many requests ago.

While others always wait, requests enter in the order of the log. Of a request that has ended the blocks stay in the
pool until newer ones have taken all that was free: so what counts is how many requests came in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

FOLLOWED: Final = 20_000
"""Prompts that are looked up; further ones are not."""


class Recall(Struct, frozen=True, kw_only=True):
    """Beginnings that come again."""

    prompts: tuple[tuple[tuple[int, int], ...], ...]
    """For each prompt how many requests ago, rising, with the tokens that it shares with one not longer ago."""

    def found(self, usable: Callable[[int], int]) -> tuple[tuple[int, float], ...]:
        """Numbers of requests, rising, with the mean tokens of a prompt that one of the last so many had too.

        `usable` tells how many of its first tokens a cache gives.

        Example:
            >>> prompts = [(1, 2), (1, 5), (1, 2, 3)]
            >>> recall = recall_of(zip(prompts, prompts), 16)
            >>> recall.prompts
            ((), ((1, 16),), ((1, 16), (2, 32)))
            >>> [(ago, round(tokens, 3)) for ago, tokens in recall.found(lambda tokens: tokens)]
            [(1, 10.667), (2, 16.0)]
        """
        gained: Counter[int] = Counter()
        for steps in self.prompts:
            before = 0
            for ago, tokens in steps:
                now = usable(tokens)
                gained[ago] += now - before
                before = now
        numbers = sorted(gained)
        sums = accumulate(gained[ago] for ago in numbers)
        return tuple((ago, total / len(self.prompts)) for ago, total in zip(numbers, sums, strict=True))


def recall_of(requests: Iterable[tuple[Sequence[int], Sequence[int]]], block_tokens: int) -> Recall:
    """Requests in the order of the log: the hashes of the blocks of each prompt, and of those that it leaves, which may
    have its answer too."""
    last: dict[int, int] = {}
    found = []
    for at, (blocks, left) in enumerate(requests):
        if at >= FOLLOWED:
            break
        steps: list[tuple[int, int]] = []
        for number, block in enumerate(blocks, start=1):
            if block not in last:
                break
            ago = at - last[block]
            if steps and ago <= steps[-1][0]:
                ago = steps.pop()[0]
            steps.append((ago, number * block_tokens))
        found.append(tuple(steps))
        last.update(dict.fromkeys(left, at))
    return Recall(prompts=tuple(found))
