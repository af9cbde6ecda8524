"""Surroundings that the KV memory of a plan assumes, because they were not given."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from struct import pack
from typing import Any

from msgspec import msgpack
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.kept import found_with
from kvcore.base.parts import KV_CACHE
from kvcore.base.quantity import Quantity
from kvcore.engine.rank_memory import RankMemory
from kvcore.engine.setting import setting_of
from kvcore.flags import fields_of
from kvcore.memory.surroundings import OtherSurroundings
from kvcore.planning import Plan
from kvcore.scenario import Origin
from kvcore.wire.request import read_fields


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
    scenario, memory = planned.scenario, planned.memory
    if memory is None or not planned.stage_kv or _is_settled(planned):
        return {}
    return dict(found_with(scenario.config, _key(planned, memory), lambda: _assumed(planned, memory)))


def _key(planned: Plan, memory: RankMemory) -> Hashable:
    """Everything that the answer depends on: the inputs but for the length, and the parts of memory in numbers.

    A length moves the cases as far as it moves the phases of the profile run, of which the activations are made.
    """
    inputs = msgpack.encode(replace(planned.scenario, config=None, max_model_len=None))
    parts = memory.available_kv, memory.weights, memory.framework, memory.activations
    numbers = [number for part in parts for number in (part.value, *part.bounds)]
    for phases in memory.activations.arguments:
        numbers += [phase.value for phase in (phases if isinstance(phases, tuple) else (phases,))]
    packed = pack(f"{len(numbers)}d", *numbers)
    return _assumed, planned.stage, blake2b(packed + inputs, digest_size=32).digest()


def _assumed(planned: Plan, memory: RankMemory) -> dict[str, str]:
    scenario, card, architecture = planned.scenario, planned.accelerator, planned.architecture
    now = memory.available_kv
    setting = setting_of(scenario, architecture, planned.resolved, card, planned.stage)
    likely = setting.links[:1]
    others = OtherSurroundings(setting, memory)
    found: dict[str, str] = {}
    for key, known in _cases().items():
        if getattr(scenario.surroundings, key) is not None:
            continue
        cases: dict[str, Quantity] = {}
        for case, value in known.items():
            with suppress(KvPlannerError):
                cases[case] = others.kv(key, value)
        if any((kv.value, kv.interval) != (now.value, now.interval) for kv in cases.values()):
            found[key] = min(cases, key=lambda case: (abs(cases[case].value - now.value), case not in likely))
    return found


@cache
def _cases() -> Mapping[str, Mapping[str, Any]]:
    """The cases of each field of the surroundings that has some, by their spelling in a request."""
    return {
        key: {case: read_fields({key: case}, "surroundings")[key] for case in flag.choices}
        for key, flag in fields_of("surroundings").items()
        if flag.choices
    }


def _is_settled(planned: Plan) -> bool:
    """Whether surroundings cannot change the KV memory: it was measured, or variables declare it."""
    measured, resolved = planned.scenario.measured, planned.resolved
    is_measured = measured.available_kv_gib is not None and measured.origin(KV_CACHE.field) is Origin.MEASURED
    return is_measured or not resolved.engine.measures_memory_in(resolved.version)
