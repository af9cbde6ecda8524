"""AscendEngine: where vllm-ascend answers otherwise than the vLLM that it runs on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.units import GIB
from kvcore.engine.overheads import Budget, Text
from kvcore.engine.protocol import Setting
from kvcore.engine.records import TakenLater
from kvcore.engines.vllm.additional import additional_of
from kvcore.engines.vllm.versions import vllm_release
from kvcore.engines.vllm_ascend.communicators import BALANCING_IN_PROFILE, NpuRank, moved_expert_bytes
from kvcore.engines.vllm_ascend.npu import NpuEngine, NpuFacts
from kvcore.engines.vllm_ascend.profile import kept_stream_bytes
from kvcore.model.architecture import Architecture
from kvcore.tables import Amount, ReleaseRange, Source, TableFile

DEVICE_310P: Final = "310P"
"""A part of the names of Ascend 310P, whose worker is one of its own."""
BUDGET_SOURCE: Final = (
    "vllm_ascend/worker/worker_v1.py, worker.py:NPUWorker.determine_available_memory "
    "(0.8.5rc1 growth; 0.9.1 to 0.17.0rc1 all; 0.18.0, 0.25.1rc1 parts)"
)
BALANCING_SOURCE: Final = (
    "vllm_ascend/eplb/adaptor/vllm_adaptor.py:VllmEplbAdaptor.init_buffer_tensor (0.9.1, 0.11.0, 0.13.0, 0.18.0, "
    "0.23.0, 0.25.1rc1); worker/model_runner_v1.py:NPUModelRunner.profile_run (0.13.0: after the profile run; "
    "0.14.0rc1, 0.18.0, 0.25.1rc1: before it), worker/worker_v1.py:NPUWorker.compile_or_warm_up_model "
    "(0.9.1, 0.11.0, 0.12.0rc1)"
)
LOST_ON_LOADING_GIB: Final = 19.0
"""Loading a mixture in ModelSlim's format took so much on 0.7.3 that no source explains: two publications die while
they load, with 60.30 GiB in torch's hands where 41 are stored. The experts of mindie_turbo 2.0rc1, which stores what
is quantized there, are 8-bit and take their own place (quantize/w8a8_dynamic.py).

Source: github.com/vllm-project/vllm-ascend/issues/1127 and 2378: DeepSeek-R1 and -V3 in W8A8 on 16 cards of 910B2 with
64 GB, 0.7.3.post1; vllm_ascend/quantization/quantizer.py (0.7.3; own quantizers from 0.8.4rc2 on).
"""


class Mask(ReleaseRange, frozen=True, kw_only=True):
    """An attention mask of max_model_len × max_model_len, made after the KV cache; bytes for each pair of tokens."""

    source: Source
    card: Text
    """A part of the names of the cards."""
    bytes_per_pair: Amount
    least: Amount
    most: Amount


class AscendFacts(NpuFacts, frozen=True, kw_only=True):
    """`engine.toml`."""

    masks: tuple[Mask, ...]
    """The first that matches; without one, attention masks take nothing to speak of."""


FACTS: Final = TableFile("kvcore.engines", "vllm_ascend/engine.toml", AscendFacts)


class AscendEngine(NpuEngine):
    """vllm-ascend."""

    __slots__ = ()

    name: ClassVar[str] = "vllm-ascend"
    format_refusals: ClassVar[frozenset[str]] = NpuEngine.format_refusals | {
        "npu-format-chip",
        "npu-format-attributes",
        "npu-format-blocks",
        "npu-no-scheme",
    }
    profiles_attention: ClassVar[bool] = False
    streams_share: ClassVar[float] = 0.05
    """Arithmetic without a fitted constant: three starts of DeepSeek-V4-Flash on 0.23.0rc1 print 4.74, 7.27 and 3.38
    GiB where 4.69, 7.24 and 3.36 are the figures, and nine pairs of starts at the edge agree.

    Source: vllm_ascend/models/deepseek_v4.py:DeepseekV4Model (0.20.2rc1, 0.23.0).
    """

    @property
    def facts(self) -> AscendFacts:
        return FACTS.load()

    def rank(self, setting: Setting) -> NpuRank:
        return replace(super().rank(setting), moves_experts=True)

    def budget(self, setting: Setting) -> Budget:
        """Everything on the device is taken off, what others hold there too, from 0.9 to 0.17 and on 310P: driver,
        context, communicators, other processes.

        Source: vllm_ascend/worker/worker_v1.py, worker.py:NPUWorker.determine_available_memory (0.9.1, 0.14.0rc1:
        total_allocated_bytes − torch_allocated_bytes; 0.15.0rc1, 0.16.0rc1, 0.17.0rc1:
        non_torch_memory_cleared_by_empty_cache; not in 0.8.5rc1, 0.18.0rc1), _310p/worker_310p.py:
        NPUWorker310.determine_available_memory (0.18.0, 0.23.0, 0.25.1rc1);
        github.com/vllm-project/vllm-ascend/issues/14274.
        """
        version = setting.resolved.version
        if version >= vllm_release("0.18.0"):
            return Budget.ABSOLUTE if DEVICE_310P in setting.card_label else Budget.PARTS
        return Budget.ABSOLUTE if version >= vllm_release("0.9.0") else Budget.PARTS

    def pool_share(self, setting: Setting) -> int:
        """On 310P half of what is left becomes the KV cache.

        Source: vllm_ascend/_310p/worker_310p.py:NPUWorker310.determine_available_memory (0.18.0, 0.23.0, 0.25.1rc1;
        not in 0.17.0rc1).
        """
        return (
            2
            if DEVICE_310P in setting.card_label and setting.resolved.version >= vllm_release("0.18.0")
            else 1
        )

    def unsized_bytes(self, setting: Setting) -> tuple[int, int]:
        """Of keys of `--additional-config` on either side; below, what loading may lose (`LOST_ON_LOADING_GIB`)."""
        version = setting.resolved.version
        unsized = int(additional_of(self, setting.scenario, version).unsized_gib * GIB)
        is_lost = (
            version < vllm_release("0.8.0")
            and setting.architecture.moe is not None
            and "ascend" in setting.storage
        )
        return unsized + (int(LOST_ON_LOADING_GIB * GIB) if is_lost else 0), unsized

    def profiled_buffers(self, setting: Setting) -> int:
        """Buffers of experts that move, in releases that make them before the profile run."""
        is_early = setting.resolved.version >= vllm_release(BALANCING_IN_PROFILE)
        return moved_expert_bytes(self.rank(setting)) if is_early else 0

    def embeds_in_profile(self, version: Version) -> bool:
        """Source: vllm_ascend/worker/model_runner_v1.py:NPUModelRunner.profile_run (0.9.1: the call is a comment, for
        it ran out of memory; 0.9.2rc1, 0.11.0, 0.12.0rc1: none; 0.8.5rc1 and from 0.13.0rc1 on it does)."""
        return not vllm_release("0.9.1") <= version < vllm_release("0.13.0")

    def estimates_graphs(self, setting: Setting) -> bool:
        """Source: vllm_ascend/worker/worker.py:determine_available_memory (0.21.0rc1, 0.22.1rc1; not in 0.20.2rc1,
        0.23.0rc1), which leaves DeepSeek-V4 out."""
        is_between = vllm_release("0.21.0") <= setting.resolved.version < vllm_release("0.23.0")
        return is_between and setting.scenario.config.model_type != "deepseek_v4"

    def taken_later(self, setting: Setting, pool_bytes: float) -> Iterator[TakenLater]:
        """A mask of all pairs of tokens on 310P, buffers of experts that move, and a second pool of a hybrid model."""
        mask = self.mask(setting)
        if mask is not None:
            yield mask
        buffers = moved_expert_bytes(self.rank(setting))
        if buffers and setting.resolved.version < vllm_release(BALANCING_IN_PROFILE):
            yield TakenLater("moved_experts", BALANCING_SOURCE, buffers, buffers, buffers)
        if self.doubles_pool(setting):
            again = max(0.0, pool_bytes)
            yield TakenLater("second_pool", BUDGET_SOURCE, again, again, again)

    def mask(self, setting: Setting) -> TakenLater | None:
        """The attention mask of max_model_len × max_model_len while it is made; None where none is.

        On 310P kernels want one: in float16, once more in the card's own format, and once while it is cast. It is made
        with the first graph or prompt.
        """
        version, card = setting.resolved.version, setting.card_label
        row = next((row for row in self.facts.masks if row.covers(version) and row.card in card), None)
        if row is None or not setting.architecture.num_attention_heads:
            return None
        pairs = setting.resolved.max_model_len**2
        sizes = (rate * pairs for rate in (row.bytes_per_pair, row.least, row.most))
        return TakenLater("mask", row.source, *sizes)

    def doubles_pool(self, setting: Setting) -> bool:
        """Before 0.16 the pool of a hybrid model is allocated for attention, and once more for states.
        Qwen3-Next-80B-A3B with TP 4 on 0.12.0rc1 dies with utilization 0.85 and starts with 0.7 (vllm-ascend issue
        5137).

        Source: vllm_ascend/worker/model_runner_v1.py:_allocate_kv_cache_tensors (0.11.0, 0.12.0rc1, 0.15.0rc1; one pool
        in 0.16.0rc1).
        """
        return setting.resolved.version < vllm_release("0.16.0") and setting.architecture.is_hybrid

    def expands_segments(self, version: Version) -> bool:
        """Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.14.0rc1, 0.23.0; not in 0.13.0)."""
        return version >= vllm_release("0.14.0")

    def table_copies(self, version: Version) -> int:
        """The first plain table is kept as cos and as sin too, each as wide as the table. Published starts on 0.23:
        Qwen3-14B 27.5376 GiB, Qwen3-0.6B 1.14 GiB; on 0.11: Qwen3-8B 15.2684 GiB without.

        Source: vllm_ascend/ops/rotary_embedding.py:_record_cos_and_sin_cache_interleaved (0.13.0, 0.17.0rc1, 0.23.0;
        not in 0.11.0).
        """
        return 2 if version >= vllm_release("0.13.0") else 0

    def kept_stream_bytes(self, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        return kept_stream_bytes(
            tokens, architecture.residual_streams, architecture.hidden_size, element_bytes
        )
