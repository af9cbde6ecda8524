"""Measured parts after a change of settings: moved as the estimate moves.

A part measured with one tensor parallel size differs from that with another. The estimate tells how parts move, the
measurement where they start.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.parts import FRAMEWORK, GIVEN, KV_CACHE, MACHINE_FIELDS, SYSTEM
from kvcore.base.units import gib
from kvcore.engine.rank_memory import RankMemory
from kvcore.engines.registry import engine_of
from kvcore.planning import Plan, plan
from kvcore.scenario import Measured, Origin, Scenario

DIGITS: Final = 4
SAME_GIB: Final = 1e-9
SAME_KV_BYTES: Final = 1


def carried_over(before: Scenario, after: Scenario) -> Scenario:
    """`after` with the measured parts of `before` moved as the estimate moves between the two scenarios, in GiB.

    Weights, activations and graphs keep their ratio to the estimate, framework and system their difference; the KV
    memory keeps its size. A part that moves is marked as carried over; with another shape (`_shape`) all parts but the
    system are. A part whose estimate does not move stays as it is. Nothing is carried where the parts themselves were
    changed, or where one of the scenarios cannot be planned.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> one = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB",
        ...                              "measured": {"weights_gib": 62.0}})
        >>> two = replace(one, parallel=replace(one.parallel, tensor_parallel_size=2))
        >>> carried_over(one, two).measured.weights_gib
        31.0691
        >>> carried_over(one, two).measured.origin("weights_gib").value
        'carried'
    """
    measured = before.measured
    is_profiled = all(engine_of(one).measures_memory(one) for one in (before, after))
    if after.measured != measured or not is_profiled or measured == Measured():
        return after
    try:
        here, there = (plan(replace(scenario, measured=Measured())) for scenario in (before, after))
    except KvPlannerError:
        return after
    if here.memory is None or there.memory is None:
        return after
    moved = _moved(measured, here.memory, there.memory)
    if _shape(here) != _shape(there):
        moved = moved.with_origin((name for name in moved.values() if name != SYSTEM.field), Origin.CARRIED)
    return replace(after, measured=moved)


def carried_to_model(before: Scenario, after: Scenario) -> Scenario:
    """`after`, with another model, and the measurements of the machine in `before`: framework and system."""
    measured = before.measured
    if measured == Measured():
        return after
    machine = Measured(
        non_torch_gib=measured.non_torch_gib,
        system_gib=measured.system_gib,
        fitted=tuple(part for part in measured.fitted if part in MACHINE_FIELDS),
        carried=tuple(part for part in measured.carried if part in MACHINE_FIELDS),
    )
    moved = carried_over(replace(before, measured=machine), replace(after, measured=machine))
    if machine.non_torch_gib is None:
        return moved
    # The framework was measured with the other model.
    return replace(moved, measured=moved.measured.with_origin((FRAMEWORK.field,), Origin.CARRIED))


def _shape(planned: Plan) -> tuple[object, ...]:
    """The conditions of a measurement: with others even a part of the same estimate is unmeasured."""
    scenario, resolved = planned.scenario, planned.resolved
    return (
        scenario.config,
        planned.accelerator.id,
        scenario.engine,
        resolved.engine_version,
        scenario.parallel,
        resolved.dtype,
        scenario.quantization,
    )


def _moved(measured: Measured, old: RankMemory, new: RankMemory) -> Measured:
    changes: dict[str, Any] = {}
    carried = []
    for part in GIVEN:
        if part is KV_CACHE:
            continue
        field, given = part.field, getattr(measured, part.field)
        was, becomes = gib(getattr(old, part.name).value), gib(getattr(new, part.name).value)
        if given is None or abs(becomes - was) < SAME_GIB:
            continue
        carried.append(field)
        if part.is_of_machine:  # what the machine adds of its own stays when buffers come or go
            value = given + becomes - was
        else:
            value = given * becomes / was if was > 0 else becomes
        changes[field] = round(max(0.0, value), DIGITS)
    kv_moved = abs(new.available_kv.value - old.available_kv.value) >= SAME_KV_BYTES
    if measured.available_kv_gib is not None and kv_moved:
        carried.append(KV_CACHE.field)
    return replace(measured, **changes).with_origin(carried, Origin.CARRIED)
