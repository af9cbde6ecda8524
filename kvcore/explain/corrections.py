"""What the source documents get wrong, with the figures of this planner next to theirs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from kvcore.deploy.going_live import expected_log_lines
from kvcore.engine.vllm.availability import exported_metrics
from kvcore.planning import Plan, plan
from kvcore.scenario.request import scenario_from_request
from kvcore.texts import Correction
from kvcore.texts.words import DASH, Words, concurrency_text, count, exact_gib_text, kib_text
from kvcore.units import GIB, ceil_div

POST_MORTEM: Final[Mapping[str, Any]] = {
    "model": "meta-llama/Llama-2-70b-chat-hf",
    "accelerator": "A100-80GB",
    "tensor_parallel_size": 4,
    "dtype": "float16",
    "gpu_memory_utilization": 0.9,
    "max_model_len": 8192,
    "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
}
"""The post-mortem's start, as a link."""
RULE_OF_THUMB: Final[Mapping[str, Any]] = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "RTX-4090-24GB",
    "tensor_parallel_size": 8,
    "dtype": "float16",
    "gpu_memory_utilization": 0.75,
    "max_model_len": 8192,
    "accelerator.memory_gib": 24,
    "measured.weights_gib": 8,
    "measured.non_torch_gib": 5,
    "measured.peak_activation_gib": 0,
    "measured.cuda_graph_gib": 0,
}
"""The rule of thumb with its assumptions as the person's own figures, as a link. By yorickbao, CC BY 4.0."""
BATCH: Final = 8
PROMPT_TOKENS: Final = 1500
LATENT_POOL_GIB: Final = 8


def facts(planned: Plan) -> dict[str, dict[str, str]]:
    """The parameters of each correction's truth, for the engine version of the present plan."""
    resolved = planned.resolved
    names = {role: one.name for role, one in exported_metrics(resolved.version, resolved.is_v0).items()}
    lines = expected_log_lines(planned)
    return _fixed_facts() | {
        "gpu_alarm": {"metric": names["kv_cache_usage"]},
        "latency_metric": {"metric": names["request_latency"]},
        "hit_rate": {
            "hits": names.get("prefix_cache_hits", DASH),
            "queries": names.get("prefix_cache_queries", DASH),
            "usage": names["kv_cache_usage"],
            "preemptions": names["preemptions"],
        },
        "log_line": {"lines": lines[-1] if lines else "GPU KV cache size"},
        "batched_tokens": {"seats": count(resolved.max_num_seqs)},
    }


@cache
def _fixed_facts() -> dict[str, dict[str, str]]:
    """What does not depend on the present plan: the post-mortem's own model, and DeepSeek-V3."""
    request = {name: value for name, value in POST_MORTEM.items() if "." not in name}
    long = plan(scenario_from_request({**request, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}))
    length = long.resolved.max_model_len
    heads, kv_heads = long.architecture.num_attention_heads, long.architecture.num_kv_heads
    per_token = long.cache.bytes_per_token if long.cache is not None else 0.0
    right = per_token * long.scenario.parallel.tensor_parallel_size * length
    wrong = long.architecture.num_layers * 2 * long.architecture.hidden_size * length * 2
    held = {}
    for tokens in (2048, 4096):
        cache = plan(scenario_from_request({**request, "max_model_len": tokens})).cache
        held[f"at_{tokens}"] = concurrency_text(cache.max_concurrency) if cache is not None else DASH
    return {
        "hidden_size": {
            "heads": str(heads),
            "kv_heads": str(kv_heads),
            "factor": str(heads // kv_heads),
            "length": count(length),
            "right": exact_gib_text(right),
            "wrong": exact_gib_text(wrong),
        },
        "batch": {
            "batch": str(BATCH),
            "printed": exact_gib_text(BATCH * wrong),
            "wrong": exact_gib_text(wrong),
            "right": exact_gib_text(right),
        },
        "reserve": {
            "block": str(long.resolved.block_size),
            "blocks": str(ceil_div(PROMPT_TOKENS, long.resolved.block_size)),
        },
        "boundaries": {"tokens": count(long.cache.tokens if long.cache is not None else 0), **held},
        "model_limit": {"limit": count(long.resolved.derived_max_model_len)},
        "latent": _latent_facts(),
    }


def _latent_facts() -> dict[str, str]:
    request = {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "tensor_parallel_size": 8}
    latent = plan(scenario_from_request({**request, "max_model_len": 16384}))
    per_token = latent.cache.bytes_per_token if latent.cache is not None else 0.0
    architecture, config = latent.architecture, latent.scenario.config
    wrong = architecture.num_layers * architecture.num_attention_heads * int(config.raw["v_head_dim"]) * 2
    return {
        "right": kib_text(per_token),
        "wrong": kib_text(wrong),
        "tokens": count(LATENT_POOL_GIB * GIB // per_token if per_token else 0),
    }


def truth(correction: Correction, known: Mapping[str, Mapping[str, str]], t: Words) -> str:
    """What is true, in the reader's language, with its figures."""
    return t(correction.truth, **known.get(correction.name, {}))
