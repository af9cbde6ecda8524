"""A start over several machines: what each of them gets beyond the flags that all share.

Replicas that fit into a machine differ in their data parallel flags; a replica that takes more than one machine runs
on a Ray cluster, which is started before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from kvcore.errors import ScenarioError
from kvcore.planning import Plan
from kvcore.units import ceil_div

RPC_PORT: Final = 13389
RAY_PORT: Final = 6379
MOST_MACHINES: Final = 64
"""Nobody copies more starts by hand."""
FIRST: Final = "$NODE0_IP"
"""The address of the first machine, as the shell has it."""


class Machine(Struct, frozen=True, kw_only=True):
    """One machine of the start."""

    cards: int
    before: tuple[str, ...] = ()
    """Shell lines before the server."""
    serves: bool = True
    """Whether the server is started on it."""
    flags: Mapping[str, Any] = field(default_factory=dict)


def machines_of(plan: Plan) -> tuple[Machine, ...]:
    """The machines, the first one first; a single one without further flags where all cards fit into one.

    Raises ScenarioError `too-many-machines` beyond 64 of them.

    Source: vllm's docs/serving/data_parallel_deployment.md and vllm-ascend's docs/source/tutorials (0.23.0): one API
    server on the first machine, --headless on the others; ray start --head, then --address.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.scenario.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-30B-A3B", "accelerator": "Ascend-910B4-32GB", "tensor_parallel_size": 4,
        ...          "data_parallel_size": 4, "enable_expert_parallel": True}
        >>> found = machines_of(plan(scenario_from_request(asked)))
        >>> [machine.flags.get("data-parallel-start-rank") for machine in found]
        [None, 2]
    """
    parallel, most = plan.scenario.parallel, plan.accelerator.devices_per_node
    size, replicas = parallel.ranks_per_replica, parallel.data_parallel_size
    cards = size * replicas
    if cards <= most:
        return (Machine(cards=cards),)
    local = min(replicas, most // size)
    number = ceil_div(replicas, local) if local else ceil_div(cards, most)
    if number > MOST_MACHINES:
        field = "data_parallel_size" if replicas > 1 else "pipeline_parallel_size"
        raise ScenarioError("too-many-machines", field=field, machines=str(number), limit=str(MOST_MACHINES))
    if not local:
        return _on_ray(number, most)
    return tuple(
        Machine(
            cards=size * min(local, replicas - start),
            flags={
                "data-parallel-size-local": min(local, replicas - start),
                "data-parallel-address": FIRST,
                "data-parallel-rpc-port": RPC_PORT,
                **({"data-parallel-start-rank": start, "headless": True} if start else {}),
            },
        )
        for start in range(0, replicas, local)
    )


def _on_ray(number: int, cards: int) -> tuple[Machine, ...]:
    first = Machine(
        cards=cards,
        before=(f"ray start --head --port={RAY_PORT}",),
        flags={"distributed-executor-backend": "ray"},
    )
    other = Machine(cards=cards, before=(f'ray start --address="{FIRST}:{RAY_PORT}"',), serves=False)
    return (first, *(other for _ in range(number - 1)))
