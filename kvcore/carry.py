"""Measured parts under changed settings: what was measured at one shape is taken to another by the estimate of both.

A part measured with one tensor parallel size is not what another size will take. The estimate knows how parts move; a
measurement knows where they stand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.errors import KvPlannerError
from kvcore.memory.budget import RankMemory
from kvcore.plan import plan
from kvcore.scenario import Engine, Measured, Scenario
from kvcore.units import gib

IN_PROPORTION: Final = (
    ("weights_gib", "weights"),
    ("peak_activation_gib", "activations"),
    ("cuda_graph_gib", "cuda_graphs"),
)
"""A field of `Measured` and its part of `RankMemory`: what scales with the work of a rank."""
BY_DIFFERENCE: Final = (("non_torch_gib", "framework"), ("system_gib", "system"))
"""What the machine adds of its own stays when buffers come or go."""
DIGITS: Final = 4
SAME_GIB: Final = 1e-9


def carried_over(before: Scenario, after: Scenario) -> Scenario:
    """`after` with the measured parts of `before` moved as the estimate moves between the two scenarios, in GiB.

    Weights, activations and graphs keep their ratio to the estimate, framework and system their difference; a part
    whose estimate does not move stays as it is. Nothing is carried where the parts themselves were changed, where one
    of the scenarios cannot be planned, and for the KV memory, which is given to be planned in as it is.

    Example:
        >>> from kvcore.request import scenario_from_request
        >>> one = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB",
        ...                              "measured": {"weights_gib": 62.0}})
        >>> two = replace(one, parallel=replace(one.parallel, tensor_parallel_size=2))
        >>> carried_over(one, two).measured.weights_gib
        31.0691
    """
    measured = before.measured
    is_told_apart = after.measured == measured and Engine.VLLM_MINDSPORE not in (before.engine, after.engine)
    if not is_told_apart or measured == Measured(available_kv_gib=measured.available_kv_gib):
        return after
    try:
        old, new = (plan(replace(scenario, measured=Measured())).memory for scenario in (before, after))
    except KvPlannerError:
        return after
    if old is None or new is None:
        return after
    return replace(after, measured=_moved(measured, old, new))


def carried_to_model(before: Scenario, after: Scenario) -> Scenario:
    """`after`, another model, with what `before` measured of the machine alone: framework and system."""
    machine = Measured(non_torch_gib=before.measured.non_torch_gib, system_gib=before.measured.system_gib)
    if before.measured == Measured():
        return after
    return carried_over(replace(before, measured=machine), replace(after, measured=machine))


def _moved(measured: Measured, old: RankMemory, new: RankMemory) -> Measured:
    changes: dict[str, float] = {}
    for field, part in IN_PROPORTION + BY_DIFFERENCE:
        given = getattr(measured, field)
        was, becomes = gib(getattr(old, part).value), gib(getattr(new, part).value)
        if given is None or abs(becomes - was) < SAME_GIB:
            continue
        if (field, part) in BY_DIFFERENCE:
            value = given + becomes - was
        else:
            value = given * becomes / was if was > 0 else becomes
        changes[field] = round(max(0.0, value), DIGITS)
    return replace(measured, **changes)
