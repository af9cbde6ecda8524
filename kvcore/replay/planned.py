"""A plan as the settings of a replay."""

from __future__ import annotations

from kvcore.base.errors import WorkloadError
from kvcore.cache.spec import FULL_KINDS
from kvcore.planning import Plan
from kvcore.replay.settings import Group, Settings, rules_of
from kvcore.replay.step_groups import checked_groups


def settings_of(planned: Plan) -> Settings:
    """The scheduler and the pool of one replica.

    Raises WorkloadError `replay-unsupported` for groups that are not replayed, for drafts and for chunked prefill
    switched off, `replay-no-pool` where the engine does not start, `replay-release` for an old release.
    """
    resolved, cache = planned.resolved, planned.cache
    rules = rules_of(resolved.version)
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
    ranks = parallel.decode_context_parallel_size
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
