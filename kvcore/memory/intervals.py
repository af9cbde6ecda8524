"""How far the KV memory of a start may be from what is predicted: what its parts are unsure of, times a factor, and how
far publications lie apart that state the same.

The factors are conformal, the other a variance between publications: tools/fit_intervals.py finds both on published
starts, each judged by the others.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from msgspec import Meta
from packaging.version import Version

from kvcore.base.parts import ACTIVATIONS, FRAMEWORK, WEIGHTS
from kvcore.base.quantity import Quantity
from kvcore.base.units import GIB
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import half_width, reaches, spread_in_sum
from kvcore.tables import Amount, Count, Record, ReleaseRange, Reviewed, Share, Source, TableFile

Ranks: TypeAlias = Literal["one", "several"]
Factor = Annotated[float, Meta(ge=0.0, le=100.0)]
PROFILED: Final = (ACTIVATIONS.field, FRAMEWORK.field)
"""Parts that only a start measures; with both given there is nothing left that publications differ by."""


class StorageRow(Record, frozen=True, kw_only=True):
    """Share of the weights that a class of storage may be off by: kernels repack and pad it."""

    source: Source
    storage: tuple[Literal["fp4", "4-bit experts", "modelopt", "unquantized"], ...]
    """Any of these in the name of the format; none: any format."""
    share: Share


class FactorRow(ReleaseRange, frozen=True, kw_only=True):
    """How many times its parts' uncertainty a prediction may be off, on either side; None matches any."""

    less: Factor
    more: Factor
    publications: Count
    vendor: Vendor | None = None
    ranks: Ranks | None = None
    multimodal: bool | None = None


class IntervalTables(Reviewed, frozen=True, kw_only=True):
    """intervals.toml."""

    source: Source
    between_gib: Amount
    """Half an 80 % interval of what publications differ by that state the same: added in squares to every estimate."""
    storage: tuple[StorageRow, ...]
    factor: tuple[FactorRow, ...]


INTERVALS: Final = TableFile("kvcore.memory", "intervals.toml", IntervalTables)


class Cell(NamedTuple):
    """The key of the factors."""

    vendor: Vendor
    ranks: Ranks
    multimodal: bool
    version: Version


class Reach(NamedTuple):
    """Bytes that parts leave unsure: estimates on both sides, what cases span below and above, what is given."""

    estimates: float
    """Uncertainty that the factors multiply."""
    below: float
    """How much further cases of unknown surroundings reach below the KV memory."""
    above: float
    given: float
    to_below: float = 0.0
    """The part of the estimates that leads to a case below, which no factor brings nearer."""
    to_above: float = 0.0
    between: float = 0.0
    """What publications differ by that state the same."""


def interval_of(
    value: float, reach: Reach, factor: FactorRow, total_spread: float = 0.0
) -> tuple[float, float]:
    """The 80 % interval of a KV memory of `value` bytes that parts leave which are as unsure as `reach` says.

    `total_spread`: bytes that the card's total may be off. That, what is given and what publications differ by count in
    a sum of squares, as their errors have no side.

    Example:
        >>> row = FactorRow(less=2.0, more=0.5, publications=3)
        >>> interval_of(100.0, Reach(estimates=10.0, below=0.0, above=7.0, given=0.0), row)
        (80.0, 112.0)
    """
    less, more = factor.less, factor.more
    below = math.hypot(less * reach.estimates, reach.between)
    below += max(1.0 - less, 0.0) * reach.to_below + reach.below
    above = math.hypot(more * reach.estimates, reach.between)
    above += max(1.0 - more, 0.0) * reach.to_above + reach.above
    return (
        value - math.hypot(below, reach.given, total_spread),
        value + math.hypot(above, reach.given, total_spread),
    )


def reach_of(setting: Setting, parts: Mapping[str, Quantity], total_spread: float = 0.0) -> Reach:
    """Summed uncertainty of the parts; their errors are not assumed to cancel.

    A part whose interval reaches further on one side spans another case there: that is added as it is, and the way to
    it is not shortened. A part that takes more than predicted leaves less: the upper side of its interval is the lower
    one of the KV memory.
    """
    measured, tables = setting.scenario.measured, INTERVALS.load()
    estimates = below = above = to_below = to_above = 0.0
    given = []
    for field, part in parts.items():
        if getattr(measured, field) is None:
            less, more = _sides(setting, field, part)
            either = min(less, more)
            estimates += either
            below += more - either
            above += less - either
            to_below += either if more > less else 0.0
            to_above += either if less > more else 0.0
        else:
            given.append(spread_in_sum(measured, field, part))
    is_profiled = all(getattr(measured, field) is not None for field in PROFILED)
    return Reach(
        between=0.0 if is_profiled else tables.between_gib * GIB,
        estimates=estimates,
        below=below,
        above=above,
        given=math.hypot(*given, total_spread),
        to_below=to_below,
        to_above=to_above,
    )


def _sides(setting: Setting, field: str, part: Quantity) -> tuple[float, float]:
    """Bytes that a part may take less and more than predicted."""
    if field == WEIGHTS.field:
        return (max(half_width(part), storage_share(setting.storage) * part.value),) * 2
    return reaches(part)


def storage_share(storage: str) -> float:
    """The share of the weights that a storage format may be off by: of the first row that matches.

    Example:
        >>> storage_share("unquantized bfloat16") == 0.0 < storage_share("modelopt_fp4 nvfp4")
        True
    """
    rows = INTERVALS.load().storage
    return next(row.share for row in rows if not row.storage or any(name in storage for name in row.storage))


def cell_of(setting: Setting) -> Cell:
    """The cell that a rank belongs to."""
    several = setting.ranks > 1
    return Cell(
        vendor=setting.accelerator.vendor,
        ranks="several" if several else "one",
        multimodal=setting.architecture.is_multimodal,
        version=setting.resolved.version,
    )


@lru_cache(maxsize=1024)
def factor_of(cell: Cell) -> FactorRow:
    """The first row that matches; the last of the table matches anything."""
    return next(row for row in INTERVALS.load().factor if _matches(row, cell))


def _matches(row: FactorRow, cell: Cell) -> bool:
    pairs: Iterator[tuple[object, object]] = zip(
        (row.vendor, row.ranks, row.multimodal), (cell.vendor, cell.ranks, cell.multimodal), strict=True
    )
    return row.covers(cell.version) and all(wanted in (None, found) for wanted, found in pairs)
