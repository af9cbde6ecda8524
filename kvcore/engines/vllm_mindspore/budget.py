"""vllm-mindspore before 0.5 does not profile: its environment variables say what the model may use."""

from __future__ import annotations

from msgspec.structs import replace

from kvcore.base.errors import Notice, invalid
from kvcore.base.parts import ACTIVATIONS, FRAMEWORK, SYSTEM
from kvcore.base.quantity import Grade, Quantity, explained, figure, given
from kvcore.base.term import left_of, most
from kvcore.base.units import GIB
from kvcore.engine.overheads import MemoryVariables, written_gb
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import Parts, RankMemory, measured_or, rank_parts
from kvcore.memory.budget import whole_budget_bytes
from kvcore.memory.graphs import counted_graph_bytes


def declared_memory(setting: Setting, weights: Quantity, variables: MemoryVariables) -> RankMemory:
    """The parts of one rank: available_kv = ASCEND_TOTAL_MEMORY_GB × utilization − vLLM_MODEL_MEMORY_USE_GB.

    What the model may use beyond its weights and the framework counts as activations.

    Raises ScenarioError `invalid-value` for a variable that is no positive number.
    """
    measured, resolved = setting.scenario.measured, setting.resolved
    source = variables.source
    total = _given("total", setting, variables.total, variables.default_total_gb, source)
    allotted = _given("model_memory", setting, variables.model, variables.default_model_gb, source)
    framework_bytes = int(min(variables.framework_gib * GIB, max(0.0, allotted.value - weights.value)))
    framework = figure("framework", framework_bytes, grade=Grade.ASSUMED, source=source)
    framework = measured_or(measured, FRAMEWORK.field, framework)
    rest = explained(
        "activations", activation_bytes, allotted, weights, framework, grade=Grade.ASSUMED, source=source
    )
    system = figure("system", int(variables.system_gib * GIB), grade=Grade.ASSUMED, source=source)
    budget = explained(
        "budget",
        whole_budget_bytes,
        total,
        given("gpu_memory_utilization", resolved.gpu_memory_utilization),
        grade=Grade.DERIVED,
        source=source,
    )
    available = explained("available_kv", left_of, budget, (allotted,), grade=Grade.DERIVED, source=source)
    graphs = figure("cuda_graphs", 0, source=source)
    parts = Parts(
        total=total,
        system=measured_or(measured, SYSTEM.field, system),
        framework=framework,
        weights=weights,
        activations=measured_or(measured, ACTIVATIONS.field, rest),
        cuda_graphs=graphs,
        counted_graphs=counted_graph_bytes(setting, graphs),
        budget=budget,
        remainder=available,
        after_pool=figure("after_pool", 0, grade=Grade.ASSUMED, source=source),
    )
    return rank_parts(parts, measured, _guard(variables, total, allotted, budget))


def activation_bytes(model_memory: int, weights: int, framework: int) -> int:
    """What the model may use next to its weights and the framework; 0 where they take more."""
    return most(0, model_memory - weights - framework)


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


def _given(name: str, setting: Setting, variable: str, default: float, source: str) -> Quantity:
    """An environment variable in GB of 2**30 bytes, as a quantity of bytes."""
    text = setting.scenario.env.get(variable)
    value = default if text is None else written_gb(text)
    if value is None:
        raise invalid(f"env.{variable}", text, "it must be a positive number")
    grade = Grade.ASSUMED if text is None else Grade.MEASURED
    return replace(figure(name, int(value * GIB), grade=grade, source=source), set_by=variable)
