"""Errors of predictions on published starts: accuracy.jsonl, which `make accuracy` recomputes, and its summaries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib import resources
from operator import attrgetter
from statistics import fmean, median
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvcore.base import parts
from kvcore.base.errors import CatalogueError
from kvcore.base.typed import ONE_AT_A_TIME
from kvcore.engine.rank_memory import PRINTED_HALF_GIB
from kvcore.engines.registry import find_engine

FILE: Final = "accuracy.jsonl"

T = TypeVar("T")


class Check(StrEnum):
    """Compared figures. `_given_kv`: with the KV memory of the log, so that only the KV plan is tested."""

    KV_MEMORY = "kv_memory"
    WEIGHTS = parts.WEIGHTS.name
    ACTIVATIONS = parts.ACTIVATIONS.name
    FRAMEWORK = parts.FRAMEWORK.name
    CUDA_GRAPHS = parts.CUDA_GRAPHS.name
    BYTES_PER_TOKEN = "bytes_per_token"
    KV_TOKENS = "kv_tokens"
    MAX_CONCURRENCY = "max_concurrency"
    KV_TOKENS_GIVEN_KV = "kv_tokens_given_kv"
    MAX_CONCURRENCY_GIVEN_KV = "max_concurrency_given_kv"


IN_GIB: Final = frozenset(
    (Check.KV_MEMORY, Check.WEIGHTS, Check.ACTIVATIONS, Check.FRAMEWORK, Check.CUDA_GRAPHS)
)
CAMPAIGN: Final = "llm-d-incubation/llm-d-planner"
ERAS: Final = ("0.11", "0.18", "0.24")
"""Releases at which budgets, samplers and runners changed most."""
LEAST_GROUP: Final = 8
"""Least starts of a group whose shares are shown."""
FITTED: Final = (Check.KV_MEMORY, Check.ACTIVATIONS, Check.FRAMEWORK, Check.CUDA_GRAPHS)
"""Checks that rest on constants fitted on published starts; `kv_memory` through the other parts."""


class Peer(Struct, frozen=True, kw_only=True):
    """Another tool, and its address."""

    id: str
    name: str
    address: str


class Point(Struct, frozen=True, kw_only=True):
    """One figure of one start."""

    predicted: float | None
    measured: float
    interval: tuple[float, float] | None = None
    is_fitted: bool = False
    """Whether its publication took part in the fit of the prediction's constants."""
    left_out: float | None = None
    """The prediction without that publication; None where the constants rest on no other one."""
    left_out_interval: tuple[float, float] | None = None
    """Its interval, where the widths were fitted without that publication too."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one; infinite without a prediction.

        Example:
            >>> Point(predicted=9.9, measured=10.0).error, Point(predicted=None, measured=1.0).error
            (-0.010000000000000009, inf)
        """
        return math.inf if self.predicted is None else self.predicted / self.measured - 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured figure, which logs round, lies in the interval; None without one."""
        if self.interval is None:
            return None
        low, high = self.interval
        return low - PRINTED_HALF_GIB <= self.measured <= high + PRINTED_HALF_GIB

    @property
    def held_out(self) -> Point | None:
        """The point as if its publication were unknown; None where the constants rest on no other one.

        An interval that was not fitted without it moves with the prediction.

        Example:
            >>> point = Point(predicted=2.0, measured=2.4, interval=(1.5, 2.5), is_fitted=True, left_out=1.75)
            >>> point.held_out.predicted, point.held_out.interval
            (1.75, (1.25, 2.25))
        """
        if not self.is_fitted:
            return self
        if self.left_out is None or self.predicted is None:
            return None
        moved = self.left_out_interval
        if moved is None and self.interval is not None:
            step = self.left_out - self.predicted
            moved = (self.interval[0] + step, self.interval[1] + step)
        return Point(predicted=self.left_out, measured=self.measured, interval=moved)


class _Start(Struct, frozen=True, kw_only=True):
    id: str
    model: str
    engine: str
    engine_version: str | None
    date: str | None
    source: str
    """Address of the log; empty where only model, version and date can be cited."""
    publication: str
    """Repository of the log, or one file whose address is not known."""
    card: str
    family: str
    layout: str
    """`uniform`: all layers keep the same; else the kinds of layers."""
    tensor_parallel_size: int
    card_gib: int | float | None
    """Memory of the card; None where it is not known."""
    surroundings: Mapping[str, str | int | float]
    """Link, installation, host, driver and memory in use, as far as the author tells them."""
    inferred: tuple[str, ...]
    """Fields of the request that were read off other lines than the author's flags."""
    started: bool
    """Whether the engine reported that it was ready, on a card that is known."""
    peers: Mapping[str, Mapping[Check, int | float]]
    """Predictions of each peer."""
    verdict: str
    """The predicted verdict, or the code of the refusal; empty where the card is unknown."""
    one_source: bool
    """Whether a constant of its KV memory rests on its own publication alone, so that it could not be left out."""
    failed_as: tuple[str, ...]
    """Verdicts that name this failed start correctly; empty for a start that succeeded."""
    batch: str
    """The day on which it came in, with others of its day."""
    by_batch: tuple[float, ...]
    """KV memory in GiB and the ends of its interval where its whole batch is left out of all that is fitted; empty
    where it may not be compared."""


class Batch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the planner met the KV memory of a batch of starts before it knew any of them."""

    date: str
    commit: str
    """The state of the planner that was judged."""
    starts: int
    inside: int
    """Of them, those inside their 80 % interval."""


class PublishedStart(_Start, frozen=True, kw_only=True):
    """One published start with its measured and predicted figures."""

    points: Mapping[Check, Point]


class _Line(_Start, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A start as accuracy.jsonl has it."""

    checks: Mapping[Check, tuple[Any, ...]]
    """Predicted, measured, and the ends of the interval where there is one."""
    left_out: Mapping[Check, tuple[Any, ...]]
    """The prediction without the start's own publication, and the ends of its interval."""


class _Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    generated: str
    starts: int
    peers: tuple[Peer, ...]
    batches: tuple[Batch, ...]


class Accuracy(Struct, frozen=True, kw_only=True):
    """The whole record."""

    generated: str
    starts: tuple[PublishedStart, ...]
    peers: tuple[Peer, ...]
    batches: tuple[Batch, ...]
    """Those that were judged before they were known, oldest first."""


class Summary(Struct, frozen=True, kw_only=True):
    """Errors of a group, as shares; a start without an answer counts as infinitely wrong."""

    count: int
    answered: int
    median: float
    p90: float
    signed_median: float | None
    within_five_percent: float
    inside: float | None
    """Share of the measured figures inside their interval, of those that have one."""


@cache
def load_accuracy() -> Accuracy:
    """accuracy.jsonl, read strictly. Raises CatalogueError for an unknown or missing key."""
    text = (resources.files("kvcore.catalogue") / FILE).read_text("utf-8")
    return read_accuracy(text)


def read_accuracy(text: str) -> Accuracy:
    """The record from its text: a line about the run, then a line for each start."""
    first, *rest = filter(str.strip, text.splitlines())
    header = _decoded(first, _Header, 1)
    starts = tuple(_start(_decoded(line, _Line, number)) for number, line in enumerate(rest, 2))
    if header.starts != len(starts):
        raise CatalogueError("invalid-catalogue-entry", field=FILE, reason="it is cut")
    return Accuracy(generated=header.generated, starts=starts, peers=header.peers, batches=header.batches)


def _decoded(line: str, kind: type[T], number: int) -> T:
    try:
        with ONE_AT_A_TIME:
            return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise CatalogueError(
            "invalid-catalogue-entry", field=f"{FILE}: line {number}", reason=str(error)
        ) from None


def _start(line: _Line) -> PublishedStart:
    points = {
        check: Point(
            predicted=predicted,
            measured=measured,
            interval=tuple(interval) or None,
            is_fitted=check in line.left_out,
            left_out=next(iter(line.left_out.get(check, ())), None),
            left_out_interval=line.left_out.get(check, ())[1:] or None,
        )
        for check, (predicted, measured, *interval) in line.checks.items()
    }
    return PublishedStart(points=points, **{name: getattr(line, name) for name in _Start.__struct_fields__})


def summarize(points: Iterable[Point]) -> Summary | None:
    """Summary of the errors; None without points.

    Example:
        >>> points = [Point(predicted=p, measured=100.0) for p in (98.0, 99.5, 103.0, 120.0)]
        >>> found = summarize(points)
        >>> round(found.median, 4), round(found.p90, 4), found.within_five_percent
        (0.025, 0.2, 0.75)
    """
    found = list(points)
    if not found:
        return None
    errors = [point.error for point in found]
    sizes = sorted(map(abs, errors))
    answered = [error for error in errors if math.isfinite(error)]
    judged = [point.is_inside for point in found if point.is_inside is not None]
    return Summary(
        count=len(found),
        answered=len(answered),
        median=median(sizes),
        p90=ninth_decile(sizes),
        signed_median=median(answered) if answered else None,
        within_five_percent=sum(size <= 0.05 for size in sizes) / len(sizes),
        inside=sum(judged) / len(judged) if judged else None,
    )


def ninth_decile(sizes: Iterable[float]) -> float:
    """The smallest size that nine in ten do not exceed.

    Example:
        >>> ninth_decile([0.3, 0.1, 0.2]), ninth_decile(range(1, 11))
        (0.3, 9)
    """
    ordered = sorted(sizes)
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


def our_points(starts: Iterable[PublishedStart], check: Check) -> list[Point]:
    """The points of one check."""
    return [start.points[check] for start in starts if check in start.points]


def peer_points(starts: Iterable[PublishedStart], check: Check, peer: str) -> list[Point]:
    """A peer's points of one check, only of the starts it answered."""
    return [
        Point(predicted=start.peers[peer][check], measured=_comparable(start, check, peer))
        for start in starts
        if check in start.points and check in start.peers.get(peer, {})
    ]


def _comparable(start: PublishedStart, check: Check, peer: str) -> float:
    """The measured figure that a peer is compared with: whole requests where the peer prints whole ones."""
    measured, predicted = start.points[check].measured, start.peers[peer][check]
    is_whole = check is Check.MAX_CONCURRENCY and isinstance(predicted, int)
    return (math.floor(measured) or measured) if is_whole else measured


class Verdicts(Struct, frozen=True, kw_only=True):
    """Counts of right and wrong verdicts on starts and failures."""

    healthy: int
    refused: int
    """Starts that succeeded and were predicted to fail."""
    failed: int
    named_rightly: int
    called_tight: int
    """Failed starts that were called tight instead."""


class Headline(Struct, frozen=True, kw_only=True):
    """Expected accuracy of the KV memory on a machine without a published start."""

    found: Summary
    share_median: float
    """Median error as a share of the card's memory."""
    share_p90: float
    width: float
    """Median width of the interval as a share of the measured figure."""
    inside_by_publication: float
    """Share of the measured figures inside their interval where each publication counts once."""


def headline(starts: Iterable[PublishedStart]) -> Headline | None:
    """Errors and intervals of the KV memory; None without a start whose KV memory is known."""
    starts = list(starts)
    points = our_points(starts, Check.KV_MEMORY)
    by_publication: dict[str, list[bool]] = {}
    for start in starts:
        point = start.points.get(Check.KV_MEMORY)
        if point is not None and point.interval is not None:
            by_publication.setdefault(start.publication, []).append(point.is_inside is True)
    found, shares, wide = summarize(points), shares_of_card(starts), widths(points)
    if found is None or not shares or not wide:
        return None
    return Headline(
        found=found,
        share_median=median(shares),
        share_p90=ninth_decile(shares),
        width=median(wide),
        inside_by_publication=sum(map(fmean, by_publication.values())) / len(by_publication),
    )


def verdicts(starts: Iterable[PublishedStart]) -> Verdicts:
    """The verdicts on starts whose card and budget are known."""
    judged = [one for one in starts if one.verdict]
    healthy = [start for start in judged if start.started and not start.failed_as]
    failed = [start for start in judged if start.failed_as]
    return Verdicts(
        healthy=len(healthy),
        refused=sum(start.verdict not in ("fits", "tight") for start in healthy),
        failed=len(failed),
        named_rightly=sum(start.verdict in start.failed_as for start in failed),
        called_tight=sum(start.verdict == "tight" and "tight" not in start.failed_as for start in failed),
    )


def shares_of_card(starts: Iterable[PublishedStart]) -> list[float]:
    """Errors of the KV memory as shares of the card's memory, since the KV memory itself can be tiny."""
    found = []
    for start in starts:
        point = start.points.get(Check.KV_MEMORY)
        if point is not None and start.card_gib:
            off = math.inf if point.predicted is None else abs(point.predicted - point.measured)
            found.append(off / start.card_gib)
    return found


def widths(points: Iterable[Point]) -> list[float]:
    """Widths of the intervals as shares of the measured figures."""
    return [(point.interval[1] - point.interval[0]) / point.measured for point in points if point.interval]


def off_platform(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts without those of plug-ins with overheads of their own, which rest on few publications."""
    return [start for start in starts if find_engine(start.engine).facts.overheads is None]


def era_name(start: PublishedStart) -> str:
    """Ranks and release era of a start.

    Example:
        >>> sorted({era_name(start) for start in load_accuracy().starts})[1]
        'TP 1, vLLM 0.11–0.17'
    """
    ranks = "TP > 1" if start.tensor_parallel_size > 1 else "TP 1"
    if start.engine_version is None:
        return f"{ranks}, ?"
    numbers = [int(part) for part in re.findall(r"\d+", start.engine_version)[:2]]
    below = [name for name in ERAS if numbers < [int(part) for part in name.split(".")]]
    if not below:
        return f"{ranks}, vLLM ≥ {ERAS[-1]}"
    major, minor = below[0].split(".")
    since = ERAS[ERAS.index(below[0]) - 1] if below[0] != ERAS[0] else None
    return (
        f"{ranks}, vLLM < {ERAS[0]}" if since is None else f"{ranks}, vLLM {since}–{major}.{int(minor) - 1}"
    )


def era_order(name: str) -> tuple[bool, bool, int]:
    """Sort key of an `era_name`: fewer ranks first, then older releases, unknown releases last.

    Example:
        >>> sorted(("TP > 1, vLLM < 0.11", "TP 1, ?", "TP 1, vLLM ≥ 0.24", "TP 1, vLLM 0.18–0.23"), key=era_order)
        ['TP 1, vLLM 0.18–0.23', 'TP 1, vLLM ≥ 0.24', 'TP 1, ?', 'TP > 1, vLLM < 0.11']
    """
    place = (
        -1
        if "<" in name
        else max((index for index, era in enumerate(ERAS) if era in name), default=len(ERAS))
    )
    return name.startswith("TP >"), name.endswith("?"), place


def elsewhere(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts without the largest campaign, which is one host: fitted constants suit it too well."""
    return [start for start in starts if CAMPAIGN not in start.source]


def without_batch(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts whose KV memory may be compared, predicted as if their whole batch had taken part in no fit."""
    return [
        replace(one, points={Check.KV_MEMORY: _without_batch(one)})
        for one in starts
        if one.by_batch and Check.KV_MEMORY in one.points
    ]


def _without_batch(start: PublishedStart) -> Point:
    value, low, high = start.by_batch
    return replace(start.points[Check.KV_MEMORY], predicted=value, interval=(low, high), is_fitted=False)


def batches(starts: Iterable[PublishedStart]) -> dict[str, list[PublishedStart]]:
    """The starts of `without_batch`, by the day on which they came in, oldest first."""
    found: dict[str, list[PublishedStart]] = {}
    for start in sorted(without_batch(starts), key=attrgetter("batch")):
        found.setdefault(start.batch, []).append(start)
    return found


def held_out(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts predicted as if their own publication had taken part in no fit.

    Points whose constants rest on their own publication alone drop out: their error elsewhere is unknown.
    """
    return [
        replace(one, points={check: left for check, point in one.points.items() if (left := point.held_out)})
        for one in starts
    ]


def of_one_source(starts: Iterable[PublishedStart], check: Check) -> int:
    """Number of points of a check whose constants rest on their own publication alone."""
    return sum(point.held_out is None for point in our_points(starts, check))


def mixed(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts of models whose layers are not all plain attention."""
    return [start for start in starts if start.layout != "uniform"]


def groups(starts: Sequence[PublishedStart], by: str) -> dict[str, list[PublishedStart]]:
    """Starts by `version` (of the engine, two parts), `card` or `family`, the largest group first."""
    found: dict[str, list[PublishedStart]] = {}
    for start in starts:
        found.setdefault(_GROUPS[by](start), []).append(start)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def release_name(start: PublishedStart) -> str:
    """Engine and the first two parts of its version; a question mark for an unknown version."""
    if start.engine_version is None:
        return f"{start.engine} ?"
    return f"{start.engine} {'.'.join(start.engine_version.split('.')[:2])}"


_GROUPS: Final[Mapping[str, Callable[[PublishedStart], str]]] = {
    "version": release_name,
    "card": attrgetter("card"),
    "family": attrgetter("family"),
    "era": era_name,
}
