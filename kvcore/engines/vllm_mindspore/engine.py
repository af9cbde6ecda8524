"""MindSporeEngine: where vllm-mindspore answers otherwise than the vLLM that it runs on."""

from __future__ import annotations

from typing import ClassVar, Final

from kvcore.base.quantity import Quantity
from kvcore.engine.facts import EngineFacts
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import RankMemory
from kvcore.engines.vllm.engine import VllmEngine
from kvcore.engines.vllm_mindspore.budget import declared_memory
from kvcore.memory.budget import profiled_memory
from kvcore.tables import TableFile

FACTS: Final = TableFile("kvcore.engines", "vllm_mindspore/engine.toml", EngineFacts)


class MindSporeEngine(VllmEngine):
    """vllm-mindspore."""

    __slots__ = ()

    name: ClassVar[str] = "vllm-mindspore"
    follows_vllm: ClassVar[bool] = False

    @property
    def facts(self) -> EngineFacts:
        return FACTS.load()

    def rank_memory(self, setting: Setting, weights: Quantity) -> RankMemory:
        """By its variables before 0.5, which profiles as vLLM does."""
        variables = self.variables_in(setting.resolved.version)
        if variables is None:
            return profiled_memory(setting, weights)
        return declared_memory(setting, weights, variables)
