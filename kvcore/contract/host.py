"""The host's memory of a plan as JSON."""

from __future__ import annotations

from typing import Any

from kvcore.base.quantity import Quantity
from kvcore.base.units import rounded_gib
from kvcore.host.moved import moved_request
from kvcore.planning import Plan


def host_part(plan: Plan) -> dict[str, Any] | None:
    """The part `host` of a result; None where nothing takes memory of the host.

    `parts` are what the flags ask for and sum to `bytes_per_engine`; `processes` come on top, `reclaimable` while
    weights are read.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", "kv_offloading_size": 100}
        >>> host_part(plan(scenario_from_request(asked)))["shm_bytes_per_engine"] <= 100 * 2**30
        True
    """
    found = plan.host
    if found is None:
        return None
    tier = found.tier
    low, high = found.limit_bounds
    return {
        "bytes_per_node": found.bytes_per_node,
        "bytes_per_engine": found.bytes_per_engine,
        "shm_bytes_per_engine": found.shm_bytes_per_engine,
        "blocks": None if tier is None or not tier.blocks else tier.blocks,
        "tokens": None if tier is None or not tier.tokens else tier.tokens,
        "most_tokens": None if tier is None or not tier.tokens else tier.most_tokens,
        "bytes_per_token": None if tier is None or not tier.tokens else tier.bytes_per_token,
        "parts": [_part(part) for part in found.parts],
        "processes": [_part(part) for part in found.processes],
        "queues": None if found.queues is None else _part(found.queues),
        "reclaimable": _part(found.cached),
        "limits": {"memory_bytes": high, "memory_bytes_least": low, "shm_bytes": found.shm_bytes},
    }


def engines_part(plan: Plan) -> list[dict[str, Any]]:
    """The part `engines` of a result: all engines of the card in the order of start; empty where it is alone.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "gpu_memory_utilization": 0.5}
        >>> [one["starts"] for one in engines_part(plan(scenario_from_request({**asked, "other_engines": "30 GiB"})))]
        [True, True]
    """
    return [
        {
            "name": share.name,
            "gib": rounded_gib(share.taken_bytes),
            "interval_gib": [rounded_gib(end) for end in share.bounds],
            "starts": not share.is_refused,
            "this": share.is_this,
        }
        for share in plan.engines
    ]


def transfer_part(plan: Plan) -> dict[str, Any] | None:
    """The part `transfer` of a result: what a request moves between pools; None for a server that serves both parts.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> said = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
        >>> asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "kv_transfer_config": said}
        >>> transfer_part(plan(scenario_from_request({**asked, "max_model_len": 32768, "link_gb_s": 50})))["seconds"]
        0.09663676416
    """
    moved = moved_request(plan.scenario, plan.resolved, plan.cache)
    if moved is None:
        return None
    return {
        "connector": moved.connector,
        "role": moved.role.value,
        "bytes_per_rank": moved.bytes_per_rank,
        "bytes_in_all": moved.bytes_in_all,
        "seconds": moved.seconds,
    }


def _part(part: Quantity) -> dict[str, Any]:
    bounds = {} if part.interval is None else {"interval": [int(end) for end in part.interval]}
    return {
        "name": part.name,
        "bytes": int(part.value),
        **bounds,
        "formula": part.formula,
        "grade": part.grade.value,
        "source": part.source,
    }
