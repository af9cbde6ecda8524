"""Which surroundings a figure assumes, as nobody said them."""

from __future__ import annotations

from contextlib import suppress

from kvcore.errors import KvPlannerError
from kvcore.flags import fields_of
from kvcore.memory.setting import links_of
from kvcore.planning import Plan, plan
from kvcore.scenario import value_of
from kvcore.scenario.request import with_surroundings


def assumed_surroundings(planned: Plan) -> dict[str, str]:
    """The unknown surroundings that decide what is left for the KV cache, each with the case that its figure is of.

    Empty where everything that matters is said.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> request = {"model": "Qwen/Qwen3-8B", "accelerator": "RTX-3090-24GB", "tensor_parallel_size": 2}
        >>> assumed_surroundings(plan(scenario_from_request(request)))["link"]
        'pcie'
    """
    scenario, now = planned.scenario, _kv(planned)
    likely = links_of(scenario, planned.accelerator)[:1]
    found: dict[str, str] = {}
    for key, flag in fields_of("surroundings").items():
        if value_of(scenario, flag.name) is not None:
            continue
        cases: dict[str, tuple[float, object]] = {}
        for case in flag.choices:
            with suppress(KvPlannerError):
                cases[case] = _kv(plan(with_surroundings(scenario, {key: case})))
        if any(kv != now for kv in cases.values()):
            found[key] = min(cases, key=lambda case: (abs(cases[case][0] - now[0]), case not in likely))
    return found


def _kv(planned: Plan) -> tuple[float, object]:
    """Memory for the KV cache and its interval, in bytes; 0 where the card is not known."""
    kv = planned.stage_kv[planned.stage] if planned.memory is not None and planned.stage_kv else None
    return (0.0, None) if kv is None else (kv.value, kv.interval)
