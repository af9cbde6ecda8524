"""NpuEngine: what vLLM's plug-ins on Huawei's NPUs share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final

from packaging.version import Version

from kvcore.base.errors import Notice, notice
from kvcore.engine.cards import CardView
from kvcore.engine.facts import EngineFacts
from kvcore.engine.overheads import Budget, GraphApi
from kvcore.engine.protocol import Setting
from kvcore.engine.records import LayerPeak, Release, Taken
from kvcore.engine.switches import AttentionKind
from kvcore.engines.vllm.engine import VllmEngine
from kvcore.engines.vllm.start import Attention, Start
from kvcore.engines.vllm_ascend.additional import NOTHING, Additional
from kvcore.engines.vllm_ascend.captures import divided_sizes
from kvcore.engines.vllm_ascend.communicators import Communicators, NpuRank, communicator_bytes
from kvcore.engines.vllm_ascend.profile import routed_bytes, stream_peak
from kvcore.model.quantization.modelslim import METHOD as MODELSLIM
from kvcore.scenario import CudagraphMode, Scenario

FLASHCOMM_VARIABLE: Final = "VLLM_ASCEND_ENABLE_FLASHCOMM1"
"""FlashComm: the tokens of a step are cut over the tensor parallel ranks between the layers."""


class NpuFacts(EngineFacts, frozen=True, kw_only=True):
    """`engine.toml` of a plug-in on NPUs."""

    communicators: Communicators


class NpuEngine(VllmEngine):
    """A plug-in of vLLM that runs on NPUs: with ACL graphs, HCCL, and kernels of its own."""

    __slots__ = ()

    attention: ClassVar[Attention]
    graph_api: ClassVar[GraphApi] = GraphApi.ACL
    has_cuda_kernels: ClassVar[bool] = False
    captures_pieces_with_full: ClassVar[bool] = False
    counts_communicators: ClassVar[bool] = True
    checks_weight_shapes: ClassVar[bool] = False
    streams_share: ClassVar[float] = 0.0
    """How far off the peak may be where residual streams set it, as a share of it; 0: as the sampler's."""

    @property
    @abstractmethod
    def facts(self) -> NpuFacts: ...

    def additional(self, scenario: Scenario, version: Version) -> Additional:
        """`--additional-config` as far as a plan follows it."""
        return NOTHING

    def cuts_tokens(self, scenario: Scenario, version: Version) -> bool:
        """Whether FlashComm is asked for, and there are ranks to cut over."""
        return scenario.parallel.tensor_parallel_size > 1 and scenario.env.get(FLASHCOMM_VARIABLE) == "1"

    def rank(self, setting: Setting) -> NpuRank:
        """The rank of `setting`, with what decides which groups of ranks it talks to."""
        version = setting.resolved.version
        return NpuRank(
            setting=setting,
            rules=self.facts.communicators,
            additional=self.additional(setting.scenario, version),
            cuts_tokens=self.cuts_tokens(setting.scenario, version),
        )

    # Flags

    def lists_classes(self, version: Version) -> bool:
        return False

    def checks_format(self, release: Release) -> bool:
        """Most releases of a plug-in are candidates, and its own table lists what they take."""
        return True

    def takes_format(self, method: str, card: CardView, version: Version) -> bool:
        return method != MODELSLIM

    def notices(self, start: Start, block_size: int) -> Iterator[Notice]:
        """`block-size-not-kept` where the platform takes another block size than the one asked for;
        `memory-variable-not-read` where a release looks at the card itself."""
        asked, variables = start.scenario.block_size, self.facts.memory_variables
        if asked is not None and asked != block_size:
            yield notice("block-size-not-kept", "block_size", asked=asked, used=block_size)
        if variables is not None and start.version >= variables.below:
            for name in variables.names:
                if name in start.scenario.env:
                    yield notice("memory-variable-not-read", f"env.{name}", variable=name)

    def graph_modes(
        self, modes: tuple[str, ...], mixed_full: bool, asked: CudagraphMode | None, start: Start
    ) -> tuple[tuple[str, ...], bool]:
        """As vLLM has them, but for mixed batches in full: with plain attention alone."""
        if start.is_v0 or asked is not CudagraphMode.FULL or start.is_pooling:
            return modes, mixed_full and not start.is_v0
        is_plain = start.traits.attention is AttentionKind.PLAIN and not start.traits.recurrent
        return ("FULL",), is_plain

    def divided_sizes(self, sizes: tuple[int, ...], start: Start) -> tuple[int, ...]:
        if start.is_v0 or not self.cuts_tokens(start.scenario, start.version):
            return sizes
        return divided_sizes(sizes, start.scenario.parallel.tensor_parallel_size)

    # Memory

    def budget(self, setting: Setting) -> Budget:
        return Budget.PARTS

    def communicators(self, setting: Setting) -> Taken:
        return communicator_bytes(self.rank(setting))

    def layer_peak(self, setting: Setting, body_bytes: int) -> LayerPeak:
        rank = self.rank(setting)
        experts = routed_bytes(rank)
        streams = stream_peak(rank, experts)
        return LayerPeak(body_bytes + experts, streams.value, streams.least, self.streams_share)
