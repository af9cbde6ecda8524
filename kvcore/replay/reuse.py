"""Prefix hits by size of the cache, from stack distances over the blocks of a trace.

A block is found again where no more different blocks were used since its last use than the cache has room for. So one
pass over a trace gives the hits of every size at once (Mattson). Large traces are sampled by block: of a share r of
the contents the distances are r times as long (SHARDS).

Source: Mattson, Gecsei, Slutz, Traiger, Evaluation techniques for storage hierarchies, IBM Systems Journal 9(2), 1970;
Waldspurger, Park, Garthwaite, Ahmad, Efficient MRC construction with SHARDS, FAST 2015.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from kvcore.replay.trace import Contents, TraceRequest

MAX_ACCESSES: Final = 4_000_000
"""Uses of blocks in one trace; beyond that every second, fourth, … content is followed."""
POINTS: Final = 64


class Reuse(Struct, frozen=True, kw_only=True):
    """Hits of prompts by size of the cache in blocks."""

    block_size: int
    distances: tuple[int, ...]
    """Sizes, rising, at which more blocks are found."""
    found_blocks: tuple[float, ...]
    """Blocks of all prompts found with that size."""
    prompt_tokens: int
    requests: int
    sampled: float
    """Share of the contents followed; 1 is exact."""

    def hit_rate(self, blocks: int) -> float:
        """Share of the prompt tokens that a cache of so many blocks finds."""
        at = bisect_right(self.distances, blocks)
        found = self.found_blocks[at - 1] if at else 0.0
        return found * self.block_size / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def most(self) -> float:
        """Hit rate of a cache without eviction."""
        return self.hit_rate(self.distances[-1]) if self.distances else 0.0

    def curve(self) -> tuple[tuple[int, float], ...]:
        """Sizes, evenly spread on a logarithmic scale, with their hit rates."""
        if not self.distances:
            return ()
        last = self.distances[-1]
        sizes = sorted({max(1, round(last ** (step / POINTS))) for step in range(POINTS + 1)})
        return tuple((size, self.hit_rate(size)) for size in sizes)

    def knee_blocks(self) -> int:
        """Size with the curve farthest above its chord: beyond it more memory gains little; 0 without hits."""
        curve = self.curve()
        if not curve:
            return 0
        last, most = curve[-1]
        return max(curve, key=lambda point: point[1] / most - point[0] / last if most else 0.0)[0]


def reuse_of(requests: Sequence[TraceRequest], block_size: int) -> Reuse:
    """Reuse of the blocks of a trace: each request first looks up its prompt, then uses all blocks that it computed.

    As in the engine the last token of a prompt is always computed, and the end of a request is forgotten before its
    start. Only what is found from the start on counts, so a block counts with the longest distance of those before it.

    Example:
        >>> def turn(name, tokens):
        ...     return TraceRequest(id=name, arrival=0, prompt=(("chat", tokens),), answer_tokens=1)
        >>> found = reuse_of([turn("a", 32), turn("b", 65)], 16)
        >>> [round(found.hit_rate(blocks) * 97) for blocks in (0, 1, 2)]
        [0, 16, 32]
    """
    contents = Contents(requests, block_size)
    uses = sum((one.prompt_tokens + one.answer_tokens) // block_size for one in requests)
    skip = max(0, (uses // MAX_ACCESSES).bit_length())
    mask = (1 << skip) - 1
    stack = _Stack(uses + 1)
    found: dict[int, int] = {}
    for request in requests:
        blocks = contents.of(request, (request.prompt_tokens + request.answer_tokens - 1) // block_size)
        usable = (request.prompt_tokens - 1) // block_size
        followed = [content for content in blocks if not (mask and _scattered(content) & mask)]
        farthest = 0
        for content in (one for one in blocks[:usable] if not (mask and _scattered(one) & mask)):
            distance = stack.distance(content)
            if distance is None:
                break
            farthest = max(farthest, distance)
            found[farthest] = found.get(farthest, 0) + 1
        for content in reversed(followed):
            stack.use(content)
    scale = mask + 1
    sizes = sorted(found)
    return Reuse(
        block_size=block_size,
        distances=tuple(size * scale for size in sizes),
        found_blocks=tuple(float(total * scale) for total in accumulate(found[size] for size in sizes)),
        prompt_tokens=sum(one.prompt_tokens for one in requests),
        requests=len(requests),
        sampled=1 / scale,
    )


def _scattered(content: int) -> int:
    """A hash with random low bits."""
    return (content * 0x9E3779B97F4A7C15 >> 20) & 0xFFFFFFFF


class _Stack:
    """Contents by last use; a Fenwick tree over times counts those used since."""

    def __init__(self, uses: int) -> None:
        self._tree = [0] * (uses + 2)
        self._last: dict[int, int] = {}
        self._now = 0

    def distance(self, content: int) -> int | None:
        """Smallest cache that still has it; None before its first use."""
        last = self._last.get(content)
        return None if last is None else len(self._last) - _sum(self._tree, last) + 1

    def use(self, content: int) -> None:
        """Makes it the newest."""
        self._now += 1
        before = self._last.get(content)
        if before is not None:
            _add(self._tree, before, -1)
        self._last[content] = self._now
        _add(self._tree, self._now, 1)


def _sum(tree: Sequence[int], at: int) -> int:
    total = 0
    while at:
        total += tree[at]
        at &= at - 1
    return total


def _add(tree: list[int], at: int, change: int) -> None:
    size = len(tree)
    while at < size:
        tree[at] += change
        at += at & -at
