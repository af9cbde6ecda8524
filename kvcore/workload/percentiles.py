"""Lengths by three percentiles, as a person types them: the distribution that they stand for, and the link."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from msgspec import Struct

from kvcore.base.errors import WorkloadError
from kvcore.workload.histogram import MAX_TOKENS, LengthHistogram

PERCENTS: Final = (50, 95, 99)
CELLS: Final = 400
"""Equally likely lengths that stand for a distribution; a multiple of 100, so that the percentiles are met."""
PAIR_CELLS: Final = 200
_Z: Final = (0.0, 1.6448536269514722, 2.3263478740408408)
"""Standard normal quantiles of PERCENTS."""
_TEXT: Final = re.compile(r"\d{1,8}(?::\d{1,8}){2}(?:,\d{1,8}(?::\d{1,8}){2}){3}", re.ASCII)


class Percentiles(Struct, frozen=True, kw_only=True):
    """P50, P95 and P99 of a length, in tokens; not falling."""

    p50: int
    p95: int
    p99: int

    def __post_init__(self) -> None:
        if not 0 <= self.p50 <= self.p95 <= self.p99 <= MAX_TOKENS:
            raise WorkloadError("percentiles-order", p50=self.p50, p95=self.p95, p99=self.p99)

    @classmethod
    def of(cls, histogram: LengthHistogram) -> Percentiles:
        """Those of a histogram, by nearest rank."""
        p50, p95, p99 = (min(histogram.percentile_tokens(percent), MAX_TOKENS) for percent in PERCENTS)
        return cls(p50=p50, p95=p95, p99=p99)

    @property
    def values(self) -> tuple[int, int, int]:
        """The three, rising."""
        return self.p50, self.p95, self.p99

    def histogram(self, cells: int = CELLS) -> LengthHistogram:
        """A distribution with these percentiles: log-normal between them and beyond them, each of `cells` equally
        likely parts taken at its upper end, so that lengths are rather over- than under-estimated.

        ln(length) is linear between the normal quantiles of 50, 95 and 99 %, with the last slope beyond.

        Example:
            >>> found = Percentiles(p50=800, p95=1150, p99=1200).histogram()
            >>> [found.percentile_tokens(percent) for percent in (50, 95, 99)]
            [800, 1150, 1200]
        """
        logs = [math.log(max(1, value)) for value in self.values]
        shares = (*((index + 1) / cells for index in range(cells - 1)), 1 - 0.2 / cells)
        return LengthHistogram.from_lengths(_length_at(share, logs) for share in shares)


def _length_at(share: float, logs: Sequence[float]) -> int:
    z = _normal_quantile(share)
    low = 1 if z > _Z[1] else 0
    slope = (logs[low + 1] - logs[low]) / (_Z[low + 1] - _Z[low])
    length = round(math.exp(min(logs[low] + slope * (z - _Z[low]), math.log(MAX_TOKENS))))
    return min(length, MAX_TOKENS)


@lru_cache(maxsize=1024)
def _normal_quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


class LengthQuantiles(Struct, frozen=True, kw_only=True):
    """What a link keeps of a workload: twelve numbers, nothing of a request."""

    prompt: Percentiles
    answer: Percentiles
    taken: Percentiles
    """Prompt and answer together, when the answer ends."""
    needed: Percentiles
    """The max_model_len that serves a request in full: with max_tokens where it asked for that."""

    def encode(self) -> str:
        """As a parameter of a link: prompt, answer, taken, needed, each P50:P95:P99."""
        parts = (getattr(self, part) for part in self.__struct_fields__)
        return ",".join(":".join(map(str, part.values)) for part in parts)

    @classmethod
    def decode(cls, text: str) -> LengthQuantiles:
        """What `encode` wrote. Raises WorkloadError `percentiles-unreadable`.

        Example:
            >>> text = "800:1150:1200,120:380:512,920:1530:1712,1312:1662:1712"
            >>> LengthQuantiles.decode(text).needed.p99, LengthQuantiles.decode(text).encode() == text
            (1712, True)
        """
        found: LengthQuantiles | None = None
        if _TEXT.fullmatch(text):
            numbers = [map(int, part.split(":")) for part in text.split(",")]
            with suppress(WorkloadError):
                parts = (Percentiles(p50=p50, p95=p95, p99=p99) for p50, p95, p99 in numbers)
                found = cls(**dict(zip(cls.__struct_fields__, parts, strict=True)))
        if found is None or min(found.prompt.p50, found.needed.p50) < 1:
            raise WorkloadError("percentiles-unreadable", field="lengths", value=text)
        return found


def typed_quantiles(prompt: Percentiles, answer: Percentiles, max_tokens: int | None) -> LengthQuantiles:
    """From percentiles of prompts and answers, which are taken as independent of each other.

    With `max_tokens` a request needs prompt + max_tokens; without, prompt + answer.

    Example:
        >>> typed_quantiles(Percentiles(p50=800, p95=1150, p99=1200), Percentiles(p50=120, p95=380, p99=512),
        ...                 512).needed
        Percentiles(p50=1312, p95=1662, p99=1712)
    """
    sums: Counter[int] = Counter()
    answers = answer.histogram(PAIR_CELLS)
    for length, count in prompt.histogram(PAIR_CELLS).items:
        for other, times in answers.items:
            sums[min(length + other, MAX_TOKENS)] += count * times
    taken = Percentiles.of(LengthHistogram.from_counts(sums))
    if max_tokens is None:
        whole = zip(taken.values, prompt.values, strict=True)
        p50, p95, p99 = (max(total, value + 1) for total, value in whole)
    else:
        p50, p95, p99 = (min(value + max(1, max_tokens), MAX_TOKENS) for value in prompt.values)
    needed = Percentiles(p50=p50, p95=p95, p99=p99)
    return LengthQuantiles(prompt=prompt, answer=answer, taken=taken, needed=needed)
