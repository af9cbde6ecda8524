"""MindSporeEngine: where vllm-mindspore answers otherwise than the vLLM that it runs on."""

from __future__ import annotations

import math
from typing import ClassVar, Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.quantity import Quantity
from kvcore.base.units import GIB
from kvcore.engine.overheads import written_gb
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import RankMemory, half_width
from kvcore.engines.vllm.start import Attention, Start
from kvcore.engines.vllm.versions import vllm_release
from kvcore.engines.vllm_ascend.npu import NpuEngine, NpuFacts
from kvcore.engines.vllm_mindspore.budget import declared_memory
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
"""Of a block: what the pool has left before and after the run is anything below one. Four fifths of the differences of
two such remainders are within this share."""


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
