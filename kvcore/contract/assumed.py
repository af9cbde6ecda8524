"""Surroundings that the KV memory of a plan assumes, because they were not given."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.parts import KV_CACHE
from kvcore.base.quantity import Quantity
from kvcore.engines.registry import find_engine
from kvcore.flags import fields_of
from kvcore.memory.budget import profiled_kv_bytes, surrounding_terms
from kvcore.memory.setting import links_of, setting_of
from kvcore.planning import Plan
from kvcore.scenario import Origin, value_of
from kvcore.wire.request import with_surroundings


def assumed_surroundings(planned: Plan) -> dict[str, str]:
    """The unknown surroundings that change the KV memory, each with the case that the plan's figure assumes.

    Empty where everything that matters is given.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> request = {"model": "Qwen/Qwen3-8B", "accelerator": "RTX-3090-24GB", "tensor_parallel_size": 2}
        >>> assumed_surroundings(plan(scenario_from_request(request)))["link"]
        'pcie'
    """
    scenario = planned.scenario
    if planned.memory is None or not planned.stage_kv or _is_settled(planned):
        return {}
    now = planned.stage_kv[planned.stage]
    likely = links_of(scenario, planned.accelerator, planned.architecture)[:1]
    setting = setting_of(scenario, planned.architecture, planned.resolved, planned.accelerator, planned.stage)
    by_terms: dict[Hashable, Quantity] = {surrounding_terms(setting): now}
    found: dict[str, str] = {}
    for key, flag in fields_of("surroundings").items():
        if value_of(scenario, flag.name) is not None:
            continue
        cases: dict[str, Quantity] = {}
        for case in flag.choices:
            with suppress(KvPlannerError):
                changed = with_surroundings(scenario, {key: case})
                other = replace(
                    setting,
                    scenario=changed,
                    links=links_of(changed, planned.accelerator, planned.architecture),
                )
                terms = surrounding_terms(other)
                if terms not in by_terms:
                    by_terms[terms] = profiled_kv_bytes(other, planned.memory.weights)
                cases[case] = by_terms[terms]
        if any((kv.value, kv.interval) != (now.value, now.interval) for kv in cases.values()):
            found[key] = min(cases, key=lambda case: (abs(cases[case].value - now.value), case not in likely))
    return found


def _is_settled(planned: Plan) -> bool:
    """Whether surroundings cannot change the KV memory: it was measured, or variables declare it."""
    measured, resolved = planned.scenario.measured, planned.resolved
    is_measured = measured.available_kv_gib is not None and measured.origin(KV_CACHE.field) is Origin.MEASURED
    return is_measured or not find_engine(resolved.engine).measures_memory_in(resolved.version)
