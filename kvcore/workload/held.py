"""Blocks that a running request holds while it decodes, and those that it must find free to be admitted.

The engine admits a request only if its whole prompt fits, with the window groups at their worst; a few steps later the
blocks before a window, earlier chunks and superseded states are free again, for others to use.

Source: vllm/v1/core/kv_cache_manager.py:KVCacheManager.allocate_slots, remove_skipped_blocks;
vllm/v1/core/single_type_kv_cache_manager.py:get_num_skipped_tokens of each manager (0.32.0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from kvcore.base.units import ceil_div
from kvcore.cache.capacity import CacheGroup
from kvcore.cache.rules import rules_in_force
from kvcore.cache.spec import FULL_KINDS, WINDOW_KINDS, CacheKind, context_ranks
from kvcore.planning import Plan

WITHOUT_CACHE: Final = ("", "ngram", "ngram_gpu", "suffix", "medusa")
"""Drafters without keys and values of their own.

Source: vllm/config/vllm.py:VllmConfig.num_lookahead_tokens (0.32.0)."""


class Moment(Struct, frozen=True, kw_only=True):
    """A request on admission, as numbers of blocks."""

    needed: int
    """Blocks that must be free to admit it."""
    kept: int
    """Blocks that it holds as soon as it decodes."""
    passing: int
    """Blocks beyond these while its prompt is computed."""
    unreserved: int
    """Blocks that its prompt takes beyond those that were free for it on admission."""
    steps: int
    """Steps that compute its prompt."""


class Holding(Struct, frozen=True, kw_only=True):
    """The groups of one pool, and the settings that say what a request holds of each."""

    blocks: int
    """Blocks for requests: all but the null block."""
    groups: tuple[CacheGroup, ...]
    batch_tokens: int
    """max_num_batched_tokens."""
    ranks: int = 1
    """Ranks that share the tokens of one sequence."""
    drafts: int = 0
    """num_speculative_tokens."""
    ahead_tokens: int = 0
    """Tokens beyond those that are verified: drafts, and again as many of a drafter with a cache of its own."""
    aligns_states: bool = False
    """Whether states are cached at block ends."""
    is_async: bool = True

    def decoding(self, tokens: int) -> int:
        """Blocks that a decoding request of so many tokens holds.

        Example:
            >>> full = CacheGroup(kind=CacheKind.FULL_ATTENTION, layers=1, block_size=16, block_tokens=16,
            ...                   page_size_bytes=1, blocks_per_request=64)
            >>> window = CacheGroup(kind=CacheKind.SLIDING_WINDOW, layers=1, block_size=16, block_tokens=16,
            ...                     page_size_bytes=1, blocks_per_request=64, window_tokens=128)
            >>> Holding(blocks=99, groups=(full, window), batch_tokens=512).decoding(1000)
            72
        """
        return sum(self._decoding(group, tokens) for group in self.groups)

    def _decoding(self, group: CacheGroup, tokens: int) -> int:
        size, written = self._block_tokens(group), tokens + self.ahead_tokens
        match group.kind:
            case CacheKind.MAMBA if group.block_tokens and not self._keeps_every_state(group):
                return 1 + self.drafts
            case CacheKind.CIRCULAR_BUFFER | CacheKind.CROSS_ATTENTION:
                return group.blocks_per_request
        return ceil_div(written, size) - self._left(group, tokens - 1 - self.is_async) // size

    def _keeps_every_state(self, group: CacheGroup) -> bool:
        return not self.aligns_states and group.blocks_per_request > 1 + self.drafts

    def _block_tokens(self, group: CacheGroup) -> int:
        return group.block_tokens * (self.ranks if group.kind in FULL_KINDS else 1)

    def _left(self, group: CacheGroup, computed: int) -> int:
        """Tokens from the start that are not attended to after so many."""
        if group.kind in WINDOW_KINDS:
            return max(0, computed - group.window_tokens + 1)
        if group.kind is CacheKind.CHUNKED_LOCAL_ATTENTION:
            return max(0, computed) // group.window_tokens * group.window_tokens
        return 0

    def admission(self, prompt: int, shared_tokens: int = 0) -> Moment:
        """What a request with such a prompt needs and holds at first, when all begin with so many `shared_tokens`."""
        found = self.found(min(shared_tokens, prompt - 1))
        needed = kept = most = 0
        for group in self.groups:
            decoding = self._decoding(group, prompt)
            whole = self._whole(group, prompt, found)
            of_others = self._shared(group, found, 0)
            needed += whole - of_others
            kept += decoding - self._shared(group, found, prompt)
            most += max(decoding, self._in_step(group, prompt, found)) - self._shared(group, found, found)
        steps = self._steps(prompt, found)
        return Moment(
            needed=max(needed, kept), kept=kept, passing=max(0, most - kept), steps=steps,
            unreserved=max(0, most - needed) + self.renewed(min(prompt, found + self.batch_tokens), prompt),
        )  # fmt: skip

    def found(self, shared_tokens: int) -> int:
        """Tokens of a shared prefix that are found: whole blocks of every group."""
        size = math.lcm(*(self._block_tokens(group) for group in self.groups if self._finds(group)))
        return max(0, shared_tokens) // size * size

    def _finds(self, group: CacheGroup) -> bool:
        return group.kind is not CacheKind.MAMBA or self.aligns_states

    def stored_once(self, shared_tokens: int) -> int:
        """Blocks of a shared prefix that all requests use together."""
        return sum(self._shared(group, self.found(shared_tokens), 0) for group in self.groups)

    def own(self, tokens: int, shared_tokens: int = 0) -> int:
        """Blocks of a decoding request that no other one uses."""
        found = self.found(min(shared_tokens, tokens - 1))
        return sum(
            self._decoding(group, tokens) - self._shared(group, found, tokens) for group in self.groups
        )

    def renewed(self, start: int, end: int) -> int:
        """Blocks that a request takes from `start` to `end` tokens beside what it then keeps: a state at a block end
        is given back only after the next one was written."""
        sizes = (group.block_tokens for group in self.groups if group.kind is CacheKind.MAMBA)
        return sum(end // size - start // size for size in sizes) if self.aligns_states else 0

    def taken(self, prompt: int, end: int, shared_tokens: int = 0) -> int:
        """Blocks that a request leaves to be found: what is not registered is used again before all others."""
        found = self.found(min(shared_tokens, prompt - 1))
        states = self._steps(prompt, found) - 1 + self.renewed(prompt, end)
        return sum(
            (states if self.aligns_states else 0)
            if group.kind is CacheKind.MAMBA
            else (end - found) // self._block_tokens(group)
            for group in self.groups
        )

    def token_blocks(self) -> float:
        """Blocks that one more token takes in the mean, without states."""
        return sum(1 / self._block_tokens(one) for one in self.groups if one.kind is not CacheKind.MAMBA)

    def _shared(self, group: CacheGroup, found: int, tokens: int) -> int:
        """Blocks of what was found that a request of so many tokens still attends to."""
        if group.kind not in FULL_KINDS and not group.window_tokens:
            return 0
        size = self._block_tokens(group)
        return max(0, found // size - self._left(group, tokens - 1 - self.is_async) // size)

    def _whole(self, group: CacheGroup, prompt: int, found: int) -> int:
        """Blocks that the admission counts for the whole prompt."""
        if group.kind is CacheKind.MAMBA and not self._keeps_every_state(group):
            return 1 + self.drafts + group.num_checkpoint_blocks
        if not group.window_tokens:
            return self._decoding(group, prompt)
        blocks = min(ceil_div(prompt + self.ahead_tokens, group.block_tokens), group.blocks_per_request)
        return max(blocks, self._decoding(group, prompt))

    def _in_step(self, group: CacheGroup, prompt: int, found: int) -> int:
        """Most blocks while a prompt is computed: `batch_tokens` in a step, and those of the step before where these
        are still on the way."""
        if group.kind is CacheKind.MAMBA:
            return (2 if prompt - found > group.block_tokens and self.aligns_states else 1) + self.drafts
        size = self._block_tokens(group)
        most = group.window_tokens - 1 + self.batch_tokens * (1 + self.is_async)
        ends = ceil_div(prompt + self.ahead_tokens, size)
        if not group.window_tokens or most >= prompt - max(0, found - group.window_tokens + 1):
            return ends - self._left(group, found) // size
        return ceil_div(most, size) + 1

    def _steps(self, prompt: int, found: int) -> int:
        """Steps of a prompt that has a batch to itself; one more where a state is cached at a block end."""
        steps = ceil_div(max(1, prompt - found), self.batch_tokens)
        sizes = [group.block_tokens for group in self.groups if group.kind is CacheKind.MAMBA]
        if self.aligns_states and sizes and prompt > sizes[0]:
            steps += not any(group.num_checkpoint_blocks for group in self.groups)
        return steps

    def usable_tokens(self) -> float:
        """Tokens of a step: prompts are cut at a block end where states are cached, which loses half a block."""
        sizes: Sequence[int] = [group.block_tokens for group in self.groups if group.kind is CacheKind.MAMBA]
        if not self.aligns_states or not sizes or sizes[0] > self.batch_tokens:
            return float(self.batch_tokens)
        return self.batch_tokens - sizes[0] / 2


def holding_of(planned: Plan) -> Holding | None:
    """What requests hold in the pool of a plan; None without a pool that is counted in blocks."""
    cache, resolved = planned.cache, planned.resolved
    if cache is None or cache.num_blocks < 2 or not cache.groups or resolved.is_v0:
        return None
    drafts = resolved.num_speculative_tokens
    return Holding(
        blocks=cache.num_blocks - 1,
        groups=cache.groups,
        batch_tokens=resolved.max_num_batched_tokens,
        ranks=context_ranks(planned.scenario.parallel, rules_in_force(resolved.engine, resolved.version)),
        drafts=drafts,
        ahead_tokens=drafts * (1 if resolved.speculative_method in WITHOUT_CACHE else 2),
        aligns_states=resolved.mamba_cache_mode == "align",
        is_async=resolved.async_scheduling,
    )
