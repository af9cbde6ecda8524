"""vllm-mindspore does not profile: its environment variables say what the model may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.errors import ScenarioError
from kvcore.memory.graphs import counted_graph_bytes
from kvcore.memory.parts import RankMemory, measured_or, rank_parts
from kvcore.memory.setting import Setting
from kvcore.quantity import Grade, Quantity, Unit
from kvcore.units import GIB

TOTAL_VARIABLE: Final = "ASCEND_TOTAL_MEMORY_GB"
MODEL_VARIABLE: Final = "vLLM_MODEL_MEMORY_USE_GB"
DEFAULT_TOTAL_GB: Final = 64.0
DEFAULT_MODEL_GB: Final = 50.0
"""Defaults of both. Source: vllm-mindspore's tuning guide for Ascend, section 2."""

SYSTEM_GIB: Final = 3.0
FRAMEWORK_GIB: Final = 1.0
"""System and driver take about 3 GB, CANN up to 1 GB. Source: as above, section 1."""

SOURCE: Final = "vllm-mindspore's tuning guide for Ascend"


def mindspore_memory(setting: Setting, weights: Quantity) -> RankMemory:
    """The parts of one rank: available_kv = ASCEND_TOTAL_MEMORY_GB × utilization − vLLM_MODEL_MEMORY_USE_GB.

    What the model may use beyond its weights and the framework counts as activations.

    Raises ScenarioError `invalid-value` for a variable that is no positive number.
    """
    measured, resolved = setting.scenario.measured, setting.resolved
    environment = setting.scenario.env
    total = given_gib("total", environment, TOTAL_VARIABLE, DEFAULT_TOTAL_GB)
    allotted = given_gib("model_memory", environment, MODEL_VARIABLE, DEFAULT_MODEL_GB)
    framework = measured_or(
        measured,
        "non_torch_gib",
        Quantity(
            name="framework",
            value=int(min(FRAMEWORK_GIB * GIB, max(0.0, allotted.value - weights.value))),
            unit=Unit.BYTES,
            grade=Grade.ASSUMED,
            source=SOURCE,
        ),
    )
    activations = measured_or(
        measured,
        "peak_activation_gib",
        Quantity(
            name="activations",
            value=max(0, int(allotted.value - weights.value - framework.value)),
            unit=Unit.BYTES,
            formula="{model_memory} − {weights} − {framework}",
            inputs=(allotted, weights, framework),
            grade=Grade.ASSUMED,
            source=SOURCE,
        ),
    )
    system = measured_or(
        measured,
        "system_gib",
        Quantity(
            name="system", value=int(SYSTEM_GIB * GIB), unit=Unit.BYTES, grade=Grade.ASSUMED, source=SOURCE
        ),
    )
    budget = Quantity(
        name="budget",
        value=int(total.value * resolved.gpu_memory_utilization),
        unit=Unit.BYTES,
        formula="{total} × {gpu_memory_utilization}",
        inputs=(
            total,
            Quantity(name="gpu_memory_utilization", value=resolved.gpu_memory_utilization, grade=Grade.EXACT),
        ),
        source=SOURCE,
    )
    available = Quantity(
        name="available_kv",
        value=int(budget.value - allotted.value),
        unit=Unit.BYTES,
        formula="{budget} − {model_memory}",
        inputs=(budget, allotted),
        source=SOURCE,
    )
    graphs = Quantity(name="cuda_graphs", value=0, unit=Unit.BYTES, grade=Grade.EXACT, source=SOURCE)
    return rank_parts(
        total=total,
        system=system,
        framework=framework,
        weights=weights,
        activations=activations,
        cuda_graphs=graphs,
        counted_graphs=counted_graph_bytes(setting, graphs),
        budget=budget,
        remainder=available,
        measured=measured,
        notices=(),
    )


def written_gb(text: str) -> float | None:
    """The gigabytes that a variable says, None for a text that is no positive number below 1,000,000.

    Example:
        >>> written_gb("64"), written_gb("x4"), written_gb("nan")
        (64.0, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e6 else None


def given_gib(name: str, environment: Mapping[str, str], variable: str, default: float) -> Quantity:
    """An environment variable in GB of 2**30 bytes, as a quantity of bytes."""
    text = environment.get(variable)
    value = default if text is None else written_gb(text)
    if value is None:
        raise ScenarioError(
            "invalid-value", field=f"env.{variable}", value=text, reason="it must be a positive number"
        )
    return Quantity(
        name=name,
        value=int(value * GIB),
        unit=Unit.BYTES,
        formula=variable,
        grade=Grade.MEASURED if text is not None else Grade.ASSUMED,
        source=SOURCE,
    )
