"""KV cache groups of a replay: which can be replayed, how many blocks a request takes, and how a case states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import WorkloadError, invalid
from kvcore.base.units import ceil_div
from kvcore.cache.rules import rules_in_force
from kvcore.cache.spec import FULL_KINDS, WINDOW_KINDS, CacheKind, Demand, LayerSpec, blocks_per_request
from kvcore.replay.settings import Group, Rules, Settings

MAX_GROUPS: Final = 64
MAX_BLOCK_TOKENS: Final = 1 << 26
REPLAYED: Final = frozenset(CacheKind) - {CacheKind.CROSS_ATTENTION, CacheKind.CIRCULAR_BUFFER}
WINDOWS: Final = {
    CacheKind.SLIDING_WINDOW: "sliding_window",
    CacheKind.SLIDING_WINDOW_MLA: "sliding_window",
    CacheKind.CHUNKED_LOCAL_ATTENTION: "attention_chunk_size",
}
"""Where a case states the width of a group."""


def checked_groups(
    groups: tuple[Group, ...], rules: Rules, *, caches: bool, mamba_cache_mode: str
) -> tuple[Group, ...]:
    """The groups as the scheduler needs them: none where there is one of full attention.

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
        >>> from kvcore.replay.settings import rules_of
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


def with_groups(settings: Settings, case: Mapping[str, Any], version: Version) -> Settings:
    """The settings of a case with its `kv_cache_groups` and `prefix_cache_retention_interval`.

    A group has `kind`, `block_size`, and by its kind `sliding_window`, `attention_chunk_size`, `mamba_cache_mode`,
    `num_checkpoint_blocks`.
    """
    rows = case.get("kv_cache_groups")
    if not rows:
        return settings
    if not isinstance(rows, list) or len(rows) > MAX_GROUPS:
        raise invalid("kv_cache_groups", None, f"it must be a list of at most {MAX_GROUPS} groups")
    groups = tuple(_group(row, f"kv_cache_groups[{at}]", settings, version) for at, row in enumerate(rows))
    modes = {str(row.get("mamba_cache_mode", "none")) for row in rows if row["kind"] == CacheKind.MAMBA}
    if len(modes) > 1:
        raise WorkloadError("replay-unsupported", field="kv_cache_groups")
    kept = checked_groups(
        groups, settings.rules, caches=settings.enable_prefix_caching, mamba_cache_mode="".join(modes)
    )
    if not kept:
        return replace(settings, block_size=groups[0].block_size)
    default = 0 if settings.rules.keeps_boundaries else None
    interval = case.get("prefix_cache_retention_interval", default)
    found = replace(settings, groups=kept, retention_interval=interval)
    unit = found.scheduler_block_size
    if unit > MAX_BLOCK_TOKENS:
        raise WorkloadError("replay-unsupported", field="kv_cache_groups")
    if interval is not None and (type(interval) is not int or interval < 0 or interval % unit):
        raise invalid(
            "prefix_cache_retention_interval", interval, f"it must be a multiple of {unit}, or null"
        )
    return found


def _group(row: object, where: str, settings: Settings, version: Version) -> Group:
    try:
        kind = CacheKind(row["kind"]) if isinstance(row, dict) else None
    except (KeyError, ValueError, TypeError):
        kind = None
    if kind is None or not isinstance(row, dict):
        raise invalid(where, None, "a group is an object with a kind such as full_attention")
    size = _tokens(row, "block_size", where)
    window = _tokens(row, WINDOWS[kind], where) if kind in WINDOWS else 0
    checkpoints = row.get("num_checkpoint_blocks", 0)
    if checkpoints not in (0, 1) or type(checkpoints) is not int:
        raise invalid(f"{where}.num_checkpoint_blocks", checkpoints, "it must be 0 or 1")
    spec = LayerSpec(
        kind=kind,
        layers=1,
        block_size=size,
        page_size_bytes=0,
        sliding_window=window if kind in WINDOW_KINDS else 0,
        attention_chunk_size=window if kind is CacheKind.CHUNKED_LOCAL_ATTENTION else 0,
    )
    most = None
    if window and settings.rules.caps_admission:
        most = blocks_per_request(spec, settings.max_model_len, _demand(settings, version))
    return Group(kind=kind, block_size=size, window=window, most_blocks=most, checkpoint_blocks=checkpoints)


def _demand(settings: Settings, version: Version) -> Demand:
    rules = rules_in_force("vllm", version)
    batches = 2 if settings.async_scheduling and rules.in_flight_batches else 1
    return Demand(
        rules=rules,
        in_flight_tokens=settings.max_num_batched_tokens * batches,
        batch_tokens=settings.max_num_batched_tokens,
        context_ranks=1,
        mamba_cache_mode="align",
    )


def _tokens(row: Mapping[str, Any], name: str, where: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 1 <= value <= MAX_BLOCK_TOKENS:
        raise invalid(f"{where}.{name}", value, f"it must be a whole number from 1 to {MAX_BLOCK_TOKENS:,}")
    return value
