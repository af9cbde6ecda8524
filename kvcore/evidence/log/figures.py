"""Figures of a log, by the ranks that printed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from kvcore.base.errors import Notice
from kvcore.base.numbers import log_number
from kvcore.evidence.log.cleaned import LogText
from kvcore.evidence.log.line_formats import FORMATS, find_lines

MAX_NOTICES: Final = 20
SAME_GIB: Final = 0.02
"""Largest difference of one figure that was printed with different rounding."""
SAME_SHARE: Final = 0.02
RANKS_APART: Final = 2.0
"""Largest factor between figures of the ranks of one engine, for lines that name no rank."""


class Reading(Struct, frozen=True, kw_only=True):
    """One figure, its unit, and the line it was read from, as pasted."""

    figure: str
    """Its name in line_formats.toml."""
    value: float
    unit: str
    line_number: int
    line: str
    rank: str = ""
    """Process that printed it; empty where the line names none."""
    offset: int = 0
    """Offset of the line in the cleaned text."""


class Figures(Struct, frozen=True, kw_only=True):
    """The figures of one rank, or of the engine for all its ranks, by the names of line_formats.toml.

    A figure that was not printed is None; a name that is not in the table raises AttributeError.

    Example:
        >>> Figures(rank="Worker_TP0").available_kv_gib is None
        True
    """

    rank: str = ""
    known: Mapping[str, Reading] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name in FORMATS.load().figure:
            return self.known.get(name)
        raise AttributeError(name)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings, in the order of the table."""
        return tuple(self.known[name] for name in FORMATS.load().figure if name in self.known)


class Spread(Struct, frozen=True, kw_only=True):
    """Smallest and largest value of a figure over the ranks."""

    figure: str
    unit: str
    low: float
    high: float
    ranks: int


class RankedFigures(Struct, frozen=True, kw_only=True):
    """Ranks in the order of their first line, and notices about contradictions."""

    ranks: tuple[Figures, ...]
    worst: Figures
    """The rank with the least KV memory, else with the largest weights; gaps filled with the worst of the others."""
    spreads: tuple[Spread, ...]
    notices: tuple[Notice, ...]


def find_readings(log: LogText, start: int, end: int) -> tuple[tuple[Reading, ...], tuple[Notice, ...]]:
    """The figures between two offsets, in order; figures out of range become notices."""
    table = FORMATS.load()
    found: list[Reading] = []
    absurd: list[tuple[int, Notice]] = []
    hits = (hit for line in table.lines for hit in find_lines(log, line, start, end))
    for offset, name, value in ((hit.offset, *number) for hit in hits for number in hit.numbers):
        rule, line_number = table.figure[name], log.line_number(offset)
        if not rule.low <= value <= rule.high:
            params = {"line": str(line_number), "value": log_number(value), "unit": rule.unit}
            absurd.append((offset, Notice(code="log-absurd-figure", field=name, params=params)))
            continue
        process = log.process(offset)
        reading = Reading(
            figure=name,
            value=value,
            unit=rule.unit,
            line_number=line_number,
            line=log.line(offset),
            rank=process.name if process.name[-1:].isdigit() else f"{process.name} {process.pid}".strip(),
            offset=offset,
        )
        found.append(reading)
    found.sort(key=lambda reading: reading.offset)
    absurd.sort(key=lambda item: item[0])
    return tuple(found), tuple(notice for _, notice in absurd[:MAX_NOTICES])


def rank_figures(found: Sequence[Reading], expected_ranks: int | None) -> RankedFigures:
    """The figures of each rank.

    `expected_ranks` is tensor times pipeline parallel size where known. Lines that name no process are taken as the
    ranks of one engine in their order, unless only one rank is expected or the figures lie far apart: then they
    contradict each other, and the last one counts.
    """
    by_rank: dict[str, list[Reading]] = {}
    for reading in found:
        if FORMATS.load().figure[reading.figure].scope == "rank":
            by_rank.setdefault(reading.rank, []).append(reading)
    notices: list[Notice] = []
    ranks: list[Figures] = []
    for rank, printed in by_rank.items():
        figures = _by_name(printed)
        count = max(map(len, figures.values()))
        if rank == "" and count > 1 and _may_be_ranks(figures.values(), expected_ranks):
            for at in range(count):
                known = {name: readings[at] for name, readings in figures.items() if at < len(readings)}
                ranks.append(Figures(rank=f"#{at + 1}", known=known))
        else:
            known = {name: _agreed(readings, notices) for name, readings in figures.items()}
            ranks.append(Figures(rank=rank, known=known))
    by_name = _by_name(reading for rank in ranks for reading in rank.readings)
    worst = min(ranks, key=_room, default=Figures())
    filled = {name: _worst(readings) for name, readings in by_name.items()} | dict(worst.known)
    return RankedFigures(
        ranks=tuple(ranks),
        worst=Figures(rank=worst.rank, known=filled),
        spreads=tuple(
            _spread(by_name[name]) for name in FORMATS.load().figure if len(by_name.get(name, ())) > 1
        ),
        notices=tuple(notices[:MAX_NOTICES]),
    )


def _by_name(found: Iterable[Reading]) -> dict[str, list[Reading]]:
    by_name: dict[str, list[Reading]] = {}
    for reading in found:
        by_name.setdefault(reading.figure, []).append(reading)
    return by_name


def _worst(readings: Sequence[Reading]) -> Reading:
    """The reading that counts for all ranks."""
    choose = min if FORMATS.load().figure[readings[0].figure].worst == "min" else max
    return choose(readings, key=lambda reading: reading.value)


def _room(rank: Figures) -> tuple[float, float]:
    """Sort key of ranks, the worst first."""
    kv, weights = rank.available_kv_gib, rank.weights_gib
    return (kv.value if kv else float("inf"), -weights.value if weights else 0.0)


def _may_be_ranks(figures: Iterable[Sequence[Reading]], expected_ranks: int | None) -> bool:
    if expected_ranks == 1:
        return False
    for readings in figures:
        values = sorted(reading.value for reading in readings)
        if expected_ranks is not None and len(values) > 2 * expected_ranks:
            return False
        if expected_ranks is None and values[-1] > RANKS_APART * max(values[0], SAME_GIB):
            return False
    return True


def _agreed(readings: Sequence[Reading], notices: list[Notice]) -> Reading:
    """The figure that several lines of a rank agree on; the last one where they contradict each other."""
    first = readings[0]
    for other in readings:
        if abs(other.value - first.value) > max(SAME_GIB, SAME_SHARE * abs(other.value)):
            notices.append(_contradiction(first, other))
            return readings[-1]
    return first


def _contradiction(*readings: Reading) -> Notice:
    texts = (f"{log_number(reading.value)} {reading.unit}".strip() for reading in readings)
    params = dict(zip(("first", "second"), texts, strict=True))
    return Notice(code="log-contradiction", field=readings[0].figure, params=params)


def _spread(readings: Sequence[Reading]) -> Spread:
    values = [reading.value for reading in readings]
    return Spread(
        figure=readings[0].figure,
        unit=readings[0].unit,
        low=min(values),
        high=max(values),
        ranks=len(values),
    )


def engine_figures(found: Sequence[Reading]) -> tuple[Figures, tuple[Notice, ...]]:
    """Figures for all ranks together; the smallest capacity where each rank has its own line."""
    rules = FORMATS.load().figure
    by_name = _by_name(reading for reading in found if rules[reading.figure].scope == "engine")
    chosen: dict[str, Reading] = {}
    notices: list[Notice] = []
    for name, readings in by_name.items():
        chosen[name] = readings[-1] if rules[name].latest else _worst(readings)
        if name in ("kv_tokens", "utilization"):
            low, high = (pick(readings, key=lambda reading: reading.value) for pick in (min, max))
            if high.value > RANKS_APART * low.value:
                notices.append(_contradiction(low, high))
    lengths = {reading.offset: reading for reading in by_name.get("concurrency_for_len", [])}
    if "max_concurrency" in chosen and chosen["max_concurrency"].offset in lengths:
        chosen["concurrency_for_len"] = lengths[chosen["max_concurrency"].offset]
    return Figures(known=chosen), tuple(notices)
