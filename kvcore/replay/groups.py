"""Blocks of one request in one KV cache group: which it takes, frees on the way, and registers for others to find.

Source: vllm/v1/core/single_type_kv_cache_manager.py:SingleTypeKVCacheManager, FullAttentionManager,
SlidingWindowManager, ChunkedLocalAttentionManager, MambaManager (0.12.0-0.33.0), without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from kvcore.base.units import ceil_div
from kvcore.cache.spec import FULL_KINDS, WINDOW_KINDS, CacheKind
from kvcore.replay.pool import NULL, CachedPool, CountedPool
from kvcore.replay.settings import Group, Settings

Cached: TypeAlias = Callable[[int], list[int] | None]
"""Returns the blocks of equal groups at one place if all of them have it cached."""


class Table:
    """Blocks of one request in one group, in order; with full attention all stay until the request ends."""

    __slots__ = ("blocks", "group", "registered", "settings")

    def __init__(self, group: Group, settings: Settings) -> None:
        self.group = group
        self.settings = settings
        self.blocks: list[int] = []
        self.registered = 0
        """Blocks from the start that were considered for registration, including those that are not registered."""

    def skipped(self, computed: int) -> int:
        """Tokens from the start that are not attended to after `computed` tokens."""
        del computed
        return 0

    def leave(self, processed: int, pool: CountedPool) -> None:
        """Frees the blocks that are not needed after `processed` tokens."""
        last = min(max(0, self.skipped(processed)) // self.group.block_size, len(self.blocks))
        pool.release(_taken_out(self.blocks, range(last - 1, -1, -1)), of_window=True)

    def give_back(self, pool: CountedPool) -> None:
        """Frees all blocks of the request."""
        pool.give_back(self.blocks)

    def need(
        self, pool: CountedPool, found: Sequence[int], computed: int, tokens: int, end: int, *, whole: bool
    ) -> int:
        """Blocks that `tokens` tokens take from the free queue, including those of `found` that no request uses.

        `end` is the end of the prompt, or the tokens it had when it was preempted. `whole` asks for the whole request
        before it is admitted, limited to the most blocks that it ever has at once.
        """
        del end
        required = ceil_div(tokens, self.group.block_size)
        if whole and self.group.most_blocks is not None:
            required = min(required, self.group.most_blocks)
        skipped = max(0, self.skipped(computed)) // self.group.block_size if found else 0
        held = max(skipped, len(found), len(self.blocks))
        return max(required - held, 0) + pool.unheld(found[skipped:])

    def enter(self, pool: CountedPool, found: Sequence[int], computed: int) -> None:
        """Gives the blocks that were found to a request that has none yet."""
        skipped = max(0, self.skipped(computed)) // self.group.block_size
        self.blocks.extend([NULL] * skipped)
        pool.hold(self.blocks, found[skipped:])
        self.registered = len(self.blocks)

    def take(self, pool: CountedPool, tokens: int) -> None:
        """Adds blocks until there are enough for `tokens` tokens."""
        missing = ceil_div(tokens, self.group.block_size) - len(self.blocks)
        if missing > 0:
            pool.take(self.blocks, missing)

    def events(self, computed: int) -> Iterable[int]:
        """Numbers of one-token steps until something happens to its blocks."""
        size = self.group.block_size
        yield -computed % size
        if self.settings.enable_prefix_caching and not self.settings.async_scheduling:
            yield -(computed + 1) % size

    def findable(self, first: int, last: int, boundaries: Sequence[int]) -> Iterable[int]:
        """Blocks of `first` to `last` that a later request can find: all of them."""
        del boundaries
        return range(first, last)


class WindowTable(Table):
    """Blocks of a sliding window; those before the window are freed."""

    __slots__ = ()

    def give_back(self, pool: CountedPool) -> None:
        """Frees all blocks of the request."""
        pool.give_back(self.blocks, of_window=True)

    def skipped(self, computed: int) -> int:
        """Tokens before the window of the next token.

        Example:
            >>> from packaging.version import Version
            >>> from kvcore.replay.settings import rules_of
            >>> group = Group(kind=CacheKind.SLIDING_WINDOW, block_size=16, window=4)
            >>> settings = Settings(num_blocks=9, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64,
            ...                     rules=rules_of(Version("0.32.0")), groups=(group,))
            >>> WindowTable(group, settings).skipped(7)
            4
        """
        return max(0, computed - self.group.window + 1)

    def events(self, computed: int) -> Iterable[int]:
        """Adds the steps in which a block leaves the window."""
        yield from super().events(computed)
        yield (self.group.window - 1 - (computed - self.settings.late_tokens)) % self.group.block_size

    def findable(self, first: int, last: int, boundaries: Sequence[int]) -> Iterable[int]:
        """Blocks of one window before each place from which a later request can continue."""
        size, aligned = self.group.block_size, self.settings.scheduler_block_size
        need = ceil_div(self.group.window - 1, size)
        interval = self.settings.retention_interval
        stretch = aligned if interval is None else interval
        if not self.settings.rules.masks_windows or (stretch and need >= stretch // size):
            return range(first, last)
        kept = {
            at for at in range(first, last) if stretch and at % (stretch // size) >= stretch // size - need
        }
        if interval is not None:
            for boundary in boundaries:
                end = boundary // aligned * aligned // size
                kept.update(range(max(first, end - need), min(last, end)))
        return sorted(kept)


class ChunkTable(Table):
    """Blocks of chunked local attention; those of earlier chunks are freed."""

    __slots__ = ()

    def skipped(self, computed: int) -> int:
        """Tokens of the chunks before the one of the next token."""
        return computed // self.group.window * self.group.window

    def events(self, computed: int) -> Iterable[int]:
        """Adds the steps in which a chunk ends."""
        yield from super().events(computed)
        yield (self.settings.late_tokens - computed) % self.group.window


class StateTable(Table):
    """States of a recurrent layer that are cached at block ends (`--mamba-cache-mode align`); the last one stays."""

    __slots__ = ("checkpoint", "last_state", "left")

    def __init__(self, group: Group, settings: Settings) -> None:
        super().__init__(group, settings)
        self.last_state: int | None = None
        self.left = 0
        self.checkpoint = False

    def skipped(self, computed: int) -> int:
        """All tokens but the last: only its state is needed."""
        return computed - 1

    def leave(self, processed: int, pool: CountedPool) -> None:
        """Frees states that have been superseded."""
        skipped = self.skipped(processed)
        if skipped > 0:
            first = self.left
            last = min(skipped // self.group.block_size, len(self.blocks))
            if first < last:
                stops = not self.settings.rules.frees_past_gaps
                pool.release(_taken_out(self.blocks, range(last - 1, first - 1, -1), stop_at_null=stops))
                self.left = last
        at = self.last_state
        if at is not None and at < ceil_div(processed, self.group.block_size) - 1:
            pool.release(_taken_out(self.blocks, range(at, at + 1)))

    def need(
        self, pool: CountedPool, found: Sequence[int], computed: int, tokens: int, end: int, *, whole: bool
    ) -> int:
        """At most one new state, and one at the last block end of a prompt if the kernel can write it."""
        required = ceil_div(tokens, self.group.block_size)
        new = required - len(found) - len(self.blocks)
        checkpoint = self._needs_checkpoint(computed, tokens, end)
        if not whole:
            self.checkpoint = checkpoint
        return min(max(new, 0), 1 + checkpoint) + pool.unheld(found)

    def _needs_checkpoint(self, start: int, end: int, prefill_end: int) -> bool:
        size = self.group.block_size
        at = ceil_div(end, size) - 2
        if not self.group.checkpoint_blocks or at < 0:
            return False
        if end < prefill_end and self.settings.retention_interval == 0:
            return False
        return is_checkpointed(start, end, (end - 1) // size * size, size) and (
            at >= len(self.blocks) or self.blocks[at] == NULL
        )

    def take(self, pool: CountedPool, tokens: int) -> None:
        """Gives the state of a step a block of its own; places between it and the last one stay empty."""
        required, before = ceil_div(tokens, self.group.block_size), len(self.blocks)
        if required > before or self.checkpoint:
            if before:
                self.last_state = before - 1
            unused = required - 1 - self.checkpoint - before
            self.blocks.extend([NULL] * max(0, unused))
            pool.take(self.blocks, max(0, required - len(self.blocks)))

    def events(self, computed: int) -> Iterable[int]:
        """Adds the steps after which the previous state is no longer needed."""
        yield from super().events(computed)
        yield (1 + self.settings.late_tokens - computed) % self.group.block_size

    def findable(self, first: int, last: int, boundaries: Sequence[int]) -> Iterable[int]:
        """States at block ends: all, or those from which a later request continues."""
        interval, size = self.settings.retention_interval, self.group.block_size
        if interval is None or 0 < interval <= size:
            return range(first, last)
        kept = {at for at in range(first, last) if interval and (at + 1) % (interval // size) == 0}
        aligned = self.settings.scheduler_block_size
        kept.update(boundary // aligned * aligned // size - 1 for boundary in boundaries)
        return sorted(at for at in kept if first <= at < last)


def is_checkpointed(start: int, end: int, position: int, size: int) -> bool:
    """Whether a step from `start` to `end` can write the state at `position` as well as its last one.

    Source: vllm/v1/kv_cache_interface.py:is_mamba_prefill_checkpoint_valid (0.32.0), aligned to each token.

    Example:
        >>> is_checkpointed(0, 150, 128, 64), is_checkpointed(64, 150, 128, 64), is_checkpointed(100, 150, 128, 64)
        (True, True, False)
    """
    return (
        start % size == 0 and ceil_div(end, size) - 2 > (start - 1) // size and start + size <= position < end
    )


def _taken_out(blocks: list[int], places: Iterable[int], *, stop_at_null: bool = True) -> list[int]:
    """Removes the blocks at these places, up to the first place without one."""
    found: list[int] = []
    for at in places:
        if blocks[at] == NULL:
            if stop_at_null:
                break
            continue
        found.append(blocks[at])
        blocks[at] = NULL
    return found


def _run(cached: Cached, start: int, most: int) -> list[list[int]]:
    """Cached blocks from `start` on, up to the first that is missing."""
    found: list[list[int]] = []
    for at in range(start, most):
        row = cached(at)
        if row is None:
            break
        found.append(row)
    return found


def table_of(group: Group, settings: Settings) -> Table:
    """A table without blocks."""
    if group.kind in WINDOW_KINDS:
        return WindowTable(group, settings)
    if group.kind is CacheKind.CHUNKED_LOCAL_ATTENTION:
        return ChunkTable(group, settings)
    if group.kind is CacheKind.MAMBA and settings.enable_prefix_caching:
        return StateTable(group, settings)
    return Table(group, settings)


class LookUp:
    """Finds the longest prefix that all groups have cached."""

    def __init__(self, settings: Settings, pool: CachedPool) -> None:
        self._settings = settings
        self._pool = pool
        kinds: dict[Group, list[int]] = {}
        for at, group in enumerate(settings.groups):
            kinds.setdefault(group, []).append(at)
        self._kinds = sorted(kinds.items(), key=lambda kind: kind[0].kind not in FULL_KINDS)
        """Equal groups, which are looked up together; full attention first."""

    def key(self, group: int, content: int) -> int:
        """Key of a content in the pool; groups have different keys."""
        return content * len(self._settings.groups) + group

    def longest(self, contents: Sequence[int], most_tokens: int) -> tuple[list[list[int]], int, int]:
        """Blocks by group, their tokens, and the tokens of the longest hit of a single group, 0 if it is not longer.

        Source: vllm/v1/core/kv_cache_coordinator.py:HybridKVCacheCoordinator.find_longest_cache_hit,
        UnitaryKVCacheCoordinator.find_longest_cache_hit (0.32.0).
        """
        hit, longest = most_tokens, 0
        blocks: list[list[int]] = [[] for _ in self._settings.groups]
        full_hits: dict[int, int] = {}
        is_simple = len(self._kinds) == 2 and self._kinds[0][0].kind in FULL_KINDS
        while True:
            current = hit
            for group, members in self._kinds:
                if members[0] in full_hits:
                    current = min(current, full_hits[members[0]])
                    continue
                found, current = self._found(group, members, contents, current)
                if group.kind in FULL_KINDS:
                    full_hits[members[0]] = current
                for member, row in zip(members, found, strict=True):
                    blocks[member] = row
                longest = max(longest, current)
            if current >= hit:
                break
            hit = current
            if is_simple or len(self._kinds) == 1:
                break
        for group, members in self._kinds:
            if group.kind in FULL_KINDS:
                for member in members:
                    del blocks[member][ceil_div(hit, group.block_size) :]
        return blocks, hit, longest if longest > hit else 0

    def _found(
        self, group: Group, members: Sequence[int], contents: Sequence[int], most_tokens: int
    ) -> tuple[list[list[int]], int]:
        """Blocks of equal groups, NULL where none is needed, and the number of tokens."""
        size, aligned = group.block_size, self._settings.scheduler_block_size
        scale = size // self._settings.hash_block_size
        most = most_tokens // size

        def cached(at: int) -> list[int] | None:
            rows = [self._pool.known(self.key(member, contents[(at + 1) * scale - 1])) for member in members]
            return [row for row in rows if row is not None] if None not in rows else None

        if group.kind in FULL_KINDS:
            run = _run(cached, 0, most)
            run = run[: len(run) * size // aligned * aligned // size]
        elif group.kind is CacheKind.CHUNKED_LOCAL_ATTENTION:
            start = most_tokens // group.window * group.window // size
            run = [[NULL] * len(members)] * start + _run(cached, start, most)
        elif group.kind is CacheKind.MAMBA:
            run = []
            for at in range(most - 1, -1, -1):
                row = cached(at)
                if row is not None and (at + 1) * size % aligned == 0:
                    run = [[NULL] * len(members)] * at + [row]
                    break
        else:
            run = self._window(group, len(members), cached, most)
        return [[row[member] for row in run] for member in range(len(members))], len(run) * size

    def _window(self, group: Group, members: int, cached: Cached, most: int) -> list[list[int]]:
        """The last run of as many blocks as the window needs, or the run from the start."""
        size, aligned = group.block_size, self._settings.scheduler_block_size
        need = ceil_div(group.window - 1, size)
        rows: list[list[int]] = [[NULL] * members for _ in range(most)]
        run = 0
        for at in range(most - 1, -1, -1):
            row = cached(at)
            if row is None:
                run = 0
                continue
            if not run and (at + 1) * size % aligned:
                continue
            rows[at] = row
            run += 1
            if run >= need:
                return rows[: at + run]
        while run * size % aligned:
            run -= 1
        return rows[:run]
