"""RankMemory: the parts of one rank's memory, which sum to its total."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from kvcore.errors import Notice
from kvcore.quantity import Grade, Quantity, Unit
from kvcore.scenario import Measured, Origin
from kvcore.units import GIB, gib

PRINTED_HALF_GIB: Final = 0.005
"""Logs print two decimals."""

PART_NAMES: Final = ("system", "framework", "weights", "activations", "cuda_graphs", "kv_cache", "unused")


class BlockPool(Protocol):
    """What the memory needs to know of a cache plan."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def bytes_per_block(self) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Where every byte of the worst rank goes; the parts sum to `total`. All in bytes."""

    total: Quantity
    system: Quantity
    """Taken outside the engine's budget."""
    framework: Quantity
    weights: Quantity
    activations: Quantity
    cuda_graphs: Quantity
    """What captured graphs really take, inside the budget or out of it."""
    kv_cache: Quantity
    unused: Quantity
    """Negative: an out-of-memory to come."""
    budget: Quantity
    """utilization × total: what the engine may spend."""
    available_kv: Quantity
    """What is left for the KV cache, before it is cut into blocks; negative when short."""
    counted_graphs: Quantity
    """What the engine takes off the budget for graphs; 0 where they come on top of it."""
    notices: tuple[Notice, ...] = ()

    def with_cache(self, cache: BlockPool | None, available_bytes: float) -> RankMemory:
        """The same with the KV cache cut into the blocks of `cache`; without one it takes nothing.

        `available_bytes` is what the cache was planned in. A total that is exceeded gets the notice
        `memory-overrun`.
        """
        value = 0 if cache is None else cache.num_blocks * cache.bytes_per_block
        pool = Quantity(
            name="kv_cache",
            value=value,
            unit=Unit.BYTES,
            formula="{num_blocks} × {bytes_per_block}" if cache is not None else "",
            inputs=()
            if cache is None
            else (
                Quantity(name="num_blocks", value=cache.num_blocks, unit=Unit.BLOCKS),
                Quantity(name="bytes_per_block", value=cache.bytes_per_block, unit=Unit.BYTES),
            ),
        )
        unused = unused_of(
            self.total, (self.system, self.framework, self.weights, self.activations, self.cuda_graphs, pool)
        )
        notices = self.notices
        if unused.value < 0 <= available_bytes:
            outside = self.cuda_graphs.value > self.counted_graphs.value
            notices += (
                Notice(
                    code="memory-overrun",
                    field="gpu_memory_utilization",
                    params={
                        "over": f"{gib(-unused.value):.2f}",
                        "part": "CUDA graphs" if outside else "memory outside the budget",
                    },
                ),
            )
        return replace(self, kv_cache=pool, unused=unused, notices=notices)


def rank_parts(
    *,
    total: Quantity,
    system: Quantity,
    framework: Quantity,
    weights: Quantity,
    activations: Quantity,
    cuda_graphs: Quantity,
    counted_graphs: Quantity,
    budget: Quantity,
    available_kv: Quantity,
    notices: tuple[Notice, ...],
) -> RankMemory:
    """The parts with all that is available as KV cache, and the rest as unused."""
    pool = replace(
        available_kv,
        name="kv_cache",
        value=max(0, available_kv.value),
        inputs=(available_kv,),
        formula="{available_kv}",
    )
    return RankMemory(
        total=total,
        system=system,
        framework=framework,
        weights=weights,
        activations=activations,
        cuda_graphs=cuda_graphs,
        kv_cache=pool,
        unused=unused_of(total, (system, framework, weights, activations, cuda_graphs, pool)),
        budget=budget,
        available_kv=available_kv,
        counted_graphs=counted_graphs,
        notices=notices,
    )


def unused_of(total: Quantity, parts: tuple[Quantity, ...]) -> Quantity:
    """total − all parts."""
    return Quantity(
        name="unused",
        value=total.value - sum(part.value for part in parts),
        unit=Unit.BYTES,
        formula="{total} − " + " − ".join("{" + part.name + "}" for part in parts),
        inputs=(total, *parts),
    )


CARRIED_SHARE: Final = 0.01
"""Of a part that was carried over: what it may be off at the least. Weights have no interval of their own; of 121 in
published logs 97 % are as computed within that share (docs/accuracy.md)."""
MACHINE_PARTS: Final = frozenset(("non_torch_gib", "system_gib"))
"""Fields of parts that a change of settings moves by the difference of the estimates, not by their ratio."""
_SOURCES: Final = {
    Origin.MEASURED: "given",
    Origin.FITTED: "fitted to the KV memory of the log",
    Origin.CARRIED: "carried over from another setting",
}


def half_width(part: Quantity) -> float:
    """Half the 80 % interval, 0 without one."""
    return 0.0 if part.interval is None else (part.interval[1] - part.interval[0]) / 2


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
        is_scaled = field not in MACHINE_PARTS and predicted.value > 0
        scale = value / predicted.value if is_scaled else 1.0
        spread = max(spread, half_width(predicted) * scale, CARRIED_SHARE * abs(value))
    return Quantity(
        name=predicted.name,
        value=value,
        unit=Unit.BYTES,
        grade=given_grade(origin, predicted.grade),
        source=_SOURCES[origin],
        interval=(value - spread, value + spread),
    )


def spread_in_sum(measured: Measured, field: str, part: Quantity) -> float:
    """What `part` adds to the uncertainty of the KV memory, in bytes: half its interval.

    A part that was fitted to the KV memory of the log adds what the log rounds: only its share of the sum is unknown.
    """
    is_fitted = getattr(measured, field) is not None and measured.origin(field) is Origin.FITTED
    return PRINTED_HALF_GIB * GIB if is_fitted else half_width(part)
