"""The scheduler over several KV cache groups that share one pool: windows, chunks, recurrent states.

Source: vllm/v1/core/kv_cache_manager.py:KVCacheManager.allocate_slots, get_computed_blocks;
vllm/v1/core/kv_cache_coordinator.py; vllm/v1/core/sched/scheduler.py:Scheduler._mamba_block_aligned_split (0.32.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcore.cache.spec import CacheKind
from kvcore.replay.drafts import DraftScheduler
from kvcore.replay.groups import LookUp, StateTable, Table, is_checkpointed, table_of
from kvcore.replay.pool import NULL, CachedPool
from kvcore.replay.scheduler import ALWAYS, Live, Scheduler
from kvcore.replay.settings import Settings
from kvcore.replay.trace import Contents, TraceRequest


class Held:
    """State of a request with several groups."""

    __slots__ = ("junction", "sent", "sent_at", "tables")

    def __init__(self, tables: list[Table]) -> None:
        self.tables = tables
        self.junction = 0
        """Tokens of its prefix that one group has beyond those that all have."""
        self.sent = 0
        self.sent_at = -1
        """Tokens and number of its last step."""


class HybridScheduler(Scheduler):
    """The scheduler with a table for each group."""

    def __init__(self, settings: Settings, contents: Contents) -> None:
        super().__init__(settings, contents)
        self._held: dict[int, Held] = {}
        self._rows: list[list[int]] = []
        """Blocks of the last look-up, by group."""
        self._fresh: set[int] = set()
        """States registered in this step; they can be found only after it."""
        states = [group for group in settings.groups if group.kind is CacheKind.MAMBA]
        self._aligns = bool(states) and settings.enable_prefix_caching
        self._checkpoints = bool(states) and all(group.checkpoint_blocks for group in states)
        self._states = tuple(at for at, group in enumerate(settings.groups) if group.kind is CacheKind.MAMBA)
        self._empty = [table_of(group, settings) for group in settings.groups]
        self._look = LookUp(settings, self._pool) if isinstance(self._pool, CachedPool) else None

    def step(self) -> None:
        """One engine step."""
        self._fresh.clear()
        super().step()

    def _of(self, request: Live) -> Held:
        held = self._held.get(request.at)
        if held is None:
            held = Held([table_of(group, self.settings) for group in self.settings.groups])
            self._held[request.at] = held
        return held

    def _needed(self, request: Live, computed: int, tokens: int, *, whole: bool) -> int:
        end = max(request.trace.prompt_tokens, request.known - 1)
        rows = self._rows
        return sum(
            table.need(self._pool, rows[at] if rows else (), computed, tokens, end, whole=whole)
            for at, table in enumerate(self._of(request).tables)
        )

    def _grow(self, request: Live, tokens: int) -> bool:
        held = self._of(request)
        self._rows = []
        late = held.sent if held.sent_at == self._step - 1 and self.settings.late_tokens else 0
        for table in held.tables:
            table.leave(max(0, request.computed - late), self._pool)
        if self._needed(request, request.computed, tokens, whole=False) > self._pool.free:
            return False
        for table in held.tables:
            table.take(self._pool, tokens)
        return True

    def _look_up(self, request: Live, spare: int) -> int:
        del spare
        held, hit = self._of(request), 0
        self._rows = []
        if self._look is not None:
            if request.contents is None:
                size = self.settings.hash_block_size
                request.contents = self._contents.of(request.trace, (request.end - 1) // size)
            self._rows, hit, held.junction = self._look.longest(request.contents, request.known - 1)
        return hit

    def _enter(self, request: Live, hit: int, tokens: int, spare: int) -> bool:
        free, rows = self._pool.free, self._rows
        if self._look is not None and any(
            rows[at] and self._look.key(at, self._last_content(request, at)) in self._fresh
            for at in self._states
        ):
            return False
        reserved = self.settings.rules.reserves_whole
        whole = self._needed(request, hit, request.known, whole=True) if reserved else 0
        first = self._needed(request, hit, hit + tokens, whole=False)
        if max(whole, first) + spare > free:
            return False
        tables = self._of(request).tables
        if any(rows):
            for table, row in zip(tables, rows, strict=True):
                table.enter(self._pool, row, hit)
        for table in tables:
            table.take(self._pool, hit + tokens)
        return True

    def _last_content(self, request: Live, group: int) -> int:
        blocks = len(self._rows[group])
        scale = self.settings.groups[group].block_size // self.settings.hash_block_size
        return (request.contents or ())[blocks * scale - 1]

    def _give_back(self, request: Live) -> None:
        held = self._held.pop(request.at, None)
        for table in held.tables if held is not None else ():
            table.give_back(self._pool)

    def _register(self, request: Live, tokens: int) -> None:
        if self._look is None or request.contents is None or not isinstance(self._pool, CachedPool):
            return
        held, settings = self._of(request), self.settings
        is_whole = tokens % settings.scheduler_block_size == 0
        if settings.rules.registers_aligned:
            tokens -= tokens % settings.scheduler_block_size
        boundaries = [request.trace.prompt_tokens - 1, *([held.junction] if held.junction else [])]
        for at, (table, group) in enumerate(zip(held.tables, settings.groups, strict=True)):
            full, scale = tokens // group.block_size, group.block_size // settings.hash_block_size
            if isinstance(table, StateTable) and (is_whole or len(settings.groups) > 1):
                self._renew(request, table, at, full)
            if full <= table.registered:
                continue
            for block in table.findable(table.registered, full, boundaries):
                if table.blocks[block] != NULL:
                    key = self._look.key(at, request.contents[(block + 1) * scale - 1])
                    self._pool.name(table.blocks[block], key)
                    if at in self._states:
                        self._fresh.add(key)
            table.registered = full

    def _renew(self, request: Live, table: StateTable, group: int, blocks: int) -> None:
        """Counts a prompt's last state as registered in every step that ends before the next block.

        Source: vllm/v1/core/single_type_kv_cache_manager.py:MambaManager._cache_partial_tail_block (0.32.0).
        """
        if not self.settings.rules.renews_states or table.checkpoint or not blocks:
            return
        if self._look is None or request.contents is None:
            return
        last = (request.trace.prompt_tokens - 1) // table.group.block_size
        if blocks == last and blocks <= len(table.blocks) and table.blocks[blocks - 1] != NULL:
            self._fresh.add(self._look.key(group, request.contents[blocks - 1]))

    def _scheduled(self, request: Live, tokens: int, ended: list[Live]) -> int:
        due = super()._scheduled(request, tokens, ended)
        held = self._of(request)
        was_many = held.sent > 1 and held.sent_at == self._step - 1 and self.settings.late_tokens
        if request.due != ALWAYS and (tokens > 1 or was_many):
            due = request.due = request.since  # what many tokens left behind is given back in the next steps
        held.sent, held.sent_at = tokens, self._step
        return due

    def _settle(self, request: Live) -> None:
        if request.since < self._step:
            held = self._of(request)
            held.sent, held.sent_at = 1, self._step - 1
        super()._settle(request)

    def _quiet(self, computed: int) -> int:
        return min(min(table.events(computed)) for table in self._empty)

    def _clipped(self, request: Live, start: int, tokens: int) -> int:
        """Cuts a step of a prompt where a state has to be cached."""
        prefill_end = max(request.trace.prompt_tokens, request.known - 1)
        if not self._aligns or start >= prefill_end:
            return tokens
        settings = self.settings
        size = settings.scheduler_block_size
        end = start + tokens
        last_cached = (request.known - settings.rules.counts_resends) // size * size
        inside = (
            self._checkpoints
            and end >= prefill_end
            and is_checkpointed(start, end, (prefill_end - 1) // size * size, size)
        )
        if inside:
            last_cached = 0
        if end < prefill_end:
            most = settings.max_num_batched_tokens
            if settings.long_prefill_token_threshold:
                most = min(most, settings.long_prefill_token_threshold)
            aligned = end // size * size
            if aligned > start or size <= most:
                end = aligned
        junction = self._of(request).junction
        stops = (
            (start // size + 1) * size if start % size and not inside else 0,
            last_cached,
            start + (junction - start) // size * size if start < junction < end else 0,
        )
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)


def scheduler_of(
    settings: Settings, requests: Sequence[TraceRequest], contents: Contents | None = None
) -> Scheduler:
    """The scheduler that these settings need: plain, with several groups, or with drafts.

    Several engines of one trace share its `contents`.
    """
    contents = contents or Contents(requests, settings.hash_block_size)
    if settings.drafts is not None:
        return DraftScheduler(settings, contents, settings.drafts)
    return HybridScheduler(settings, contents) if settings.groups else Scheduler(settings, contents)
