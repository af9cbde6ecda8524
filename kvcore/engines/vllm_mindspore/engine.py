"""MindSporeEngine: where vllm-mindspore answers otherwise than the vLLM that it runs on."""

from __future__ import annotations

import math
from typing import ClassVar, Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import Notice, invalid
from kvcore.base.parts import ACTIVATIONS, FRAMEWORK, SYSTEM
from kvcore.base.quantity import Grade, Quantity, explained, figure, given
from kvcore.base.term import left_of, most
from kvcore.base.units import GIB
from kvcore.engine.overheads import MemoryVariables, written_gb
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import (
    WEIGHTS_ABOVE_SHARE,
    Parts,
    RankMemory,
    half_width,
    measured_or,
    rank_parts,
)
from kvcore.engines.vllm.start import Attention, Start
from kvcore.engines.vllm.versions import vllm_release
from kvcore.engines.vllm_ascend.npu import NpuEngine, NpuFacts
from kvcore.memory.budget import whole_budget_bytes
from kvcore.memory.graphs import counted_graph_bytes
from kvcore.scenario import CudagraphMode
from kvcore.tables import TableFile

FACTS: Final = TableFile("kvcore.engines", "vllm_mindspore/engine.toml", NpuFacts)
BLOCK_VARIABLE: Final = "MS_MEMPOOL_BLOCK_SIZE"
BLOCK_GB: Final = 2.0
"""The pool grows by blocks of this size, or of what the variable says. Source: mindspore.cn,
mindspore.runtime.set_memory (2.5, 2.7)."""
BLOCK_SOURCE: Final = (
    "vllm_mindspore/utils.py:ms_memory_profiling, check_ready (0.5.0, 0.5.1); mindspore.cn, "
    "mindspore.runtime.set_memory (2.5, 2.7): the pool grows by 2 GB"
)
BLOCK_SHARE: Final = 1 - math.sqrt(0.2)
"""Share of a block: what the pool has left before and after the run is anything below one. Four fifths of the
differences of two such remainders are within this share."""


class MindSporeEngine(NpuEngine):
    """vllm-mindspore. Its budget is that of vLLM/v1/worker/gpu_worker.py:Worker.determine_available_memory (0.11.0)
    with vllm_mindspore/utils.py:ms_memory_profiling (0.5.0, 0.5.1), and before 0.5 what variables declare."""

    __slots__ = ()

    name: ClassVar[str] = "vllm-mindspore"
    follows_vllm: ClassVar[bool] = False
    plain_index_keys: ClassVar[bool] = True
    """Assumed: no release packs them."""
    attention: ClassVar[Attention] = Attention("MINDSPORE", 128)

    @property
    def facts(self) -> NpuFacts:
        return FACTS.load()

    def additional_keys(self, version: Version) -> frozenset[str]:
        """`expert_parallel` cuts experts over ranks in two directions: the bytes of a rank stay the same.

        Source: vllm_mindspore/model_executor/layers/fused_moe/config.py:FusedMoEParallelConfig.make (0.4.0).
        """
        return frozenset({"expert_parallel"}) if version >= vllm_release("0.9.0") else frozenset()

    def graph_modes(
        self, modes: tuple[str, ...], mixed_full: bool, asked: CudagraphMode | None, start: Start
    ) -> tuple[tuple[str, ...], bool]:
        """Graphs need `-O 3`, which no flag here stands for but a mode that is asked.

        Source: vllm_mindspore/v1/worker/gpu_worker.py:compile_or_warm_up_model (0.3.0, 0.4.0: MindSpore does not
        support cuda graph), config.py:vllm_config_post_init (0.5.0, 0.5.1: no_compilation as default).
        """
        if asked is None and not start.is_v0:
            return (), False
        return super().graph_modes(modes, mixed_full, asked, start)

    def rank_memory(self, setting: Setting, weights: Quantity) -> RankMemory:
        variables = self.variables_in(setting.resolved.version)
        if variables is None:
            return super().rank_memory(setting, weights)
        return declared_memory(setting, weights, variables)

    def reserved(self, setting: Setting, peak: Quantity) -> Quantity:
        """`peak` as a pool of whole blocks reserves it: on average as large, up to a block more or less.

        Source: vllm_mindspore/utils.py:ms_memory_profiling (0.5.0, 0.5.1): reserved memory in place of allocated.
        """
        block = (written_gb(setting.scenario.env.get(BLOCK_VARIABLE, "")) or BLOCK_GB) * GIB
        reach = max(half_width(peak), BLOCK_SHARE * block)
        source = "; ".join(filter(None, (peak.source, BLOCK_SOURCE)))
        return replace(peak, source=source, interval=(max(0.0, peak.value - reach), peak.value + reach))


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
    memory = rank_parts(parts, measured, _guard(variables, total, allotted, budget))
    return replace(memory, notices=(*memory.notices, *_weights_above_share(variables, memory, allotted)))


def activation_bytes(model_memory: int, weights: int, framework: int) -> int:
    """Memory that the model may use next to its weights and the framework; 0 where they take more."""
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


def _weights_above_share(
    variables: MemoryVariables, memory: RankMemory, allotted: Quantity
) -> tuple[Notice, ...]:
    """`model-memory-below-weights` where the weights exceed their share and the card: the pool is allocated in full.
    `model-memory-all-weights` where the card still has room for them, and activations have the rest of it.

    Source: vllm-mindspore's tuning guide for Ascend, section 2, point 2: a share that is too small runs out of memory.
    """
    if memory.weights.value <= allotted.value:
        return ()
    params = {
        "variable": variables.model,
        "model": f"{allotted.value / GIB:g}",
        "weights": f"{memory.weights.value / GIB:.1f}",
        "kv": f"{max(0, memory.available_kv.value) / GIB:.1f}",
        "missing": f"{-memory.unused.value / GIB:.1f}",
        "room": f"{memory.unused.value / GIB:.1f}",
    }
    code = WEIGHTS_ABOVE_SHARE if memory.unused.value < 0 else "model-memory-all-weights"
    return (Notice(code=code, field="available_kv", params=params),)


def _given(name: str, setting: Setting, variable: str, default: float, source: str) -> Quantity:
    """An environment variable in GB of 2**30 bytes, as a quantity of bytes."""
    text = setting.scenario.env.get(variable)
    value = default if text is None else written_gb(text)
    if value is None:
        raise invalid(f"env.{variable}", text, "it must be a positive number")
    grade = Grade.ASSUMED if text is None else Grade.MEASURED
    return replace(figure(name, int(value * GIB), grade=grade, source=source), set_by=variable)
