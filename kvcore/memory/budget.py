"""The budget of one rank: what the engine may spend, on what it is spent, and what is left for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.quantity import Quantity


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Where every byte of the worst rank goes; the parts sum to `total`. All in bytes."""

    total: Quantity
    system: Quantity
    framework: Quantity
    weights: Quantity
    activations: Quantity
    cuda_graphs: Quantity
    kv_cache: Quantity
    unused: Quantity
    budget: Quantity
    """utilization × total: what the engine may spend."""
    available_kv: Quantity
    """What is left for the KV cache, before it is cut into blocks; negative when short."""
