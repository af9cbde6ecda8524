"""vllm-mindspore does not profile: its environment variables say what the model may use."""

from __future__ import annotations

from collections.abc import Mapping

from kvcore.engine.protocol import written_gb
from kvcore.engine.rooms import find_engine
from kvcore.errors import ScenarioError
from kvcore.memory.graphs import counted_graph_bytes
from kvcore.memory.parts import RankMemory, measured_or, rank_parts
from kvcore.memory.setting import Setting
from kvcore.quantity import Grade, Quantity, Unit
from kvcore.units import GIB


def declared_memory(setting: Setting, weights: Quantity) -> RankMemory:
    """The parts of one rank: available_kv = ASCEND_TOTAL_MEMORY_GB × utilization − vLLM_MODEL_MEMORY_USE_GB.

    What the model may use beyond its weights and the framework counts as activations.

    Raises ScenarioError `invalid-value` for a variable that is no positive number.
    """
    measured, resolved = setting.scenario.measured, setting.resolved
    variables = find_engine(resolved.engine).memory_variables
    assert variables is not None, "an engine with this memory declares its variables"
    source = variables.source
    environment = setting.scenario.env
    total = given_gib("total", environment, variables.total, variables.default_total_gb, source)
    allotted = given_gib("model_memory", environment, variables.model, variables.default_model_gb, source)
    framework = measured_or(
        measured,
        "non_torch_gib",
        Quantity(
            name="framework",
            value=int(min(variables.framework_gib * GIB, max(0.0, allotted.value - weights.value))),
            unit=Unit.BYTES,
            grade=Grade.ASSUMED,
            source=source,
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
            source=source,
        ),
    )
    system = measured_or(
        measured,
        "system_gib",
        Quantity(
            name="system",
            value=int(variables.system_gib * GIB),
            unit=Unit.BYTES,
            grade=Grade.ASSUMED,
            source=source,
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
        source=source,
    )
    available = Quantity(
        name="available_kv",
        value=int(budget.value - allotted.value),
        unit=Unit.BYTES,
        formula="{budget} − {model_memory}",
        inputs=(budget, allotted),
        source=source,
    )
    graphs = Quantity(name="cuda_graphs", value=0, unit=Unit.BYTES, grade=Grade.EXACT, source=source)
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


def given_gib(
    name: str, environment: Mapping[str, str], variable: str, default: float, source: str
) -> Quantity:
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
        source=source,
    )
