"""SGLang's own names of arguments, and the fields of a request that mean the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kvcore.base.errors import ScenarioError, invalid
from kvcore.engine.protocol import Resolved
from kvcore.flags import FLAGS, Kind
from kvcore.scenario import Scenario, set_fields, value_of

FIELD: Final = "server_args"
SHARED: Final = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "mem_fraction_static": "gpu_memory_utilization",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
    "page_size": "block_size",
    "cuda_graph_max_bs": "max_cudagraph_capture_size",
    "disable_cuda_graph": "enforce_eager",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "cpu_offload_gb": "cpu_offload_gb",
    "enable_lora": "enable_lora",
    "max_loras_per_batch": "max_loras",
    "max_lora_rank": "max_lora_rank",
    "disable_custom_all_reduce": "disable_custom_all_reduce",
}
"""SGLang's name of an argument, and the field of a request with the same meaning.

Source: srt/server_args.py:ServerArgs (0.4.6.post5, 0.5.9, 0.5.23).
"""
SHORT: Final = {
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "pp": "pp_size",
    "data_parallel_size": "dp_size",
    "dp": "dp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "model": "model_path",
    "kv_cache_data_type": "kv_cache_dtype",
    "mamba_radix_cache_strategy": "mamba_scheduler_strategy",
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
}
"""Other spellings of an argument: abbreviations, and names of newer releases."""
METHODS: Final = {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "NGRAM": "ngram", "STANDALONE": "draft_model",
                  "DFLASH": "dflash", "DSPARK": "dspark"}  # fmt: skip
ALGORITHMS: Final = {method: algorithm for algorithm, method in METHODS.items()}
DRAFT_KEYS: Final = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_draft_model_path",
)  # fmt: skip
OF_OTHERS: Final = (
    "decode_context_parallel_size", "prefill_context_parallel_size", "all2all_backend", "num_redundant_experts",
    "indexer_kv_dtype", "cudagraph_capture_sizes", "cudagraph_mode", "enable_chunked_prefill", "mamba_cache_mode",
    "mamba_block_size", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "disable_hybrid_kv_cache_manager",
    "fully_sharded_loras", "limit_mm_per_prompt", "mm_processor_kwargs", "skip_mm_profiling", "mm_encoder_tp_mode",
    "kv_cache_memory_bytes", "num_gpu_blocks_override", "kv_transfer_config", "kv_offloading_size",
    "kv_offloading_backend", "lmcache_version", "additional_config",
)  # fmt: skip
"""Fields that set arguments which other engines alone have."""
NOT_OFFERED: Final = ("runner",)
"""Fields that it takes from a request, and has no argument of that kind for."""
READ: Final = frozenset(
    {
        "attention_backend", "prefill_attention_backend", "decode_attention_backend", "dsa_decode_backend",
        "nsa_decode_backend", "cuda_graph_backend_prefill", "cuda_graph_bs", "disable_hybrid_swa_memory",
        "disable_overlap_schedule", "disable_piecewise_cuda_graph", "disable_prefill_cuda_graph", "disable_radix_cache",
        "disaggregation_mode", "enable_dp_attention", "enable_hierarchical_cache", "enable_multimodal",
        "enable_piecewise_cuda_graph",
        "enable_two_batch_overlap", "language_only", "mamba_scheduler_strategy", "mamba_ssm_dtype",
        "mm_feature_transport", "moe_a2a_backend", "speculative_algorithm", "speculative_draft_model_path",
    }
)  # fmt: skip
"""Arguments without a field of their own that a plan reads, beside those of `INTEGERS` and `NUMBERS`."""
SHOWN: Final[Mapping[str, str]] = {
    "fp8": "fp8_e4m3", "bfloat16": "bf16", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2",
}  # fmt: skip
"""Formats of the cache by SGLang's names."""
RESOLVED: Final = {
    "mem_fraction_static": "gpu_memory_utilization",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "dtype": "dtype",
}
"""Arguments that a command with every flag names, and the resolved values."""
LISTEN: Final = {"host": "0.0.0.0", "port": 8000, "enable_metrics": True}
"""SGLang listens on 127.0.0.1:30000 and counts nothing unless told otherwise.

Source: srt/server_args.py:ServerArgs (0.4.6.post5, 0.5.23).
"""
JOIN_PORT: Final = 5000
"""Source: docs.sglang.ai, Multi-node deployment: --dist-init-addr."""
LONGER: Final = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
INTEGERS: Final = frozenset(
    {
        "tp_size", "pp_size", "dp_size", "ep_size", "nnodes", "context_length", "max_running_requests",
        "chunked_prefill_size", "max_prefill_tokens", "max_total_tokens", "page_size", "cuda_graph_max_bs",
        "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "max_mamba_cache_size",
        "hicache_size", "piecewise_cuda_graph_max_tokens", "cuda_graph_max_bs_prefill",
    }
)  # fmt: skip
FRACTIONS: Final = ("mem_fraction_static",)
NUMBERS: Final = frozenset(
    {"mem_fraction_static", "swa_full_tokens_ratio", "mamba_full_memory_ratio", "hicache_ratio"}
)
LARGEST: Final = 1 << 31


def named(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with every argument by the one name that is used here.

    Raises ScenarioError `invalid-value` for a value of a wrong type, and for a fraction that is no share.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        plain = name.removeprefix("--").replace("-", "_")
        plain = SHORT.get(plain, plain)
        if value is None:
            continue
        if plain in INTEGERS and (
            isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST
        ):
            raise invalid(f"{FIELD}.{plain}", value, "it must be a whole number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if plain in NUMBERS and not (is_number and abs(value) <= LARGEST):
            raise invalid(f"{FIELD}.{plain}", value, "it must be a number")
        if plain in FRACTIONS and not 0 < value <= 1:
            raise invalid(
                f"{FIELD}.{plain}", value, "it must be a share of the memory, above 0 and at most 1"
            )
        if isinstance(value, str) and len(value) > 400:
            raise invalid(
                f"{FIELD}.{plain}", value[:80], "it must be a text of at most 400 printable characters"
            )
        found[plain] = value
    return found


def adopted(request: Mapping[str, Any]) -> dict[str, Any]:
    """`request` with what its `server_args` say in the fields that mean the same; the rest stays there.

    Raises ScenarioError `invalid-value`, and `said-twice` for a field that both say differently.

    Example:
        >>> own = {"tp": 2, "mem_fraction_static": 0.8, "swa_full_tokens_ratio": 0.5}
        >>> asked = adopted({"model": "a", "server_args": own})
        >>> asked["tensor_parallel_size"], asked["gpu_memory_utilization"], asked["server_args"]
        (2, 0.8, {'swa_full_tokens_ratio': 0.5})
    """
    raw = request.get(FIELD)
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise invalid(FIELD, raw, "it must be an object")
    own, found = named(raw), dict(request)
    if own.get("enable_dp_attention"):
        _divide_attention(own)
    for name, field in SHARED.items():
        if name in own and _fits(field, own[name]):
            _take(found, field, own.pop(name), name)
    if own.pop("disable_radix_cache", None):
        _take(found, "enable_prefix_caching", False, "disable_radix_cache")
    if own.get("ep_size", 1) > 1:
        _take(found, "enable_expert_parallel", True, "ep_size")
    _take_draft(own, found)
    own.pop("model_path", None)
    measured = request.get("measured")
    is_measured = isinstance(measured, Mapping) and measured.get("free_after_weights_gib") is not None
    if is_measured and request.get("config") is not None and request.get("hf_quant_config") is None:
        # Nothing of the weights is left to find out: the config that is given stands alone.
        found["hf_quant_config"] = {}
    if own or raw:
        found[FIELD] = own
    return found


def check_names(scenario: Scenario) -> None:
    """Raises ScenarioError `flag-of-another-engine` for the first field that only other engines have.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "sglang", "num_gpu_blocks_override": 512}
        >>> check_names(scenario_from_request(asked))
        Traceback (most recent call last):
        kvcore.base.errors.ScenarioError: sglang has no flag for num_gpu_blocks_override
    """
    said = set_fields(scenario)
    field = next((field for field in OF_OTHERS if field in said), None)
    if field is not None:
        raise ScenarioError(
            "flag-of-another-engine", field=field, engine="sglang", value=value_of(scenario, field)
        )


def _divide_attention(own: dict[str, Any]) -> None:
    """Replicas of the attention: a request counts the ranks of one replica, and the replicas."""
    ranks, replicas = own.get("tp_size", 1), own.get("dp_size", 1)
    if replicas > 1:
        if ranks % replicas:
            raise invalid(f"{FIELD}.dp_size", replicas, "it must divide tp_size with enable_dp_attention")
        own["tp_size"] = ranks // replicas


def _fits(field: str, value: object) -> bool:
    flag = FLAGS[field]
    if flag.kind is Kind.CHOICE:
        return value in flag.choices
    if flag.kind is Kind.BOOLEAN:
        return isinstance(value, bool)
    if flag.kind is Kind.TEXT:
        return isinstance(value, str)
    low, high = flag.bounds
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _take(found: dict[str, Any], field: str, value: Any, name: str) -> None:
    said = found.get(field)
    if said is not None and said != value:
        raise ScenarioError("said-twice", field=f"{FIELD}.{name}", value=value, other=field, said=said)
    found[field] = value


def _take_draft(own: dict[str, Any], found: dict[str, Any]) -> None:
    """The draft as `speculative_config` has it: what else decides stays among SGLang's own arguments."""
    algorithm = str(own.get("speculative_algorithm") or "").upper()
    config = found.pop("draft_config", None)
    if algorithm not in METHODS or found.get("speculative_config") is not None:
        return
    path = own.get("speculative_draft_model_path")
    method = METHODS[algorithm]
    if algorithm == "EAGLE" and path is None and config is None:
        method = "mtp"
    draft: dict[str, Any] = {"method": method}
    if path is not None:
        draft["model"] = path
    if config is not None:
        draft["config"] = config
    found["speculative_config"] = draft


def fields_of_command(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a command as fields of a request: those that a plan reads, by their fields where they have one.

    Example:
        >>> fields_of_command({"tp": 2, "mem_fraction_static": 0.8, "hicache_ratio": 2.0, "log_level": "info"})
        {'server_args': {'hicache_ratio': 2.0}, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.8}
    """
    known = READ | INTEGERS | NUMBERS | frozenset(SHARED) | frozenset(DRAFT_KEYS)
    own = {
        name: value
        for name, value in named({key: value for key, value in given.items() if value is not None}).items()
        if name in known
    }
    found = adopted({FIELD: own})
    return {name: value for name, value in found.items() if name != FIELD or value}


def own_setting(field: str, value: Any) -> tuple[str, Any] | None:
    """SGLang's argument for a field of a request, and its value; None where it has none.

    Example:
        >>> own_setting("max_model_len", 8192), own_setting("enable_prefix_caching", False)
        (('context_length', 8192), ('disable_radix_cache', True))
        >>> own_setting("kv_cache_dtype", "fp8"), own_setting("kv_offloading_size", 8)
        (('kv_cache_dtype', 'fp8_e4m3'), None)
    """
    if field == "enable_prefix_caching":
        return ("disable_radix_cache", True) if value is False else None
    name = next((name for name, other in SHARED.items() if other == field), None)
    if name is None:
        return None
    return name, SHOWN.get(value, value) if field == "kv_cache_dtype" else value


def launch_arguments(scenario: Scenario, resolved: Resolved, *, every_flag: bool) -> dict[str, Any]:
    """The arguments of a start as words of a command: without dashes in front, True for switches."""
    own = asked_of(scenario)
    own.pop("allow_longer_context", None)
    own.pop("language_model_only", None)
    if every_flag:
        for name, field in RESOLVED.items():
            own.setdefault(name, getattr(resolved, field))
    if "kv_cache_dtype" in own:
        own["kv_cache_dtype"] = SHOWN.get(own["kv_cache_dtype"], own["kv_cache_dtype"])
    if scenario.parallel.enable_expert_parallel:
        own.setdefault("ep_size", own.get("tp_size", 1))
    first = [name for name in SHARED if name in own]
    ordered = {name: own[name] for name in (*first, *(name for name in own if name not in first))} | LISTEN
    return {
        name.replace("_", "-"): _worded(value)
        for name, value in ordered.items()
        if value not in (None, False)
    }


def _worded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return json.dumps(value) if isinstance(value, dict) else value


def machine_flags(
    scenario: Scenario, place: int, number: int, replicas_here: int, first: str
) -> dict[str, Any]:
    """The arguments of one of several machines: ranks of one world, or a server of its own with its replicas."""
    parallel = scenario.parallel
    is_one_world = replicas_here < 1 or asked_of(scenario).get("enable_dp_attention")
    if is_one_world or parallel.data_parallel_size == 1:
        return {"nnodes": number, "node-rank": place, "dist-init-addr": f"{first}:{JOIN_PORT}"}
    return {"dp-size": replicas_here}


def asked_of(scenario: Scenario) -> dict[str, Any]:
    """All arguments that `scenario` sets, under SGLang's names.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> own = {"tp": 2, "swa_full_tokens_ratio": 0.5}
        >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "sglang", "server_args": own}
        >>> asked_of(scenario_from_request(asked))
        {'swa_full_tokens_ratio': 0.5, 'tp_size': 2}
    """
    own: dict[str, Any] = json.loads(scenario.server_args) if scenario.server_args else {}
    parallel = scenario.parallel
    for name, field in SHARED.items():
        value = getattr(parallel if hasattr(parallel, field) else scenario, field)
        unset = FLAGS[field].default
        if value is not None and value != unset and value is not False:
            own.setdefault(name, value)
    if own.get("enable_dp_attention") and parallel.data_parallel_size > 1:
        own["tp_size"] = parallel.tensor_parallel_size * parallel.data_parallel_size
    if scenario.enable_prefix_caching is False:
        own["disable_radix_cache"] = True
    if scenario.language_model_only:
        own.setdefault("language_model_only", True)
    if scenario.env.get(LONGER) in ("1", "true", "True"):
        own["allow_longer_context"] = True
    draft = scenario.speculative_config
    if draft is not None and "speculative_algorithm" not in own:
        own["speculative_algorithm"] = ALGORITHMS.get(draft.method, draft.method.upper())
        if draft.num_speculative_tokens is not None and draft.method != "ngram":
            own["speculative_num_steps"] = draft.num_speculative_tokens
            own.setdefault("speculative_eagle_topk", 1)
            own.setdefault("speculative_num_draft_tokens", draft.num_speculative_tokens + 1)
        if draft.model is not None:
            own["speculative_draft_model_path"] = draft.model
    return own
