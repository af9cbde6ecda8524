"""resolve(): every flag as one engine version fills it in, and the internal switches that follow from the flags."""

from __future__ import annotations

from typing import Final, assert_never

from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.resolved import CardView, Resolved
from kvcore.engine.rooms import engine_for, find_engine
from kvcore.engine.vllm.availability import check_availability
from kvcore.engine.vllm.backends import (
    Traits,
    backend_row,
    backend_to_ask_for,
    check_block_size,
    check_sparse_attention,
    kv_storage_dtype,
    traits_of,
)
from kvcore.engine.vllm.captures import Circumstances, captures
from kvcore.engine.vllm.classes import check_architectures
from kvcore.engine.vllm.recurrent import check_state_flags, mamba_cache_mode, state_dtypes, state_notices
from kvcore.engine.vllm.runner import (
    V0_CHUNKED_LENGTH,
    V0_SEQUENCES,
    batch_defaults,
    falls_back_to_v0,
    is_async,
    largest_item_tokens,
    max_concurrent_batches,
    runner_notices,
    runner_of,
    scheduling_runner,
    speculation_of,
    uses_v2_runner,
    v0_tokens,
)
from kvcore.engine.vllm.storage import check_quantization, storage_of
from kvcore.engine.vllm.switches import AttentionKind, HybridPrefixCaching, Switches, V1Engine
from kvcore.engine.vllm.versions import Release, planned_release
from kvcore.errors import EngineRefusalError, Notice
from kvcore.model.architecture import Architecture
from kvcore.model.rope import default_max_model_len, derived_max_model_len
from kvcore.scenario import Runner, Scenario

TORCH_NAMES: Final = {"half": "float16", "float": "float32"}
BFLOAT16_CAPABILITY: Final = 80
"""Source: vllm/platforms/cuda.py:CudaPlatformBase.supported_dtypes (0.32.0)."""

TURBOQUANT: Final = "turboquant"


def resolve(scenario: Scenario, architecture: Architecture, card: CardView) -> Resolved:
    """Every flag as the engine version of `scenario` would resolve it for `vllm serve` on `card`.

    Raises EngineRefusalError for what the engine refuses before it looks at memory, in its words; ScenarioError for
    an engine version that cannot be read. For hybrid models `block_size` is the one before alignment.

    Source: vllm/engine/arg_utils.py:EngineArgs.create_engine_config (0.8.5, 0.11.0, 0.19.0, 0.28.0, 0.32.0).
    """
    release = planned_release(scenario)
    version, switches = release.version, release.switches
    check_availability(scenario, version)
    traits = traits_of(architecture)
    quantization = storage_of(scenario)
    runner = runner_of(scenario)
    scheduling = scheduling_runner(scenario, runner)
    is_v0 = runs_v0(switches, scenario, architecture, card) or falls_back_to_v0(
        switches, scenario, scheduling
    )
    notices = list(release.notices)
    if card.is_assumed:
        notices.append(Notice(code="accelerator-assumed", field="accelerator", params={"name": card.label}))
    elif not find_engine(scenario.engine).runs_on(card):
        facts = {
            "engine": scenario.engine,
            "name": card.label,
            "other": engine_for(card).name,
        }
        notices.append(Notice(code="engine-not-on-card", field="engine", params=facts))
    notices += runner_notices(scenario, architecture, runner, version)
    if release.is_exact:
        check_architectures(scenario.config.architectures, scenario.engine, version)
        notices += check_quantization(
            method=quantization.method,
            requested=scenario.quantization,
            engine=scenario.engine,
            card=card,
            version=version,
        )
        check_sparse_attention(traits.attention, card, switches)
        check_block_size(
            scenario.block_size,
            version,
            switches,
            runs_kernels=not (is_v0 or traits.is_attention_free or traits.is_bidirectional),
        )
    dtype = _dtype(scenario, architecture, card, runner, notices)
    kv_cache_dtype = kv_storage_dtype(
        asked=scenario.kv_cache_dtype,
        declared=quantization.kv_cache_dtype,
        dtype=dtype,
        attention=traits.attention,
        architecture=architecture,
        card=card,
        version=version,
        switches=switches,
    )
    max_model_len, derived = _lengths(scenario, architecture, version, notices)
    is_pooling = scheduling is Runner.POOLING
    chunked = _chunked_prefill(scenario, traits, architecture, is_v0, is_pooling, max_model_len)
    tokens, sequences = _batch(
        scenario, architecture, card, switches, is_v0, is_pooling, chunked, max_model_len
    )
    method, speculative_tokens = speculation_of(scenario, architecture)
    use_v2, schedules_v2 = (
        uses_v2_runner(
            switches=switches,
            scenario=scenario,
            is_moe=architecture.moe is not None,
            is_plain=not traits.recurrent,
            is_quantized=bool(quantization.method and quantization.method != "unquantized"),
            method=method,
            runner=running,
        )
        for running in (runner, scheduling)
    )
    stages = scenario.parallel.pipeline_parallel_size
    asynchronous = is_async(switches, method, schedules_v2, stages, scheduling)
    prefix_caching = _prefix_caching(scenario, traits, switches, is_v0, is_pooling)
    speculates = speculative_tokens > 0
    mode = mamba_cache_mode(
        scenario.mamba_cache_mode, traits.recurrent, switches.mamba_cache_mode, prefix_caching, speculates
    )
    check_state_flags(
        scenario,
        mode=mode,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked,
        speculates=speculates,
        max_model_len=max_model_len,
        switches=switches,
    )
    row_dtype, state_dtype = state_dtypes(scenario, traits.recurrent, dtype, switches)
    notices += state_notices(scenario, traits.recurrent, mode)
    backend, block_size = _backend(scenario, traits, kv_cache_dtype, card, release, is_v0)
    backend = backend_to_ask_for(architecture) or backend
    captured = captures(
        scenario,
        Circumstances(
            version=version,
            switches=switches,
            card=card,
            attention_backend=backend,
            model_type=architecture.model_type,
            max_num_seqs=sequences,
            max_num_batched_tokens=tokens,
            num_speculative_tokens=speculative_tokens,
            is_v0=is_v0,
            use_v2=use_v2,
            is_hybrid=bool(traits.recurrent),
            is_encoder_decoder=traits.is_encoder_decoder,
            is_pooling=runner is Runner.POOLING,
        ),
    )
    notices += captured.notices
    return Resolved(
        engine=scenario.engine,
        engine_version=str(version),
        version=version,
        is_v0=is_v0,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        derived_max_model_len=derived,
        max_model_len_auto=scenario.max_model_len == -1,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        block_size=block_size,
        gpu_memory_utilization=scenario.gpu_memory_utilization or switches.gpu_memory_utilization,
        enforce_eager=scenario.enforce_eager,
        enable_prefix_caching=prefix_caching,
        enable_chunked_prefill=chunked,
        async_scheduling=asynchronous,
        max_concurrent_batches=max_concurrent_batches(asynchronous, schedules_v2, stages),
        use_v2_model_runner=use_v2,
        hybrid_kv_cache_manager=_hybrid_manager(scenario, traits, switches, method),
        mamba_cache_mode=mode,
        mamba_block_size=scenario.mamba_block_size,
        mamba_cache_dtype=row_dtype,
        mamba_ssm_cache_dtype=state_dtype,
        attention_backend=backend,
        cudagraph_capture_sizes=captured.sizes,
        cudagraph_modes=captured.modes,
        captures_mixed_full=captured.mixed_full,
        runner=runner,
        num_speculative_tokens=speculative_tokens,
        speculative_method=method,
        num_gpu_blocks_override=scenario.num_gpu_blocks_override,
        quantization_method=quantization.method,
        notices=tuple(notices),
    )


def runs_v0(switches: Switches, scenario: Scenario, architecture: Architecture, card: CardView) -> bool:
    """Whether the first engine runs: by default before 0.8, by VLLM_USE_V1=0, and for what V1 could not do yet.

    Source: vllm/envs.py:VLLM_USE_V1, vllm/engine/arg_utils.py:EngineArgs._is_v1_supported_oracle (0.8.5, 0.10.2).
    """
    asked = scenario.env.get("VLLM_USE_V1")
    match switches.v1_engine:
        case V1Engine.ONLY:
            return False
        case V1Engine.NEVER:
            return True
        case V1Engine.OPT_IN:
            return asked != "1"
        case V1Engine.DEFAULT:
            if asked in ("0", "1"):
                return asked == "0"
        case other:
            assert_never(other)
    is_old_card = card.vendor is Vendor.NVIDIA and card.number < BFLOAT16_CAPABILITY
    is_fp8_off_hopper = scenario.kv_cache_dtype.startswith("fp8") and card.number != 90
    return is_old_card or is_fp8_off_hopper


def _dtype(
    scenario: Scenario,
    architecture: Architecture,
    card: CardView,
    runner: Runner,
    notices: list[Notice],
) -> str:
    """Source: vllm/config/model.py:_resolve_auto_dtype, vllm/platforms/cuda.py:check_if_supports_dtype (0.32.0)."""
    asked = TORCH_NAMES.get(scenario.dtype, scenario.dtype)
    name = architecture.dtype if asked == "auto" else asked
    if asked == "auto" and name == "float32":
        name = "float16" if runner is Runner.POOLING else "bfloat16"
    is_old_card = card.vendor is Vendor.NVIDIA and card.number < BFLOAT16_CAPABILITY
    if name != "bfloat16" or not is_old_card:
        return name
    major, minor = card.compute_capability or (0, 0)
    facts = {"name": card.label, "capability": f"{major}.{minor}"}
    if asked != "auto":
        raise EngineRefusalError("bfloat16-unsupported", field="dtype", value=scenario.dtype, **facts)
    notices.append(Notice(code="dtype-falls-back", field="dtype", params=facts))
    return "float16"


def _lengths(
    scenario: Scenario, architecture: Architecture, version: Version, notices: list[Notice]
) -> tuple[int, int]:
    """max_model_len as asked or by default, and the longest that the model itself allows."""
    derived = derived_max_model_len(architecture.context, version)
    asked = scenario.max_model_len
    if asked is None or asked == -1:
        return default_max_model_len(architecture.context, version), derived
    if asked > derived:
        notices.append(
            Notice(
                code="max-model-len-above-model",
                field="max_model_len",
                params={"asked": str(asked), "derived": str(derived)},
            )
        )
    return asked, derived


def _chunked_prefill(
    scenario: Scenario,
    traits: Traits,
    architecture: Architecture,
    is_v0: bool,
    is_pooling: bool,
    max_model_len: int,
) -> bool:
    """V1 does not cut what it pools where each token looks at all others; V0 cuts nothing that it pools.

    Source: vllm/engine/arg_utils.py:_set_default_args_v0 (0.8.5), _set_default_args_v1 (0.10.2),
    vllm/config/model.py:ModelConfig.is_chunked_prefill_supported (0.32.0).
    """
    if scenario.enable_chunked_prefill is not None:
        return scenario.enable_chunked_prefill
    if not is_v0:
        return not traits.is_encoder_decoder and not (is_pooling and traits.is_bidirectional)
    return (
        not is_pooling
        and max_model_len > V0_CHUNKED_LENGTH
        and not architecture.is_multimodal
        and not architecture.is_mla
        and not scenario.enable_lora
        and scenario.speculative_config is None
    )


def _batch(
    scenario: Scenario,
    architecture: Architecture,
    card: CardView,
    switches: Switches,
    is_v0: bool,
    is_pooling: bool,
    chunked: bool,
    max_model_len: int,
) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs.

    Source: vllm/engine/arg_utils.py:EngineArgs._set_default_max_num_seqs_and_batched_tokens_args (0.12.0, 0.32.0).
    """
    defaults = batch_defaults(switches.batch_tiers, card)
    sequences = scenario.max_num_seqs or (V0_SEQUENCES if is_v0 else defaults.max_num_seqs)
    tokens = scenario.max_num_batched_tokens
    if tokens is None and is_v0:
        tokens = v0_tokens(
            max_model_len=max_model_len,
            enable_chunked_prefill=chunked,
            is_multimodal=architecture.is_multimodal,
            is_pooling=is_pooling,
        )
    elif tokens is None:
        tokens = defaults.max_num_batched_tokens
        if not chunked:
            tokens = max(tokens, max_model_len)
        if switches.largest_item_in_batch:
            tokens = max(tokens, largest_item_tokens(scenario.config))
        if switches.clips_batch:
            tokens = min(tokens, sequences * max_model_len)
    if scenario.max_num_seqs is None and switches.clips_batch:
        sequences = min(sequences, tokens)
    if tokens < sequences:
        raise EngineRefusalError(
            "batch-below-sequences", field="max_num_batched_tokens", value=tokens, sequences=sequences
        )
    if not chunked and tokens < max_model_len:
        raise EngineRefusalError(
            "batch-below-length", field="max_num_batched_tokens", value=tokens, length=max_model_len
        )
    return tokens, sequences


def _prefix_caching(
    scenario: Scenario, traits: Traits, switches: Switches, is_v0: bool, is_pooling: bool
) -> bool:
    """Source: vllm/config/model.py:ModelConfig.is_prefix_caching_supported (0.19.0, 0.32.0)."""
    if traits.recurrent and switches.hybrid_prefix_caching is HybridPrefixCaching.UNSUPPORTED:
        return False
    if scenario.enable_prefix_caching is not None:
        return scenario.enable_prefix_caching
    if is_v0 or traits.is_encoder_decoder or traits.is_attention_free:
        return False
    if is_pooling and traits.is_bidirectional:
        return False
    return not traits.is_hybrid or switches.hybrid_prefix_caching is HybridPrefixCaching.ON


def _hybrid_manager(scenario: Scenario, traits: Traits, switches: Switches, method: str) -> bool:
    """Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.11.0, 0.19.0)."""
    if scenario.disable_hybrid_kv_cache_manager:
        return False
    return not traits.has_chunked_local or (switches.chunked_local_groups and not method.startswith("eagle"))


def _backend(
    scenario: Scenario,
    traits: Traits,
    kv_cache_dtype: str,
    card: CardView,
    release: Release,
    is_v0: bool,
) -> tuple[str, int]:
    """The attention backend and the block size, before hybrid alignment."""
    own = find_engine(scenario.engine).attention
    if own is not None:
        return own.backend, scenario.block_size or own.block_size
    attention = AttentionKind.TURBOQUANT if kv_cache_dtype.startswith(TURBOQUANT) else traits.attention
    row = backend_row(
        release.version,
        card.number,
        attention,
        kv_cache_dtype.startswith(("fp8", "nvfp4")),
    )
    if scenario.block_size is None or row.forced:
        return row.backend, row.block_size
    return row.backend, scenario.block_size
