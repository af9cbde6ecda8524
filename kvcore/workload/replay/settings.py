"""What a replay is run with: the scheduler's settings in the engine's own names, and its rules by release."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct
from packaging.version import Version

from kvcore.errors import WorkloadError
from kvcore.versioned import ByRelease, Published, Reviewed, TableFile


class FreeOrder(StrEnum):
    """Where blocks go that nobody has any more."""

    TAIL = "tail"
    """All to the tail of the free queue."""
    UNCACHED_FIRST = "uncached-first"
    """Those without a hash to its head, to be used next; those with one to its tail."""


class Rules(Struct, frozen=True, kw_only=True):
    """What one release does; a field for each table of rules.toml, which names its source."""

    free_order: FreeOrder
    has_watermark: bool
    spares_lone_request: bool
    """Whether `long_prefill_token_threshold` leaves a request alone that has the engine for itself."""


class _Tables(Reviewed, frozen=True, kw_only=True):
    oldest: Published
    rules: ByRelease[Rules]


TABLE: Final = TableFile("kvcore.workload.replay", "rules.toml", _Tables)


def rules_of(version: Version) -> Rules:
    """The rules of a release. Raises WorkloadError `replay-release` for one that was not read.

    Example:
        >>> rules_of(Version("0.19.1")).free_order.value, rules_of(Version("0.32.0")).free_order.value
        ('tail', 'uncached-first')
    """
    tables = TABLE.load()
    if version < tables.oldest:
        raise WorkloadError(
            "replay-release", field="engine_version", value=str(version), oldest=tables.oldest
        )
    return tables.rules.at(version)


class Settings(Struct, frozen=True, kw_only=True):
    """The scheduler's settings under vLLM's own names, and the pool; `num_blocks` counts the null block."""

    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    rules: Rules
    block_size: int = 16
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    watermark: float = 0.0
    long_prefill_token_threshold: int = 0

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can have: all but the null block."""
        return self.num_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free while another request runs; 0 in releases without a watermark.

        ⌊watermark × num_blocks⌋, the null block counted.

        Source: vllm/v1/core/kv_cache_manager.py:KVCacheManager.__init__ (0.32.0).
        """
        return int(self.watermark * self.num_blocks) if self.rules.has_watermark else 0
