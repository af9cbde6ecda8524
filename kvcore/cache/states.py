"""Cache states on one rank: the engine's cache specs, and how many bytes one page of them takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CacheKind(StrEnum):
    """The engine's names of cache spec kinds."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    MLA_ATTENTION = "mla_attention"
    MAMBA = "mamba"
    CROSS_ATTENTION = "cross_attention"
