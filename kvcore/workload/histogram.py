"""How long requests are: a histogram of whole token counts, and what it says about a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvcore.kept import Keeper
from kvcore.units import ceil_div, round_up


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthHistogram(Keeper):
    """How many requests have each length; lengths ascending. Its size grows with the longest request, not the log."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def from_counts(cls, counts: Mapping[int, int]) -> LengthHistogram:
        """From a mapping of length to number of requests."""
        lengths = tuple(sorted(counts))
        return cls(lengths=lengths, counts=tuple(counts[length] for length in lengths))

    @classmethod
    def from_lengths(cls, lengths: Iterable[int]) -> LengthHistogram:
        """From single lengths.

        Example:
            >>> LengthHistogram.from_lengths([5, 7, 5]).counts
            (2, 1)
        """
        counts: dict[int, int] = {}
        for length in lengths:
            counts[length] = counts.get(length, 0) + 1
        return cls.from_counts(counts)

    @property
    def requests(self) -> int:
        """How many requests were counted."""
        return sum(self.counts)

    @property
    def mean_tokens(self) -> float:
        """Mean length; 0 without requests."""
        total = sum(length * count for length, count in zip(self.lengths, self.counts, strict=True))
        return total / self.requests if self.requests else 0.0

    @property
    def longest_tokens(self) -> int:
        """The longest length; 0 without requests."""
        return self.lengths[-1] if self.lengths else 0

    def percentile_tokens(self, percent: float) -> int:
        """The smallest length that at least `percent` of the requests do not exceed (nearest rank).

        Example:
            >>> LengthHistogram.from_lengths(range(1, 101)).percentile_tokens(99)
            99
        """
        wanted = percent / 100 * self.requests
        seen = 0
        for length, count in zip(self.lengths, self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return length
        return 0

    def share_above(self, limit_tokens: int) -> float:
        """Share of the requests that are longer than `limit_tokens`.

        Example:
            >>> LengthHistogram.from_lengths([100, 200, 300, 400]).share_above(300)
            0.25
        """
        above = sum(c for length, c in zip(self.lengths, self.counts, strict=True) if length > limit_tokens)
        return above / self.requests if self.requests else 0.0

    def clipped(self, limit_tokens: int) -> LengthHistogram:
        """The same requests, none longer than `limit_tokens`: the engine stops an answer there.

        Example:
            >>> LengthHistogram.from_lengths([100, 300, 400]).clipped(250)
            LengthHistogram(lengths=(100, 250), counts=(1, 2))
        """
        counts: dict[int, int] = {}
        for length, number in zip(self.lengths, self.counts, strict=True):
            kept = min(length, limit_tokens)
            counts[kept] = counts.get(kept, 0) + number
        return LengthHistogram.from_counts(counts)

    def coarsened(self, cells: int) -> LengthHistogram:
        """The same requests at no more than `cells` different lengths, each rounded up by at most longest / cells.

        Example:
            >>> LengthHistogram.from_lengths(range(1, 101)).coarsened(4)
            LengthHistogram(lengths=(25, 50, 75, 100), counts=(25, 25, 25, 25))
        """
        if len(self.lengths) <= cells:
            return self
        step = ceil_div(self.longest_tokens, cells)
        counts: dict[int, int] = {}
        for length, number in zip(self.lengths, self.counts, strict=True):
            upper = min(round_up(max(1, length), step), self.longest_tokens)
            counts[upper] = counts.get(upper, 0) + number
        return LengthHistogram.from_counts(counts)
