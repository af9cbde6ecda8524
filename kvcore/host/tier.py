"""The tier of KV caches in the host's memory: what a connector takes of it, and how many tokens it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from kvcore.base.errors import EngineRefusalError, Notice, notice
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.units import GIB, KIB, ceil_div, round_up
from kvcore.cache.capacity import CachePlan
from kvcore.cache.groups import Grouping
from kvcore.cache.spec import CacheKind
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.protocol import Resolved
from kvcore.host.rules import (
    FlagRule,
    GivenIn,
    Place,
    SharedCopies,
    Tensors,
    TierRules,
    lmcache_rounds_up,
    tier_rules,
)
from kvcore.scenario import Scenario

NATIVE: Final = "OffloadingConnector"
SIMPLE: Final = "SimpleCPUOffloadConnector"
LMCACHE: Final = "LMCacheConnectorV1"
SIMPLE_DEFAULT_BYTES: Final = 8 * GIB
"""Source: vllm/distributed/kv_transfer/kv_connector/v1/simple_cpu_offload_connector.py (0.19.0, 0.33.0)."""
LMCACHE_SIZE: Final = "LMCACHE_MAX_LOCAL_CPU_SIZE"
LMCACHE_CHUNK: Final = "LMCACHE_CHUNK_SIZE"
LMCACHE_DEFAULT_GIB: Final = 5.0
LMCACHE_DEFAULT_CHUNK: Final = 256
"""Source: lmcache/v1/config.py: max_local_cpu_size, chunk_size (0.3.15, 0.5.6)."""
HOST_PAGE: Final = 4 * KIB
"""Bytes of a page of the host's memory, which a row of the shared region is a multiple of."""
SPLIT_BACKEND: Final = "FLASH_ATTN"


class Tier(Struct, frozen=True, kw_only=True):
    """The tier of one engine."""

    connector: str
    taken: Quantity
    """Bytes of the host that all ranks of the engine take."""
    shm_bytes: int
    """Those of them that are a file in /dev/shm."""
    blocks: int
    """Blocks, or chunks, as the scheduler counts them; 0 where it does not."""
    tokens: int
    """Tokens that it holds if every group of layers keeps its blocks."""
    bytes_per_token: float
    """The same of one token, over all ranks that keep a copy, before rows or tensors are rounded up."""


def connector_settings(scenario: Scenario) -> Mapping[str, Any]:
    """`kv_connector_extra_config`; empty without."""
    said = json.loads(scenario.kv_transfer_config) if scenario.kv_transfer_config is not None else {}
    found = said.get("kv_connector_extra_config") if isinstance(said, dict) else None
    return found if isinstance(found, dict) else {}


def check_tier(scenario: Scenario, resolved: Resolved) -> None:
    """Raises EngineRefusalError `offloading-without-blocks` or `offloading-without-groups` where the release cannot
    start with `--kv-offloading-size` and its own connector.

    Source: `flag` of tier.toml.
    """
    if scenario.kv_offloading_size is None or resolved.engine.transfer(scenario).connector != NATIVE:
        return
    match tier_rules(resolved.version).flag:
        case FlagRule.NO_BLOCKS:
            raise EngineRefusalError(
                "offloading-without-blocks", "kv_offloading_size", scenario.kv_offloading_size
            )
        case FlagRule.AFTER_CHECK if not scenario.disable_hybrid_kv_cache_manager:
            raise EngineRefusalError("offloading-without-groups", "disable_hybrid_kv_cache_manager", NATIVE)


def tier_notices(scenario: Scenario, resolved: Resolved) -> Iterator[Notice]:
    """`offloading-size-not-read` for a backend whose server has its own size, `offloading-size-per-engine` where
    replicas take it again.

    Source: `lmcache_server` of tier.toml; vllm/v1/engine/core.py: an engine_id of each data parallel rank (0.27.0,
    0.33.0).
    """
    size, replicas = scenario.kv_offloading_size, scenario.parallel.data_parallel_size
    if size is None:
        return
    if scenario.kv_offloading_backend == "lmcache" and tier_rules(resolved.version).lmcache_server:
        yield notice("offloading-size-not-read", "kv_offloading_size", value=f"{size:g}")
    elif replicas > 1:
        yield notice(
            "offloading-size-per-engine",
            "kv_offloading_size",
            value=f"{size:g}",
            replicas=replicas,
            total=f"{size * replicas:g}",
        )


def tier_of(
    scenario: Scenario, resolved: Resolved, accelerator: Accelerator, cache: CachePlan
) -> Tier | None:
    """The tier that the connector keeps in the host's memory; None without one, or one whose size is not known here."""
    match resolved.engine.transfer(scenario).connector:
        case "OffloadingConnector":
            return _native(scenario, resolved, accelerator, cache)
        case "SimpleCPUOffloadConnector":
            return _simple(scenario, cache)
        case "LMCacheConnectorV1":
            return _lmcache(scenario, cache)
    return None


def _native(
    scenario: Scenario, resolved: Resolved, accelerator: Accelerator, cache: CachePlan
) -> Tier | None:
    rules, grouping = tier_rules(resolved.version), cache.trace.grouping
    settings, parallel = connector_settings(scenario), scenario.parallel
    ranks = parallel.ranks_per_replica
    factor = _blocks_per_chunk(settings, grouping)
    place = _place(rules, accelerator)
    copies = 1 if _is_shared(rules, place, scenario, accelerator, grouping) else ranks
    asked = _asked_bytes(scenario, settings)
    rows = tuple(_block_bytes(rules, grouping, stage) for stage in range(len(grouping.stages)))
    if rules.given_in is GivenIn.BLOCKS:
        blocks: tuple[int, ...] = (_whole(settings.get("num_cpu_blocks")),) * len(rows)
    elif asked is None:
        return None
    elif place is Place.REGION:
        blocks = tuple(asked // region_row_bytes(row, copies, factor) for row in rows)
    else:
        blocks = tuple(asked // (row * ranks * factor) for row in rows)
    scheduled = blocks[0]
    if not rules.adds_pages and rules.given_in is GivenIn.BYTES and asked is not None:
        # The scheduler counts a page of the first kind of layer for each, whatever the others store.
        scheduled = asked // (_flattened_bytes(grouping) * ranks * factor)
    if place is Place.REGION:
        parts = [
            region_bytes(count, region_row_bytes(row, copies, factor))
            for count, row in zip(blocks, rows, strict=True)
        ]
        largest = parts.index(max(parts))
        taken = _explained(
            "host_tier",
            region_bytes,
            given("blocks", blocks[largest], Unit.BLOCKS),
            given("row_bytes", region_row_bytes(rows[largest], copies, factor), Unit.BYTES),
            source="vllm/v1/kv_offload/cpu/shared_offload_region.py:SharedOffloadRegion (0.27.0, 0.33.0)",
        )
    else:
        taken = _pinned(rules, resolved, scenario, grouping, blocks, factor)
    return Tier(
        connector=NATIVE,
        taken=taken,
        shm_bytes=int(taken.value) if place is Place.REGION else 0,
        blocks=scheduled,
        tokens=_tokens(scheduled, factor, cache),
        bytes_per_token=copies * rows[0] / _block_tokens(cache),
    )


def _place(rules: TierRules, accelerator: Accelerator) -> Place:
    match accelerator.vendor:
        case Vendor.AMD:
            return rules.place_amd
        case Vendor.INTEL:
            return rules.place_intel
    return rules.place


def _asked_bytes(scenario: Scenario, settings: Mapping[str, Any]) -> int | None:
    """The size of the tier over all ranks of one engine."""
    if scenario.kv_offloading_size is not None:
        return int(scenario.kv_offloading_size * GIB)
    found = settings.get("cpu_bytes_to_use")
    return None if found is None else _whole(found)


def _whole(value: object) -> int:
    """A number of bytes or blocks as a connector's settings have it; 0 for any other value."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value < 1 << 60 else 0


def _blocks_per_chunk(settings: Mapping[str, Any], grouping: Grouping) -> int:
    """Blocks of the GPU that one of the tier has."""
    chunk = _whole(settings.get("blocks_per_chunk"))
    if chunk:
        return chunk
    block, own = _whole(settings.get("block_size")), grouping.whole[0].block_size
    return max(1, block // own) if len(grouping.whole) == 1 else 1


def _block_bytes(rules: TierRules, grouping: Grouping, stage: int) -> int:
    """Bytes of a block on one rank of a stage, as the workers count it."""
    pages = grouping.block_pages[stage]
    if rules.adds_pages or len(pages) == 1:
        return sum(layers * page for layers, page in pages)
    layers = sum(layers for layers, _ in pages)
    return layers * sum(count * page for count, page in pages)


def _flattened_bytes(grouping: Grouping) -> int:
    """Bytes of a block where the first kind of layer stands for all of the first stage."""
    pages = grouping.block_pages[0]
    return sum(layers for layers, _ in pages) * max(page for _, page in pages)


def _is_shared(
    rules: TierRules, place: Place, scenario: Scenario, accelerator: Accelerator, grouping: Grouping
) -> bool:
    """Whether the region keeps one copy of what all ranks of a tensor parallel group store alike."""
    parallel = scenario.parallel
    ranks = parallel.tensor_parallel_size
    is_plain = (
        ranks > 1 and parallel.ranks_per_replica == ranks and parallel.decode_context_parallel_size == 1
    )
    if place is not Place.REGION or not is_plain or ranks > accelerator.devices_per_node:
        return False
    members = [spec for group in grouping.whole for spec in group.members]
    is_latent = all(spec.kind is CacheKind.MLA_ATTENTION for spec in members)
    match rules.shared_copies:
        case SharedCopies.NONE:
            return False
        case SharedCopies.PLAIN_LATENT:
            return is_latent and len(members) == 1
        case SharedCopies.LATENT:
            return is_latent


def region_row_bytes(block_bytes: int, copies: int, blocks_per_chunk: int) -> int:
    """Bytes of a row of the shared region: what all ranks keep of a chunk, in whole pages of the host.

    Source: vllm/v1/kv_offload/cpu/spec.py (0.27.0, 0.33.0).

    Example:
        >>> region_row_bytes(4_497_408, 1, 1), region_row_bytes(1000, 2, 1)
        (4497408, 4096)
    """
    return round_up(block_bytes * copies * blocks_per_chunk, HOST_PAGE)


def region_bytes(blocks: int, row_bytes: int) -> int:
    """Bytes of the file that all ranks of an engine share."""
    return blocks * row_bytes


def pinned_bytes(ranks: int, tensors: Sequence[tuple[int, int]]) -> int:
    """Bytes of tensors of every rank, each as large as torch's allocator pins it."""
    return ranks * sum(count * size for count, size in tensors)


def power_of_two(size_bytes: int) -> int:
    """Bytes that torch pins for a tensor: the next power of two.

    Source: torch ATen/core/CachingHostAllocator.h:CachingHostAllocatorImpl.allocate (2.9 to 2.13).

    Example:
        >>> power_of_two(2_236_817_408) == 4 * GIB, power_of_two(4096)
        (True, 4096)
    """
    return 1 << (size_bytes - 1).bit_length() if size_bytes > 0 else 0


def in_the_host(name: str, ranks: Quantity, sizes: Mapping[int, int], *, source: str) -> Quantity:
    """Bytes of every rank's tensors; `sizes`: how many there are of each size."""
    tensors = tuple(
        (given("tensors", count), given("tensor_bytes", size, Unit.BYTES)) for size, count in sizes.items()
    )
    return _explained(name, pinned_bytes, ranks, tensors, source=source)


def _explained(name: str, rule: Any, *arguments: Any, source: str, grade: Grade = Grade.EXACT) -> Quantity:
    return explained(
        name, rule, *arguments, unit=Unit.BYTES, scope=Scope.PER_REPLICA, grade=grade, source=source
    )


def _pinned(
    rules: TierRules,
    resolved: Resolved,
    scenario: Scenario,
    grouping: Grouping,
    blocks: Sequence[int],
    factor: int,
) -> Quantity:
    """Tensors that every rank pins: one for all layers, or one for each, keys and values apart in some releases."""
    ranks = ceil_div(scenario.parallel.ranks_per_replica, len(blocks))
    tensors: list[tuple[Quantity, Quantity]] = []
    for stage, count in enumerate(blocks):
        pages = grouping.block_pages[stage]
        if _holds_all(rules, resolved, grouping):
            pages = ((1, sum(layers * page for layers, page in pages)),)
        elif rules.splits_keys and _splits(resolved, grouping):
            pages = tuple((2 * layers, page // 2) for layers, page in pages)
        for layers, page in pages:
            size = power_of_two(count * page * factor)
            tensors.append((given("tensors", layers), given("pinned_tensor", size, Unit.BYTES)))
    return _explained(
        "host_tier",
        pinned_bytes,
        given("ranks", ranks),
        tuple(tensors),
        source="vllm/v1/kv_offload/worker/cpu_gpu.py: torch.zeros(pin_memory=True) (0.11.0, 0.26.0); torch "
        "ATen/core/CachingHostAllocator.h; github.com/vllm-project/vllm/issues/53042: 384 GiB for 200",
    )


def _holds_all(rules: TierRules, resolved: Resolved, grouping: Grouping) -> bool:
    """Whether one tensor holds all layers."""
    if len(grouping.whole) > 1 or any(len(pages) > 1 for pages in grouping.block_pages):
        return False
    match rules.tensors:
        case Tensors.LAYERS:
            return False
        case Tensors.ALL:
            return True
        case Tensors.ALL_OF_HEADS:
            is_latent = any(spec.kind is CacheKind.MLA_ATTENTION for spec in grouping.whole[0].members)
            return not is_latent and not resolved.use_v2_model_runner


def _splits(resolved: Resolved, grouping: Grouping) -> bool:
    kinds = {spec.kind for group in grouping.whole for spec in group.members}
    latent = {CacheKind.MLA_ATTENTION, CacheKind.SLIDING_WINDOW_MLA, CacheKind.MAMBA}
    return resolved.attention_backend == SPLIT_BACKEND and not kinds & latent


def _tokens(blocks: int, factor: int, cache: CachePlan) -> int:
    """Tokens of a request that lie in so many blocks, where each group keeps its own."""
    groups = cache.groups
    return blocks // len(groups) * factor * min(group.block_tokens for group in groups)


def _block_tokens(cache: CachePlan) -> float:
    """Tokens for which each group keeps a block, by the block."""
    return min(group.block_tokens for group in cache.groups) / len(cache.groups)


def _simple(scenario: Scenario, cache: CachePlan) -> Tier:
    """Source: vllm/v1/simple_kv_offload/worker.py, manager.py (0.19.0, 0.33.0): exact, and no copy is shared."""
    settings, parallel = connector_settings(scenario), scenario.parallel
    ranks, rows = parallel.ranks_per_replica, cache.trace.grouping.bytes_per_block
    own = settings.get("cpu_bytes_to_use_per_rank")
    asked = _asked_bytes(scenario, settings)
    each = (SIMPLE_DEFAULT_BYTES if asked is None else asked) // ranks if own is None else _whole(own)
    blocks = tuple(max(1, each // row) for row in rows)
    parts = tuple(
        (given("blocks", count, Unit.BLOCKS), given("bytes_per_block", row, Unit.BYTES))
        for count, row in zip(blocks, rows, strict=True)
    )
    taken = _explained(
        "host_tier",
        pinned_bytes,
        given("ranks", ceil_div(ranks, len(rows))),
        parts,
        source="vllm/v1/simple_kv_offload/worker.py, manager.py (0.19.0, 0.33.0)",
    )
    return Tier(
        connector=SIMPLE,
        taken=taken,
        shm_bytes=0,
        blocks=blocks[0],
        tokens=_tokens(blocks[0], 1, cache),
        bytes_per_token=ranks * rows[0] / _block_tokens(cache),
    )


def _lmcache(scenario: Scenario, cache: CachePlan) -> Tier | None:
    """In the engine's own processes: the size is of each rank that saves, and of latent vectors one does.

    Source: lmcache/v1/storage_backend/local_cpu_backend.py:initialize_allocator, _calculate_effective_cpu_size,
    cache_engine.py (0.3.15, 0.4.7, 0.5.6); before 0.3.3 torch.empty(pin_memory=True).
    """
    ranks, grouping, env = scenario.parallel.ranks_per_replica, cache.trace.grouping, scenario.env
    if len(grouping.whole) > 1:
        return None
    is_latent = all(spec.kind is CacheKind.MLA_ATTENTION for spec in grouping.whole[0].members)
    first_alone = is_latent and not _is_on(env, "LMCACHE_USE_LAYERWISE", default=False)
    first_alone = first_alone and _is_on(env, "LMCACHE_SAVE_ONLY_FIRST_RANK", default=True)
    size_gib = _number(env.get(LMCACHE_SIZE), LMCACHE_DEFAULT_GIB)
    if first_alone:
        size_gib = _number(env.get("LMCACHE_FIRST_RANK_MAX_LOCAL_CPU_SIZE"), size_gib)
    size = int(size_gib * GIB)
    chunk = int(_number(env.get(LMCACHE_CHUNK), LMCACHE_DEFAULT_CHUNK)) or LMCACHE_DEFAULT_CHUNK
    block = cache.groups[0].block_tokens
    chunk_bytes = round_up(ceil_div(grouping.bytes_per_block[0] * chunk, block), HOST_PAGE)
    saving = 1 if first_alone else ranks
    taken = _explained(
        "host_tier",
        region_bytes,
        given("saving_ranks", saving),
        given("max_local_cpu_size", power_of_two(size) if _rounds_up(scenario) else size, Unit.BYTES),
        source="lmcache/v1/storage_backend/local_cpu_backend.py:initialize_allocator (0.3.15, 0.5.6)",
    )
    return Tier(
        connector=LMCACHE,
        taken=taken,
        shm_bytes=0,
        blocks=0,
        tokens=size // chunk_bytes * chunk,
        bytes_per_token=saving * chunk_bytes / chunk,
    )


def _rounds_up(scenario: Scenario) -> bool:
    """Whether the version of LMCache lets torch pin its memory, which rounds it up."""
    text = scenario.lmcache_version
    try:
        return text is not None and lmcache_rounds_up(Version(text))
    except InvalidVersion:
        return False


def _is_on(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A variable of LMCache that is true or false."""
    text = env.get(name)
    return default if text is None else text.strip().lower() in ("1", "true", "yes", "on")


def _number(text: str | None, default: float) -> float:
    """A variable that is a plain number of up to twelve digits."""
    if text is None or len(text) > 12:
        return default
    try:
        found = float(text)
    except ValueError:
        return default
    return found if 0 <= found < 1e9 else default
