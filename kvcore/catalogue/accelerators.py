"""Accelerators: what the driver really gives, never the marketing figure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcore.quantity import Grade


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    HUAWEI = "huawei"
    OTHER = "other"


class Interconnect(StrEnum):
    """How cards of this kind reach each other inside one machine: decides the communication buffers."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    HCCS = "hccs"
    PCIE = "pcie"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One kind of card. `memory_gib` is the total that torch reports."""

    id: str
    name: str
    vendor: Vendor
    memory_gib: float
    memory_grade: Grade = Grade.EXACT
    interconnect: Interconnect = Interconnect.PCIE
    compute_capability: tuple[int, int] | None = None
    """Of CUDA cards; None when unknown."""
    is_integrated: bool = False
    """Shares its memory with the processor (GB10, Jetson)."""
    memory_bandwidth_gb_s: float | None = None
    devices_per_node: int = 8
    source: str = ""
    checked: str = ""
