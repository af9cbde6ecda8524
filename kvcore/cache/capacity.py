"""What a pool holds: blocks, tokens, concurrency."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.cache.states import CacheKind


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheGroup:
    """Layers that share one block table."""

    kind: CacheKind
    layers: int
    block_size: int
    page_size_bytes: int
    """Of one layer, one block."""
    blocks_per_request: int
    """That a request of max_model_len may hold at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePlan:
    """The KV plan of one replica, as the engine's planner computes it; the smallest rank wins."""

    num_blocks: int
    tokens: int
    """The figure behind "GPU KV cache size", by that version's own formula."""
    max_concurrency: float
    """The figure behind "Maximum concurrency", unrounded."""
    groups: tuple[CacheGroup, ...]
    bytes_per_block: int
    """On the rank with the largest blocks."""
    bytes_per_token: float
    """Slope: bytes per further token of one request, on that rank."""
    request_fixed_bytes: int
    """What a request takes whatever its length, on that rank."""
    needed_bytes: int
    """What the engine's start-up check says one request of max_model_len needs."""
    fits: bool
    """Whether that check passes."""
    longest_request_tokens: int
    """The largest max_model_len that passes the check; 0 when none does."""
    max_model_len: int
    """As planned: shrunk when max_model_len is auto."""
