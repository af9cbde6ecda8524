"""A JSON request becomes a Scenario. See docs/contract.md.

Everything that comes in is untrusted: text is bounded before it is parsed, every field is checked for type and
range, and whatever is wrong raises a coded error that names the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvcore import catalogue
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.catalogue.models import Checkpoint
from kvcore.engine.rooms import engine_for, engine_names
from kvcore.engine.versions import find_release
from kvcore.errors import CatalogueError, KvPlannerError, ScenarioError, shorten
from kvcore.fields import Fields, Json
from kvcore.model.config import ModelConfig
from kvcore.model.yarn import read_yarn
from kvcore.scenario import (
    AUTO,
    DEFAULT_ENGINE,
    MEASURED_PARTS,
    CudagraphMode,
    Measured,
    Parallel,
    Runner,
    Scenario,
    SpeculativeConfig,
)
from kvcore.untrusted import is_json, parse_json_object

if TYPE_CHECKING:
    from kvcore.hub import HubModel

DTYPES: Final = ("auto", "half", "float16", "bfloat16", "float", "float32")
KV_CACHE_DTYPES: Final = (
    "auto",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4",
    "nvfp4_ds_mla",
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)
MAMBA_CACHE_MODES: Final = ("all", "align", "none")
MAMBA_DTYPES: Final = (AUTO, "float32", "float16", "bfloat16")

UNNAMED_MODEL: Final = "config.json"
"""What a model is called of which there is only the config."""

FetchModel = Callable[[str], "HubModel"]


def parse_request(text: str) -> Json:
    """One request from untrusted text.

    Raises ScenarioError `input-too-large`, `input-too-deep` or `invalid-json`.

    Example:
        >>> parse_request('{"model": "Qwen/Qwen3-32B"}')
        {'model': 'Qwen/Qwen3-32B'}
    """
    return parse_json_object(text)


def id_of(request: Json) -> object:
    """The request's own `id`, as the result repeats it.

    Raises ScenarioError for one that JSON cannot repeat: NaN, an infinity, half of a surrogate pair.
    """
    found = request.get("id")
    if not is_json(found):
        reason = "it must be a text of whole characters or a number"
        raise ScenarioError("invalid-value", field="id", value=shorten(found), reason=reason)
    return found


_REQUEST_FIELDS: Final = frozenset(
    "id model config hf_quant_config checkpoint accelerator engine engine_version tensor_parallel_size"
    " pipeline_parallel_size data_parallel_size decode_context_parallel_size enable_expert_parallel runner dtype"
    " quantization kv_cache_dtype gpu_memory_utilization max_model_len max_num_seqs max_num_batched_tokens"
    " block_size enforce_eager max_cudagraph_capture_size cudagraph_capture_sizes cudagraph_mode enable_prefix_caching"
    " enable_chunked_prefill mamba_cache_mode mamba_block_size mamba_cache_dtype mamba_ssm_cache_dtype"
    " disable_hybrid_kv_cache_manager kernels_compiled speculative_config enable_lora max_loras max_lora_rank"
    " fully_sharded_loras limit_mm_per_prompt language_model_only cpu_offload_gb hf_overrides"
    " kv_cache_memory_bytes num_gpu_blocks_override env measured".split()
)
_MEASURED_FIELDS: Final = frozenset((*MEASURED_PARTS, "fitted", "carried", "batched_tokens"))
_MODES: Final[Mapping[str | None, CudagraphMode]] = {str(mode): mode for mode in CudagraphMode}
_ENVIRONMENT_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]{0,79}")


def scenario_from_request(request: Json, fetch: FetchModel | None = None) -> Scenario:
    """The scenario that a request asks for.

    `fetch` is asked for a model that the catalogue does not have; without it such a model is refused.
    Raises a KvPlannerError that names the field.

    Example:
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
        >>> scenario.accelerator.id, scenario.parallel.tensor_parallel_size
        ('H100-80GB', 1)
    """
    fields = Fields(request, _REQUEST_FIELDS)
    model, config, checkpoint = _model(fields, fetch)
    max_model_len = request.get("max_model_len")
    if max_model_len in ("auto", -1):
        max_model_len = -1
    else:
        max_model_len = fields.integer("max_model_len")
    accelerator = _accelerator(fields)
    engine = fields.choice("engine", engine_names())
    if engine is None:
        engine = DEFAULT_ENGINE if accelerator is None else engine_for(accelerator).name
    engine_version = fields.text("engine_version", 80)
    find_release(engine, engine_version)
    return Scenario(
        model=model,
        config=config,
        checkpoint=checkpoint,
        accelerator=accelerator,
        engine=engine,
        engine_version=engine_version,
        parallel=Parallel(
            tensor_parallel_size=fields.integer("tensor_parallel_size") or 1,
            pipeline_parallel_size=fields.integer("pipeline_parallel_size") or 1,
            data_parallel_size=fields.integer("data_parallel_size") or 1,
            decode_context_parallel_size=fields.integer("decode_context_parallel_size") or 1,
            enable_expert_parallel=fields.flag("enable_expert_parallel") or False,
        ),
        runner=Runner(fields.choice("runner", tuple(Runner)) or Runner.AUTO),
        dtype=fields.choice("dtype", DTYPES) or "auto",
        quantization=fields.text("quantization", 40),
        kv_cache_dtype=fields.choice("kv_cache_dtype", KV_CACHE_DTYPES) or "auto",
        gpu_memory_utilization=fields.number("gpu_memory_utilization"),
        max_model_len=max_model_len,
        max_num_seqs=fields.integer("max_num_seqs"),
        max_num_batched_tokens=fields.integer("max_num_batched_tokens"),
        block_size=fields.integer("block_size"),
        enforce_eager=fields.flag("enforce_eager") or False,
        max_cudagraph_capture_size=fields.integer("max_cudagraph_capture_size"),
        cudagraph_capture_sizes=fields.counts("cudagraph_capture_sizes"),
        cudagraph_mode=_MODES.get(fields.choice("cudagraph_mode", tuple(CudagraphMode))),
        enable_prefix_caching=fields.flag("enable_prefix_caching"),
        enable_chunked_prefill=fields.flag("enable_chunked_prefill"),
        mamba_cache_mode=fields.choice("mamba_cache_mode", MAMBA_CACHE_MODES),
        mamba_block_size=fields.integer("mamba_block_size"),
        mamba_cache_dtype=fields.choice("mamba_cache_dtype", MAMBA_DTYPES) or AUTO,
        mamba_ssm_cache_dtype=fields.choice("mamba_ssm_cache_dtype", MAMBA_DTYPES) or AUTO,
        disable_hybrid_kv_cache_manager=fields.flag("disable_hybrid_kv_cache_manager") or False,
        kernels_compiled=fields.flag("kernels_compiled") or False,
        speculative_config=_speculative(fields, fetch),
        enable_lora=fields.flag("enable_lora") or False,
        max_loras=fields.integer("max_loras") or 1,
        max_lora_rank=fields.integer("max_lora_rank") or 16,
        fully_sharded_loras=fields.flag("fully_sharded_loras") or False,
        limit_mm_per_prompt=_limits(fields),
        language_model_only=fields.flag("language_model_only") or False,
        cpu_offload_gb=fields.number("cpu_offload_gb") or 0.0,
        hf_overrides=None if request.get("hf_overrides") is None else read_yarn(request["hf_overrides"]).text,
        kv_cache_memory_bytes=fields.integer("kv_cache_memory_bytes"),
        num_gpu_blocks_override=fields.integer("num_gpu_blocks_override"),
        env=_environment(fields),
        measured=_measured(fields),
    )


def _model(fields: Fields, fetch: FetchModel | None) -> tuple[str, ModelConfig, Checkpoint]:
    label = fields.text("model", 400)
    config = fields.mapping("config")
    side_file = fields.mapping("hf_quant_config")
    facts = _checkpoint(fields)
    if config is not None:
        named = None if label is None else catalogue.bundled_model(label)
        ships = None if named is None else named.checkpoint.sentence_transformers
        facts = _filled(facts, Checkpoint(sentence_transformers=ships))
        if side_file is None and named is not None:
            side_file = named.config.hf_quant_config
        return label or UNNAMED_MODEL, ModelConfig.from_mapping(config, side_file), facts
    if label is None:
        raise ScenarioError("missing-field", field="model")
    try:
        entry = catalogue.find_model(label)
    except KvPlannerError:
        if fetch is None:
            raise
        fetched = fetch(label)
        return label, fetched.config, _filled(facts, fetched.checkpoint)
    return entry.id, entry.config, _filled(facts, entry.checkpoint)


def _filled(facts: Checkpoint | None, known: Checkpoint) -> Checkpoint:
    """The stated facts, with what the repository is known to ship where they do not say."""
    if facts is None:
        return known
    if facts.sentence_transformers is not None:
        return facts
    return replace(facts, sentence_transformers=known.sentence_transformers)


def _checkpoint(fields: Fields) -> Checkpoint | None:
    raw = fields.mapping("checkpoint")
    if raw is None:
        return None
    inner = Fields(raw, frozenset(("total_size", "total_parameters", "sentence_transformers")), "checkpoint.")
    return Checkpoint(
        total_size=inner.integer("total_size"),
        total_parameters=inner.integer("total_parameters"),
        sentence_transformers=inner.flag("sentence_transformers"),
    )


def _accelerator(fields: Fields) -> Accelerator | None:
    raw = fields.raw.get("accelerator")
    if raw is None:
        return None
    if isinstance(raw, str):
        return catalogue.find_accelerator(fields.text("accelerator") or "")
    if not isinstance(raw, dict):
        raise fields.refuse("accelerator", "it must be a catalogue id or an object")
    inner = Fields(raw, frozenset(("memory_gib", "vendor", "name", "interconnect")), "accelerator.")
    memory_gib, name = inner.number("memory_gib"), inner.text("name")
    if memory_gib is None and name is None:
        raise ScenarioError("missing-field", field="accelerator.memory_gib")
    link = inner.choice("interconnect", tuple(Interconnect))
    try:
        card = catalogue.accelerator_from_facts(memory_gib, inner.text("vendor"), name)
    except CatalogueError:
        return None
    return card if link is None else catalogue.with_interconnect(card, Interconnect(link))


def _speculative(fields: Fields, fetch: FetchModel | None) -> SpeculativeConfig | None:
    raw = fields.mapping("speculative_config")
    if raw is None:
        return None
    known = frozenset(("method", "num_speculative_tokens", "model", "config", "draft_tensor_parallel_size"))
    inner = Fields({name: raw[name] for name in raw if name in known}, known, "speculative_config.")
    model = inner.text("model", 400)
    method = inner.text("method", 40) or speculative_method(model)
    if method is None:
        raise ScenarioError("missing-field", field="speculative_config.method")
    written = inner.mapping("config")
    config = None if written is None else ModelConfig.from_mapping(written)
    if config is None and model is not None and (method == "draft_model" or method.startswith("eagle")):
        config = _draft_config(model, method, fetch)
    return SpeculativeConfig(
        method=method,
        num_speculative_tokens=inner.integer("num_speculative_tokens"),
        model=model,
        config=config,
        draft_tensor_parallel_size=inner.integer("draft_tensor_parallel_size"),
    )


def speculative_method(model: str | None) -> str | None:
    """The method that the engine takes from the name of a draft, where none is given.

    Source: vllm/config/speculative.py:SpeculativeConfig.__post_init__ (0.32).

    Example:
        >>> speculative_method("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), speculative_method("Qwen/Qwen3-0.6B")
        ('eagle3', 'draft_model')
    """
    if model is None:
        return None
    name = model.lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    if "eagle-" in name:
        return "eagle"
    return "eagle3" if "eagle3" in name else "draft_model"


def _draft_config(model: str, method: str, fetch: FetchModel | None) -> ModelConfig | None:
    """The config of a draft that is not in the catalogue; None for one that is, and for a head that nobody knows."""
    try:
        catalogue.find_model(model)
    except KvPlannerError:
        if fetch is not None:
            try:
                return fetch(model).config
            except KvPlannerError:
                if method == "draft_model":
                    raise
        elif method == "draft_model":
            raise ScenarioError(
                "draft-model-unknown", field="speculative_config.model", value=model
            ) from None
    return None


def _limits(fields: Fields) -> Mapping[str, int] | None:
    raw = fields.mapping("limit_mm_per_prompt")
    if raw is None:
        return None
    limits: dict[str, int] = {}
    for name, value in raw.items():
        count = value.get("count") if isinstance(value, dict) else value
        if name not in ("image", "video", "audio") or isinstance(count, bool) or not isinstance(count, int):
            raise ScenarioError(
                "invalid-value",
                field="limit_mm_per_prompt",
                value=raw,
                reason="it must give a whole number for image, video or audio",
            )
        limits[name] = max(0, count)
    return limits


def _environment(fields: Fields) -> Mapping[str, str]:
    raw = fields.mapping("env") or {}
    out: dict[str, str] = {}
    for name, value in raw.items():
        usable = isinstance(value, str | int | float) and len(str(value)) <= 400 and str(value).isprintable()
        if not usable or _ENVIRONMENT_NAME.fullmatch(name) is None:
            raise ScenarioError(
                "invalid-value",
                field=f"env.{str(name)[:80]}",
                value=value,
                reason="it must be a text or a number",
            )
        out[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return out


def _measured(fields: Fields) -> Measured:
    raw = fields.mapping("measured")
    if raw is None:
        return Measured()
    inner = Fields(raw, _MEASURED_FIELDS, "measured.")
    given = tuple(part for part in MEASURED_PARTS if raw.get(part) is not None)
    return Measured(
        weights_gib=inner.number("weights_gib"),
        peak_activation_gib=inner.number("peak_activation_gib"),
        non_torch_gib=inner.number("non_torch_gib"),
        cuda_graph_gib=inner.number("cuda_graph_gib"),
        system_gib=inner.number("system_gib"),
        available_kv_gib=inner.number("available_kv_gib"),
        fitted=inner.names("fitted", given),
        carried=inner.names("carried", given),
        batched_tokens=inner.integer("batched_tokens"),
    )
