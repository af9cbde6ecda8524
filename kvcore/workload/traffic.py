"""Traffic: the lengths of all requests together, made by every reader, and packed into a link or a file.

A link carries it in so few bins that it fits, and the page that wrote the link shows those bins too: whoever opens the
link sees the same figures. P50, P90, P95, P99 and the longest of each length are never binned.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import add
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.kept import Keeper
from kvcore.base.untrusted import pack, parse_json_object, unpack
from kvcore.workload.histogram import (
    MAX_LENGTH,
    MAX_TOKENS,
    JointHistogram,
    LengthHistogram,
    cells_of,
    error_of,
)

MAX_CELLS: Final = 1 << 16
"""Different lengths, or pairs of them, that are counted one by one."""
MAX_LINK_CHARACTERS: Final = 3000
"""Characters of the packed form: with a config.json of 4,500 it stays below the 8 KiB at which proxies cut a line."""
STEPS: Final = ((128, 512), (96, 384), (64, 256), (48, 192), (32, 128), (24, 96), (16, 64), (8, 32))
"""Bins of each length and cells of the joint histogram, from which a link takes the first that fits."""
MARK: Final = "kvcore_traffic"
"""The key, with the version of the form, by which a file is known."""
VERSION: Final = 1
MAX_COUNT: Final = 1 << 53
_LENGTHS: Final = ("prompts", "answers", "max_tokens", "taken", "needed", "turns")
_AMOUNTS: Final = ("cached_tokens", "shared_tokens", "span_seconds", "error", "joint_error")
_NONE: Final = LengthHistogram(lengths=(), counts=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic(Keeper):
    """Lengths of requests in tokens, alone and together."""

    prompts: LengthHistogram
    answers: LengthHistogram
    """Lengths of known answers."""
    max_tokens: LengthHistogram
    """max_tokens of the requests that have it."""
    taken: LengthHistogram
    """Prompt and answer together, when the answer ends."""
    needed: LengthHistogram
    """The smallest max_model_len that serves a request in full."""
    joint: JointHistogram
    """Prompt with answer; where the answer is not known, with the longest one that was asked for, or 0."""
    turns: LengthHistogram = _NONE
    """Requests of each session, where requests name theirs."""
    cached_tokens: int = 0
    """Prompt tokens that the log says a cache answered."""
    shared_tokens: int = 0
    """Prompt tokens in blocks that an earlier request of the log had too, by the log's own hashes."""
    span_seconds: float = 0.0
    """Time from the first request to the last; 0 if unknown."""
    error: float = 0.0
    """The width of a bin as a share of its lengths; a bin stands at its mean, and percentiles are exact even so."""
    joint_error: float = 0.0
    """The width of a cell of the joint histogram as a share of its lengths; a cell stands at its mean."""

    @property
    def requests(self) -> int:
        """How many."""
        return self.prompts.requests

    @property
    def without_max_tokens(self) -> int:
        """How many requests state no max_tokens."""
        return self.requests - self.max_tokens.requests

    def binned(self, bins: int, cells: int) -> Traffic:
        """Coarser traffic: about `bins` bins of each length and at most `cells` cells."""
        joint, joint_bits = self.joint.binned(cells)
        found = {name: getattr(self, name).binned(bins) for name in _LENGTHS}
        return replace(
            self,
            **{name: histogram for name, (histogram, _) in found.items()},
            joint=joint,
            error=max(self.error, *(error_of(bits) for _, bits in found.values())),
            joint_error=max(self.joint_error, error_of(joint_bits)),
        )

    def bounded(self) -> Traffic:
        """Coarser traffic, with as many bins and cells as a log that is counted line by line."""
        return self.binned(MAX_CELLS, MAX_CELLS)

    def for_link(self) -> Traffic:
        """What a link can carry of it: the finest of STEPS that packs into MAX_LINK_CHARACTERS. Doing it twice changes
        nothing.

        Example:
            >>> found = traffic_of_counts({(prompt, 80, None): 1 for prompt in range(1, 10_001)}).for_link()
            >>> found.prompts.percentile_tokens(99), found.prompts.mean_tokens, found.error
            (9900, 5000.1016, 0.125)
        """
        for bins, cells in STEPS:
            found = self.binned(bins, cells)
            if len(found.packed()) <= MAX_LINK_CHARACTERS:
                return found
        return found

    def packed(self) -> str:
        """The traffic as a parameter of a link."""
        return pack(self.text())

    def text(self) -> str:
        """The traffic as a small file: JSON, lengths as differences."""
        record: dict[str, Any] = {MARK: VERSION}
        for name in _LENGTHS:
            histogram: LengthHistogram = getattr(self, name)
            record[name] = [_steps(histogram.lengths), histogram.counts]
        record["joint"] = [_steps(self.joint.prompts), self.joint.answers, self.joint.counts]
        record |= {name: getattr(self, name) for name in _AMOUNTS}
        return json.dumps(record, separators=(",", ":"))


def traffic_of_counts(counts: Mapping[tuple[int, int | None, int | None], int]) -> Traffic:
    """Makes exact traffic from a mapping of (prompt, answer, max_tokens) to number of requests; None: unknown.

    A request takes prompt + answer, or + max_tokens where its answer is not known; `needed_tokens` is what it needs.

    Example:
        >>> found = traffic_of_counts({(900, 80, 512): 3, (20, None, None): 1})
        >>> found.taken.lengths, found.needed.lengths, found.answers.requests
        ((20, 980), (21, 1412), 3)
    """
    # A loop for each length: one loop for all of them takes twice as long.
    numbers = counts.values()
    prompts = [prompt for prompt, _, _ in counts]
    longest = [answer if answer is not None else wanted or 0 for _, answer, wanted in counts]
    lengths: dict[str, Mapping[int, int]] = {
        "prompts": _sum(zip(prompts, numbers, strict=True)),
        "answers": _sum((one, n) for (_, one, _), n in counts.items() if one is not None),
        "max_tokens": _sum((one, n) for (_, _, one), n in counts.items() if one is not None),
        "taken": _sum(zip(map(add, prompts, longest), numbers, strict=True)),
        "needed": _sum((needed_tokens(*one), n) for one, n in counts.items()),
    }
    histograms: dict[str, Any] = {name: LengthHistogram.from_counts(found) for name, found in lengths.items()}
    cells = _sum(zip(cells_of(prompts, longest), numbers, strict=True))
    return Traffic(**histograms, joint=JointHistogram.of_cells(cells))


def needed_tokens(prompt: int, answer: int | None, wanted: int | None) -> int:
    """The smallest max_model_len that serves a request in full: prompt + max_tokens where it asked for that, else
    prompt + answer, and never less than prompt + 1.

    Source: vllm/entrypoints/openai/serving_engine.py:_validate_input (0.11.0), and for the one token of an answer
    without max_tokens the same function.

    Example:
        >>> needed_tokens(900, 80, 512), needed_tokens(900, 80, None), needed_tokens(900, None, None)
        (1412, 980, 901)
    """
    longest = wanted if wanted is not None else answer
    return prompt + max(longest or 0, answer or 0, 1)


def added(one: Traffic, other: Traffic) -> Traffic:
    """The requests of both; MAX_CELLS bound its size.

    Example:
        >>> both = added(traffic_of_counts({(900, 80, None): 1}), traffic_of_counts({(20, 80, None): 2}))
        >>> both.prompts.counts, both.joint.counts
        ((2, 1), (2, 1))
    """
    found = {
        name: LengthHistogram.from_counts(_sum(getattr(one, name).items, getattr(other, name).items)).binned(
            MAX_CELLS
        )
        for name in _LENGTHS
    }
    joint, joint_bits = JointHistogram.from_cells(
        _sum(one.joint.cells.items(), other.joint.cells.items()), MAX_CELLS
    )
    return Traffic(
        **{name: histogram for name, (histogram, _) in found.items()},
        joint=joint,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        shared_tokens=one.shared_tokens + other.shared_tokens,
        span_seconds=max(one.span_seconds, other.span_seconds),
        error=max(one.error, other.error, *(error_of(bits) for _, bits in found.values())),
        joint_error=max(one.joint_error, other.joint_error, error_of(joint_bits)),
    )


def _sum(*parts: Iterable[tuple[int, int]]) -> dict[int, int]:
    found: defaultdict[int, int] = defaultdict(int)
    for key, count in chain.from_iterable(parts):
        found[key] += count
    return found


def unpacked(text: str) -> Traffic:
    """Reverses `Traffic.packed`. Raises WorkloadError `traffic-unreadable`."""
    try:
        return read_traffic(unpack(text, "traffic"))
    except KvPlannerError:
        raise WorkloadError("traffic-unreadable", field="traffic") from None


def read_traffic(text: str) -> Traffic:
    """Reads the text of `Traffic.text`. Raises WorkloadError `traffic-unreadable`.

    Example:
        >>> found = traffic_of_counts({(900, 80, 512): 3})
        >>> read_traffic(found.text()) == found
        True
    """
    try:
        record = parse_json_object(text)
        lengths: dict[str, Any] = {name: _histogram(record.get(name)) for name in _LENGTHS}
        amounts = {name: _amount(record.get(name)) for name in _AMOUNTS}
        found = Traffic(**lengths, **amounts, joint=_joint(record.get("joint")))
    except (KvPlannerError, TypeError, ValueError):
        raise WorkloadError("traffic-unreadable", field="traffic") from None
    totals = {found.prompts.requests, found.taken.requests, found.needed.requests, sum(found.joint.counts)}
    known = found.answers.requests <= found.requests >= found.max_tokens.requests
    if record.get(MARK) != VERSION or len(totals) != 1 or not found.requests or not known:
        raise WorkloadError("traffic-unreadable", field="traffic")
    return found


def _steps(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(after - before for before, after in pairwise((0, *lengths)))


def _whole(values: object, least: int, most: int) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > 2 * MAX_CELLS:
        raise ValueError
    if not all(type(value) is int and least <= value <= most for value in values):
        raise ValueError
    return tuple(values)


def _lengths(values: object, least: int) -> tuple[int, ...]:
    steps = _whole(values, 0, MAX_LENGTH)
    found = tuple(accumulate(steps))
    if found and (found[-1] > MAX_LENGTH or min(steps[1:], default=least) < least):
        raise ValueError
    return found


def _histogram(value: Any) -> LengthHistogram:
    steps, numbers = value
    lengths, counts = _lengths(steps, 1), _whole(numbers, 1, MAX_COUNT)
    if len(lengths) != len(counts):
        raise ValueError
    return LengthHistogram(lengths=lengths, counts=counts)


def _joint(value: Any) -> JointHistogram:
    steps, seconds, numbers = value
    prompts, answers = _lengths(steps, 0), _whole(seconds, 0, MAX_LENGTH)
    counts = _whole(numbers, 1, MAX_COUNT)
    if not len(prompts) == len(answers) == len(counts):
        raise ValueError
    return JointHistogram(prompts=prompts, answers=answers, counts=counts)


def _amount(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        raise ValueError
    return value


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
        """Percentiles of a histogram, by nearest rank."""
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
    """Workload in a link: twelve numbers and nothing of a single request."""

    prompt: Percentiles
    answer: Percentiles
    taken: Percentiles
    """Prompt and answer together, when the answer ends."""
    needed: Percentiles
    """The max_model_len that serves a request in full: with max_tokens where it asked for that."""

    def encode(self) -> str:
        """The numbers as a parameter of a link: prompt, answer, taken, needed, each P50:P95:P99."""
        parts = (getattr(self, part) for part in self.__struct_fields__)
        return ",".join(":".join(map(str, part.values)) for part in parts)

    @classmethod
    def decode(cls, text: str) -> LengthQuantiles:
        """Reverses `encode`. Raises WorkloadError `percentiles-unreadable`.

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
    """Percentiles of totals, from those of prompts and answers, which are assumed to be independent.

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
