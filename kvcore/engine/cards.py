"""A card as flags see it: a view, without its name and exact size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.scenario import Scenario

BIG_CARD_GIB: Final = 70
HUGE_CARD_GIB: Final = 160
"""Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.28.0, 0.32.0)."""

AMPERE: Final = 80
UNKNOWN_CAPABILITY: Final = (8, 0)
"""A card that is not known counts as Ampere."""


class MemoryTier(StrEnum):
    """How much memory a card has, as far as defaults go by it."""

    SMALL = "small"
    BIG = "big"
    HUGE = "huge"


class Chip(StrEnum):
    """The generations of Ascend chips, as vllm-ascend tells them apart."""

    UNKNOWN = ""
    """Another card, or one whose name does not say: it counts as the usual A2 or A3."""
    ATLAS_310P = "310P"
    FIRST_910 = "910A"
    """Ascend 910, 910A, 910 Pro A and B: the generation before A2."""
    A2_A3 = "A2/A3"
    A5 = "A5"
    """Ascend 950."""


CHIP_NAMES: Final = (
    (re.compile(r"310p"), Chip.ATLAS_310P),
    (re.compile(r"910\s*-?(pro[\s-]*[ab]|a)\b"), Chip.FIRST_910),
    (re.compile(r"950|910_95|\ba5\b"), Chip.A5),
    (re.compile(r"910|800|\ba[23]\b"), Chip.A2_A3),
)
"""Source: vllm_ascend/utils.py:check_ascend_device_type (0.13.0, 0.23.0: 200 to 205 310P, 220 to 225 A2, 250 to 255 A3,
260 A5, and no other), setup.py (0.23.0: names of chips)."""


def chip_of(accelerator: Accelerator) -> Chip:
    """The generation of an Ascend card, by its name.

    Example:
        >>> from kvcore import catalogue
        >>> [chip_of(catalogue.find_accelerator(name)).value for name in ("Ascend-910A-32GB", "Ascend-910B4-32GB")]
        ['910A', 'A2/A3']
    """
    if accelerator.vendor is not Vendor.HUAWEI:
        return Chip.UNKNOWN
    name = accelerator.name.lower()
    return next((chip for pattern, chip in CHIP_NAMES if pattern.search(name)), Chip.UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class CardView:
    """A card as flags see it. Cards with equal views resolve to the same flags, the same refusals and weights."""

    vendor: Vendor
    compute_capability: tuple[int, int] | None
    """Only for CUDA cards; None when unknown."""
    memory_tier: MemoryTier
    is_a100: bool
    is_gaudi: bool
    chip: Chip
    """The generation of an Ascend card."""
    is_assumed: bool
    """Nobody named it: it stands for a card that is still open."""
    label: str = field(compare=False)
    """Its name, for messages alone: nothing may depend on it."""
    served_by: str = field(compare=False)
    """The engine that serves on it where a request names none; only for messages."""

    @property
    def number(self) -> int:
        """major × 10 + minor; a card that is not known counts as Ampere."""
        major, minor = self.compute_capability or UNKNOWN_CAPABILITY
        return major * 10 + minor

    @property
    def is_310p(self) -> bool:
        """Whether it is an Ascend 310P, which has no bfloat16 and a worker of its own."""
        return self.chip is Chip.ATLAS_310P

    @property
    def words(self) -> Mapping[str, str]:
        """The card in the words of a refusal."""
        known = self.compute_capability
        return {"name": self.label, "capability": "unknown" if known is None else ".".join(map(str, known))}

    @property
    def predates_ampere(self) -> bool:
        """Whether it is a card of NVIDIA without bfloat16, for which V1 came late.

        Source: vllm/platforms/cuda.py:CudaPlatformBase.supported_dtypes (0.32.0).
        """
        return self.vendor is Vendor.NVIDIA and self.number < AMPERE


@lru_cache(maxsize=64)
def dotted(capability: tuple[int, ...]) -> str:
    """A compute capability as the tables write it.

    Example:
        >>> dotted((9, 0))
        '9.0'
    """
    return ".".join(map(str, capability))


def card_view(accelerator: Accelerator, is_assumed: bool, served_by: str) -> CardView:
    """The view of `accelerator`; `served_by` is the engine that serves on it where a request names none.

    The driver tells a container on a MIG slice no memory at all, which counts as a small card.

    Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.33.0); github.com/vllm-project/vllm/issues/55381.
    """
    is_slice = accelerator.is_part and accelerator.vendor is Vendor.NVIDIA
    memory = 0.0 if is_slice else accelerator.memory_gib
    big = MemoryTier.BIG if memory >= BIG_CARD_GIB else MemoryTier.SMALL
    return CardView(
        vendor=accelerator.vendor,
        compute_capability=accelerator.compute_capability,
        memory_tier=MemoryTier.HUGE if memory >= HUGE_CARD_GIB else big,
        is_a100="a100" in accelerator.name.lower(),
        is_gaudi=accelerator.id.startswith("Gaudi"),
        chip=chip_of(accelerator),
        is_assumed=is_assumed,
        label=accelerator.name,
        served_by=served_by,
    )


def without_card(scenario: Scenario) -> Scenario:
    """`scenario` with its card still open, for what may read the view alone."""
    return scenario if scenario.accelerator is None else replace(scenario, accelerator=None)
