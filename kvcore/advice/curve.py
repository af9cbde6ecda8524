"""Concurrency at a list of context lengths, for one plan and for its neighbours in tensor parallel size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvcore.cache.capacity import max_concurrency_at
from kvcore.errors import KvPlannerError
from kvcore.evidence.carry import carried_over
from kvcore.planning import HIGH, LOW, Plan, plan, stage_kv_bytes

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcurrencyCurve:
    """Requests of each length that the pool has room for at once, per replica; 0 where not even the weights fit.

    `low` and `high` are the same with the KV memory at the ends of its 80 % interval.
    """

    tensor_parallel_size: int
    lengths: tuple[int, ...]
    concurrency: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def concurrency_curve(base: Plan, lengths: Sequence[int]) -> ConcurrencyCurve:
    """The curve of `base` itself, as if each length were its max_model_len."""

    def at(end: int | None = None) -> tuple[float, ...]:
        available = stage_kv_bytes(base.stage_kv, end)
        if min(available, default=0) <= 0:
            return (0.0,) * len(lengths)
        return max_concurrency_at(
            base.specs, available, base.resolved, base.scenario.parallel, tuple(lengths)
        )

    return ConcurrencyCurve(
        tensor_parallel_size=base.scenario.parallel.tensor_parallel_size,
        lengths=tuple(lengths),
        concurrency=at(),
        low=at(LOW),
        high=at(HIGH),
    )


def tensor_parallel_curves(base: Plan, lengths: Sequence[int]) -> tuple[ConcurrencyCurve, ...]:
    """One curve per tensor parallel size that the engine accepts for this model, smallest first."""
    curves = []
    parallel = base.scenario.parallel
    for size in sorted({*TENSOR_PARALLEL_SIZES, parallel.tensor_parallel_size}):
        if size == parallel.tensor_parallel_size:
            curves.append(concurrency_curve(base, lengths))
            continue
        try:
            changed = replace(base.scenario, parallel=replace(parallel, tensor_parallel_size=size))
            neighbour = plan(carried_over(base.scenario, changed))
        except KvPlannerError:
            continue
        curves.append(concurrency_curve(neighbour, lengths))
    return tuple(curves)
