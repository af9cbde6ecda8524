"""Hosts whose memory is the card's: GB10, Thor, Strix Halo. GH200 and GB200 are none, their card has memory of its own.

The engine's share of the memory says nothing of the rest: the operating system lives in it, and weights pass through
its page cache while they are read.
"""

import math
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta
from packaging.version import Version

from kvcore.base.errors import Notice, notice
from kvcore.base.numbers import gib_text
from kvcore.base.units import GIB
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.rank_memory import RankMemory
from kvcore.scenario import Host, Scenario
from kvcore.tables import Amount, ByRelease, Record, Reviewed, Source, TableFile

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class ReadsAvailable(StrEnum):
    """Cards of which a release takes the host's available memory for free, not what the driver says."""

    NEVER = "never"
    LISTED = "listed"
    INTEGRATED = "integrated"


LISTED: Final = ((8, 7), (11, 0), (12, 1))
"""Compute capabilities of `ReadsAvailable.LISTED`: Orin, Thor, GB10."""


class FreeRule(Record, frozen=True, kw_only=True):
    """The rule of one release."""

    reads_available: ReadsAvailable


class UnifiedTable(Reviewed, frozen=True, kw_only=True):
    """unified.toml."""

    source: Source
    floor_gib: Amount
    floor_share: Share
    most_share: Share
    free: ByRelease[FreeRule]


UNIFIED: Final = TableFile("kvcore.host", "unified.toml", UnifiedTable)


def is_unified(accelerator: Accelerator, scenario: Scenario) -> bool:
    """Whether card and host share their memory."""
    return accelerator.is_integrated or scenario.surroundings.host is Host.UNIFIED


def floor_bytes(total_bytes: float) -> float:
    """Memory that the operating system of such a host needs.

    Example:
        >>> round(floor_bytes(121.63 * GIB) / GIB, 2), floor_bytes(16 * GIB) / GIB
        (12.16, 4.0)
    """
    table = UNIFIED.load()
    wanted = max(table.floor_gib * GIB, table.floor_share * total_bytes)
    return min(wanted, table.most_share * total_bytes)


def unified_notices(
    accelerator: Accelerator,
    scenario: Scenario,
    memory: RankMemory,
    request_bytes: float,
    tier_bytes: float = 0,
) -> tuple[Notice, ...]:
    """`unified-memory-host` where start, page cache and operating system need more than there is, with a share of the
    memory for the engine that leaves the rest to the host; `unified-memory-small` where none does.

    Files of weights are mapped, so that the page cache holds all of them until it is short of memory.
    `request_bytes`: KV memory of a request of full length; `tier_bytes`: what flags ask of the host, the same memory.

    Source: vllm/model_executor/model_loader/weight_utils.py:safetensors_weights_iterator (0.33.0).
    """
    if not is_unified(accelerator, scenario) or scenario.measured.available_kv_gib is not None:
        return ()
    total = memory.total.value
    taken = total - memory.unused.value
    floor, cached = floor_bytes(total) + tier_bytes, memory.weights.value
    if taken + floor + cached <= total:
        return ()
    outside = max(0.0, taken - memory.budget.value)
    share = math.floor((total - floor - cached - outside) / total * 100) / 100
    needed = memory.budget.value - memory.available_kv.value + request_bytes
    said = {
        "name": accelerator.name,
        "total": gib_text(total),
        "taken": gib_text(taken),
        "cached": gib_text(cached),
        "floor": gib_text(floor),
    }
    if share * total < needed:
        return (notice("unified-memory-small", "gpu_memory_utilization", **said),)
    return (notice("unified-memory-host", "gpu_memory_utilization", share=f"{share:.2f}", **said),)


def free_notices(accelerator: Accelerator, scenario: Scenario, version: Version) -> tuple[Notice, ...]:
    """`unified-reads-free` where the release takes for free memory what the driver says: the page cache counts as
    taken, and a start after another may be refused."""
    rule = UNIFIED.load().free.at(version).reads_available
    is_read = rule is ReadsAvailable.INTEGRATED or (
        rule is ReadsAvailable.LISTED and accelerator.compute_capability in LISTED
    )
    if not is_unified(accelerator, scenario) or (is_read and accelerator.vendor is Vendor.NVIDIA):
        return ()
    return (notice("unified-reads-free", "engine_version"),)
