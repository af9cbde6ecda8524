"""Settings of a replay, under the engine's own names, from a plan or a case; and the scheduler's rules by release."""

import math
from enum import StrEnum
from typing import Final

from msgspec import Struct
from packaging.version import Version

from kvcore.base.errors import WorkloadError
from kvcore.base.units import ceil_div
from kvcore.cache.rules import rules_in_force
from kvcore.cache.spec import FULL_KINDS, CacheKind, context_ranks
from kvcore.planning import Plan
from kvcore.scenario import Runner
from kvcore.tables import ByRelease, Record, Reviewed, TableFile


class FreeOrder(StrEnum):
    """Where freed blocks go."""

    TAIL = "tail"
    """To the tail of the free queue."""
    WINDOWS_UNCACHED_FIRST = "windows-uncached-first"
    """UNCACHED_FIRST for blocks that leave a window, TAIL for all others."""
    UNCACHED_FIRST = "uncached-first"
    """Blocks without a hash to its head, to be used next; those with one to its tail."""


class Padding(StrEnum):
    """Which admitted requests have their single token padded with dummy drafts while no prompt runs."""

    NOBODY = "nobody"
    JOINING = "joining"
    """A request that joins others; without room below max_model_len it waits."""
    WITH_ROOM = "with-room"
    """A request that joins others, if max_model_len leaves room."""
    AFTER_HIT = "after-hit"
    """Also a request that joins none, whose prompt was found except for one token."""


class Rules(Record, frozen=True, kw_only=True):
    """Rules of one release: a field for each table of rules.toml, which names its source."""

    free_order: FreeOrder
    has_watermark: bool
    spares_lone_request: bool
    """Whether `long_prefill_token_threshold` does not apply to a request that is alone."""
    frees_processed: bool
    """Whether blocks leave a window only after the output of the step that still reads them."""
    masks_windows: bool
    """Whether only the blocks of a window that a later request can find are registered."""
    keeps_boundaries: bool
    """Whether windows and states are registered only where a prompt ends or branches off another."""
    registers_aligned: bool
    """Whether several groups register only blocks that end at a multiple of all block sizes."""
    frees_past_gaps: bool
    """Whether states before an empty place are freed."""
    replays_states: bool
    """Whether states cached at block ends were compared in this release."""
    replays_latent_windows: bool
    """Whether sliding windows over latent vectors were compared in this release."""
    replays_checkpoints: bool
    """Whether states written besides the last one of a step were compared in this release."""
    replays_windows: bool
    """Whether windows and chunks were compared in this release, and it did not fail on its own."""
    replays_mixes: bool
    """Whether chunks and several kinds of windows were compared in this release."""
    reserves_whole: bool
    """Whether a request is admitted only if its whole prompt fits, not just its first step."""
    counts_resends: bool
    """Whether the last cached state of a prompt leaves at least one token to compute."""
    replays_drafts: bool
    """Whether speculative decoding was compared in this release."""
    pads_drafts: Padding
    slots_by_request: bool
    """Whether a drafter's slots are subtracted for the scheduled requests, not for `max_num_seqs`."""
    renews_states: bool
    """Whether the last state of a prompt counts as registered in every step while it is last."""
    caps_admission: bool
    """Whether admission counts no more blocks of a window than a request ever has at once."""


class _Tables(Reviewed, frozen=True, kw_only=True):
    oldest: Version
    rules: ByRelease[Rules]


TABLE: Final = TableFile("kvcore.replay", "rules.toml", _Tables)


def rules_of(version: Version) -> Rules:
    """The rules of a release. Raises WorkloadError `replay-release` for a release before the oldest one read.

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


class Group(Struct, frozen=True, kw_only=True):
    """One KV cache group: layers that share their blocks."""

    kind: CacheKind
    block_size: int
    window: int = 0
    """Tokens of the sliding window, or of a chunk of local attention."""
    most_blocks: int | None = None
    """Most blocks of a request at once, if admission is capped there."""
    checkpoint_blocks: int = 0
    """Blocks for the state at the last block end of a prompt, written in the same step as its last state."""


class Drafts(Struct, frozen=True, kw_only=True):
    """Speculative decoding."""

    tokens: int
    """`num_speculative_tokens`: most drafts of a step."""
    accepted: tuple[int, ...]
    """Accepted drafts of successive verifying steps of a request, repeated."""
    proposed: tuple[int, ...] = ()
    """Proposed drafts of successive steps of a request that give it a token, repeated; empty: always all."""
    writes_ahead: bool = True
    """Whether the drafter has its own keys and values, which need blocks before the drafts are verified."""
    drops_last_block: bool = True
    """Whether the last found block is computed again, because the drafter needs its hidden states."""
    slots: int = 0
    """Tokens that the drafter adds to the batch for each request."""


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
    groups: tuple[Group, ...] = ()
    """Empty for one group of full attention with blocks of `block_size`."""
    drafts: Drafts | None = None
    retention_interval: int | None = None
    """`prefix_cache_retention_interval`: 0 keeps windows and states only where prompts end or branch."""

    @property
    def scheduler_block_size(self) -> int:
        """Tokens that the end of a prefix hit is a multiple of.

        lcm of the groups' block sizes.

        Source: vllm/v1/core/kv_cache_utils.py:resolve_kv_cache_block_sizes (0.32.0).
        """
        return math.lcm(*(group.block_size for group in self.groups)) if self.groups else self.block_size

    @property
    def hash_block_size(self) -> int:
        """Tokens of one hash: gcd of the groups' block sizes.

        Source: vllm/v1/core/kv_cache_utils.py:resolve_kv_cache_block_sizes (0.32.0).
        """
        return math.gcd(*(group.block_size for group in self.groups)) if self.groups else self.block_size

    @property
    def late_tokens(self) -> int:
        """Tokens of a decoding request that are computed but not yet handled when its next step is scheduled."""
        return int(self.async_scheduling and self.rules.frees_processed)

    @property
    def usable_blocks(self) -> int:
        """Blocks for requests: all but the null block."""
        return self.num_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free while another request runs; 0 in releases without a watermark.

        ⌊watermark × num_blocks⌋, the null block counted.

        Source: vllm/v1/core/kv_cache_manager.py:KVCacheManager.__init__ (0.32.0).
        """
        return int(self.watermark * self.num_blocks) if self.rules.has_watermark else 0


REPLAYED: Final = frozenset(CacheKind) - {CacheKind.CROSS_ATTENTION, CacheKind.CIRCULAR_BUFFER}
WINDOWS: Final = {
    CacheKind.SLIDING_WINDOW: "sliding_window",
    CacheKind.SLIDING_WINDOW_MLA: "sliding_window",
    CacheKind.CHUNKED_LOCAL_ATTENTION: "attention_chunk_size",
}
"""Field of a case with the width of a group."""


def checked_groups(
    groups: tuple[Group, ...], rules: Rules, *, caches: bool, mamba_cache_mode: str
) -> tuple[Group, ...]:
    """The groups as the scheduler needs them: none for a single one of full attention.

    Raises WorkloadError `replay-unsupported`, field `kv_cache_groups`, for what is not replayed.
    """
    if len(groups) == 1 and groups[0].kind in FULL_KINDS:
        return ()
    kinds = {group.kind for group in groups}
    sizes = {group.block_size for group in groups}
    refused = (
        not kinds <= REPLAYED
        or (not rules.replays_windows and not kinds.isdisjoint(WINDOWS))
        or (not rules.replays_mixes and (CacheKind.CHUNKED_LOCAL_ATTENTION in kinds or len(set(groups)) > 2))
        or (CacheKind.SLIDING_WINDOW_MLA in kinds and not rules.replays_latent_windows)
        or (any(group.checkpoint_blocks for group in groups) and not rules.replays_checkpoints)
        or (CacheKind.CHUNKED_LOCAL_ATTENTION in kinds and len(sizes) > 1)
    )
    if CacheKind.MAMBA in kinds:
        mode_fits = mamba_cache_mode == ("align" if caches else "none")
        refused = refused or not mode_fits or (caches and (len(sizes) > 1 or not rules.replays_states))
    if refused:
        raise WorkloadError("replay-unsupported", field="kv_cache_groups")
    return groups


def blocks_held(settings: Settings, tokens: int) -> int:
    """Blocks that a request of so many tokens may take at once, of all groups.

    Example:
        >>> from msgspec.structs import replace
        >>> plain = Settings(num_blocks=9, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256,
        ...                  rules=rules_of(Version("0.32.0")))
        >>> window = Group(kind=CacheKind.SLIDING_WINDOW, block_size=16, window=33, most_blocks=7)
        >>> full = Group(kind=CacheKind.FULL_ATTENTION, block_size=16)
        >>> blocks_held(plain, 200), blocks_held(replace(plain, groups=(full, window)), 200)
        (13, 20)
    """
    if not settings.groups:
        return ceil_div(tokens, settings.block_size)
    return sum(_held(group, tokens, caches=settings.enable_prefix_caching) for group in settings.groups)


def _held(group: Group, tokens: int, *, caches: bool) -> int:
    blocks = ceil_div(tokens, group.block_size)
    if group.kind is CacheKind.MAMBA and caches:
        return min(blocks, 2 + group.checkpoint_blocks)
    return blocks if group.most_blocks is None else min(blocks, group.most_blocks)


def check_replayed(planned: Plan) -> None:
    """Raises WorkloadError `replay-unsupported` for what the scheduler alone does not decide: pooling models, which
    give no tokens, encoders whose states are kept, connectors, which load blocks from elsewhere, and engines of one
    deployment that share its requests."""
    scenario = planned.scenario
    if planned.resolved.runner is Runner.POOLING:
        raise WorkloadError("replay-unsupported", field="runner")
    if planned.cache is not None and any(
        group.kind is CacheKind.CROSS_ATTENTION for group in planned.cache.groups
    ):
        raise WorkloadError("replay-unsupported", field="kv_cache_groups")
    if scenario.kv_offloading_size:
        raise WorkloadError("replay-unsupported", field="kv_offloading_size")
    if scenario.kv_transfer_config:
        raise WorkloadError("replay-unsupported", field="kv_transfer_config")
    if scenario.parallel.data_parallel_size > 1:
        raise WorkloadError("replay-unsupported", field="data_parallel_size")


def settings_of(planned: Plan) -> Settings:
    """The settings of one replica of a plan.

    Raises WorkloadError `replay-unsupported` for groups that are not replayed, for drafts and for chunked prefill
    switched off, `replay-no-pool` where the engine does not start, `replay-release` for an old release.
    """
    resolved, cache = planned.resolved, planned.cache
    rules = rules_of(resolved.version)
    check_replayed(planned)
    if cache is None or cache.num_blocks < 2 or (planned.available_kv_bytes or 0) <= 0:
        raise WorkloadError("replay-no-pool", field="num_blocks")
    if resolved.num_speculative_tokens:
        raise WorkloadError("replay-unsupported", field="speculative_config")
    if not resolved.enable_chunked_prefill:
        raise WorkloadError("replay-unsupported", field="enable_chunked_prefill")
    parallel = planned.scenario.parallel
    if parallel.pipeline_parallel_size > 1:
        raise WorkloadError("replay-unsupported", field="pipeline_parallel_size")
    written = resolved.state_export_tokens
    if written and any(
        group.num_checkpoint_blocks and group.block_tokens % written for group in cache.groups
    ):
        raise WorkloadError("replay-unsupported", field="kv_cache_groups")
    ranks = context_ranks(parallel, rules_in_force(resolved.engine, resolved.version))
    groups = checked_groups(
        tuple(
            Group(
                kind=group.kind,
                block_size=group.block_tokens * (ranks if group.kind in FULL_KINDS else 1),
                window=group.window_tokens,
                most_blocks=group.blocks_per_request
                if group.window_tokens and rules.caps_admission
                else None,
                checkpoint_blocks=group.num_checkpoint_blocks,
            )
            for group in cache.groups
        ),
        rules,
        caches=resolved.enable_prefix_caching,
        mamba_cache_mode=resolved.mamba_cache_mode,
    )
    return Settings(
        num_blocks=cache.num_blocks,
        block_size=cache.groups[0].block_tokens * ranks,
        groups=groups,
        retention_interval=0 if rules.keeps_boundaries else None,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        enable_prefix_caching=resolved.enable_prefix_caching,
        async_scheduling=resolved.async_scheduling,
        rules=rules,
    )
