"""RankMemory: the parts of one rank's memory, which sum to its total."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from kvcore.base.errors import Notice
from kvcore.base.parts import KV_CACHE, MACHINE_FIELDS
from kvcore.base.quantity import Grade, Quantity, Unit, explained, figure
from kvcore.base.term import left_of, most, same
from kvcore.base.units import GIB, gib
from kvcore.scenario import Measured, Origin

PRINTED_HALF_GIB: Final = 0.005
"""Logs print two decimals."""

TOO_LITTLE_FREE: Final = "free-memory-below-utilization"
"""The notice of a card that has less memory free at start than the engine may spend."""

WEIGHTS_ABOVE_SHARE: Final = "model-memory-below-weights"
"""The notice of weights that exceed the memory which the engine is told to leave to the model, where the card has no
room for them next to the KV cache either."""


class Parts(Struct, frozen=True, kw_only=True):
    """The parts of a rank's memory before the KV cache, and the rest that they leave. All in bytes."""

    total: Quantity
    system: Quantity
    """Taken outside the engine's budget."""
    framework: Quantity
    weights: Quantity
    activations: Quantity
    cuda_graphs: Quantity
    """The real size of captured graphs, inside the budget or out of it."""
    counted_graphs: Quantity
    """The graphs' share of the budget; 0 where they come on top of it."""
    budget: Quantity
    """utilization × total: what the engine may spend."""
    remainder: Quantity
    """The memory left for the KV cache, whether or not its memory is given."""
    after_pool: Quantity
    """Unused memory that the start takes once the KV cache is allocated, in addition to the graphs."""


class RankMemory(Parts, frozen=True, kw_only=True):
    """Where every byte of the worst rank goes; the parts sum to `total`. All in bytes."""

    unaccounted: Quantity
    """The rest of the budget that the parts above leave beyond a KV memory that is given; negative where they are
    estimated too high for it. 0 where the KV memory is what they leave."""
    kv_cache: Quantity
    unused: Quantity
    """Negative: an out-of-memory to come."""
    available_kv: Quantity
    """The memory that the KV cache is planned in, before it is cut into blocks: given, or left by the parts; negative
    when short."""
    notices: tuple[Notice, ...] = ()

    @property
    def stops_at_start(self) -> bool:
        """Whether, by the figures, the engine finds too little free memory before it loads anything."""
        return any(one.code == TOO_LITTLE_FREE for one in self.notices)

    @property
    def lacks_weights(self) -> bool:
        """Whether the card has no room for the weights next to a KV cache whose size does not depend on them."""
        return any(one.code == WEIGHTS_ABOVE_SHARE for one in self.notices)

    @property
    def least_room(self) -> float:
        """Bytes that stay free at the least once the start has taken all it takes; negative where it may run out."""
        # A flag that sets the memory of the cache leaves what the parts are unsure of to the rest of the card.
        inside = () if self.remainder.rule is not None else (self.framework, self.activations)
        return least_room(self.unused.value, self.after_pool, (self.cuda_graphs, self.system, *inside))

    def with_cache(
        self, blocks: Quantity | None, available_bytes: float, *, graphs: str = "CUDA", is_fixed: bool = False
    ) -> RankMemory:
        """The same with the KV cache cut into `blocks`, which are bytes; without them it takes nothing.

        `available_bytes` is what the cache was planned in; with `is_fixed` the number of blocks does not depend on it;
        `graphs` is the platform's name of them.
        A total that is exceeded gets the notice `memory-overrun`.
        """
        pool = blocks or Quantity(name="kv_cache", value=0, unit=Unit.BYTES)
        pool = replace(pool, interval=None if is_fixed else _cut_interval(self.available_kv, pool.value))
        unused = unused_of(self.total, self._parts(pool))
        notices = self.notices
        if unused.value < 0 <= available_bytes and not self.lacks_weights:
            outside = self.cuda_graphs.value > self.counted_graphs.value
            part = f"{graphs} graphs" if outside else "memory outside the budget"
            params = {"over": f"{gib(-unused.value):.2f}", "part": part}
            notices += (Notice(code="memory-overrun", field="gpu_memory_utilization", params=params),)
        return replace(self, kv_cache=pool, unused=unused, notices=notices)

    def _parts(self, pool: Quantity) -> tuple[Quantity, ...]:
        """All that takes memory of the card, with `pool` as the KV cache."""
        own = (self.system, self.framework, self.weights, self.activations, self.cuda_graphs)
        return (*own, *((self.unaccounted,) if self.unaccounted.value else ()), pool)


def _cut_interval(available: Quantity, pool_bytes: float) -> tuple[float, float] | None:
    """The interval of what is available, widened by what cutting it into blocks leaves over."""
    if available.interval is None:
        return None
    low, high = available.interval
    return min(low, pool_bytes), max(high, pool_bytes)


def least_room(unused_bytes: float, after_pool: Quantity, outside: tuple[Quantity, ...]) -> float:
    """The unused memory that stays free at the least: what comes after the pool, and the parts `outside` the budget,
    may take more than their figures.

    Example:
        >>> taken = Quantity(name="after_pool", value=10, interval=(5, 13))
        >>> least_room(20, taken, (Quantity(name="system", value=7, interval=(3, 11)),))
        5.0
    """
    more = math.hypot(*(part.bounds[1] - part.value for part in (after_pool, *outside)))
    return unused_bytes - after_pool.value - more


def rank_parts(parts: Parts, measured: Measured, notices: tuple[Notice, ...] = ()) -> RankMemory:
    """The parts with all that is available as KV cache, and the rest as unused.

    A KV memory in `measured` takes the place of what the parts leave.
    """
    remainder, available_kv = parts.remainder, given_kv(measured, parts.remainder)
    inside = parts.framework, parts.weights, parts.activations, parts.counted_graphs
    unaccounted = unaccounted_of(remainder, available_kv, sum(part.value for part in inside))
    pool = explained(
        "kv_cache",
        same if available_kv.value >= 0 else not_negative,
        available_kv,
        scope=available_kv.scope,
        source=available_kv.source,
    )
    memory = RankMemory(
        **asdict(parts),
        unaccounted=unaccounted,
        kv_cache=pool,
        unused=parts.total,
        available_kv=available_kv,
        notices=(*notices, *_unaccounted_notices(unaccounted, remainder, available_kv)),
    )
    return replace(memory, unused=unused_of(memory.total, memory._parts(pool)))


def not_negative(size_bytes: int) -> int:
    """The size, or 0 where it is below that."""
    return most(0, size_bytes)


def given_kv(measured: Measured, remainder: Quantity) -> Quantity:
    """The KV memory that the person gives, or else what the parts leave.

    One that was carried over is anywhere from what it was to what the parts leave here: nobody measured it.

    Example:
        >>> left = Quantity(name="available_kv", value=36 * GIB, unit=Unit.BYTES, interval=(35 * GIB, 37 * GIB))
        >>> [bound / GIB for bound in given_kv(Measured(available_kv_gib=20.0), left).interval]
        [19.995, 20.005]
        >>> carried = Measured(available_kv_gib=20.0, carried=("available_kv_gib",))
        >>> [round(bound / GIB, 2) for bound in given_kv(carried, left).interval]
        [19.44, 37.0]
    """
    given = measured_or(measured, KV_CACHE.field, remainder)
    if given is remainder or given.interval is None or measured.origin(KV_CACHE.field) is not Origin.CARRIED:
        return given
    low, high = given.interval
    left_low, left_high = remainder.interval or (remainder.value, remainder.value)
    return replace(given, interval=(min(low, left_low), max(high, left_high)))


def unaccounted_of(remainder: Quantity, available_kv: Quantity, inside_bytes: float) -> Quantity:
    """The rest of the budget less the KV memory that is given; 0 where none is.

    A remainder without a rule is none: a flag sets it, whatever the parts. Parts of `inside_bytes` cannot be estimated
    too high by more than all of them.
    """
    is_known = available_kv is not remainder and remainder.rule is not None
    value = max(remainder.value - available_kv.value, -inside_bytes) if is_known else 0
    is_difference = value != 0 and value == remainder.value - available_kv.value
    found = figure("unaccounted", value, grade=remainder.grade)
    if is_difference:
        parts = (available_kv,)
        found = explained(
            "unaccounted", left_of, replace(remainder, name="remainder"), parts, grade=remainder.grade
        )
    below, above = reaches(remainder)
    return replace(found, interval=(value - below, value + above)) if value and (below or above) else found


def _unaccounted_notices(
    unaccounted: Quantity, remainder: Quantity, available_kv: Quantity
) -> tuple[Notice, ...]:
    """Where a given KV memory is further from what the parts leave than both are unsure of."""
    below, above = reaches(remainder)
    if abs(unaccounted.value) <= (below if unaccounted.value > 0 else above) + half_width(available_kv):
        return ()
    params = {
        "given": f"{gib(available_kv.value):.2f}",
        "difference": f"{gib(abs(unaccounted.value)):.2f}",
        "left": f"{gib(remainder.value):.2f}",
    }
    code = "kv-memory-below-parts" if unaccounted.value > 0 else "kv-memory-above-parts"
    return (Notice(code=code, field="measured.available_kv_gib", params=params),)


def unused_of(total: Quantity, parts: tuple[Quantity, ...]) -> Quantity:
    """total − all parts."""
    return explained("unused", left_of, total, parts, grade=Grade.DERIVED)


CARRIED_SHARE: Final = 0.01
"""The least share that a part which was carried over may be off. Weights have no interval of their own; of 121 in
published logs 97 % are as computed within that share (docs/accuracy.md)."""
_SOURCES: Final = {
    Origin.MEASURED: "given",
    Origin.FITTED: "fitted to the KV memory of the log",
    Origin.CARRIED: "carried over from another setting",
}


def half_width(part: Quantity) -> float:
    """Half the 80 % interval, 0 without one."""
    return sum(reaches(part)) / 2


def reaches(part: Quantity) -> tuple[float, float]:
    """How far the 80 % interval goes below the value and above it, 0 without one."""
    low, high = part.interval or (part.value, part.value)
    return part.value - low, high - part.value


def given_grade(origin: Origin, predicted: Grade) -> Grade:
    """How well a given part is known: one that was carried over no better than the estimate that carried it."""
    if origin is Origin.MEASURED:
        return Grade.MEASURED
    is_computed = origin is Origin.CARRIED and predicted in (Grade.EXACT, Grade.DERIVED)
    return Grade.DERIVED if is_computed else Grade.FITTED


def measured_or(measured: Measured, field: str, predicted: Quantity) -> Quantity:
    """The figure that the person gives in `field`, or else the predicted one.

    A measured figure is as exact as a log prints. One that was fitted may be off by what it differs from the estimate,
    one that was carried over by as much as the estimate.

    Example:
        >>> predicted = Quantity(name="framework", value=GIB, unit=Unit.BYTES, grade=Grade.FITTED)
        >>> measured_or(Measured(non_torch_gib=0.25), "non_torch_gib", predicted).grade.value
        'measured'
        >>> measured_or(Measured(), "non_torch_gib", predicted).text
        '1.00 GiB'
    """
    measured_gib: float | None = getattr(measured, field)
    if measured_gib is None:
        return predicted
    value, origin = round(measured_gib * GIB), measured.origin(field)
    spread = PRINTED_HALF_GIB * GIB
    if origin is Origin.FITTED:
        spread = max(spread, half_width(predicted), abs(value - predicted.value))
    elif origin is Origin.CARRIED:
        is_scaled = field not in MACHINE_FIELDS and predicted.value > 0
        scale = value / predicted.value if is_scaled else 1.0
        spread = max(spread, half_width(predicted) * scale, CARRIED_SHARE * abs(value))
    return Quantity(
        name=predicted.name,
        value=value,
        unit=Unit.BYTES,
        grade=given_grade(origin, predicted.grade),
        source=_SOURCES[origin],
        interval=(value - spread if value < 0 else max(0.0, value - spread), value + spread),
    )


def spread_in_sum(measured: Measured, field: str, part: Quantity) -> float:
    """How much `part` adds to the uncertainty of the KV memory, in bytes: half its interval.

    A part that was fitted to the KV memory of the log adds what the log rounds: only its share of the sum is unknown.
    """
    is_fitted = getattr(measured, field) is not None and measured.origin(field) is Origin.FITTED
    return PRINTED_HALF_GIB * GIB if is_fitted else half_width(part)
