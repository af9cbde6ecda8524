"""Environment variables by which an engine is told the memory of a card, where it does not look at it itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryVariables:
    """The variables and what holds without them. A GB is 2**30 bytes, as the engines read them."""

    source: str
    total: str
    """Names the variable: the physical memory of one card, in GB."""
    model: str
    """Names the variable: what weights, activations and framework may take of one card, in GB."""
    default_total_gb: float
    default_model_gb: float
    system_gib: float
    """What system and driver take of a card."""
    framework_gib: float
    """What the framework takes at most."""

    @property
    def names(self) -> tuple[str, str]:
        """Both variables."""
        return self.total, self.model

    def defaults(self) -> Mapping[str, str]:
        """Each variable with the text that stands for its default."""
        return {self.total: f"{self.default_total_gb:g}", self.model: f"{self.default_model_gb:g}"}


def written_gb(text: str) -> float | None:
    """The gigabytes that a variable says, None for a text that is no positive number below 1,000,000.

    Example:
        >>> written_gb("64"), written_gb("x4"), written_gb("nan")
        (64.0, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e6 else None
