"""Bytes between a card and the host's memory, or another server: how long they take at the least."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from kvcore.base.errors import Notice, notice
from kvcore.base.numbers import gib_text
from kvcore.cache.capacity import CachePlan
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.protocol import Resolved
from kvcore.engine.records import Role
from kvcore.host.processes import PROCESSES
from kvcore.scenario import Scenario

NEWER: Final = (9, 0)
"""Compute capability from which on cards have PCIe 5.0."""
GIGA: Final = 10**9


def moved_seconds(size_bytes: float, bytes_per_second: float) -> float:
    """Seconds at the least for so many bytes at a bandwidth that nothing else uses."""
    return size_bytes / bytes_per_second


def pcie_bytes_per_second(accelerator: Accelerator) -> float:
    """The most that a card's 16 lanes carry one way.

    Example:
        >>> from kvcore.catalogue import find_accelerator
        >>> pcie_bytes_per_second(find_accelerator("H100-80GB")) / GIGA
        63.0
    """
    own, table = accelerator.compute_capability, PROCESSES.load().pcie
    return (table.older_gb_s if own is not None and own < NEWER else table.newer_gb_s) * GIGA


class Moved(Struct, frozen=True, kw_only=True):
    """One request of full length between a pool of servers for prompts and one for answers."""

    connector: str
    role: Role
    bytes_per_rank: int
    ranks: int
    seconds: float | None
    """At the least, each card over its own link; None where its bandwidth is not stated."""

    @property
    def bytes_in_all(self) -> int:
        """Of all ranks: what all store alike is moved for each of them."""
        return self.bytes_per_rank * self.ranks


def moved_request(scenario: Scenario, resolved: Resolved, cache: CachePlan | None) -> Moved | None:
    """What a server that serves one part of requests alone moves of each; None for one that serves both.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_worker.py, mooncake/mooncake_connector.py (0.33.0):
    a rank reads its own heads, of latent vectors all.
    """
    transfer = resolved.engine.transfer(scenario)
    if transfer.connector is None or transfer.role is Role.BOTH or cache is None or not cache.groups:
        return None
    size, link = int(cache.needed_bytes), scenario.link_gb_s
    return Moved(
        connector=transfer.connector,
        role=transfer.role,
        bytes_per_rank=size,
        ranks=scenario.parallel.ranks_per_replica,
        seconds=None if link is None else moved_seconds(size, link * GIGA),
    )


def moved_notices(moved: Moved | None, scenario: Scenario) -> Iterator[Notice]:
    """`request-moves`: what one request of full length moves to or from the other pool, and for how long."""
    if moved is None:
        return
    said = {"size": gib_text(moved.bytes_per_rank), "all": gib_text(moved.bytes_in_all)}
    if moved.seconds is None:
        yield notice("request-moves", "link_gb_s", **said)
    else:
        yield notice(
            "request-moves-for",
            "link_gb_s",
            **said,
            seconds=f"{moved.seconds:.2g}",
            link=f"{scenario.link_gb_s:g}",
        )
