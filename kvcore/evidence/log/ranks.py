"""Figures of a log, sorted to the ranks that printed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from kvcore.errors import Notice
from kvcore.evidence.log.cleaned import LogText
from kvcore.evidence.log.line_formats import FORMATS, FigureRule, LineFormat, find_lines
from kvcore.evidence.log.startup import EngineFigures, RankFigures, Reading, Spread, format_number

MAX_NOTICES: Final = 20
SAME_GIB: Final = 0.02
"""Two figures of one rank this close are one figure, printed with other rounding."""
SAME_SHARE: Final = 0.02
RANKS_APART: Final = 2.0
"""Lines without a rank whose figures lie further apart than this factor are not ranks of one engine."""
_LATEST: Final = frozenset(
    ("block_size", "batched_tokens", "model_len", "num_gpu_blocks", "mamba_padding_percent")
)
"""Settings that one start may change; the last line applies."""
_RANK_FIELDS: Final = tuple(entry.name for entry in fields(RankFigures) if entry.name != "rank")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A reading and where in the cleaned text it stands."""

    offset: int
    reading: Reading


def find_readings(log: LogText, start: int, end: int) -> tuple[tuple[Found, ...], tuple[Notice, ...]]:
    """Every figure between two offsets, in order; absurd ones are left out and reported."""
    table = FORMATS.load()
    found: list[Found] = []
    absurd: list[tuple[int, Notice]] = []
    for line in table.lines:
        for offset, name, value in _numbers(log, line, start, end):
            rule = table.figure[name]
            if not rule.low <= value <= rule.high:
                absurd.append((offset, _absurd(log, offset, name, value, rule)))
                continue
            process = log.process(offset)
            rank = process.name if process.name[-1:].isdigit() else f"{process.name} {process.pid}".strip()
            reading = Reading(
                figure=name,
                value=value,
                unit=rule.unit,
                line_number=log.line_number(offset),
                line=log.line(offset),
                rank=rank,
            )
            found.append(Found(offset=offset, reading=reading))
    found.sort(key=lambda item: item.offset)
    absurd.sort(key=lambda item: item[0])
    return tuple(found), tuple(notice for _, notice in absurd[:MAX_NOTICES])


def _numbers(log: LogText, line: LineFormat, start: int, end: int) -> list[tuple[int, str, float]]:
    return [
        (hit.offset, name, value) for hit in find_lines(log, line, start, end) for name, value in hit.numbers
    ]


def _absurd(log: LogText, offset: int, name: str, value: float, rule: FigureRule) -> Notice:
    return Notice(
        code="log-absurd-figure",
        field=name,
        params={"line": str(log.line_number(offset)), "value": format_number(value), "unit": rule.unit},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedFigures:
    """Ranks in the order of their first line, and what was odd about them."""

    ranks: tuple[RankFigures, ...]
    worst: RankFigures
    spreads: tuple[Spread, ...]
    notices: tuple[Notice, ...]


def rank_figures(found: Sequence[Found], expected_ranks: int | None) -> RankedFigures:
    """The figures of each rank; the worst is the one with the least KV memory.

    `expected_ranks` is tensor times pipeline parallel size where known. Lines that name no process are the ranks of
    one engine in the order in which they were printed, unless only one rank is expected or they lie far apart: then
    they contradict each other, and the last applies.
    """
    by_rank: dict[str, dict[str, list[Reading]]] = {}
    for item in found:
        if item.reading.figure in _RANK_FIELDS:
            figures = by_rank.setdefault(item.reading.rank, {})
            figures.setdefault(item.reading.figure, []).append(item.reading)
    notices: list[Notice] = []
    ranks: list[RankFigures] = []
    for rank, figures in by_rank.items():
        count = max((len(readings) for readings in figures.values()), default=1)
        if rank == "" and count > 1 and _may_be_ranks(figures, expected_ranks):
            ranks += _unnamed_ranks(figures, count)
        else:
            chosen = {name: _agreed(readings, notices) for name, readings in figures.items()}
            ranks.append(RankFigures(rank=rank, **chosen))
    return RankedFigures(
        ranks=tuple(ranks),
        worst=_worst_rank(ranks),
        spreads=_spreads(ranks),
        notices=tuple(notices[:MAX_NOTICES]),
    )


def _may_be_ranks(figures: Mapping[str, Sequence[Reading]], expected_ranks: int | None) -> bool:
    if expected_ranks == 1:
        return False
    for readings in figures.values():
        values = sorted(reading.value for reading in readings)
        if expected_ranks is not None and len(values) > 2 * expected_ranks:
            return False
        if expected_ranks is None and values[-1] > RANKS_APART * max(values[0], SAME_GIB):
            return False
    return True


def _unnamed_ranks(figures: Mapping[str, Sequence[Reading]], count: int) -> list[RankFigures]:
    """Rank n has the n-th line of each figure."""
    return [
        RankFigures(
            rank=f"#{at + 1}",
            **{
                name: readings[at]
                for name, readings in figures.items()
                if len(readings) == count or at < len(readings)
            },
        )
        for at in range(count)
    ]


def _agreed(readings: Sequence[Reading], notices: list[Notice]) -> Reading:
    """The one figure that several lines of a rank give; the last where they contradict each other."""
    first = readings[0]
    other = next((reading for reading in readings if not _same(reading.value, first.value)), None)
    if other is None:
        return first
    notices.append(_contradiction(first, other))
    return readings[-1]


def _contradiction(first: Reading, second: Reading) -> Notice:
    return Notice(
        code="log-contradiction",
        field=first.figure,
        params={
            "first": f"{format_number(first.value)} {first.unit}".strip(),
            "second": f"{format_number(second.value)} {second.unit}".strip(),
        },
    )


def _same(left: float, right: float) -> bool:
    return abs(left - right) <= max(SAME_GIB, SAME_SHARE * abs(left))


def _worst_rank(ranks: Sequence[RankFigures]) -> RankFigures:
    """The rank with the least KV memory, or with the largest weights; gaps filled with the worst of the others."""
    if not ranks:
        return RankFigures()
    rules = FORMATS.load().figure

    def badness(rank: RankFigures) -> tuple[float, float]:
        kv, weights = rank.available_kv_gib, rank.weights_gib
        return (kv.value if kv else float("inf"), -weights.value if weights else 0.0)

    worst = min(ranks, key=badness)
    values: dict[str, Reading] = {}
    for name in _RANK_FIELDS:
        own: Reading | None = getattr(worst, name)
        others = [reading for rank in ranks if (reading := getattr(rank, name)) is not None]
        if own is None and others:
            choose = min if rules[name].worst == "min" else max
            own = choose(others, key=lambda reading: reading.value)
        if own is not None:
            values[name] = own
    return RankFigures(rank=worst.rank, **values)


def _spreads(ranks: Sequence[RankFigures]) -> tuple[Spread, ...]:
    spreads: list[Spread] = []
    for name in _RANK_FIELDS:
        readings: list[Reading] = [r for rank in ranks if (r := getattr(rank, name)) is not None]
        if len(readings) > 1:
            values = [reading.value for reading in readings]
            spreads.append(
                Spread(
                    figure=name, unit=readings[0].unit, low=min(values), high=max(values), ranks=len(values)
                )
            )
    return tuple(spreads)


def engine_figures(found: Sequence[Found]) -> tuple[EngineFigures, tuple[Notice, ...]]:
    """What the engine prints for all ranks together; the smallest capacity where each rank has its own line."""
    rules = FORMATS.load().figure
    by_name: dict[str, list[Found]] = {}
    for item in found:
        if rules[item.reading.figure].scope == "engine":
            by_name.setdefault(item.reading.figure, []).append(item)
    chosen: dict[str, Found] = {}
    notices: list[Notice] = []
    for name, items in by_name.items():
        if name in _LATEST:
            chosen[name] = items[-1]
            continue
        choose = min if rules[name].worst == "min" else max
        chosen[name] = choose(items, key=lambda item: item.reading.value)
        low, high = (pick(items, key=lambda item: item.reading.value).reading for pick in (min, max))
        if name in ("kv_tokens", "utilization") and high.value > RANKS_APART * low.value:
            notices.append(_contradiction(low, high))
    lengths = {item.offset: item for item in by_name.get("concurrency_for_len", [])}
    if "max_concurrency" in chosen and chosen["max_concurrency"].offset in lengths:
        chosen["concurrency_for_len"] = lengths[chosen["max_concurrency"].offset]
    return EngineFigures(**{name: item.reading for name, item in chosen.items()}), tuple(notices)
