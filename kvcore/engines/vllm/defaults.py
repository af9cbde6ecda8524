"""resolve(): every flag as one engine version fills it in, and the internal switches that follow from the flags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError, Notice, notice, shorten
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.cards import CardView
from kvcore.engine.facts import ADDITIONAL
from kvcore.engine.protocol import Engine, Resolved
from kvcore.engine.switches import HybridPrefixCaching
from kvcore.engines.vllm.availability import check_availability
from kvcore.engines.vllm.backends import (
    backend_of,
    check_block_size,
    check_prefill_context,
    check_sparse_attention,
    kv_storage_dtype,
    stores_narrow_keys,
)
from kvcore.engines.vllm.captures import captures
from kvcore.engines.vllm.classes import check_architectures
from kvcore.engines.vllm.connectors import check_connector, connector_notices, keeps_groups
from kvcore.engines.vllm.recurrent import (
    check_state_flags,
    mamba_cache_mode,
    state_dtypes,
    state_export_tokens,
    state_notices,
)
from kvcore.engines.vllm.runner import (
    EXCHANGED_TOKENS,
    V0_CHUNKED_LENGTH,
    V0_SEQUENCES,
    batch_defaults,
    exchanges_batches,
    is_async,
    largest_item_tokens,
    max_concurrent_batches,
    runner_notices,
    runner_of,
    runs_v0,
    scheduling_runner,
    speculation_of,
    uses_v2_runner,
    v0_tokens,
)
from kvcore.engines.vllm.start import Start, VllmPlatform
from kvcore.engines.vllm.storage import check_quantization, storage_of
from kvcore.engines.vllm.versions import planned_release, vllm_release
from kvcore.model.architecture import Architecture, caches_of
from kvcore.model.caches import SlidingWindow
from kvcore.model.overrides import without_effect
from kvcore.model.quantization.modelslim import METHOD as MODELSLIM
from kvcore.model.rope import default_max_model_len, derived_max_model_len
from kvcore.scenario import AUTO, Runner, Scenario

TORCH_NAMES: Final = {"half": "float16", "float": "float32"}


def resolve(engine: VllmPlatform, scenario: Scenario, architecture: Architecture, card: CardView) -> Resolved:
    """Every flag as the engine version of `scenario` would resolve it for `vllm serve` on `card`.

    Raises EngineRefusalError for what the engine refuses before it looks at memory, in its words; ScenarioError for
    an engine version that cannot be read. For hybrid models `block_size` is the one before alignment.

    Source: vllm/engine/arg_utils.py:EngineArgs.create_engine_config (0.8.5, 0.11.0, 0.19.0, 0.28.0, 0.32.0).
    """
    release = planned_release(engine, scenario)
    version, switches = release.version, release.switches
    check_availability(scenario, version)
    quantization, runner = storage_of(engine, scenario), runner_of(scenario)
    scheduling = scheduling_runner(scenario, runner)
    start = Start(
        engine=engine,
        scenario=scenario,
        architecture=architecture,
        card=card,
        release=release,
        quantization=quantization,
        runner=runner,
        scheduling=scheduling,
        is_v0=runs_v0(scenario, card, switches, scheduling),
    )
    engine.check_card(start)
    traits = start.traits
    notices = [*release.notices, *_card_notices(start), *runner_notices(start)]
    if release.is_exact:
        check_architectures(scenario.config.architectures, engine, version)
    if engine.checks_format(release):
        notices += check_quantization(start)
    check_connector(start)
    if release.is_exact:
        check_sparse_attention(start)
        check_block_size(start)
    dtype = _dtype(start, notices)
    kv_cache_dtype = kv_storage_dtype(start, dtype)
    max_model_len, derived = _lengths(start, notices)
    chunked = _chunked_prefill(start, max_model_len)
    tokens, sequences = _batch(start, chunked, max_model_len)
    method, speculative_tokens = speculation_of(scenario, architecture)
    use_v2, schedules_v2 = (uses_v2_runner(start, running, method) for running in (runner, scheduling))
    asynchronous = is_async(start, method, schedules_v2)
    prefix_caching = _prefix_caching(start)
    speculates = speculative_tokens > 0
    mode = mamba_cache_mode(
        scenario.mamba_cache_mode, traits.recurrent, switches.mamba_cache_mode, prefix_caching, speculates
    )
    check_state_flags(
        start,
        mode=mode,
        prefix_caching=prefix_caching,
        chunked=chunked,
        speculates=speculates,
        max_model_len=max_model_len,
    )
    engine.check(start, prefix_caching=prefix_caching, method=method)
    row_dtype, state_dtype = state_dtypes(start, dtype)
    notices += state_notices(start, mode)
    backend, block_size = backend_of(start, kv_cache_dtype, fixed=prefix_caching or chunked)
    check_prefill_context(start, backend)
    notices += _platform_notices(start, block_size)
    resolved = Resolved(
        engine=engine,
        engine_version=str(version),
        version=version,
        is_v0=start.is_v0,
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
        enable_chunked_prefill=chunked
        and not (start.is_v0 and architecture.is_mla and switches.latent_cuts_late),
        async_scheduling=asynchronous,
        max_concurrent_batches=max_concurrent_batches(
            asynchronous, schedules_v2, scenario.parallel.pipeline_parallel_size
        ),
        use_v2_model_runner=use_v2,
        hybrid_kv_cache_manager=_hybrid_manager(start, method),
        mamba_cache_mode=mode,
        on_310p=card.is_310p,
        counts_in_flight=engine.counts_in_flight(start),
        state_export_tokens=state_export_tokens(start, mode),
        mamba_block_size=scenario.mamba_block_size,
        mamba_cache_dtype=row_dtype,
        mamba_ssm_cache_dtype=state_dtype,
        attention_backend=backend,
        runner=runner,
        num_speculative_tokens=speculative_tokens,
        speculative_method=method,
        num_gpu_blocks_override=scenario.num_gpu_blocks_override,
        narrow_block_keys=stores_narrow_keys(start),
    )
    captured = captures(start, resolved)
    return replace(
        resolved,
        cudagraph_capture_sizes=captured.sizes,
        cudagraph_modes=captured.modes,
        captures_mixed_full=captured.mixed_full,
        notices=(*notices, *captured.notices),
    )


def _card_notices(start: Start) -> tuple[Notice, ...]:
    """A card that nobody named, or one that the engine does not run on."""
    card, engine = start.card, start.engine
    if card.is_assumed:
        return (notice("accelerator-assumed", "accelerator", name=card.label),)
    if engine.runs_on(card):
        return ()
    facts = {"engine": engine.name, "name": card.label, "other": card.served_by}
    return (notice("engine-not-on-card", "engine", **facts),)


def _platform_notices(start: Start, block_size: int) -> Iterator[Notice]:
    """Notices about the platform; `modelslim-checkpoint-assumed` for weights that nothing says the storage of;
    `additional-config-not-read` for keys that the release passes over; `npu-needs-float16` on an Ascend 310P, whose
    kernels have no bfloat16."""
    engine, scenario = start.engine, start.scenario
    yield from engine.notices(start, block_size)
    is_modelslim = start.quantization.method == MODELSLIM
    if is_modelslim and scenario.config.hf_quant_config is None:
        model = shorten(scenario.model.rsplit("/", 1)[-1])
        yield notice("modelslim-checkpoint-assumed", "quantization", model=model)
    said = scenario.hf_overrides
    if said is not None and (idle := without_effect(scenario.config, said)):
        yield notice("hf-overrides-without-effect", "hf_overrides", keys=shorten(", ".join(idle), 200))
    if unread := unread_keys(engine, scenario, start.version):
        release = f"{engine.name} {scenario.engine_version or start.version}"
        yield notice(
            "additional-config-not-read", ADDITIONAL, release=release, keys=shorten(", ".join(unread), 200)
        )
    yield from engine.additional_notices(start)
    yield from connector_notices(start)
    if start.card.is_310p and scenario.dtype == AUTO and start.architecture.dtype == "bfloat16":
        yield notice("npu-needs-float16", "dtype", name=start.card.label)


def unread_keys(engine: Engine, scenario: Scenario, version: Version) -> tuple[str, ...]:
    """Keys of `--additional-config` that the release passes over: for vLLM, which leaves them to plug-ins, all."""
    if scenario.additional_config is None:
        return ()
    known = engine.additional_keys(version)
    return tuple(name for name in json.loads(scenario.additional_config) if name not in known)


def _dtype(start: Start, notices: list[Notice]) -> str:
    """Source: vllm/config/model.py:_resolve_auto_dtype, vllm/platforms/cuda.py:check_if_supports_dtype (0.32.0)."""
    given, card = start.scenario.dtype, start.card
    name = start.architecture.dtype if given == AUTO else TORCH_NAMES.get(given, given)
    if given == AUTO and name == "float32":
        name = "float16" if start.runner is Runner.POOLING else "bfloat16"
    if name == "bfloat16" and card.is_310p and given != AUTO:
        raise EngineRefusalError("bfloat16-not-on-npu", field="dtype", value=given, name=card.label)
    if name != "bfloat16" or not card.predates_ampere:
        return name
    if given != AUTO:
        raise EngineRefusalError("bfloat16-unsupported", field="dtype", value=given, **card.words)
    notices.append(notice("dtype-falls-back", "dtype", **card.words))
    return "float16"


def _lengths(start: Start, notices: list[Notice]) -> tuple[int, int]:
    """max_model_len as asked or by default, and the longest that the model itself allows."""
    context, asked = start.architecture.context, start.scenario.max_model_len
    derived = derived_max_model_len(context, start.version)
    if asked is None or asked == -1:
        return default_max_model_len(context, start.version), derived
    if asked > derived:
        notices.append(notice("max-model-len-above-model", "max_model_len", asked=asked, derived=derived))
    return asked, derived


def _chunked_prefill(start: Start, max_model_len: int) -> bool:
    """V1 does not cut what it pools where each token looks at all others; V0 cuts nothing that it pools.

    Before 0.8 latent attention was left out so late that the batch had already been made, and checked, as for cutting.

    V0 cuts long prompts by itself on CUDA alone, before 0.8 on ROCm too, and not where a window holds for all layers.
    A plug-in's scheduler cuts prompts only where its own settings say so.

    Source: vllm/engine/arg_utils.py:_set_default_args_v0 (0.8.5, 0.9.2, 0.10.1.1), _set_default_args_v1 (0.10.2),
    vllm/config/model.py:ModelConfig.is_chunked_prefill_supported (0.32.0),
    vllm_ascend/core/schedule_config.py:AscendSchedulerConfig (0.7.3, 0.11.0).
    """
    scenario, architecture, traits = start.scenario, start.architecture, start.traits
    if not _cuts_prompts(start):
        return False
    if start.own_scheduler is not None:
        return start.own_scheduler.enable_chunked_prefill
    if scenario.enable_chunked_prefill is not None:
        return scenario.enable_chunked_prefill
    if not start.is_v0:
        return not traits.is_encoder_decoder and not (start.is_pooling and traits.is_bidirectional)
    return (
        not start.is_pooling
        and max_model_len > V0_CHUNKED_LENGTH
        and _cuts_long_prompts(start)
        and not architecture.is_multimodal
        and not (architecture.is_mla and not start.switches.latent_cuts_late)
        and not scenario.enable_lora
        and scenario.speculative_config is None
    )


def _cuts_long_prompts(start: Start) -> bool:
    """`is_gpu and not use_sliding_window`: the device type of ROCm was "cuda" as well before 0.8."""
    vendors = (Vendor.NVIDIA, Vendor.AMD) if start.version < vllm_release("0.8.0") else (Vendor.NVIDIA,)
    has_window = all(isinstance(cache, SlidingWindow) for cache in caches_of(start.architecture))
    return start.card.vendor in vendors and not has_window


def _cuts_prompts(start: Start) -> bool:
    """Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.9.1, 0.10.2rc1)."""
    architecture = start.architecture
    is_other = start.is_v0 or architecture.is_mla or architecture.is_multimodal
    return is_other or start.engine.cuts_prompts(start)


def _batch(start: Start, chunked: bool, max_model_len: int) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs.

    Source: vllm/engine/arg_utils.py:EngineArgs._set_default_max_num_seqs_and_batched_tokens_args (0.12.0, 0.32.0).
    """
    scenario, switches, own = start.scenario, start.switches, start.own_scheduler
    default_tokens, default_sequences = batch_defaults(switches.batch_tiers, start.card)
    sequences = scenario.max_num_seqs or (V0_SEQUENCES if start.is_v0 else default_sequences)
    tokens = scenario.max_num_batched_tokens
    if tokens is None and start.is_v0:
        tokens = v0_tokens(start, max_model_len, chunked)
    elif tokens is None:
        if switches.batched_exchange and exchanges_batches(scenario):
            default_tokens = EXCHANGED_TOKENS
        # What vLLM makes of the batch before the plug-in's scheduler takes over.
        tokens = default_tokens if chunked or own is not None else max(default_tokens, max_model_len)
        if switches.largest_item_in_batch:
            tokens = max(tokens, largest_item_tokens(scenario.config))
        if switches.clips_batch:
            tokens = min(tokens, sequences * max_model_len)
    if not _cuts_prompts(start):
        tokens = max(tokens, max_model_len)
    if scenario.max_num_seqs is None and switches.clips_batch:
        sequences = min(sequences, tokens)
    if own is not None:
        tokens, sequences = own.max_num_batched_tokens or tokens, own.max_num_seqs or sequences
    if tokens < sequences:
        raise EngineRefusalError(
            "batch-below-sequences", "max_num_batched_tokens", tokens, sequences=sequences
        )
    if not chunked and tokens < max_model_len:
        raise EngineRefusalError("batch-below-length", "max_num_batched_tokens", tokens, length=max_model_len)
    return tokens, sequences


def _prefix_caching(start: Start) -> bool:
    """Source: vllm/config/model.py:ModelConfig.is_prefix_caching_supported (0.19.0, 0.32.0)."""
    traits, rule, asked = (
        start.traits,
        start.switches.hybrid_prefix_caching,
        start.scenario.enable_prefix_caching,
    )
    if traits.recurrent and rule is HybridPrefixCaching.UNSUPPORTED:
        return False
    if asked is not None:
        return asked
    if start.is_v0 or traits.is_encoder_decoder or traits.is_attention_free:
        return False
    if start.is_pooling and traits.is_bidirectional:
        return False
    return not traits.is_hybrid or rule is HybridPrefixCaching.ON


def _hybrid_manager(start: Start, method: str) -> bool:
    """Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.11.0, 0.19.0)."""
    if not keeps_groups(start.engine, start.scenario, start.version, start.switches.connector_groups):
        return False
    groups = start.switches.chunked_local_groups and not method.startswith("eagle")
    return not start.traits.has_chunked_local or groups
