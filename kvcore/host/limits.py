"""Limits of a machine or a container against what a start takes of the host's memory and of /dev/shm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from packaging.version import Version

from kvcore.base.errors import EngineRefusalError, Notice, ScenarioError, notice
from kvcore.base.numbers import gib_text
from kvcore.base.units import GIB, MIB
from kvcore.engine.protocol import Resolved
from kvcore.engine.rank_memory import RankMemory
from kvcore.host.pinned import ALLOCATOR, THRESHOLD
from kvcore.host.processes import largest_queue_bytes
from kvcore.host.rules import tier_rules
from kvcore.host.taken import NOT_PINNED, HostMemory
from kvcore.scenario import Scenario

REGION: Final = "CPU KV offload shared region in /dev/shm"
QUEUE: Final = "shared-memory allocation"
"""Source: vllm/v1/kv_offload/cpu/shared_offload_region.py, shm_broadcast.py (0.33.0): allocation_name."""
SHM: Final = "shm_gib"
NODE: Final = "node_memory_gib"


class Shortage(NamedTuple):
    """A file that /dev/shm has no room for."""

    code: str
    required_bytes: int
    what: str


def shm_shortage(
    scenario: Scenario, version: Version, host: HostMemory | None, shm_bytes: float
) -> Shortage | None:
    """The first file of one engine that a start refuses to make, or faults on, in a /dev/shm of that size.

    Queues come before the tier; earlier releases make them unseen, and fail where they are written.

    Source: `checks_shm`, `checks_rings` of tier.toml.
    """
    rules, queue = tier_rules(version), largest_queue_bytes(scenario)
    if rules.checks_rings and queue > shm_bytes:
        return Shortage(
            "shm-insufficient" if not rules.names_allocation else "shm-insufficient-for", queue, QUEUE
        )
    file = 0 if host is None else host.shm_bytes_per_engine * host.replicas
    if file <= shm_bytes:
        return None
    if not rules.checks_shm:
        return Shortage("shm-bad-address", file, REGION)
    return Shortage("shm-insufficient-for" if rules.names_allocation else "shm-insufficient", file, REGION)


def check_limits(scenario: Scenario, resolved: Resolved, host: HostMemory | None) -> None:
    """Raises EngineRefusalError in the engine's words where /dev/shm is too small, ScenarioError `host-memory-short`
    where the flags ask for more than the machine has."""
    if scenario.shm_gib is not None:
        short = shm_shortage(scenario, resolved.version, host, scenario.shm_gib * GIB)
        if short is not None:
            raise EngineRefusalError(
                short.code, SHM, **_said(short, scenario.shm_gib * GIB), needed=_shm_gib(host, short)
            )
    if scenario.node_memory_gib is None or host is None:
        return
    total = scenario.node_memory_gib * GIB
    taken = host.bytes_per_node + host.kept_free_bytes
    if taken > total:
        raise ScenarioError(
            "host-memory-short", NODE, scenario.node_memory_gib,
            taken=gib_text(taken), total=gib_text(total), fitting=_fitting(scenario, host, total),
        )  # fmt: skip


def _said(short: Shortage, shm_bytes: float) -> dict[str, str]:
    required, free = (f"{size / MIB:.0f}" for size in (short.required_bytes, shm_bytes))
    return {"what": short.what, "required": required, "free": free}


def _shm_gib(host: HostMemory | None, short: Shortage) -> str:
    needed = short.required_bytes + GIB if host is None else host.shm_bytes
    return f"{-(-int(needed) // GIB)}"


def _fitting(scenario: Scenario, host: HostMemory, total: float) -> str:
    """GiB of `--kv-offloading-size` or `--cpu-offload-gb` that leave the machine what else it needs."""
    beside = sum(part.bounds[1] for part in host.processes) + host.shm_floor_bytes + host.kept_free_bytes
    share = max(0.0, (total - beside) / max(1, host.bytes_per_node))
    asked = (
        scenario.kv_offloading_size
        or scenario.cpu_offload_gb
        or sum(t.asked_bytes or (t.kept_free_bytes and t.taken.value) for t in host.tiers) / GIB
    )
    return f"{int(asked * share)}"


def limit_notices(scenario: Scenario, resolved: Resolved, host: HostMemory | None) -> Iterator[Notice]:
    """What a start takes of the host that its machine may not have, and rounding that a variable saves."""
    if host is None:
        return
    if host.shm_bytes_per_engine and scenario.shm_gib is None:
        yield notice(
            "tier-in-shm", SHM, taken=gib_text(host.shm_bytes_per_engine), needed=gib_text(host.shm_bytes)
        )
    if scenario.node_memory_gib is not None:
        low, high = host.limit_bounds
        if high > scenario.node_memory_gib * GIB:
            said = {
                "total": gib_text(scenario.node_memory_gib * GIB),
                "low": gib_text(low),
                "high": gib_text(high),
            }
            yield notice("host-memory-tight", NODE, **said)
    variable = saving_variable(scenario, resolved, host)
    if variable is not None:
        yield notice("pinned-rounding-avoidable", "env", variable=variable)


def sleep_notices(scenario: Scenario, memory: RankMemory) -> Iterator[Notice]:
    """`asleep-keeps`: what stays on a card while the server sleeps, and what level 1 moves to the host.

    Source: vllm/device_allocator/cumem.py:CuMemAllocator.sleep (0.33.0): weights and KV cache alone are tagged;
    github.com/vllm-project/vllm/issues/32714, 47654: buffers without a tag stay, up to all of an encoder.
    """
    if scenario.enable_sleep_mode:
        kept = memory.system.value + memory.framework.value + memory.cuda_graphs.value
        moved = memory.weights.value * scenario.parallel.ranks
        yield notice("asleep-keeps", "enable_sleep_mode", kept=gib_text(kept), moved=gib_text(moved))


def saving_variable(scenario: Scenario, resolved: Resolved, host: HostMemory) -> str | None:
    """The variable that saves the rounding of pinned tensors, where there are any; None where it saves nothing."""
    has_tables = any(part.name == "host_tables" for part in host.parts)
    is_pinned = (scenario.cpu_offload_gb or has_tables) and scenario.env.get(NOT_PINNED) != "1"
    is_own = resolved.engine.asks_for_tier(scenario)
    has_tensors = not is_own and any(
        not one.shm_bytes and one.asked_bytes and one.blocks for one in host.tiers
    )
    is_native = any(tier.taken.value > (tier.asked_bytes or tier.taken.value) for tier in host.tiers)
    if not tier_rules(resolved.version).bounds_rounding or any(name in scenario.env for name in ALLOCATOR):
        return None
    return f"{ALLOCATOR[0]}={THRESHOLD}:1" if is_pinned or (has_tensors and is_native) else None


def container_findings(
    scenario: Scenario,
    resolved: Resolved,
    host: HostMemory | None,
    memory_gib: float | None,
    shm_gib: float | None,
) -> tuple[Notice, ...]:
    """What is wrong with a container's memory limit and its /dev/shm, in GiB; None for one that is not limited.

    A limit below the flags' own memory ends the start (`limit-below-host-memory`), one without room for the processes
    may (`limit-tight`); a /dev/shm too small is told in the engine's words.
    """
    found = []
    if shm_gib is not None:
        short = shm_shortage(scenario, resolved.version, host, shm_gib * GIB)
        if short is not None:
            found.append(notice(short.code, SHM, **_said(short, shm_gib * GIB), needed=_shm_gib(host, short)))
    if memory_gib is not None and host is not None and host.bytes_per_node:
        low, high = host.limit_bounds
        said = {
            "limit": gib_text(memory_gib * GIB),
            "taken": gib_text(host.bytes_per_node),
            "high": gib_text(high),
        }
        if memory_gib * GIB < host.bytes_per_node + host.kept_free_bytes:
            found.append(notice("limit-below-host-memory", NODE, **said))
        elif memory_gib * GIB < low:
            found.append(notice("limit-tight", NODE, **said))
    return tuple(found)
