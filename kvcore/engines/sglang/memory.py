"""Where the memory of one rank goes: what is free before the weights, the static part of it, and the slack that graphs,
activations and the request table have to fit into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from kvcore.base.errors import Notice, notice
from kvcore.base.quantity import Grade, Quantity, explained, figure, given
from kvcore.base.term import left_of
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import Parts, RankMemory, half_width, measured_or, rank_parts
from kvcore.engines.sglang.slack import activation_bytes, context_bytes, graph_bytes, table_bytes
from kvcore.engines.sglang.start import Start
from kvcore.engines.sglang.states import GIB
from kvcore.memory.budget import total_of

BUDGET: Final = (
    "model_executor/model_runner_kv_cache_mixin.py:profile_max_num_token (0.5.9), mem_cache/kv_cache_configurator.py:"
    "_profile_available_bytes (0.5.23)"
)
WEIGHTS_SHARE: Final = 0.01
"""How far what loading takes may be off, as a share of it."""
JOINED_LATENT_SHARE: Final = 0.05
"""The same for latent attention on ranks that join: Kimi-K2.5 took 3 % more, DeepSeek-V4-Flash 5 %, GLM-5 0.4 %."""
LOADING_GIB: Final = 0.1
"""What loading leaves taken beside the weights: Llama-3.1-8B 0.12 GiB, QwQ-32B on four cards 0.15."""
NEAR: Final = 0.01
"""A fraction so near to one of its limits is told of them."""


def free_before(total: Any, taken: Any) -> Any:
    """Memory that is free before the weights."""
    return total - taken


def static_bytes(free: Any, fraction: Any) -> Any:
    """The part of the free memory that weights and pools may take."""
    return free * fraction


def static_memory(setting: Setting, weights: Quantity, start: Start) -> RankMemory:
    """The parts of one rank: rest = free after the weights − free before them × (1 − mem_fraction_static).

    Raises EngineRefusalError in the engine's words where both are given and the release refuses.
    """
    scenario, arguments = setting.scenario, start.arguments
    measured = scenario.measured
    total = total_of(setting.accelerator)
    before_gib, after_gib = measured.free_before_weights_gib, measured.free_after_weights_gib
    taken = context_bytes(setting)
    if before_gib is not None:
        value = max(0, total.value - before_gib * GIB)
        taken = figure("system", int(value), grade=Grade.MEASURED, source="given", interval=(value, value))
    taken = measured_or(measured, "system_gib", taken)
    free = explained("free_memory", free_before, total, taken, grade=taken.grade, source=BUDGET)
    if before_gib is not None:
        free = given("free_memory", before_gib * GIB, free.unit, Grade.MEASURED)
    fraction = given("mem_fraction_static", arguments.mem_fraction_static)
    budget = explained("budget", static_bytes, free, fraction, grade=free.grade, source=BUDGET)
    if after_gib is not None and before_gib is not None:
        weights = figure("weights", int((before_gib - after_gib) * GIB), grade=Grade.MEASURED, source="given")
        rest = rest_of(start, before_gib, after_gib)
        remainder = Quantity(
            name="available_kv", value=rest * GIB, unit=budget.unit, grade=Grade.MEASURED, source=BUDGET,
            rule=left_of, arguments=(budget, (weights,)),
        )  # fmt: skip
        if measured.available_kv_gib is None:
            start.pools(before_gib, after_gib)
    else:
        kept = figure("image_reserve", arguments.image_reserve_mib << 20, source=BUDGET)
        is_joined = setting.ranks > 1 and (start.shape.latent or start.shape.compressed) is not None
        share = JOINED_LATENT_SHARE if is_joined else WEIGHTS_SHARE
        loading = math.hypot(share * weights.value, LOADING_GIB * GIB)
        spread = math.hypot(half_width(taken) * arguments.mem_fraction_static, loading)
        used = (weights, kept) if kept.value else (weights,)
        remainder = explained(
            "available_kv", left_of, budget, used, grade=Grade.FITTED, source=BUDGET, spread=spread
        )
    graphs = measured_or(measured, "cuda_graph_gib", graph_bytes(setting, start))
    activations = measured_or(measured, "peak_activation_gib", activation_bytes(setting, start))
    table = table_bytes(start, remainder.value)
    return rank_parts(
        Parts(
            total=total,
            system=taken,
            framework=figure("framework", 0, source=BUDGET),
            weights=weights,
            activations=activations,
            cuda_graphs=graphs,
            counted_graphs=figure("cuda_graphs", 0, source=BUDGET),
            budget=budget,
            remainder=remainder,
            after_pool=table,
        ),
        measured,
        _notices(
            arguments.mem_fraction_static, free, budget.value - remainder.value, (graphs, activations, table)
        ),
    )


def rest_of(start: Start, before_gib: float, after_gib: float) -> float:
    """GiB that the fraction leaves to the pools, as the release's own floats have it."""
    arguments = start.arguments
    return after_gib - before_gib * (1 - arguments.mem_fraction_static) - arguments.image_reserve_mib / 1024


def limits_of(free_bytes: float, used_bytes: float, slack: Sequence[Quantity]) -> tuple[float, float]:
    """The least fraction that leaves memory to the pools, and the most that leaves what `slack` usually needs.

    Example:
        >>> from kvcore.base.quantity import given
        >>> limits_of(80.0, 16.0, (given("cuda_graphs", 2.0), given("activations", 2.0)))
        (0.201, 0.95)
    """
    least = math.floor(used_bytes / free_bytes * 1000) / 1000 + 0.001
    most = math.floor((1 - sum(one.value for one in slack) / free_bytes) * 1000) / 1000
    return round(least, 3), round(most, 3)


def _notices(
    fraction: float, free: Quantity, used_bytes: float, slack: Sequence[Quantity]
) -> tuple[Notice, ...]:
    """Which way the fraction may go, where it is near to a limit or beyond it."""
    if free.value <= 0:
        return ()
    least, most = limits_of(free.value, used_bytes, slack)
    if least - NEAR < fraction < least + NEAR or fraction < least:
        code = "raise-static-fraction"
    elif fraction > most - NEAR:
        code = "lower-static-fraction"
    else:
        return ()
    if least > most:
        code = "no-static-fraction"
    values = {"value": f"{fraction:.3f}", "least": f"{least:.3f}", "most": f"{most:.3f}"}
    return (notice(code, field="gpu_memory_utilization", **values),)
