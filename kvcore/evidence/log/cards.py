"""The card that a log names, and its vendor."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from msgspec import Struct

from kvcore.base.errors import shorten
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.protocol import Engine
from kvcore.evidence.log.cleaned import LINE_BEGINNING_CHARACTERS, LogText

MAX_CARD_LINES: Final = 64
SHORTEST_CARD_NAME: Final = 2
LONGEST_CARD_NAME: Final = 48
_DEVICE: Final = re.compile(r"device_name=([A-Za-z0-9_\-]{3,48})")
_ASCEND: Final = re.compile(r"(?:Ascend|\|)(910[A-C]?[1-4]?|310P[1-3]?)")
_OWN_DEVICE: Final = "Yourdevice'"
"""Source: config/model.py:_resolve_auto_dtype, platforms/cuda.py:CudaPlatformBase.check_if_supports_dtype (0.8.5,
0.33.0)."""
_LISTED_DEVICE: Final = re.compile(r"GPU \d{1,3}: {1,4}([A-Za-z][\w .+-]{2,48}?)(?: \(UUID|$)")
_CAPABILITIES: Final = ("Devicecapability", "(withcomputecapability")
_CAPABILITY: Final = re.compile(r"(\d{1,2})\.(\d)(?=[a-z)])")
_BEFORE_AMPERE: Final = "FA2isonlysupportedondeviceswithcomputecapability>=8"
"""Source: distributed/device_communicators/symm_mem.py, config/model.py, v1/attention/backends/fa_utils.py (0.13.0,
0.22.0)."""
_PLATFORMS: Final = (
    ("Automaticallydetectedplatformrocm", Vendor.AMD), ("#rocmblocks:", Vendor.AMD),
    ("Automaticallydetectedplatformcuda", Vendor.NVIDIA), ("#cudablocks:", Vendor.NVIDIA),
    ("Automaticallydetectedplatformxpu", Vendor.INTEL), ("#xpublocks:", Vendor.INTEL),
    ("HIPoutofmemory", Vendor.AMD), ("XPUoutofmemory", Vendor.INTEL),
    ("[rocm.py:", Vendor.AMD), ("[xpu.py:", Vendor.INTEL), ("[cuda.py:", Vendor.NVIDIA),
)  # fmt: skip
"""Texts that tell the vendor of the card. Source: platforms/__init__.py:resolve_current_platform_cls_qualname,
platforms/rocm.py, platforms/xpu.py, platforms/cuda.py (0.8.5, 0.33.0)."""


def card_of(log: LogText) -> str | None:
    """The card's name: from a kernel's tuning file, or from what nvidia-smi or npu-smi printed above the log."""
    at = log.find("device_name=")
    match = _DEVICE.match(log.text, at) if at >= 0 else None
    if match is not None:
        return match[1].replace("_", " ").strip()
    for anchor in ("Ascend910", "Ascend310P", "|910B", "|910C", "|310P"):
        at = log.find(anchor)
        match = _ASCEND.match(log.text, at) if at >= 0 else None
        if match is not None:
            return f"Ascend {match[1]}"
    at = log.find(_OWN_DEVICE)
    if at >= 0:
        line = log.lines[log.line_index(at)]
        own = line.partition("device '")[2].partition("'")[0]
        if SHORTEST_CARD_NAME <= len(own) <= LONGEST_CARD_NAME:
            return shorten(own, LONGEST_CARD_NAME)
    for at in islice(log.occurrences("(UUID:GPU-"), MAX_CARD_LINES):
        listed = _LISTED_DEVICE.search(log.lines[log.line_index(at)][:LINE_BEGINNING_CHARACTERS])
        if listed is not None:
            return listed[1].strip()
    for at in islice(log.occurrences("NVIDIA"), MAX_CARD_LINES):
        name = _card_name(log.lines[log.line_index(at)])
        if name is not None:
            return name
    return None


class Capabilities(Struct, frozen=True, kw_only=True):
    """The compute capabilities that a log leaves possible, both ends included."""

    least: tuple[int, int] = (0, 0)
    most: tuple[int, int] = (99, 9)

    def has(self, capability: tuple[int, int]) -> bool:
        """Whether a card of this capability may be meant."""
        return self.least <= capability <= self.most


def capabilities_of(log: LogText) -> Capabilities:
    """The compute capability that a line prints, or that one rules out.

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> capabilities_of(clean_log("SymmMemCommunicator: Device capability 12.0 not supported")).least
        (12, 0)
    """
    for words in _CAPABILITIES:
        for at in islice(log.occurrences(words), MAX_CARD_LINES):
            match = _CAPABILITY.match(log.text, at + len(words))
            if match is not None:
                found = (int(match[1]), int(match[2]))
                return Capabilities(least=found, most=found)
    return Capabilities(most=(7, 9)) if log.has(_BEFORE_AMPERE) else Capabilities()


def vendor_of(log: LogText, engine: Engine, card_name: str | None) -> Vendor | None:
    """The vendor of the card: the engine's only one, the one in the card's name, or the platform's.

    Example:
        >>> from kvcore.engines.registry import find_engine
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> vendor_of(clean_log("Automatically detected platform rocm."), find_engine("vllm"), None).value
        'amd'
    """
    vendors, name = engine.facts.vendors, card_name or ""
    if len(vendors) == 1:
        return vendors[0]
    if name.startswith("Ascend"):
        return Vendor.HUAWEI
    if "NVIDIA" in name:
        return Vendor.NVIDIA
    return next((vendor for text, vendor in _PLATFORMS if log.has(text)), None)


def _card_name(line: str) -> str | None:
    """`NVIDIA H100 80GB HBM3` out of a table row."""
    position = line.find("NVIDIA ")
    if position < 0:
        return None
    cell = re.split(" {2}|[|,]", line[position : position + LONGEST_CARD_NAME + 2])[0]
    name = shorten(cell.strip(), LONGEST_CARD_NAME)
    return name if len(name.split()) >= SHORTEST_CARD_NAME and any(c.isdigit() for c in name) else None
