"""What fewer bits cost in quality, as published: scores of the same model before and after."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from msgspec import Struct

from kvcore.base.toml_files import file_text, parsed

WEIGHTS: Final = "weights"
_TEXTS: Final = ("model", "format", "kept", "benchmark", "source")


class PublishedScore(Struct, frozen=True, kw_only=True):
    """One result of one source; scores in per cent."""

    model: str
    format: str
    kept: str
    """What has fewer bits: "weights", or "both" with the KV cache."""
    bits: int
    benchmark: str
    before: float
    after: float
    source: str

    @property
    def points(self) -> float:
        """after − before, in points of the benchmark."""
        return self.after - self.before


@cache
def published_scores() -> tuple[PublishedScore, ...]:
    """Every row of quality.toml, in its order. Raises ValueError for a row that is not as it says.

    Example:
        >>> first = published_scores()[0]
        >>> first.format, round(first.points, 2)
        ('FP8', -0.49)
    """
    return tuple(_score(row) for row in parsed(file_text("kvcore.explain", "quality.toml"))["result"])


def _score(row: dict[str, Any]) -> PublishedScore:
    found = PublishedScore(**row)
    if not all(isinstance(getattr(found, name), str) and getattr(found, name) for name in _TEXTS):
        raise ValueError(f"quality.toml: a text is missing in {row}")
    if not (0 <= found.before <= 100 and 0 <= found.after <= 100 and found.kept in (WEIGHTS, "both")):
        raise ValueError(f"quality.toml: a score is none in {row}")
    return found


def largest_loss(bits: int) -> float:
    """Points that the worst of the published results with that many bits in the weights alone lost.

    Example:
        >>> round(largest_loss(8), 2), round(largest_loss(4), 2)
        (0.49, 1.75)
    """
    rows = [row for row in published_scores() if row.bits == bits and row.kept == WEIGHTS]
    return max(-row.points for row in rows)
