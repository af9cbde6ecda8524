"""Everything that a server takes of its host's memory, and the limits to write down for it."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct

from kvcore.base.quantity import Grade, Quantity, Scope, figure, given
from kvcore.base.units import GIB, ceil_div, round_up
from kvcore.cache.capacity import CachePlan
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.protocol import Engine, Resolved
from kvcore.host.connectors import tiers_of
from kvcore.host.pinned import in_the_host, pinned_size, rounding_threshold
from kvcore.host.processes import process_parts, queues_of, shm_floor_bytes
from kvcore.host.tier import Tier
from kvcore.memory.loaded import offloaded_tensors
from kvcore.memory.stages import loaded_architecture
from kvcore.model.architecture import Architecture
from kvcore.model.quantization import Quantization
from kvcore.scenario import Scenario

NOT_PINNED: Final = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
"""Source: vllm/envs.py (0.18.0, 0.33.0)."""


class HostMemory(Struct, frozen=True, kw_only=True):
    """The host's memory that a server takes."""

    parts: tuple[Quantity, ...]
    """What its flags ask for, of all ranks of one engine; replicas take it again."""
    tiers: tuple[Tier, ...]
    replicas: int
    """Of one machine."""
    machines: int
    """That one engine is spread over."""
    processes: tuple[Quantity, ...]
    """What its processes take besides, of all replicas."""
    queues: Quantity | None
    """In /dev/shm, of one engine, at the most."""
    cached: Quantity
    """Files of weights in the page cache while they are read; the host takes it back."""
    shm_floor_bytes: int
    """To leave in /dev/shm next to the tier."""

    @property
    def tier(self) -> Tier | None:
        """The one that holds tokens."""
        return next((tier for tier in self.tiers if tier.tokens), None) or next(iter(self.tiers), None)

    @property
    def bytes_per_engine(self) -> int:
        """What the flags ask for, of all ranks of one engine."""
        return int(sum(part.value for part in self.parts))

    @property
    def bytes_per_node(self) -> int:
        """The same on one machine: of its replicas, or its part of an engine that takes several."""
        return ceil_div(self.bytes_per_engine * self.replicas, self.machines)

    @property
    def shm_bytes_per_engine(self) -> int:
        """Those of them that are files in /dev/shm."""
        return sum(tier.shm_bytes for tier in self.tiers)

    @property
    def shm_bytes(self) -> int:
        """The size of /dev/shm to write down: the files of all replicas and what else lies there."""
        return round_up(self.shm_bytes_per_engine * self.replicas + self.shm_floor_bytes, GIB)

    @property
    def limit_bounds(self) -> tuple[int, int]:
        """The memory limit that a container needs, at the least and to be safe, in whole GiB.

        Files in /dev/shm count against it, and nothing takes them back.
        """
        low, high = (sum(part.bounds[end] for part in self.processes) for end in (0, 1))
        taken = self.bytes_per_node + self.kept_free_bytes
        return (
            round_up(taken + int(low), GIB),
            round_up(taken + int(high) + self.shm_floor_bytes, GIB),
        )

    @property
    def kept_free_bytes(self) -> int:
        """Those of a machine that a start must find free besides."""
        return max((tier.kept_free_bytes for tier in self.tiers), default=0)


def asks_for_host_memory(scenario: Scenario, engine: Engine) -> bool:
    """Whether a flag may take memory of the host, or the host's memory is stated."""
    has_tier = scenario.kv_transfer_config is not None or scenario.kv_offloading_size is not None
    is_stated = scenario.node_memory_gib is not None or scenario.shm_gib is not None
    has_tier = has_tier or engine.asks_for_tier(scenario)
    return has_tier or bool(scenario.cpu_offload_gb) or scenario.enable_sleep_mode or is_stated


def host_memory(
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    resolved: Resolved,
    accelerator: Accelerator,
    cache: CachePlan | None,
    weights_bytes: float,
) -> HostMemory | None:
    """The host's memory of a server; None where nothing asks for any, or how much is not known.

    `weights_bytes`: those of a rank on its card.
    """
    if not asks_for_host_memory(scenario, resolved.engine) and not architecture.host_tables:
        return None
    tiers: tuple[Tier, ...] = ()
    if cache is not None and cache.groups:
        own = resolved.engine.own_tier(scenario, resolved, cache)
        tiers = tiers_of(scenario, resolved, accelerator, cache) if own is None else (own,)
    parts = [tier.taken for tier in tiers]
    on_cards = weights_bytes * scenario.parallel.ranks_per_replica
    left_bytes = 0.0
    if scenario.cpu_offload_gb:
        parts.append(_offloaded(scenario, architecture, quantization, resolved))
        limit = scenario.cpu_offload_gb * GIB * scenario.parallel.ranks_per_replica
        left_bytes = min(limit, parts[-1].value)
    if architecture.host_tables:
        parts.append(_tables(scenario, architecture, resolved))
    is_stated = scenario.node_memory_gib is not None or scenario.shm_gib is not None
    if not parts and not scenario.enable_sleep_mode and not is_stated:
        return None
    ranks, on_machine = scenario.parallel.ranks_per_replica, accelerator.devices_per_node
    replicas = max(1, min(scenario.parallel.data_parallel_size, on_machine // ranks))
    here = min(on_machine, ranks * replicas)
    return HostMemory(
        parts=tuple(parts),
        tiers=tiers,
        replicas=replicas,
        machines=ceil_div(ranks, on_machine),
        processes=process_parts(scenario, architecture, weights_bytes, here, replicas),
        queues=queues_of(scenario),
        cached=_cached(scenario, architecture, on_cards + left_bytes),
        shm_floor_bytes=shm_floor_bytes(here),
    )


def _cached(scenario: Scenario, architecture: Architecture, weights_bytes: float) -> Quantity:
    """The files of the checkpoint, mapped while they are read; tables of n-grams lie in them too.

    `weights_bytes`: those of all ranks, on their cards and left to the host.

    Source: vllm/model_executor/model_loader/weight_utils.py:safetensors_weights_iterator (0.33.0).
    """
    known = scenario.checkpoint.total_size
    tables = sum(one.rows * (one.row_bytes + one.scale_bytes) for one in architecture.host_tables)
    size = known or weights_bytes + tables
    source = "vllm/model_executor/model_loader/weight_utils.py:safetensors_weights_iterator (0.33.0)"
    grade = Grade.EXACT if known else Grade.DERIVED
    return figure("host_cached", int(size), scope=Scope.TOTAL, grade=grade, source=source)


def _tables(scenario: Scenario, architecture: Architecture, resolved: Resolved) -> Quantity:
    """Tables of n-grams: each rank pins its rows and their scales, rounded up. All replicas share them out.

    Source: vllm/models/deepseek_v41/common/engram.py:_allocate_weights (0.33.0): "pin_memory rounds up to a power of
    two"; vllm/config/engram.py:EngramConfig.cpu_offload, true by default.
    """
    parallel = scenario.parallel
    threshold = rounding_threshold(scenario, resolved.version)
    sizes: Counter[int] = Counter()
    for table in architecture.host_tables:
        rows = ceil_div(table.rows, parallel.tensor_parallel_size * parallel.data_parallel_size)
        sizes.update(pinned_size(rows * width, threshold) for width in (table.row_bytes, table.scale_bytes))
    return in_the_host(
        "host_tables",
        given("ranks", parallel.tensor_parallel_size),
        sizes,
        source="vllm/models/deepseek_v41/common/engram.py:_allocate_weights (0.33.0)",
    )


def _offloaded(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, resolved: Resolved
) -> Quantity:
    """Weights that ranks leave in the host's memory, each parameter pinned by itself."""
    parallel = scenario.parallel
    loaded = loaded_architecture(architecture, scenario, resolved)
    limit = int(scenario.cpu_offload_gb * GIB)
    is_pinned = scenario.env.get(NOT_PINNED) != "1"
    threshold = rounding_threshold(scenario, resolved.version)
    sizes: Counter[int] = Counter()
    for stage in range(parallel.pipeline_parallel_size):
        moved = offloaded_tensors(
            loaded, quantization, parallel, resolved.engine, resolved.version, resolved.dtype, stage, limit
        )
        sizes.update(pinned_size(size, threshold) if is_pinned else size for size in moved)
    return in_the_host(
        "host_weights",
        given("ranks", parallel.ranks_per_replica // parallel.pipeline_parallel_size),
        sizes,
        source="vllm/model_executor/offloader/uva.py:UVAOffloader._maybe_offload_to_cpu (0.19.1, 0.33.0), "
        "models/utils.py (0.17.0); torch ATen/core/CachingHostAllocator.h",
    )
