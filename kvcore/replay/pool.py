"""The pool of KV blocks: who has which, under which content they are registered, and in which order they are reused.

Source: vllm/v1/core/block_pool.py:BlockPool, vllm/v1/core/kv_cache_utils.py:FreeKVCacheBlockQueue (0.12.0-0.33.0).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kvcore.replay.settings import FreeOrder

NULL: Final = -1
"""Placeholder for a block that a request no longer needs; it belongs to no request and is never free."""


class CountedPool:
    """A pool without prefix caching: blocks are interchangeable and only counted."""

    def __init__(self, usable_blocks: int) -> None:
        self.free = usable_blocks

    def take(self, held: list[int], number: int) -> None:
        """Adds `number` free blocks to those of a request."""
        self.free -= number
        held.extend((1,) * number)

    def give_back(self, held: list[int], *, of_window: bool = False) -> None:
        """Frees all blocks of a request, from the last to the first."""
        self.release(held[::-1], of_window=of_window)
        held.clear()

    def release(self, blocks: Sequence[int], *, of_window: bool = False) -> None:
        """Frees these blocks in their order; NULL is skipped."""
        del of_window
        self.free += len(blocks) - blocks.count(NULL)

    def find(self, contents: Sequence[int]) -> list[int]:
        """Returns no blocks: none is registered."""
        del contents
        return []

    def known(self, content: int) -> int | None:
        """Returns None: no block is registered."""
        del content
        return None

    def unheld(self, found: Sequence[int]) -> int:
        """Returns 0: nothing is found."""
        return len(found)

    def hold(self, held: list[int], found: Sequence[int]) -> None:
        """Does nothing: nothing is found."""

    def register(self, held: Sequence[int], contents: Sequence[int], start: int, end: int) -> None:
        """Does nothing: nothing is registered."""


class CachedPool(CountedPool):
    """A pool with prefix caching, exact in the order of reuse and eviction."""

    def __init__(self, usable_blocks: int, order: FreeOrder) -> None:
        super().__init__(usable_blocks)
        self._uncached_first = order is FreeOrder.UNCACHED_FIRST
        self._window_uncached_first = order is not FreeOrder.TAIL
        self._head: list[int] = []
        """The free queue is: this list from its end, then the blocks never used so far, then the tail."""
        self._tail: OrderedDict[int, None] = OrderedDict()
        self._unused = usable_blocks
        self._content: list[int] = []
        """Content of each block used so far; -1: not registered."""
        self._holders: list[int] = []
        self._by_content: dict[int, dict[int, None]] = {}
        """Blocks by content, in order of registration."""

    def take(self, held: list[int], number: int) -> None:
        """Adds blocks from the head of the free queue; their registrations are dropped."""
        self.free -= number
        content = self._content
        for _ in range(number):
            if self._head:
                block = self._head.pop()
                self._holders[block] = 1
            elif self._unused:
                self._unused -= 1
                block = len(content)
                content.append(-1)
                self._holders.append(1)
            else:
                block = self._tail.popitem(last=False)[0]
                self._forget(block)
                self._holders[block] = 1
            held.append(block)

    def _forget(self, block: int) -> None:
        known = self._content[block]
        if known >= 0:
            self._content[block] = -1
            same = self._by_content[known]
            del same[block]
            if not same:
                del self._by_content[known]

    def release(self, blocks: Sequence[int], *, of_window: bool = False) -> None:
        """Frees these blocks in their order; NULL is skipped."""
        uncached_first = self._window_uncached_first if of_window else self._uncached_first
        content, holders = self._content, self._holders
        uncached: list[int] = []
        for block in blocks:
            if block == NULL:
                continue
            holders[block] -= 1
            if holders[block]:
                continue
            self.free += 1
            if uncached_first and content[block] < 0:
                uncached.append(block)
            else:
                self._tail[block] = None
        self._head.extend(reversed(uncached))

    def known(self, content: int) -> int | None:
        """The block registered first for a content; None without one."""
        same = self._by_content.get(content)
        return None if same is None else next(iter(same))

    def find(self, contents: Sequence[int]) -> list[int]:
        """The blocks of the longest registered run from the start."""
        found: list[int] = []
        for number in contents:
            same = self._by_content.get(number)
            if same is None:
                break
            found.append(next(iter(same)))
        return found

    def unheld(self, found: Sequence[int]) -> int:
        """Number of these blocks in the free queue."""
        holders = self._holders
        return sum(block != NULL and not holders[block] for block in found)

    def hold(self, held: list[int], found: Sequence[int]) -> None:
        """Adds found blocks to those of a request."""
        for block in found:
            if block == NULL:
                continue
            if not self._holders[block]:
                del self._tail[block]
                self.free -= 1
            self._holders[block] += 1
        held.extend(found)

    def register(self, held: Sequence[int], contents: Sequence[int], start: int, end: int) -> None:
        """Registers the blocks number `start` to `end` of a request under their contents."""
        for at in range(start, end):
            self._content[held[at]] = contents[at]
            self._by_content.setdefault(contents[at], {})[held[at]] = None

    def name(self, block: int, content: int) -> None:
        """Registers a block under its content."""
        self._content[block] = content
        self._by_content.setdefault(content, {})[block] = None
