"""The host's memory of a plan as JSON."""

from __future__ import annotations

from typing import Any

from kvcore.host.taken import host_memory
from kvcore.planning import Plan
from kvcore.scenario import Scenario


def asks_for_host_memory(scenario: Scenario) -> bool:
    """Whether a flag may take memory of the host."""
    has_tier = scenario.kv_transfer_config is not None or scenario.kv_offloading_size is not None
    return has_tier or bool(scenario.cpu_offload_gb)


def host_part(plan: Plan) -> dict[str, Any] | None:
    """The part `host` of a result; None where nothing takes memory of the host.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", "kv_offloading_size": 100}
        >>> host_part(plan(scenario_from_request(asked)))["shm_bytes_per_engine"] <= 100 * 2**30
        True
    """
    if not asks_for_host_memory(plan.scenario):
        return None
    found = host_memory(
        plan.scenario, plan.architecture, plan.quantization, plan.resolved, plan.accelerator, plan.cache
    )
    if found is None:
        return None
    tier = found.tier
    return {
        "bytes_per_node": found.bytes_per_node,
        "bytes_per_engine": found.bytes_per_engine,
        "shm_bytes_per_engine": 0 if tier is None else tier.shm_bytes,
        "blocks": None if tier is None or not tier.blocks else tier.blocks,
        "tokens": None if tier is None else tier.tokens,
        "bytes_per_token": None if tier is None else tier.bytes_per_token,
        "parts": [
            {
                "name": part.name,
                "bytes": int(part.value),
                "formula": part.formula,
                "grade": part.grade.value,
                "source": part.source,
            }
            for part in found.parts
        ],
    }
