"""AscendEngine: where vllm-ascend answers otherwise than the vLLM that it runs on."""

from collections.abc import Iterator
from typing import ClassVar, Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError, Notice, notice, shorten
from kvcore.base.units import GIB
from kvcore.engine.cards import CardView, Chip, chip_of
from kvcore.engine.facts import ADDITIONAL, SWITCH
from kvcore.engine.overheads import Budget
from kvcore.engine.protocol import Resolved, Setting
from kvcore.engine.records import CompressedBlocks, TakenLater
from kvcore.engine.switches import AttentionKind
from kvcore.engines.vllm.start import Attention, OwnScheduler, Start
from kvcore.engines.vllm.versions import parse_version, vllm_release
from kvcore.engines.vllm_ascend.additional import NOTHING, Additional, AdditionalRules, read_additional
from kvcore.engines.vllm_ascend.captures import limited_sizes
from kvcore.engines.vllm_ascend.communicators import BALANCING_IN_PROFILE, NpuRank, moved_expert_bytes
from kvcore.engines.vllm_ascend.formats import (
    UNPACKED,
    AscendFormats,
    check_asked,
    check_schemes,
    has_blocks,
)
from kvcore.engines.vllm_ascend.npu import NpuEngine, NpuFacts
from kvcore.engines.vllm_ascend.profile import Mask, kept_stream_bytes, mask_taken
from kvcore.engines.vllm_ascend.refusals import Asked, check_combinations, check_states
from kvcore.engines.vllm_ascend.stored import Storing, cuts_context, kept_states, stored
from kvcore.model.architecture import Architecture
from kvcore.model.caches import CacheState
from kvcore.model.quantization import NOT_QUANTIZED, Quantization, read_quantization
from kvcore.model.quantization.compressed import COMPRESSED_TENSORS
from kvcore.model.quantization.modelslim import METHOD as MODELSLIM
from kvcore.model.quantization.modelslim import scheme_named
from kvcore.scenario import CudagraphMode, Scenario
from kvcore.tables import TableFile

DEVICE_310P: Final = "310P"
"""A part of the names of Ascend 310P, whose worker is one of its own."""
FORMER_VARIABLE: Final = "VLLM_ASCEND_ENABLE_FLASHCOMM"
"""FlashComm's other name, which earlier releases read as well."""
SCHEDULER_KEY: Final = "ascend_scheduler_config"
LARGEST_GRAPH: Final = 512
FIRST_BLOCKS: Final = CompressedBlocks(overlapping_share=16, single_share=4, sizes=(128,))
BLOCKS: Final = CompressedBlocks(overlapping_share=16, single_share=4, sizes=(32, 64, 128))
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


class AscendFacts(NpuFacts, frozen=True, kw_only=True):
    """`engine.toml`."""

    masks: tuple[Mask, ...]
    """The first that matches; without one, attention masks take nothing to speak of."""
    additional: AdditionalRules
    formats: AscendFormats


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

    attention: ClassVar[Attention] = Attention("ASCEND", 128)
    states_last: ClassVar[bool] = True
    """Source: vllm_ascend/worker/model_runner_v1.py:NPUModelRunner.get_kv_cache_spec (0.11.0, 0.13.0, 0.18.0, 0.23.0:
    mamba_layers after attention)."""
    aligns_to_kernel_block: ClassVar[bool] = True
    """Source: vllm_ascend/patch/platform/patch_mamba_config.py (0.11.0, 0.13.0, 0.15.0rc1, 0.16.0rc1, 0.18.0,
    0.23.0)."""

    @property
    def facts(self) -> AscendFacts:
        return FACTS.load()

    def additional(self, scenario: Scenario, version: Version) -> Additional:
        text = scenario.additional_config
        return NOTHING if text is None else read_additional(text, self.facts.additional, version)

    def additional_keys(self, version: Version) -> frozenset[str]:
        """An object of the scheduler has a switch of its own from 0.9 on."""
        keys = self.facts.additional.keys(version)
        has_switch = version >= self.facts.additional.scheduler_switch_since
        return keys | {f"{SCHEDULER_KEY}.{SWITCH}"} if has_switch and SCHEDULER_KEY in keys else keys

    def cuts_tokens(self, scenario: Scenario, version: Version) -> bool:
        """Whether FlashComm is asked for, and there are ranks to cut over.

        A key of `--additional-config` counts before the variable, which had another name up to 0.19; from 0.12 on whole
        shared experts ask for it too.

        Source: vllm_ascend/utils.py:enable_sp (0.11.0, 0.19.1rc1: both variables; 0.20.2rc1, 0.23.0: the first),
        ascend_config.py:AscendConfig (0.11.0 without; 0.12.0rc1, 0.13.0, 0.23.0: enable_shared_expert_dp).

        Example:
            >>> from kvcore.wire.request import scenario_from_request
            >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend", "tensor_parallel_size": 2}
            >>> scenario = scenario_from_request({**asked, "env": {FORMER_VARIABLE: "1"}})
            >>> [AscendEngine().cuts_tokens(scenario, Version(version)) for version in ("0.18.0", "0.23.0")]
            [True, False]
        """
        if scenario.parallel.tensor_parallel_size == 1:
            return False
        additional = self.additional(scenario, version)
        is_asked = additional.enable_flashcomm1
        if is_asked is None:
            is_former = version < vllm_release("0.20.1") and scenario.env.get(FORMER_VARIABLE) == "1"
            is_asked = is_former or super().cuts_tokens(scenario, version)
        is_implied = version >= vllm_release("0.12.0") and additional.keeps_shared_experts(scenario.parallel)
        return is_asked or is_implied

    # Flags

    def lists_classes(self, version: Version) -> bool:
        """Source: vllm_ascend/models/__init__.py:register_model (0.11.0, 0.13.0, 0.18.0, 0.23.0): its own classes are
        in vLLM as well."""
        return version >= vllm_release("0.11.0")

    def takes_format(self, method: str, card: CardView, version: Version) -> bool:
        return self.facts.formats.takes(method, version)

    def check_format(self, start: Start) -> None:
        check_asked(start, self.facts.formats.asks)
        if start.quantization.method == COMPRESSED_TENSORS:
            check_schemes(start, self.facts.formats.schemes)

    def format_notices(self, start: Start) -> tuple[Notice, ...]:
        is_unpacked = start.quantization is UNPACKED
        return (notice("fp8-kept-in-16-bits", "quantization"),) if is_unpacked else ()

    def loaded(self, scenario: Scenario, stored: Quantization) -> Quantization:
        """ModelSlim's checkpoints are found by their side file from 0.17 on; a name with a scheme is one where no
        side file is given.

        FP8 checkpoints of MiniMax-M2 are loaded in 16 bits from 0.17 on; those with a scale for each block are
        kept in 16 bits once they are loaded from 0.27 on, but on Ascend 950.

        Source: vllm_ascend/patch/platform/patch_minimax_m2_config.py:_disable_fp8, patch/worker/patch_minimax_m2.py
        (0.17.0rc1, 0.18.0, 0.23.0, 0.25.1rc1; not in 0.16.0rc1), quantization/methods/w8a8/fp8_block.py (0.27.1rc1,
        0.30.0rc2: on every other Ascend generation the resolved matrix is kept in the model dtype);
        quantization/utils.py:maybe_auto_detect_quantization (0.16.0rc1 without, 0.17.0rc1, 0.23.0 with).
        """
        scheme = scheme_named(scenario.model) if scenario.quantization is None else ""
        if scheme and stored.method == NOT_QUANTIZED:
            version = self.planned_release(scenario).version
            if version >= vllm_release("0.17.0"):
                return read_quantization(scenario.config, MODELSLIM, scheme)
        if stored.method != UNPACKED.method:
            return stored
        version = self.planned_release(scenario).version
        is_minimax = scenario.config.root.get("model_type") == "minimax_m2"
        if is_minimax and version >= vllm_release("0.17.0"):
            return Quantization()
        if version < vllm_release("0.27.0") or not has_blocks(scenario.config):
            return stored
        is_a5 = scenario.accelerator is not None and chip_of(scenario.accelerator) is Chip.A5
        return stored if is_a5 else UNPACKED

    def check_card(self, start: Start) -> None:
        """Raises EngineRefusalError `npu-chip-unsupported` on Ascend 910 and 910 Pro B.

        Source: docs/source/faqs.md (0.7.3, 0.11.0, 0.23.0, 0.25.1rc1: NOT supported yet: Ascend 910, Ascend 910 Pro B),
        utils.py:check_ascend_device_type (0.13.0, 0.23.0: Can not support soc_version).
        """
        if start.card.chip is Chip.FIRST_910:
            facts = {"name": start.card.label}
            raise EngineRefusalError("npu-chip-unsupported", "accelerator", facts["name"], **facts)

    def check(self, start: Start, *, prefix_caching: bool, method: str) -> None:
        """Raises EngineRefusalError for what a release does not take together, and for a key of `--additional-config`
        that it does not read where it stops for one."""
        scenario, version = start.scenario, start.version
        additional = self.additional(scenario, version)
        check_combinations(
            Asked(
                start=start,
                additional=additional,
                cuts_tokens=self.cuts_tokens(scenario, version),
                prefix_caching=prefix_caching,
                block_size=self.attention.block_size,
            )
        )
        if additional.unread and version >= self.facts.additional.refuses_unread_since:
            raise EngineRefusalError("npu-refuses-unknown-key", ADDITIONAL, shorten(additional.unread[0], 80))
        check_states(start, prefix_caching=prefix_caching, method=method)

    def additional_notices(self, start: Start) -> Iterator[Notice]:
        """`additional-config-unsized` for keys that move memory by what no source sizes."""
        additional = self.additional(start.scenario, start.version)
        if additional.unsized:
            keys, gib = ", ".join(additional.unsized), f"{additional.unsized_gib:g}"
            yield notice("additional-config-unsized", ADDITIONAL, keys=keys, gib=gib)

    def scheduler(self, scenario: Scenario, version: Version) -> OwnScheduler | None:
        return self.additional(scenario, version).scheduler

    def cuts_prompts(self, start: Start) -> bool:
        """Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.9.1, 0.10.2rc1: Non-MLA LLMs forcibly
        disable the chunked prefill feature; 0.9.2rc1, 0.10.1rc1, 0.11.0 without)."""
        version = start.version
        is_first = vllm_release("0.9.1") <= version < vllm_release("0.9.2")
        return not (is_first or vllm_release("0.10.2") <= version < vllm_release("0.11.0"))

    def counts_in_flight(self, start: Start) -> bool:
        """In 0.23 itself, not in its candidates.

        Source: vllm_ascend/patch/platform/patch_async_swa_kv_lifetime.py (0.23.0; not in 0.22.1rc1, 0.23.0rc1,
        0.24.0rc1).
        """
        asked = start.scenario.engine_version
        is_release = asked is None or not parse_version(asked).is_prerelease
        return is_release and vllm_release("0.23.0") <= start.version < vllm_release("0.24.0")

    def own_block_size(self, start: Start, fixed: bool) -> int:
        """128 tokens where nothing is asked, or where the platform takes no other: where prefixes are cached or prompts
        cut, but for V0 and hybrid models.

        Source: vllm_ascend/utils.py:refresh_block_size (0.13.0, 0.20.2rc1, 0.23.0), platform.py:NPUPlatform.
        check_and_update_config (0.9.1, 0.11.0).
        """
        asked, blocks = start.scenario.block_size, self.compressed_blocks(start.version)
        if asked is None:
            return self.attention.block_size
        if start.traits.attention is AttentionKind.COMPRESSED and blocks is not None:
            return asked if asked in blocks.sizes else blocks.sizes[0]
        takes_any = start.is_v0 or start.traits.is_hybrid
        return self.attention.block_size if fixed and not takes_any else asked

    def graph_modes(
        self, modes: tuple[str, ...], mixed_full: bool, asked: CudagraphMode | None, start: Start
    ) -> tuple[tuple[str, ...], bool]:
        """No graphs in V0; none of mixed batches in full before 0.12; decode batches in full next to piecewise ones
        from 0.21 on.

        Source: vllm_ascend/worker/worker.py:NPUWorker (0.7.3, 0.9.1: model capture is not supported), platform.py:
        NPUPlatform.check_and_update_config (0.11.0: FULL is not support on NPU; 0.12.0rc1, 0.13.0, 0.18.0 take it;
        0.11.0, 0.13.0, 0.18.0, 0.20.2rc1: FULL_AND_PIECEWISE becomes PIECEWISE; 0.21.0rc1, 0.23.0 without),
        attention/ attention_v1.py, mla_v1.py, sfa_v1.py, dsa_v1.py:get_cudagraph_support (0.13.0, 0.18.0, 0.23.0).
        """
        if start.is_v0:
            return (), False
        if asked is CudagraphMode.FULL and not start.is_pooling and start.version < vllm_release("0.12.0"):
            return (), False
        found, mixed = super().graph_modes(modes, mixed_full, asked, start)
        is_joined = len(found) > 1 and start.version < vllm_release("0.21.0")
        return (("PIECEWISE",), False) if is_joined else (found, mixed)

    def captures_requests(self, version: Version) -> bool:
        """Source: vllm_ascend/platform.py:NPUPlatform._get_default_max_cudagraph_capture_size (0.18.0, 0.23.0,
        0.25.1rc1; not in 0.17.0rc1)."""
        return version >= vllm_release("0.18.0")

    def largest_graph(self, start: Start, resolved: Resolved) -> int | None:
        """min(max_num_seqs × tokens of a request, 512). Source: that of `captures_requests`."""
        if start.is_v0 or not self.captures_requests(start.version):
            return None
        return min(resolved.max_num_seqs * (1 + resolved.num_speculative_tokens), LARGEST_GRAPH)

    def limited_sizes(self, sizes: tuple[int, ...], start: Start, resolved: Resolved) -> tuple[int, ...]:
        additional = self.additional(start.scenario, start.version)
        return limited_sizes(sizes, start, resolved, overlaps_experts=additional.overlaps_experts)

    # Weights

    def stored_architecture(self, scenario: Scenario, architecture: Architecture) -> Architecture:
        """`architecture` with shared experts whole or cut, redundant experts, keys of an indexer in 8 bits, and single
        modules cut over data parallel ranks.

        Shared experts: vLLM stores them whole where experts are sharded over tensor and data parallel ranks.
        vllm-ascend switches that off: whole with FlashComm or `enable_shared_expert_dp` alone, where their names have
        the piece that the release looks for, and cut otherwise.

        Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.11.0rc0, 0.23.0: all2all_backend
        flashinfer_all2allv), ops/linear_op.py:get_parallel_op (0.11.0, 0.15.0rc1: shared_experts; 0.16.0rc1, 0.23.0:
        shared_expert too), utils.py:shared_expert_dp_enabled (0.11.0, 0.18.0, 0.23.0).
        """
        version = self.planned_release(scenario).version
        additional, parallel = self.additional(scenario, version), scenario.parallel
        is_cut, piece = self.cuts_tokens(scenario, version), ""
        if architecture.moe is not None and version >= vllm_release("0.11.0"):
            piece = "shared_expert" if version >= vllm_release("0.16.0") else "shared_experts"
        storing = Storing(
            tensor_ranks=parallel.tensor_parallel_size if additional.ranks.asked else 1,
            shared_piece=piece,
            has_whole_shared=bool(piece) and (is_cut or additional.keeps_shared_experts(scenario.parallel)),
            has_whole_queries=is_cut and cuts_context(architecture, additional, version),
            redundant_experts=additional.redundant_experts if parallel.enable_expert_parallel else 0,
            packs_index_keys=additional.packs_index_keys,
            ranks=additional.ranks,
        )
        return architecture if storing == Storing() else stored(architecture, storing)

    # Cache

    def kept_states(self, caches: tuple[CacheState, ...], version: Version) -> Iterator[CacheState]:
        is_own = version >= vllm_release("0.14.0")
        return kept_states(caches, keeps_windows=is_own, joins_keys=is_own)

    def compressed_blocks(self, version: Version) -> CompressedBlocks | None:
        """Source: vllm_ascend/patch/worker/patch_deepseek_compressor.py (0.20.2rc1), models/layer/attention/layer.py:
        get_dsv4_block_sizes (0.21.0rc1, 0.22.1rc1, 0.23.0, 0.24.0rc1)."""
        if version < vllm_release("0.20.1"):
            return None
        return FIRST_BLOCKS if version < vllm_release("0.21.0") else BLOCKS

    def has_contiguous_states(self, resolved: Resolved) -> bool:
        """But on 310P, whose worker lays hybrid models out as vLLM does.

        Source: vllm_ascend/patch/platform/patch_mamba_config.py (0.15.0rc1 without, 0.16.0rc1, 0.18.0, 0.23.0 with).
        """
        return resolved.version >= vllm_release("0.16.0") and not resolved.on_310p

    # Memory

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
        """Unsized keys of `--additional-config` on either side; below, what loading may lose
        (`LOST_ON_LOADING_GIB`)."""
        version = setting.resolved.version
        unsized = int(self.additional(setting.scenario, version).unsized_gib * GIB)
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
        """Development versions of 0.23 do, whose text says "since v0.22.1": taken back on 8 July 2026 (pull request
        11562), before 0.23.0rc1, and not there again in 0.30.0rc2.

        Source: vllm_ascend/worker/worker.py:determine_available_memory (0.21.0rc1, 0.22.1rc1; not in 0.20.2rc1, 0.23.0,
        0.24.0rc1, 0.25.1rc1, 0.26.0rc1, 0.27.1rc1, 0.30.0rc2), which leaves DeepSeek-V4 out."""
        asked = setting.scenario.engine_version
        planned = setting.resolved.version if asked is None else parse_version(asked)
        is_between = vllm_release("0.21.0") <= setting.resolved.version and planned < parse_version(
            "0.23.0rc1"
        )
        return is_between and setting.scenario.config.model_type != "deepseek_v4"

    def taken_later(self, setting: Setting, pool_bytes: float) -> Iterator[TakenLater]:
        """A mask of all pairs of tokens on 310P, buffers of experts that move, and a second pool of a hybrid model."""
        mask = mask_taken(self.facts.masks, setting)
        if mask is not None:
            yield mask
        buffers = moved_expert_bytes(self.rank(setting))
        if buffers and setting.resolved.version < vllm_release(BALANCING_IN_PROFILE):
            yield TakenLater("moved_experts", BALANCING_SOURCE, buffers, buffers, buffers)
        if self.doubles_pool(setting):
            again = max(0.0, pool_bytes)
            yield TakenLater("second_pool", BUDGET_SOURCE, again, again, again)

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
