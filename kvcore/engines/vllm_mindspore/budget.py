"""vllm-mindspore before 0.5 does not profile: its environment variables say what the model may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvcore.base.errors import Notice, invalid
from kvcore.base.quantity import Grade, Quantity, Unit
from kvcore.base.units import GIB
from kvcore.engine.memory_rules import MemoryVariables, written_gb
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import Parts, RankMemory, measured_or, rank_parts
from kvcore.memory.graphs import counted_graph_bytes


def declared_memory(setting: Setting, weights: Quantity, variables: MemoryVariables) -> RankMemory:
    """The parts of one rank: available_kv = ASCEND_TOTAL_MEMORY_GB × utilization − vLLM_MODEL_MEMORY_USE_GB.

    What the model may use beyond its weights and the framework counts as activations.

    Raises ScenarioError `invalid-value` for a variable that is no positive number.
    """
    measured, resolved = setting.scenario.measured, setting.resolved
    source, share = variables.source, resolved.gpu_memory_utilization
    figure = partial(Quantity, unit=Unit.BYTES, source=source)
    assumed = partial(figure, grade=Grade.ASSUMED)
    total = _given("total", setting, variables.total, variables.default_total_gb, figure)
    allotted = _given("model_memory", setting, variables.model, variables.default_model_gb, figure)
    most = min(variables.framework_gib * GIB, max(0.0, allotted.value - weights.value))
    framework = measured_or(measured, "non_torch_gib", assumed(name="framework", value=int(most)))
    rest = assumed(
        name="activations",
        value=max(0, int(allotted.value - weights.value - framework.value)),
        formula="{model_memory} − {weights} − {framework}",
        inputs=(allotted, weights, framework),
    )
    system = assumed(name="system", value=int(variables.system_gib * GIB))
    budget = figure(
        name="budget",
        value=int(total.value * share),
        formula="{total} × {gpu_memory_utilization}",
        inputs=(total, Quantity(name="gpu_memory_utilization", value=share, grade=Grade.EXACT)),
    )
    available = figure(
        name="available_kv",
        value=int(budget.value - allotted.value),
        formula="{budget} − {model_memory}",
        inputs=(budget, allotted),
    )
    graphs = figure(name="cuda_graphs", value=0, grade=Grade.EXACT)
    parts = Parts(
        total=total,
        system=measured_or(measured, "system_gib", system),
        framework=framework,
        weights=weights,
        activations=measured_or(measured, "peak_activation_gib", rest),
        cuda_graphs=graphs,
        counted_graphs=counted_graph_bytes(setting, graphs),
        budget=budget,
        remainder=available,
        after_pool=figure(name="after_pool", value=0, grade=Grade.ASSUMED),
    )
    return rank_parts(parts, measured, _guard(variables, total, allotted, budget))


def _guard(
    variables: MemoryVariables, total: Quantity, allotted: Quantity, budget: Quantity
) -> tuple[Notice, ...]:
    """`model-memory-above-budget` where what the model is allotted leaves the KV cache a negative number of blocks.

    Source: vllm-mindspore's tuning guide for Ascend, section 4, point 3.
    """
    if allotted.value < budget.value:
        return ()
    params = {
        "variable": variables.model,
        "model": f"{allotted.value / GIB:g}",
        "total": f"{total.value / GIB:g}",
        "limit": f"{budget.value / GIB:.1f}",
    }
    return (Notice(code="model-memory-above-budget", field="available_kv", params=params),)


def _given(
    name: str, setting: Setting, variable: str, default: float, figure: Callable[..., Quantity]
) -> Quantity:
    """An environment variable in GB of 2**30 bytes, as a quantity of bytes."""
    text = setting.scenario.env.get(variable)
    value = default if text is None else written_gb(text)
    if value is None:
        raise invalid(f"env.{variable}", text, "it must be a positive number")
    grade = Grade.ASSUMED if text is None else Grade.MEASURED
    return figure(name=name, value=int(value * GIB), formula=variable, grade=grade)
