"""The engine's own tier of KV caches in the host's memory: what it takes of it, and how many tokens it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from kvcore.base.quantity import Quantity, Unit, given
from kvcore.base.units import GIB, KIB, ceil_div, round_up
from kvcore.cache.capacity import CachePlan
from kvcore.cache.groups import Grouping
from kvcore.cache.spec import FULL_KINDS, CacheKind
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.protocol import Resolved
from kvcore.host.pinned import of_the_host, pinned_bytes, pinned_size, rounding_threshold
from kvcore.host.rules import GivenIn, Place, SharedCopies, Tensors, TierRules, tier_rules
from kvcore.scenario import Scenario

NATIVE: Final = "OffloadingConnector"
TIERING: Final = "TieringOffloadingSpec"
"""`spec_name` of a tier with others under it: files, objects, other servers."""
HOST_PAGE: Final = 4 * KIB
"""Bytes of a page of the host's memory, which a row of the shared region is a multiple of."""
SPLIT_BACKEND: Final = "FLASH_ATTN"


class Tier(Struct, frozen=True, kw_only=True):
    """The tier of one engine."""

    connector: str
    taken: Quantity
    """Bytes of the host that all ranks of the engine take."""
    asked_bytes: int | None = None
    """Those that its settings ask for; None where they ask for no bytes."""
    shm_bytes: int = 0
    """Those of them that are a file in /dev/shm."""
    blocks: int = 0
    """Blocks, or chunks, as the scheduler counts them; 0 where it does not."""
    tokens: int = 0
    """Tokens that it holds if every group of layers keeps its blocks; 0 of a buffer that keeps none."""
    most_tokens: int = 0
    """Those that it holds if groups with states and windows keep no blocks; as `tokens` where there are none."""
    bytes_per_token: float = 0.0
    """The same of one token, over all ranks that keep a copy, before rows or tensors are rounded up."""
    copies: int = 1
    """How many ranks keep the same bytes of a token."""
    kept_free_bytes: int = 0
    """Those of the machine that a start must find free besides."""


def native_tier(
    scenario: Scenario,
    settings: Mapping[str, Any],
    resolved: Resolved,
    accelerator: Accelerator,
    cache: CachePlan,
) -> Tier | None:
    """The tier of `OffloadingConnector` with its `settings`; None where they ask for none.

    Source: vllm/v1/kv_offload/cpu/spec.py:CPUOffloadingSpec (0.20.0, 0.27.0, 0.33.0), cpu.py (0.11.0, 0.19.1).
    """
    rules, grouping = tier_rules(resolved.version), cache.trace.grouping
    ranks = scenario.parallel.ranks_per_replica
    factor = _blocks_per_chunk(settings, grouping)
    place = _place(rules, accelerator, settings)
    copies = 1 if _is_shared(rules, place, scenario, accelerator, grouping) else ranks
    asked = asked_bytes(scenario, settings)
    rows = tuple(_block_bytes(rules, grouping, stage) for stage in range(len(grouping.stages)))
    if rules.given_in is GivenIn.BLOCKS:
        blocks: tuple[int, ...] = (whole(settings.get("num_cpu_blocks")),) * len(rows)
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
        taken = of_the_host(
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
        asked_bytes=asked,
        shm_bytes=int(taken.value) if place is Place.REGION else 0,
        blocks=scheduled,
        tokens=held_tokens(scheduled, factor, cache),
        most_tokens=most_tokens(scheduled, factor, cache),
        bytes_per_token=copies * rows[0] / block_tokens(cache),
        copies=copies if is_alike(grouping) else 1,
    )


def _place(rules: TierRules, accelerator: Accelerator, settings: Mapping[str, Any]) -> Place:
    if settings.get("spec_name") == TIERING and rules.tiering_in_region:
        return Place.REGION
    match accelerator.vendor:
        case Vendor.AMD:
            return rules.place_amd
        case Vendor.INTEL:
            return rules.place_intel
    return rules.place


def asked_bytes(scenario: Scenario, settings: Mapping[str, Any]) -> int | None:
    """The size of the tier over all ranks of one engine."""
    if scenario.kv_offloading_size is not None:
        return int(scenario.kv_offloading_size * GIB)
    found = settings.get("cpu_bytes_to_use")
    return None if found is None else whole(found)


def whole(value: object) -> int:
    """A number of bytes or blocks as a connector's settings have it; 0 for any other value."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value < 1 << 60 else 0


def _blocks_per_chunk(settings: Mapping[str, Any], grouping: Grouping) -> int:
    """Blocks of the GPU that one of the tier has."""
    chunk = whole(settings.get("blocks_per_chunk"))
    if chunk:
        return chunk
    block, own = whole(settings.get("block_size")), grouping.whole[0].block_size
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
    match rules.shared_copies:
        case SharedCopies.NONE:
            return False
        case SharedCopies.PLAIN_LATENT:
            return is_alike(grouping) and sum(len(group.members) for group in grouping.whole) == 1
        case SharedCopies.LATENT:
            return is_alike(grouping)


def is_alike(grouping: Grouping) -> bool:
    """Whether the ranks of a tensor parallel group all store the same: latent vectors."""
    return all(spec.kind is CacheKind.MLA_ATTENTION for group in grouping.whole for spec in group.members)


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
    threshold = rounding_threshold(scenario, resolved.version)
    tensors: list[tuple[Quantity, Quantity]] = []
    for stage, count in enumerate(blocks):
        pages = grouping.block_pages[stage]
        if _holds_all(rules, resolved, grouping):
            pages = ((1, sum(layers * page for layers, page in pages)),)
        elif rules.splits_keys and _splits(resolved, grouping):
            pages = tuple((2 * layers, page // 2) for layers, page in pages)
        for layers, page in pages:
            size = pinned_size(count * page * factor, threshold)
            tensors.append((given("tensors", layers), given("pinned_tensor", size, Unit.BYTES)))
    return of_the_host(
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


def held_tokens(blocks: int, factor: int, cache: CachePlan) -> int:
    """Tokens of a request that lie in so many blocks, where each group keeps its own."""
    groups = cache.groups
    return blocks // len(groups) * factor * min(group.block_tokens for group in groups)


def most_tokens(blocks: int, factor: int, cache: CachePlan) -> int:
    """The same where groups of full attention alone keep their blocks: of states and windows the last ones are enough.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:_reachable_store_block_mask (0.33.0).
    """
    full = sum(group.kind in FULL_KINDS for group in cache.groups) or len(cache.groups)
    return blocks // full * factor * min(group.block_tokens for group in cache.groups)


def block_tokens(cache: CachePlan) -> float:
    """Tokens for which each group keeps a block, by the block."""
    return min(group.block_tokens for group in cache.groups) / len(cache.groups)
