"""A start over several machines: what each of them gets beyond the flags that all share.

Replicas that fit into a machine differ in their data parallel flags. The machines of a replica that takes more than one
meet at the first one's address, or, where the release does not bring that, on a Ray cluster that is started before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from kvcore.base.errors import ScenarioError
from kvcore.base.units import ceil_div
from kvcore.engines.registry import find_engine
from kvcore.planning import Plan

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

    Source: vllm's docs/serving/data_parallel_deployment.md (0.23.0), parallelism_scaling.md (0.18.0, 0.33.0) and
    vllm-ascend's docs/source/tutorials (0.23.0): one API server on the first machine, --headless on the others;
    --nnodes on all, or ray start --head, then --address.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-30B-A3B", "accelerator": "Ascend-910B4-32GB", "tensor_parallel_size": 4,
        ...          "data_parallel_size": 4, "enable_expert_parallel": True}
        >>> found = machines_of(plan(scenario_from_request(asked)))
        >>> [machine.flags.get("data-parallel-start-rank") for machine in found]
        [None, 2]
    """
    number = number_of_machines(plan)
    if number > MOST_MACHINES:
        field = (
            "data_parallel_size"
            if plan.scenario.parallel.data_parallel_size > 1
            else "pipeline_parallel_size"
        )
        raise ScenarioError("too-many-machines", field=field, machines=str(number), limit=str(MOST_MACHINES))
    return tuple(_machine(plan, place, number) for place in range(number))


def first_machine(plan: Plan) -> Machine:
    """The first of the machines, however many there are."""
    return _machine(plan, 0, number_of_machines(plan))


def number_of_machines(plan: Plan) -> int:
    """How many machines the start takes."""
    parallel, most = plan.scenario.parallel, plan.accelerator.devices_per_node
    size, replicas = parallel.ranks_per_replica, parallel.data_parallel_size
    if size * replicas <= most:
        return 1
    if size <= most:
        return ceil_div(replicas, most // size)
    return (
        ceil_div(size * replicas, most) if _is_on_ray(plan) else size // _shared_cards(size, most) * replicas
    )


def _machine(plan: Plan, place: int, number: int) -> Machine:
    parallel, most = plan.scenario.parallel, plan.accelerator.devices_per_node
    size, replicas = parallel.ranks_per_replica, parallel.data_parallel_size
    if number == 1:
        return Machine(cards=size * replicas)
    if size <= most:
        start = place * (most // size)
        local = min(most // size, replicas - start)
        own = {"data-parallel-start-rank": start, "headless": True} if start else {}
        shared = {
            "data-parallel-size-local": local,
            "data-parallel-address": FIRST,
            "data-parallel-rpc-port": RPC_PORT,
        }
        return Machine(cards=size * local, flags=shared | own)
    if _is_on_ray(plan):
        return _on_ray(place, most)
    own = {"headless": True} if place else {}
    flags = {"nnodes": number, "node-rank": place, "master-addr": FIRST, **own}
    return Machine(cards=_shared_cards(size, most), flags=flags)


def _is_on_ray(plan: Plan) -> bool:
    """Whether the machines that share a replica join a Ray cluster."""
    return plan.resolved.version < find_engine(plan.scenario.engine).launch.nodes_since


def _shared_cards(size: int, most: int) -> int:
    """Cards of each of the machines that share a replica of `size` ranks: the most that leave none over.

    Source: vllm/engine/arg_utils.py:EngineArgs.create_engine_config (0.18.0, 0.33.0): --nnodes divides the ranks.

    Example:
        >>> _shared_cards(16, 8), _shared_cards(20, 8)
        (8, 5)
    """
    return next(cards for cards in range(most, 0, -1) if size % cards == 0)


def _on_ray(place: int, cards: int) -> Machine:
    if place:
        return Machine(cards=cards, before=(f'ray start --address="{FIRST}:{RAY_PORT}"',), serves=False)
    before = (f"ray start --head --port={RAY_PORT}",)
    return Machine(cards=cards, before=before, flags={"distributed-executor-backend": "ray"})
