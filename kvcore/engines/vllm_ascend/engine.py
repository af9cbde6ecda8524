"""AscendEngine: where vllm-ascend answers otherwise than the vLLM that it runs on."""

from __future__ import annotations

from typing import ClassVar, Final

from kvcore.engine.facts import EngineFacts
from kvcore.engines.vllm.engine import VllmEngine
from kvcore.tables import TableFile

FACTS: Final = TableFile("kvcore.engines", "vllm_ascend/engine.toml", EngineFacts)


class AscendEngine(VllmEngine):
    """vllm-ascend."""

    __slots__ = ()

    name: ClassVar[str] = "vllm-ascend"
    format_refusals: ClassVar[frozenset[str]] = VllmEngine.format_refusals | {
        "npu-format-chip",
        "npu-format-attributes",
        "npu-format-blocks",
        "npu-no-scheme",
    }

    @property
    def facts(self) -> EngineFacts:
        return FACTS.load()
