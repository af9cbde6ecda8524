"""How the engine's cache planner behaves in one version: `planner.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final

from packaging.version import Version

from kvcore.versioned import Bounds, ByRelease, Reviewed, TableFile


class PageUnification(StrEnum):
    """How pages of different sizes become one."""

    NONE = "none"
    BLOCKS = "blocks"
    """By larger blocks only."""
    BLOCKS_MAMBA = "blocks-mamba"
    """And by padded states."""
    BLOCKS_MAMBA_ATTENTION = "blocks-mamba-attention"


class PackedGroups(StrEnum):
    """How DeepSeek-V4's windows of latent vectors are grouped."""

    NONE = "none"
    PADDED_TUPLES = "padded-tuples"
    PADDED_SLOTS = "padded-slots"
    LAYER_TUPLES = "layer-tuples"
    PATTERN_REPEATS = "pattern-repeats"


class FitRule(StrEnum):
    """What one request needs."""

    LAYERS = "layers"
    """Each worker's layers one by one, before they are grouped."""
    FIRST_GROUP = "first-group"
    """Only the first group of the whole model counts, against the smallest memory."""
    FIRST_GROUP_PROJECTED = "first-group-projected"
    """The same on each worker."""
    GROUPS = "groups"
    """Every group of each worker."""
    GROUPS_AND_NULL_BLOCK = "groups-and-null-block"
    """The same, and one block is kept back."""


class ReportedTokens(StrEnum):
    """What "KV cache size" counts."""

    BLOCKS = "blocks"
    BLOCKS_PER_GROUP = "blocks-per-group"
    CONCURRENCY = "concurrency"


class ReportedConcurrency(StrEnum):
    """What a request is divided into."""

    TOKENS = "tokens"
    BYTES = "bytes"
    BLOCKS = "blocks"


class EncoderTokens(StrEnum):
    """What cross-attention is sized for."""

    ENCODER = "encoder"
    BATCH = "batch"


class MambaBlocks(StrEnum):
    """Blocks of recurrent states of one request."""

    ONE = "one"
    LENGTH = "length"
    MODE = "mode"
    MODE_AND_SPECULATIVE = "mode-and-speculative"
    MODE_WITHOUT_ALL = "mode-without-all"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerRules:
    """One version's behaviour; each field is a table of planner.toml, which names its source."""

    hybrid_manager: bool
    """Layers of different kinds may keep block tables of their own."""
    global_groups: bool
    """Groups are made over all pipeline stages, every n-th layer; before, per worker and contiguous."""
    uniform_type_groups: bool
    """Layers of one kind with different page sizes share one group."""
    page_unification: PageUnification
    full_allocation_fallback: bool
    """Where pages cannot be unified, windows with MLA are allocated in full."""
    group_size_slack: Annotated[float, Bounds(1.0, 8.0)]
    """The largest bucket sets the group size when it is less than this times the smallest."""
    promotion_aligns_blocks: bool
    """A window promoted to full attention takes the full layers' block size."""
    packed_groups: PackedGroups
    fit_check: FitRule
    override_counts_in_check: bool
    """num_gpu_blocks_override also replaces the memory that the check looks at."""
    reported_tokens: ReportedTokens
    reported_concurrency: ReportedConcurrency
    single_group_reports_default_block: bool
    """One group: tokens are printed in the flag's block size, not the group's."""
    in_flight_batches: bool
    context_parallel_divides: bool
    encoder_tokens: EncoderTokens
    mamba_blocks: MambaBlocks
    mamba2_checkpoint_blocks: Annotated[int, Bounds(0, 16)]
    value_dimension: bool
    mla_block_alignment: Annotated[int, Bounds(0, 1024)]
    """Tokens that blocks of a hybrid MLA model are a multiple of; 0 follows the backend alone."""
    alignment_follows_backend: bool
    """Blocks of a hybrid model are a multiple of the backend's kernel block and of the asked block size."""
    state_blocks_check: bool
    """Full CUDA graphs need a block of recurrent state for each of max_num_seqs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerTables(Reviewed):
    """planner.toml."""

    rules: ByRelease[PlannerRules]


PLANNER: Final = TableFile("kvcore.cache", "planner.toml", PlannerTables)


@lru_cache(maxsize=256)
def planner_rules(version: Version) -> PlannerRules:
    """The rules that apply in `version`.

    Example:
        >>> planner_rules(Version("0.18.1")).group_size_slack
        1.5
    """
    return PLANNER.load().rules.at(version)
