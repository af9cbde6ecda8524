"""Bytes between a card and the host's memory, or another server: how long they take at the least."""

from __future__ import annotations

from typing import Final

from kvcore.catalogue.accelerators import Accelerator
from kvcore.host.processes import PROCESSES

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
