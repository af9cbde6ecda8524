"""What an engine's flags may depend on of a card: the one thing that `resolve` is given, and the key of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.kept import kept
from kvcore.scenario import Scenario

BIG_CARD_GIB: Final = 70
HUGE_CARD_GIB: Final = 160
"""Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.28.0, 0.32.0)."""

UNKNOWN_CAPABILITY: Final = (8, 0)
"""A card that is not known counts as Ampere."""


class MemoryTier(StrEnum):
    """How much memory a card has, as far as defaults go by it."""

    SMALL = "small"
    BIG = "big"
    HUGE = "huge"


@dataclass(frozen=True, kw_only=True, slots=True)
class CardView:
    """A card as flags see it. Cards with equal views resolve to the same flags, the same refusals and weights."""

    vendor: Vendor
    compute_capability: tuple[int, int] | None
    """Of CUDA cards; None when unknown."""
    memory_tier: MemoryTier
    is_a100: bool
    is_gaudi: bool
    is_assumed: bool
    """Nobody named it: it stands for a card that is still open."""
    label: str = field(compare=False)
    """Its name, for messages alone: nothing may depend on it."""

    @property
    def number(self) -> int:
        """major × 10 + minor; a card that is not known counts as Ampere."""
        major, minor = self.compute_capability or UNKNOWN_CAPABILITY
        return major * 10 + minor


@kept
def view_of(accelerator: Accelerator, is_assumed: bool = False) -> CardView:
    """The view of `accelerator`.

    Example:
        >>> from kvcore import catalogue
        >>> l4, l40s = (view_of(catalogue.find_accelerator(name)) for name in ("L4-24GB", "L40S-48GB"))
        >>> l4 == l40s, l4.number, l4.memory_tier.value
        (True, 89, 'small')
    """
    memory = accelerator.memory_gib
    big = MemoryTier.BIG if memory >= BIG_CARD_GIB else MemoryTier.SMALL
    return CardView(
        vendor=accelerator.vendor,
        compute_capability=accelerator.compute_capability,
        memory_tier=MemoryTier.HUGE if memory >= HUGE_CARD_GIB else big,
        is_a100="a100" in accelerator.name.lower(),
        is_gaudi=accelerator.id.startswith("Gaudi"),
        is_assumed=is_assumed,
        label=accelerator.name,
    )


def without_card(scenario: Scenario) -> Scenario:
    """`scenario` with its card still open, for what may read the view alone."""
    return scenario if scenario.accelerator is None else replace(scenario, accelerator=None)
