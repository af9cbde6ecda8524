"""Several engines on the same cards."""

from __future__ import annotations

import math
from typing import Final

from msgspec.structs import replace

from kvcore.planning import plan
from kvcore.scenario import Scenario

INSTANCES: Final = (1, 2, 3, 4)


def sharing(base: Scenario, instances: int) -> Scenario:
    """`base` as the last of that many engines that share each card evenly; `base` itself for one.

    Each may take its part of the utilization, and finds what the others took.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB"})
        >>> second = sharing(base, 2)
        >>> second.gpu_memory_utilization, second.surroundings.taken_gib
        (0.46, 28.04)
    """
    if instances == 1:
        return base
    whole = base.gpu_memory_utilization or plan(base).resolved.gpu_memory_utilization
    share = math.floor(100 * whole / instances + 1e-9) / 100
    total = base.accelerator.memory_gib if base.accelerator is not None else 0.0
    others = round((instances - 1) * share * total, 2) + (base.surroundings.taken_gib or 0.0)
    return replace(
        base, gpu_memory_utilization=share, surroundings=replace(base.surroundings, taken_gib=others)
    )
