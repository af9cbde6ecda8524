"""Everything that one engine takes of the host's memory because of its flags."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct

from kvcore.base.quantity import Quantity, given
from kvcore.base.units import GIB
from kvcore.cache.capacity import CachePlan
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.protocol import Resolved
from kvcore.host.tier import Tier, in_the_host, power_of_two, tier_of
from kvcore.memory.loaded import offloaded_tensors
from kvcore.memory.stages import loaded_architecture
from kvcore.model.architecture import Architecture
from kvcore.model.quantization import Quantization
from kvcore.scenario import Scenario

NOT_PINNED: Final = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
"""Source: vllm/envs.py (0.18.0, 0.33.0)."""


class HostMemory(Struct, frozen=True, kw_only=True):
    """The host's memory that one engine takes; replicas take it again."""

    parts: tuple[Quantity, ...]
    """Of all ranks of the engine."""
    tier: Tier | None
    replicas: int

    @property
    def bytes_per_engine(self) -> int:
        """Of all ranks of one engine."""
        return int(sum(part.value for part in self.parts))

    @property
    def bytes_per_node(self) -> int:
        """Of all replicas, where they share a machine."""
        return self.bytes_per_engine * self.replicas


def host_memory(
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    resolved: Resolved,
    accelerator: Accelerator,
    cache: CachePlan | None,
) -> HostMemory | None:
    """The host's memory of one engine; None where no flag asks for any, or its size is not known."""
    tier = None if cache is None or not cache.groups else tier_of(scenario, resolved, accelerator, cache)
    parts = [] if tier is None else [tier.taken]
    if scenario.cpu_offload_gb:
        parts.append(_offloaded(scenario, architecture, quantization, resolved))
    if not parts:
        return None
    return HostMemory(parts=tuple(parts), tier=tier, replicas=scenario.parallel.data_parallel_size)


def _offloaded(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, resolved: Resolved
) -> Quantity:
    """Weights that ranks leave in the host's memory, each parameter pinned by itself."""
    parallel = scenario.parallel
    loaded = loaded_architecture(architecture, scenario, resolved)
    limit = int(scenario.cpu_offload_gb * GIB)
    is_pinned = scenario.env.get(NOT_PINNED) != "1"
    sizes: Counter[int] = Counter()
    for stage in range(parallel.pipeline_parallel_size):
        moved = offloaded_tensors(
            loaded, quantization, parallel, resolved.engine, resolved.version, resolved.dtype, stage, limit
        )
        sizes.update(power_of_two(size) if is_pinned else size for size in moved)
    return in_the_host(
        "host_weights",
        given("ranks", parallel.ranks_per_replica // parallel.pipeline_parallel_size),
        sizes,
        source="vllm/model_executor/offloader/uva.py:UVAOffloader._maybe_offload_to_cpu (0.19.1, 0.33.0), "
        "models/utils.py (0.17.0); torch ATen/core/CachingHostAllocator.h",
    )
