"""Tiers and buffers of other connectors in the host's memory: SimpleCPU, LMCache, NIXL, Mooncake's store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from kvcore.base.quantity import Grade, Unit, given
from kvcore.base.units import GIB, ceil_div, round_up
from kvcore.cache.capacity import CachePlan
from kvcore.cache.spec import CacheKind
from kvcore.host.pinned import of_the_host, pinned_bytes, power_of_two
from kvcore.host.rules import lmcache_rounds_up
from kvcore.host.tier import (
    HOST_PAGE,
    Tier,
    asked_bytes,
    block_tokens,
    held_tokens,
    most_tokens,
    region_bytes,
    whole,
)
from kvcore.scenario import Scenario

SIMPLE: Final = "SimpleCPUOffloadConnector"
LMCACHE: Final = "LMCacheConnectorV1"
NIXL: Final = frozenset({"NixlConnector", "NixlPullConnector", "NixlPushConnector"})
MOONCAKE_STORE: Final = "MooncakeStoreConnector"
P2P: Final = "P2pNcclConnector"
P2P_DEFAULT_GIB: Final = 32.0
"""Source: vllm/distributed/kv_transfer/kv_connector/v1/p2p/p2p_nccl_engine.py: mem_pool_size_gb (0.9.2, 0.23.0)."""
P2P_DEFAULT_BUFFER: Final = 10**9
"""Source: vllm/config/kv_transfer.py:KVTransferConfig.kv_buffer_size (0.11.0, 0.20.0)."""
SIMPLE_DEFAULT_BYTES: Final = 8 * GIB
"""Source: vllm/distributed/kv_transfer/kv_connector/v1/simple_cpu_offload_connector.py (0.19.0, 0.33.0)."""
MOONCAKE_DEFAULT_BYTES: Final = 4 * GIB
"""Of a segment, and of a buffer. Source: vllm/distributed/mooncake_store.py: DEFAULT_GLOBAL_SEGMENT_SIZE,
DEFAULT_LOCAL_BUFFER_SIZE (0.33.0); the JSON file that MOONCAKE_CONFIG_PATH names may say others."""
LMCACHE_SIZE: Final = "LMCACHE_MAX_LOCAL_CPU_SIZE"
LMCACHE_RESERVE: Final = "LMCACHE_RESERVE_LOCAL_CPU_SIZE"
LMCACHE_MORE: Final = "LMCACHE_EXTRA_CONFIG"
LMCACHE_CHUNK: Final = "LMCACHE_CHUNK_SIZE"
LMCACHE_DEFAULT_GIB: Final = 5.0
LMCACHE_DEFAULT_CHUNK: Final = 256
"""Source: lmcache/v1/config.py: max_local_cpu_size, chunk_size, extra_config, reserve_local_cpu_size (0.3.15)."""


def simple_tier(scenario: Scenario, settings: Mapping[str, Any], cache: CachePlan) -> Tier:
    """Source: vllm/v1/simple_kv_offload/worker.py, manager.py (0.19.0, 0.33.0): exact, and no copy is shared."""
    ranks, rows = scenario.parallel.ranks_per_replica, cache.trace.grouping.bytes_per_block
    own = settings.get("cpu_bytes_to_use_per_rank")
    asked = asked_bytes(scenario, settings)
    each = (SIMPLE_DEFAULT_BYTES if asked is None else asked) // ranks if own is None else whole(own)
    blocks = tuple(max(1, each // row) for row in rows)
    parts = tuple(
        (given("blocks", count, Unit.BLOCKS), given("bytes_per_block", row, Unit.BYTES))
        for count, row in zip(blocks, rows, strict=True)
    )
    taken = of_the_host(
        "host_tier",
        pinned_bytes,
        given("ranks", ceil_div(ranks, len(rows))),
        parts,
        source="vllm/v1/simple_kv_offload/worker.py, manager.py (0.19.0, 0.33.0)",
    )
    return Tier(
        connector=SIMPLE,
        taken=taken,
        asked_bytes=each * ranks,
        blocks=blocks[0],
        tokens=held_tokens(blocks[0], 1, cache),
        most_tokens=most_tokens(blocks[0], 1, cache),
        bytes_per_token=ranks * rows[0] / block_tokens(cache),
    )


def lmcache_tier(scenario: Scenario, cache: CachePlan) -> Tier | None:
    """In the engine's own processes: the size is of each rank that saves, and of latent vectors one does.

    `--kv-offloading-backend lmcache` divides its size by the ranks, as long as it starts LMCache in them.

    Source: lmcache/v1/storage_backend/local_cpu_backend.py:initialize_allocator, _calculate_effective_cpu_size,
    cache_engine.py (0.3.15, 0.4.7, 0.5.6); before 0.3.3 torch.empty(pin_memory=True);
    vllm/config/vllm.py:VllmConfig._post_init_kv_transfer_config (0.14.0, 0.22.0).
    """
    ranks, grouping, env = scenario.parallel.ranks_per_replica, cache.trace.grouping, scenario.env
    if len(grouping.whole) > 1:
        return None
    is_latent = all(spec.kind is CacheKind.MLA_ATTENTION for spec in grouping.whole[0].members)
    more = _more_settings(env)
    first_alone = is_latent and not _is_on(env.get("LMCACHE_USE_LAYERWISE"), default=False)
    first_alone = first_alone and _is_on(more.get("save_only_first_rank"), default=True)
    size_gib = _number(env.get(LMCACHE_SIZE), LMCACHE_DEFAULT_GIB)
    if first_alone:
        size_gib = _number(more.get("first_rank_max_local_cpu_size"), size_gib)
    if scenario.kv_offloading_size is not None:
        size_gib = scenario.kv_offloading_size / ranks
    if first_alone and scenario.node_memory_gib is not None:
        # The rank that saves takes no more than is available; the others' sizes are taken as they stand.
        size_gib = min(size_gib, max(0.0, scenario.node_memory_gib - _number(env.get(LMCACHE_RESERVE), 0.0)))
    size = int(size_gib * GIB)
    chunk = int(_number(env.get(LMCACHE_CHUNK), LMCACHE_DEFAULT_CHUNK)) or LMCACHE_DEFAULT_CHUNK
    block = cache.groups[0].block_tokens
    chunk_bytes = round_up(ceil_div(grouping.bytes_per_block[0] * chunk, block), HOST_PAGE)
    saving = 1 if first_alone else ranks
    taken = of_the_host(
        "host_tier",
        region_bytes,
        given("saving_ranks", saving),
        given("max_local_cpu_size", power_of_two(size) if _rounds_up(scenario) else size, Unit.BYTES),
        source="lmcache/v1/storage_backend/local_cpu_backend.py:initialize_allocator (0.3.15, 0.5.6)",
    )
    return Tier(
        connector=LMCACHE,
        taken=taken,
        asked_bytes=size * saving,
        tokens=(held := size // chunk_bytes * chunk),
        most_tokens=held,
        bytes_per_token=saving * chunk_bytes / chunk,
    )


def _rounds_up(scenario: Scenario) -> bool:
    """Whether the version of LMCache lets torch pin its memory, which rounds it up."""
    text = scenario.lmcache_version
    try:
        return text is not None and lmcache_rounds_up(Version(text))
    except InvalidVersion:
        return False


def _more_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Settings of LMCache without a variable of their own, by name: as `LMCACHE_EXTRA_CONFIG` has them, or each in its
    own variable."""
    names = ("save_only_first_rank", "first_rank_max_local_cpu_size")
    said = {name: env[own] for name in names if (own := f"LMCACHE_{name.upper()}") in env}
    try:
        listed = json.loads(env.get(LMCACHE_MORE, "null"))
    except (ValueError, RecursionError):
        return said
    found = listed if isinstance(listed, dict) else {}
    return said | {name: str(found[name]) for name in names if name in found}


def _is_on(text: str | None, *, default: bool) -> bool:
    """A setting of LMCache that is true or false."""
    return default if text is None else text.strip().lower() in ("1", "true", "yes", "on")


def _number(text: str | None, default: float) -> float:
    """A setting that is a plain number of up to twelve digits."""
    if text is None or len(text) > 12:
        return default
    try:
        found = float(text)
    except ValueError:
        return default
    return found if 0 <= found < 1e9 else default


def nixl_buffers(connector: str, scenario: Scenario, cache: CachePlan) -> Tier:
    """With `kv_buffer_device` cpu, every rank has each tensor of its KV cache in the host's memory a second time.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:initialize_host_xfer_buffer (0.33.0).
    """
    rows = cache.trace.grouping.bytes_per_block
    ranks = ceil_div(scenario.parallel.ranks_per_replica, len(rows))
    parts = tuple(
        (given("blocks", cache.num_blocks, Unit.BLOCKS), given("bytes_per_block", row, Unit.BYTES))
        for row in rows
    )
    taken = of_the_host(
        "host_buffers",
        pinned_bytes,
        given("ranks", ranks),
        parts,
        source="vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:initialize_host_xfer_buffer (0.33.0)",
    )
    return Tier(connector=connector, taken=taken)


def p2p_pool(scenario: Scenario, settings: Mapping[str, Any]) -> Tier:
    """Every rank pins a pool for the caches that its card has no room for: the next power of two of its size.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/p2p/tensor_memory_pool.py:TensorMemoryPool (0.11.0,
    0.23.0)._round_to_power_of_two.
    """
    asked = int(_number(str(settings.get("mem_pool_size_gb", P2P_DEFAULT_GIB)), P2P_DEFAULT_GIB) * GIB)
    ranks = scenario.parallel.ranks_per_replica
    taken = of_the_host(
        "host_buffers",
        region_bytes,
        given("ranks", ranks),
        given("pool_bytes", power_of_two(asked), Unit.BYTES),
        source="vllm/distributed/kv_transfer/kv_connector/v1/p2p/tensor_memory_pool.py:TensorMemoryPool (0.23.0)",
    )
    return Tier(connector=P2P, taken=taken, asked_bytes=asked * ranks)


def mooncake_tier(scenario: Scenario) -> Tier:
    """Every rank gives the store a segment and keeps a buffer; their sizes stand in a file that is not known here."""
    size = given("default_size", MOONCAKE_DEFAULT_BYTES, Unit.BYTES)
    taken = of_the_host(
        "host_tier",
        pinned_bytes,
        given("ranks", scenario.parallel.ranks_per_replica),
        ((given("segments", 1), size), (given("buffers", 1), size)),
        source="vllm/distributed/mooncake_store.py:MooncakeStoreConfig (0.33.0): embedded, defaults",
        grade=Grade.ASSUMED,
    )
    return Tier(connector=MOONCAKE_STORE, taken=taken)
