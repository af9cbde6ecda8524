"""What conversations and shared prefixes do to the pool: history grows turn by turn, a common prefix is kept once."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.cache.spec import FULL_KINDS
from kvcore.planning import Plan
from kvcore.workload.limits import requests_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """A chat whose client sends the history again with each turn."""

    system_tokens: int
    user_tokens: int
    answer_tokens: int
    kept_turns: int = 0
    """Earlier turns that the client keeps; 0 for all."""

    def taken_tokens(self, turn: int) -> int:
        """Tokens that the request of one turn takes when its answer ends.

        system + min(turn − 1, kept) × (user + answer) + user + answer

        Example:
            >>> chat = Conversation(system_tokens=500, user_tokens=100, answer_tokens=400)
            >>> [chat.taken_tokens(turn) for turn in (1, 2, 5)]
            [1000, 1500, 3000]
        """
        history = turn - 1 if not self.kept_turns else min(turn - 1, self.kept_turns)
        return self.system_tokens + (history + 1) * (self.user_tokens + self.answer_tokens)

    def new_tokens(self, turn: int) -> int:
        """Prompt tokens of a turn that prefix caching has not seen, while nothing was evicted and the history is whole.

        Once the client drops old turns, what follows the system prompt is new every time.

        Example:
            >>> Conversation(system_tokens=500, user_tokens=100, answer_tokens=400).new_tokens(5)
            100
        """
        if turn == 1:
            return self.system_tokens + self.user_tokens
        if self.kept_turns and turn - 1 > self.kept_turns:
            return self.taken_tokens(turn) - self.answer_tokens - self.system_tokens
        return self.user_tokens

    def last_turn_within(self, limit_tokens: int) -> int | None:
        """The last turn that fits into max_model_len; None when every turn does, 0 when not even the first.

        Example:
            >>> Conversation(system_tokens=500, user_tokens=100, answer_tokens=400).last_turn_within(2048)
            3
        """
        if self.kept_turns and self.taken_tokens(self.kept_turns + 1) <= limit_tokens:
            return None
        step = self.user_tokens + self.answer_tokens
        return max(0, (limit_tokens - self.system_tokens) // step) if step else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixSharing:
    """What prefix caching saves where all requests begin with the same tokens, on one replica."""

    shared_blocks: int
    """Whole blocks of the prefix: what each request after the first does not take again."""
    shared_tokens: int
    request_blocks: float
    """Of one request, without sharing."""
    pool_blocks: int
    requests_without: float
    requests_with: float


def prefix_sharing(planned: Plan, prefix_tokens: int, request_tokens: int) -> PrefixSharing | None:
    """Requests of `request_tokens` at once when the first `prefix_tokens` of all of them are the same.

    With N blocks in the pool, b of a request and s = Σ over full-attention groups of ⌊prefix / block⌋ shared:
    N / b without, and N = s + R × (b − s) gives R = (N − s) / (b − s) with sharing. Windows and recurrent states
    are not shared here: what they keep at a position is gone or belongs to one request.

    None without a pool. Source: vllm/v1/core/kv_cache_manager.py:KVCacheManager.get_computed_blocks (0.33.0): only
    full blocks, and never the last token of a prompt.
    """
    cache = planned.cache
    (without,) = requests_at(planned, (request_tokens,))
    if cache is None or cache.num_blocks <= 0 or not 0 < without < float("inf"):
        return None
    blocks = cache.num_blocks / without
    ranks = planned.scenario.parallel.decode_context_parallel_size
    usable = max(0, min(prefix_tokens, request_tokens - 1))
    shared = [usable // (group.block_size * ranks) for group in cache.groups if group.kind in FULL_KINDS]
    total = sum(shared)
    if total >= blocks:
        total, shared = 0, []
    return PrefixSharing(
        shared_blocks=total,
        shared_tokens=max(
            (
                count * group.block_size * ranks
                for count, group in zip(
                    shared, [group for group in cache.groups if group.kind in FULL_KINDS], strict=False
                )
            ),
            default=0,
        ),
        request_blocks=blocks,
        pool_blocks=cache.num_blocks,
        requests_without=without,
        requests_with=(cache.num_blocks - total) / (blocks - total),
    )
