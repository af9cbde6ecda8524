"""NpuEngine: what vLLM's plug-ins on Huawei's NPUs share."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from kvcore.engine.facts import EngineFacts
from kvcore.engine.overheads import Budget, GraphApi
from kvcore.engine.protocol import Setting
from kvcore.engine.records import LayerPeak, Taken
from kvcore.engines.vllm.additional import additional_of
from kvcore.engines.vllm.engine import VllmEngine
from kvcore.engines.vllm.flashcomm import cuts_tokens
from kvcore.engines.vllm_ascend.communicators import Communicators, NpuRank, communicator_bytes
from kvcore.engines.vllm_ascend.profile import routed_bytes, stream_peak


class NpuFacts(EngineFacts, frozen=True, kw_only=True):
    """`engine.toml` of a plug-in on NPUs."""

    communicators: Communicators


class NpuEngine(VllmEngine):
    """A plug-in of vLLM that runs on NPUs: with ACL graphs, HCCL, and kernels of its own."""

    __slots__ = ()

    graph_api: ClassVar[GraphApi] = GraphApi.ACL
    has_cuda_kernels: ClassVar[bool] = False
    captures_pieces_with_full: ClassVar[bool] = False
    counts_communicators: ClassVar[bool] = True
    streams_share: ClassVar[float] = 0.0
    """How far off the peak may be where residual streams set it, as a share of it; 0: as the sampler's."""

    @property
    @abstractmethod
    def facts(self) -> NpuFacts: ...

    def rank(self, setting: Setting) -> NpuRank:
        """The rank of `setting`, with what decides which groups of ranks it talks to."""
        version = setting.resolved.version
        return NpuRank(
            setting=setting,
            rules=self.facts.communicators,
            additional=additional_of(self, setting.scenario, version),
            cuts_tokens=cuts_tokens(self, setting.scenario, version),
        )

    def budget(self, setting: Setting) -> Budget:
        return Budget.PARTS

    def communicators(self, setting: Setting) -> Taken:
        return communicator_bytes(self.rank(setting))

    def layer_peak(self, setting: Setting, body_bytes: int) -> LayerPeak:
        rank = self.rank(setting)
        experts = routed_bytes(rank)
        streams = stream_peak(rank, experts)
        return LayerPeak(body_bytes + experts, streams.value, streams.least, self.streams_share)
