"""How long requests are: whole token counts, each with its number of requests, and prompts with their answers.

With few different lengths they are exact. With more, lengths with equal leading bits are merged at their mean: bins are
even on a logarithmic scale, and every length is right to a stated relative error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import add
from typing import Final, Protocol

from kvcore.base.kept import Keeper
from kvcore.base.units import ceil_div, round_up

MAX_TOKENS: Final = 1 << 24
"""Longer than any context in use; a larger number is an error of the log."""
MAX_LENGTH: Final = 2 * MAX_TOKENS
"""The longest prompt and answer together."""
EXACT_BITS: Final = MAX_LENGTH.bit_length()
"""With so many leading bits no length is rounded."""
MET_PERCENTS: Final = (50, 90, 95, 99, 100)
"""Percentiles that binning does not change."""


def rounded_up(tokens: int, bits: int) -> int:
    """`tokens` rounded up to `bits` leading bits: by less than a share of 2^(1 - bits).

    Example:
        >>> [rounded_up(tokens, 3) for tokens in (7, 9, 1000, 1024)]
        [7, 10, 1024, 1024]
    """
    shift = tokens.bit_length() - bits
    return tokens if shift <= 0 else -(-tokens >> shift) << shift


def error_of(bits: int) -> float:
    """Relative width of a bin of `bits` leading bits; 0 without bins.

    Example:
        >>> error_of(8), error_of(EXACT_BITS)
        (0.0078125, 0.0)
    """
    return 0.0 if bits >= EXACT_BITS else 2.0 ** (1 - bits)


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthHistogram(Keeper):
    """How many requests have each length; lengths ascending."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def from_counts(cls, counts: Mapping[int, int]) -> LengthHistogram:
        """Makes one from a mapping of length to number of requests."""
        lengths = tuple(sorted(counts))
        return cls(lengths=lengths, counts=tuple(counts[length] for length in lengths))

    @classmethod
    def from_lengths(cls, lengths: Iterable[int]) -> LengthHistogram:
        """Counts single lengths.

        Example:
            >>> LengthHistogram.from_lengths([5, 7, 5]).counts
            (2, 1)
        """
        return cls.from_counts(Counter(lengths))

    @property
    def items(self) -> Iterable[tuple[int, int]]:
        """Each length with its number of requests."""
        return zip(self.lengths, self.counts, strict=True)

    @property
    def requests(self) -> int:
        """How many requests were counted."""
        return sum(self.counts)

    @property
    def mean_tokens(self) -> float:
        """Mean length; 0 without requests."""
        total = sum(length * count for length, count in self.items)
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
        for length, count in self.items:
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
        above = sum(c for length, c in self.items if length > limit_tokens)
        return above / self.requests if self.requests else 0.0

    def clipped(self, limit_tokens: int) -> LengthHistogram:
        """A histogram with all longer requests at `limit_tokens`, where the engine stops an answer.

        Example:
            >>> LengthHistogram.from_lengths([100, 300, 400]).clipped(250)
            LengthHistogram(lengths=(100, 250), counts=(1, 2))
        """
        return self._moved(lambda length: min(length, limit_tokens))

    def coarsened(self, cells: int) -> LengthHistogram:
        """A histogram of at most `cells` different lengths, each rounded up by at most longest / cells.

        Example:
            >>> LengthHistogram.from_lengths(range(1, 101)).coarsened(4)
            LengthHistogram(lengths=(25, 50, 75, 100), counts=(25, 25, 25, 25))
        """
        if len(self.lengths) <= cells:
            return self
        longest, step = self.longest_tokens, ceil_div(self.longest_tokens, cells)
        return self._moved(lambda length: min(round_up(max(1, length), step), longest))

    def binned(self, bins: int) -> tuple[LengthHistogram, int]:
        """A histogram in bins of equal ratio, each at its mean, and the number of leading bits that make a bin.

        It has at most `bins` bins, cut at MET_PERCENTS, whose lengths do not change.

        Example:
            >>> found, bits = LengthHistogram.from_lengths(range(1, 10_001)).binned(40)
            >>> found.percentile_tokens(99), found.mean_tokens, bits
            (9900, 5000.1362, 2)
        """
        if len(self.lengths) <= bins:
            return self, EXACT_BITS
        bits = most_bits(self._fits(bins))
        met = sorted({self.percentile_tokens(percent) for percent in MET_PERCENTS})
        sums: dict[tuple[int, int, bool], tuple[int, int]] = {}
        for length, count in self.items:
            at = bisect_left(met, length)
            group = rounded_up(length, bits), at, length == met[at]
            tokens, number = sums.get(group, (0, 0))
            sums[group] = tokens + length * count, number + count
        return LengthHistogram.from_counts({round(t / n): n for t, n in sums.values()}), bits

    def _fits(self, bins: int) -> Callable[[int], bool]:
        """Whether so many leading bits make at most `bins` different lengths; stops counting at more."""

        def fits(bits: int) -> bool:
            found: set[int] = set()
            for at in range(0, len(self.lengths), _SLICE):
                found.update([rounded_up(length, bits) for length in self.lengths[at : at + _SLICE]])
                if len(found) > bins:
                    return False
            return True

        return fits

    def _moved(self, moved: Callable[[int], int]) -> LengthHistogram:
        counts: Counter[int] = Counter()
        for length, number in self.items:
            counts[moved(length)] += number
        return LengthHistogram.from_counts(counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class JointHistogram(Keeper):
    """How many requests have each prompt with each answer, in tokens; cells ascending by prompt, then answer."""

    prompts: tuple[int, ...]
    answers: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def from_counts(cls, counts: Mapping[tuple[int, int], int]) -> JointHistogram:
        """Makes one from a mapping of (prompt, answer) to number of requests.

        Example:
            >>> JointHistogram.from_counts({(900, 80): 3, (20, 5): 1}).prompts
            (20, 900)
        """
        cells = sorted(counts)
        return cls(
            prompts=tuple(prompt for prompt, _ in cells),
            answers=tuple(answer for _, answer in cells),
            counts=tuple(counts[cell] for cell in cells),
        )

    @classmethod
    def from_cells(cls, cells: Mapping[int, int], most: int) -> tuple[JointHistogram, int]:
        """From a mapping of `cell_of` to number of requests, in at most `most` cells of equal ratio, each at its mean;
        and the leading bits kept.

        Example:
            >>> found, bits = JointHistogram.from_cells({cell_of(9, 4): 1, cell_of(11, 4): 1, cell_of(90, 4): 2}, 2)
            >>> found.prompts, found.answers, bits
            ((10, 90), (4, 4), 2)
        """
        sums = CellSums(most)
        sums.add(cells)
        return sums.joint(), sums.bits

    @classmethod
    def of_cells(cls, counts: Mapping[int, int]) -> JointHistogram:
        """Makes one from a mapping of `cell_of` to number of requests, exactly."""
        # One sort of all cells would block all other threads.
        by_prompt: defaultdict[int, list[int]] = defaultdict(list)
        for cell in counts:
            by_prompt[cell // CELL].append(cell)
        cells = [cell for prompt in sorted(by_prompt) for cell in sorted(by_prompt[prompt])]
        return cls(
            prompts=tuple([cell // CELL for cell in cells]),
            answers=tuple([cell % CELL for cell in cells]),
            counts=tuple([counts[cell] for cell in cells]),
        )

    @property
    def cells(self) -> dict[int, int]:
        """Number of requests by `cell_of`."""
        return dict(zip(map(cell_of, self.prompts, self.answers), self.counts, strict=True))

    @property
    def items(self) -> Iterable[tuple[int, int, int]]:
        """Each prompt and answer with its number of requests."""
        return zip(self.prompts, self.answers, self.counts, strict=True)

    @property
    def running_tokens(self) -> float:
        """Mean tokens of a running request, at a random step of a random answer; 0 without answers.

        Sum over requests of (answer x prompt + answer x (answer + 1) / 2), over the sum of the answers.

        Example:
            >>> JointHistogram.from_counts({(10, 4): 1, (100, 1): 1}).running_tokens
            30.2
        """
        steps = sum(answer * count for _, answer, count in self.items)
        held = sum(
            (answer * prompt + answer * (answer + 1) // 2) * count for prompt, answer, count in self.items
        )
        return held / steps if steps else 0.0

    def binned(self, cells: int) -> tuple[JointHistogram, int]:
        """A histogram of at most `cells` cells of equal ratio, each at its mean; and the number of leading bits kept.

        Example:
            >>> found, bits = JointHistogram.from_counts({(100, 7): 1, (102, 7): 1, (4000, 7): 2}).binned(2)
            >>> found.prompts, found.counts, bits
            ((101, 4000), (2, 2), 4)
        """
        return (
            (self, EXACT_BITS) if len(self.counts) <= cells else JointHistogram.from_cells(self.cells, cells)
        )


CELL: Final = 2_654_435_761
"""Larger than any length; odd and no power of two, so that cells spread over a hash table."""
_SUM_BITS: Final = 96
"""More bits than the sum of the lengths of all requests."""
_SUM: Final = (1 << _SUM_BITS) - 1
_SLICE: Final = 1 << 13


def cell_of(prompt: int, answer: int) -> int:
    """Prompt and answer as one number, which is looked up and sorted faster than a pair.

    Example:
        >>> cell_of(0, 7), cell_of(2, 7) == 2 * cell_of(1, 0) + 7
        (7, True)
    """
    return prompt * CELL + answer


def cells_of(prompts: Iterable[int], answers: Iterable[int]) -> list[int]:
    """`cell_of` of each.

    Example:
        >>> cells_of([0, 2], [7, 8]) == [cell_of(0, 7), cell_of(2, 8)]
        True
    """
    return [prompt * CELL + answer for prompt, answer in zip(prompts, answers, strict=True)]


class CellSums:
    """Requests by prompt and answer, added up in at most `most` cells of the most leading bits that fit: the same
    whatever comes first, and however many come at once.

    Example:
        >>> sums = CellSums(2)
        >>> for prompt in (90, 9, 11, 90):
        ...     sums.add({cell_of(prompt, 4): 1})
        >>> sums.joint() == JointHistogram.from_counts({(10, 4): 2, (90, 4): 2}), sums.bits
        (True, 2)
    """

    def __init__(self, most: int) -> None:
        self.bits = EXACT_BITS
        """Leading bits in which lengths differ."""
        self._most = most
        self._sums: defaultdict[int, int] = defaultdict(int)
        """By both rounded lengths: the numbers of requests, prompt tokens and answer tokens packed into one number."""

    def add(self, cells: Mapping[int, int]) -> None:
        """Adds cells, each with its number of requests."""
        found = _Cells(cells)
        self.fold(_Folding(found, list(found.sums(cells.values()))), len(cells))

    def fold(self, folding: Folding, number: int) -> None:
        """Adds cells, at most `number` different ones, that bring their own way to be added up."""
        if not self._sums and number > self._most:
            self.bits = folding.most_bits(self._most, self.bits)
        self._put(folding)
        if len(self._sums) > self._most:
            # Bins are merged at their means into wider bins.
            found, sums = _Cells([cell for cell, _ in self._means()]), self._sums
            self.bits, self._sums = found.most_bits(self._most, self.bits), defaultdict(int)
            self._put(_Folding(found, list(sums.values())))

    def joint(self) -> JointHistogram:
        """Each cell at its mean."""
        found: defaultdict[int, int] = defaultdict(int)
        for cell, number in self._means():
            found[cell] += number
        return JointHistogram.of_cells(found)

    def _put(self, folding: Folding) -> None:
        known = self._sums
        for group, one in folding.packed(self.bits):
            known[group] += one

    def _means(self) -> Iterator[tuple[int, int]]:
        for one in self._sums.values():
            number, prompt, answer = one >> 2 * _SUM_BITS, one >> _SUM_BITS & _SUM, one & _SUM
            yield cell_of(round(prompt / number), round(answer / number)), number


def packed_sum(number: int, prompts: int, answers: int) -> int:
    """The numbers of requests, prompt tokens and answer tokens of a bin as one number."""
    return ((number << _SUM_BITS) + prompts << _SUM_BITS) + answers


class Folding(Protocol):
    """Cells that can be put into bins."""

    def most_bits(self, most: int, below: int) -> int:
        """The most leading bits up to `below` at which the cells are in at most `most` different bins."""

    def packed(self, bits: int) -> Iterable[tuple[int, int]]:
        """Bins of so many leading bits, each with its `packed_sum`; a bin may come several times."""


class _Cells:
    """Cells, and the bin of each."""

    def __init__(self, cells: Collection[int]) -> None:
        self._prompts, self._answers = [cell // CELL for cell in cells], [cell % CELL for cell in cells]
        # A length is in many cells but is rounded once.
        self._different = set(self._prompts), set(self._answers)

    def groups(self, bits: int) -> Iterator[int]:
        """The bin of each cell: a cell of both lengths rounded up to their leading bits."""
        prompt = {one: rounded_up(one, bits) * CELL for one in self._different[0]}
        answer = {one: rounded_up(one, bits) for one in self._different[1]}
        return map(add, map(prompt.__getitem__, self._prompts), map(answer.__getitem__, self._answers))

    def sums(self, numbers: Iterable[int]) -> list[int]:
        """For each cell the numbers of requests, prompt tokens and answer tokens packed into one number."""
        return [
            ((number << _SUM_BITS) + prompt * number << _SUM_BITS) + answer * number
            for prompt, answer, number in zip(self._prompts, self._answers, numbers, strict=True)
        ]

    def most_bits(self, most: int, below: int) -> int:
        """The most leading bits below `below` at which the cells are in at most `most` different bins."""

        def fits(bits: int) -> bool:
            found: set[int] = set()
            rest = self.groups(bits)
            for _ in range(0, len(self._prompts), _SLICE):
                found.update(islice(rest, _SLICE))
                if len(found) > most:
                    return False
            return True

        longest = max(max(one, default=0) for one in self._different).bit_length()
        return most_bits(fits, min(longest, below))


class _Folding:
    """Cells with their sums."""

    def __init__(self, cells: _Cells, sums: list[int]) -> None:
        self._cells, self._sums = cells, sums

    def most_bits(self, most: int, below: int) -> int:
        return self._cells.most_bits(most, below)

    def packed(self, bits: int) -> Iterable[tuple[int, int]]:
        return zip(self._cells.groups(bits), self._sums, strict=True)


def most_bits(fits: Callable[[int], bool], all_bits: int = EXACT_BITS) -> int:
    """The most leading bits below `all_bits` that fit; 0, powers of two, where none do."""
    return max(0, bisect_left(range(all_bits), True, key=lambda bits: not fits(bits)) - 1)
