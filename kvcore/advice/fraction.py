"""Raise or lower the fraction? The two limits of an engine whose fraction leaves graphs and activations outside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.planning import Plan, plan

THOUSANDTHS: Final = 1000


class Limits(Struct, frozen=True, kw_only=True):
    """The two limits of a fraction, in thousandths, as plans have them."""

    least: float | None
    """The lowest with which the pools hold one request of the context length; None: none below 1 does."""
    most: float | None
    """The highest with which the upper end of what is outside fits beside the pools; None: none does."""


def fraction_limits(base: Plan) -> Limits | None:
    """The limits of `base`'s fraction, each found by planning; None where it has no such slack, or no card.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": 8192}
        >>> fraction_limits(plan(scenario_from_request(asked))) is None
        True
    """
    memory, cache = base.memory, base.cache
    given = base.scenario.measured.available_kv_gib is not None
    if not base.resolved.engine.starts_without_room or given or memory is None or memory.budget.value <= 0:
        return None
    now, length = base.resolved.gpu_memory_utilization, base.resolved.max_model_len
    free = memory.budget.value / now
    found: dict[int, Plan | None] = {}

    def at(share: int) -> Plan | None:
        if share not in found:
            found[share] = _with(base, share / THOUSANDTHS)
        return found[share]

    def holds(share: int) -> bool:
        other = at(share)
        return other is not None and other.cache is not None and other.cache.tokens >= length

    def overflows(share: int) -> bool:
        other = at(share)
        return other is not None and other.memory is not None and other.memory.least_room < 0

    token = cache.bytes_per_token if cache is not None else 0
    more = (length * token - memory.available_kv.value) / free
    least = _first(holds, round((now + more) * THOUSANDTHS))
    above = _first(overflows, round((now + memory.least_room / free) * THOUSANDTHS))
    most = THOUSANDTHS if above is None else above
    return Limits(
        least=None if least is None else least / THOUSANDTHS,
        most=(most - 1) / THOUSANDTHS if most > 1 else None,
    )


def _with(base: Plan, share: float) -> Plan | None:
    """The plan with that fraction; None where the engine refuses it."""
    try:
        return plan(replace(base.scenario, gpu_memory_utilization=share))
    except KvPlannerError:
        return None


def _first(is_so: Callable[[int], bool], guess: int) -> int | None:
    """The first thousandth below 1 from which on `is_so` is true, looked for from `guess` in steps that double; None
    where it is true of none.

    Example:
        >>> _first(lambda share: share >= 830, 500), _first(lambda share: False, 999)
        (830, None)
    """
    below, from_here, step, share = 0, THOUSANDTHS, 1, guess
    while from_here - below > 1:
        share = share if below < share < from_here else (below + from_here) // 2
        if is_so(share):
            from_here, share = share, share - step
        else:
            below, share = share, share + step
        step *= 2
    return from_here if from_here < THOUSANDTHS else None
