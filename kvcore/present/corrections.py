"""What the source documents get wrong, with the figures of this planner next to theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kvcore.engine.metrics import exported_metrics
from kvcore.planning import Plan, plan
from kvcore.present.expected_log import expected_log_lines
from kvcore.present.text import DASH, Words, concurrency_text, count, exact_gib_text, kib_text, msg
from kvcore.request import scenario_from_request
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
"""Document 004, as a link."""
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
"""Document 001 with its assumptions as the person's own figures, as a link. By yorickbao, CC BY 4.0."""
DOCUMENTS: Final[Mapping[str, str]] = {
    "000": msg("Parameter tuning for vllm-mindspore on Ascend"),
    "001": msg("Qwen3-32B on 8 × RTX 4090, by yorickbao"),
    "002": msg("vLLM's parameters, one by one"),
    "004": msg("Llama-2-70B on 4 × A100, an out-of-memory post-mortem"),
}
"""The source documents by number: what each one is."""
BATCH: Final = 8
PROMPT_TOKENS: Final = 1500
LATENT_POOL_GIB: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """A claim of a document, and what is true; `truth` has parameters that `facts` gives."""

    name: str
    document: str
    claim: str
    truth: str


CORRECTIONS: Final = (
    Correction(
        name="hidden_size",
        document="004",
        claim=msg("KV cache = batch × layers × 2 × hidden_size × length × bytes"),
        truth=msg(
            "The hidden size counts all {heads} heads, but Llama-2-70B keeps keys and values of {kv_heads}: "
            "{factor} times too much. One request of {length} tokens takes {right}, not {wrong}."
        ),
    ),
    Correction(
        name="batch",
        document="004",
        claim=msg("The script prints 32 GB for one request"),
        truth=msg(
            "It computes the whole batch of {batch} and prints {printed}: {wrong} for each request by that "
            "formula, {right} in truth, over all GPUs together."
        ),
    ),
    Correction(
        name="reserve",
        document="004",
        claim=msg("vLLM reserves max_length for every request in advance"),
        truth=msg(
            "It reserves one pool at start, whatever max_model_len, and allocates blocks of {block} "
            "tokens as requests grow. A prompt of 1,500 tokens takes {blocks} blocks."
        ),
    ),
    Correction(
        name="last_block",
        document="004",
        claim=msg("block_size 64: the last block is used to 60 %, 40 % are wasted"),
        truth=msg(
            "1,000 tokens take 16 blocks of 64; the last one stores 40, 62.5 %. 24 of 1,024 slots "
            "are empty: 2.3 % of the request."
        ),
    ),
    Correction(
        name="boundaries",
        document="004",
        claim=msg(
            "At 4 × A100: 4 requests at 2,048 tokens, 2 at 4,096, 1 at 8,192; beyond that out of memory"
        ),
        truth=msg(
            "The pool of that start holds {tokens} tokens: {at_2048} requests of 2,048 tokens, {at_4096} of "
            "4,096. Requests beyond it wait or are preempted; the engine does not run out of memory."
        ),
    ),
    Correction(
        name="model_limit",
        document="004",
        claim=msg("max_model_len 8192 for Llama-2-70B"),
        truth=msg(
            "The model was trained for {limit} tokens. The engine refuses more unless "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set."
        ),
    ),
    Correction(
        name="utilization",
        document="004",
        claim=msg("gpu-memory-utilization is the share for the KV cache"),
        truth=msg(
            "It is the share of the whole card for all that the engine keeps. The KV cache gets what weights, "
            "activations and graphs leave."
        ),
    ),
    Correction(
        name="heads",
        document="004",
        claim=msg("tensor-parallel-size must be a factor of the number of GPUs"),
        truth=msg("It must divide the attention heads of the model; the GPUs only have to be there."),
    ),
    Correction(
        name="peak",
        document="004",
        claim=msg("Peak memory grows with a long prompt: proof of the reservation"),
        truth=msg(
            "What grows is activations: the pool is there before the first request. With four GPUs the "
            "script's own process sees none of the workers' memory."
        ),
    ),
    Correction(
        name="gpu_alarm",
        document="004",
        claim=msg("Alert when GPU memory is above 90 %"),
        truth=msg("The engine takes its share at start and keeps it, so this is always on. Watch {metric}."),
    ),
    Correction(
        name="latency_metric",
        document="004",
        claim=msg("Metric request_latency_seconds"),
        truth=msg("The name is {metric}, a histogram, at /metrics (not /v1/metrics)."),
    ),
    Correction(
        name="hit_rate",
        document="004",
        claim=msg("Metric kv_cache_hit; below 90 % the cache is too small"),
        truth=msg(
            "There is none of that name. {hits} over {queries} is the share of prompt tokens found "
            "in the prefix cache: it says how much prompts have in common, not whether the cache is "
            "large enough. Use {usage} and {preemptions} instead."
        ),
    ),
    Correction(
        name="log_line",
        document="004",
        claim=msg("The log prints “KV cache size: … bytes, allocated: …”"),
        truth=msg("No version we read prints that. Look for: {lines}"),
    ),
    Correction(
        name="p99",
        document="004",
        claim=msg("p99 of the latency below 2 s"),
        truth=msg(
            "Reasonable for the first token. 512 tokens at the post-mortem's own 15 tokens/s take 34 s."
        ),
    ),
    Correction(
        name="former",
        document="002",
        claim=msg("Block manager V2, speculative-mode, SqueezeLLM"),
        truth=msg("Removed or renamed; the list above says in which release."),
    ),
    Correction(
        name="batched_tokens",
        document="002",
        claim=msg("max_num_batched_tokens of 256 to 512 for short response times"),
        truth=msg("The engine refuses less than max_num_seqs ({seats} here)."),
    ),
    Correction(
        name="latent",
        document="000",
        claim=msg("Tokens = memory / (layers × heads × head size × 2), for DeepSeek-V3"),
        truth=msg(
            "DeepSeek-V3 keeps one latent vector of 512 + 64 numbers per layer (MLA): {right} per token, not "
            "{wrong}. 8 GiB hold {tokens} tokens, on every NPU alike: tensor parallelism does not divide it."
        ),
    ),
    Correction(
        name="batched_product",
        document="000",
        claim=msg("max_num_batched_tokens ≥ max_num_seqs × max_model_len"),
        truth=msg(
            "Only without chunked prefill, and then at least max_model_len. With it the batch may be far "
            "smaller than one request."
        ),
    ),
    Correction(
        name="rule_of_thumb",
        document="001",
        claim=msg("24 GB per card, 2 bytes × 32B of weights, 5 GB fixed per card"),
        truth=msg(
            "A rule of thumb, and a good one: loaded below, the Plan page shows term by term what the engine "
            "finds instead. By yorickbao, CC BY 4.0."
        ),
    ),
)


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
