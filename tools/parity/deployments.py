"""The deployments that are compared: every model of the catalogue in a few ways, and cases that tools get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcore.catalogue import find_model, load_models

AVAILABLE_GIB = (40.0, 6.0)
"""KV cache memory that is given to both sides: enough for most, and too little for many."""

EAGLE3_HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
"""The shape of the usual EAGLE-3 head of a Llama 3.1 8B: one layer and a small vocabulary of its own."""

QWEN3 = "Qwen/Qwen3-32B"
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-2-70b-hf"
GPT_OSS = "openai/gpt-oss-120b"
GEMMA = "google/gemma-3-27b-it"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
DEEPSEEK_SPARSE = "deepseek-ai/DeepSeek-V3.2"
QWEN3_NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
SCOUT = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
QWEN3_5 = "Qwen/Qwen3.5-35B-A3B"
QWEN3_MOE = "Qwen/Qwen3-235B-A22B"


def _speculative(method: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": method, "num_speculative_tokens": tokens, **more}}


CASES: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    # model, card, tensor parallel size, other flags
    (QWEN3, "H100-80GB", 1, {"max_model_len": 8192}),
    (QWEN3, "H100-80GB", 4, {}),
    (QWEN3, "H100-80GB", 4, {"kv_cache_dtype": "fp8"}),
    (QWEN3, "H100-80GB", 16, {}),
    (LLAMA_70B, "H100-80GB", 4, {}),
    (LLAMA_70B, "H100-80GB", 16, {}),
    (LLAMA_8B, "H100-80GB", 1, {}),
    (LLAMA_8B, "H100-80GB", 2, {"max_model_len": 131072}),
    (GPT_OSS, "H100-80GB", 1, {"max_model_len": 16384}),
    (GPT_OSS, "H100-80GB", 1, {"max_model_len": 131072}),
    (GPT_OSS, "H100-80GB", 2, {"max_model_len": 131072}),
    (GEMMA, "H100-80GB", 1, {"max_model_len": 8192}),
    (GEMMA, "H100-80GB", 1, {"max_model_len": 131072}),
    (GEMMA, "H100-80GB", 2, {"max_model_len": 8192}),
    (GEMMA, "H100-80GB", 2, {"max_model_len": 131072}),
    (DEEPSEEK, "H200-141GB", 8, {"max_model_len": 32768}),
    (DEEPSEEK, "H200-141GB", 8, {"max_model_len": 131072}),
    (DEEPSEEK, "H200-141GB", 8, {"max_model_len": 32768, "kv_cache_dtype": "fp8"}),
    (DEEPSEEK_SPARSE, "H200-141GB", 8, {"max_model_len": 32768}),
    (DEEPSEEK_SPARSE, "H200-141GB", 8, {"max_model_len": 32768, "kv_cache_dtype": "fp8"}),
    (QWEN3_NEXT, "H100-80GB", 4, {"max_model_len": 32768}),
    (QWEN3_NEXT, "H100-80GB", 4, {"max_model_len": 262144}),
    (SCOUT, "H100-80GB", 4, {"max_model_len": 8192}),
    (SCOUT, "H100-80GB", 4, {"max_model_len": 131072}),
    (SCOUT, "H100-80GB", 8, {"max_model_len": 131072}),
    (QWEN3_5, "H100-80GB", 1, {"max_model_len": 32768}),
    (QWEN3_5, "H100-80GB", 2, {"max_model_len": 262144}),
    # speculative decoding
    (LLAMA_8B, "H100-80GB", 1, _speculative("eagle3", 3, model="eagle3-llama-3.1-8b", config=EAGLE3_HEAD)),
    (LLAMA_8B, "H100-80GB", 2, _speculative("eagle3", 3, model="eagle3-llama-3.1-8b", config=EAGLE3_HEAD)),
    (DEEPSEEK, "H200-141GB", 8, _speculative("mtp", 1) | {"max_model_len": 32768}),
    (DEEPSEEK_SPARSE, "H200-141GB", 8, _speculative("mtp", 1) | {"max_model_len": 32768}),
    (QWEN3_NEXT, "H100-80GB", 4, _speculative("mtp", 2) | {"max_model_len": 32768}),
    (QWEN3_5, "H100-80GB", 2, _speculative("mtp", 1) | {"max_model_len": 32768}),
    ("XiaomiMiMo/MiMo-7B-RL", "H100-80GB", 1, _speculative("mtp", 1)),
    ("zai-org/GLM-5", "H200-141GB", 8, _speculative("mtp", 1)),
    ("zai-org/GLM-4.5", "H200-141GB", 8, _speculative("mtp", 1)),
    (QWEN3, "H100-80GB", 4, _speculative("draft_model", 3, model="Qwen/Qwen3-0.6B")),
    (QWEN3, "H100-80GB", 4, _speculative("ngram", 4)),
    (GPT_OSS, "H100-80GB", 2, _speculative("ngram", 4) | {"max_model_len": 131072}),
    # adapters
    (LLAMA_8B, "H100-80GB", 1, {"enable_lora": True}),
    (LLAMA_8B, "H100-80GB", 2, {"enable_lora": True, "max_loras": 4, "max_lora_rank": 64}),
    (QWEN3, "H100-80GB", 4, {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32}),
    # pipeline, expert, context parallelism
    (QWEN3, "H100-80GB", 4, {"pipeline_parallel_size": 2}),
    (LLAMA_70B, "H100-80GB", 2, {"pipeline_parallel_size": 3}),
    (GEMMA, "H100-80GB", 1, {"pipeline_parallel_size": 2, "max_model_len": 32768}),
    (GPT_OSS, "H100-80GB", 2, {"pipeline_parallel_size": 2}),
    (DEEPSEEK, "H100-80GB", 8, {"pipeline_parallel_size": 2, "max_model_len": 32768}),
    (QWEN3_NEXT, "H100-80GB", 2, {"pipeline_parallel_size": 2, "max_model_len": 32768}),
    (QWEN3_MOE, "H100-80GB", 4, {"enable_expert_parallel": True}),
    (DEEPSEEK, "H200-141GB", 8, {"enable_expert_parallel": True, "max_model_len": 32768}),
    (GPT_OSS, "H100-80GB", 4, {"enable_expert_parallel": True}),
    (QWEN3, "H100-80GB", 16, {"decode_context_parallel_size": 2}),
    (DEEPSEEK, "H200-141GB", 8, {"decode_context_parallel_size": 8}),
    (DEEPSEEK, "H200-141GB", 8, {"decode_context_parallel_size": 8, "kv_cache_dtype": "fp8"}),
    # other flags that change the plan
    (LLAMA_8B, "H100-80GB", 1, {"max_model_len": "auto"}),
    (GPT_OSS, "H100-80GB", 1, {"max_model_len": "auto"}),
    (QWEN3_NEXT, "H100-80GB", 4, {"max_model_len": "auto"}),
    (LLAMA_8B, "L40S", 1, {"block_size": 32, "max_num_seqs": 64, "max_num_batched_tokens": 4096}),
    (GPT_OSS, "B200", 1, {}),
    (DEEPSEEK, "B200", 8, {}),
    (GEMMA, "H100-80GB", 1, {"max_num_batched_tokens": 32768, "max_model_len": 131072}),
    (GEMMA, "H100-80GB", 1, {"disable_hybrid_kv_cache_manager": True, "max_model_len": 32768}),
    (QWEN3_NEXT, "H100-80GB", 4, {"enable_prefix_caching": False, "max_model_len": 32768}),
    (LLAMA_8B, "H100-80GB", 1, {"kv_cache_dtype": "int8_per_token_head"}),
    (LLAMA_8B, "H100-80GB", 1, {"kv_cache_dtype": "int4_per_token_head"}),
    (LLAMA_8B, "H100-80GB", 1, {"kv_cache_dtype": "turboquant_4bit_nc"}),
)


def deployments() -> Iterator[dict[str, Any]]:
    """All of them, as jobs for oracle.py with the catalogue's own config; the same plan is not asked for twice."""
    seen = set()
    for model, card, tp, flags in (*CASES, *_breadth()):
        key = f"{model} {card} {tp} {sorted(flags.items(), key=str)}"
        if key not in seen:
            seen.add(key)
            yield _job(model, card, {"tensor_parallel_size": tp, **flags})


def special() -> Iterator[dict[str, Any]]:
    """The special cases alone."""
    for model, card, tp, flags in CASES:
        yield _job(model, card, {"tensor_parallel_size": tp, **flags})


def _breadth() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Each model of the catalogue: on one H100 as it comes; cut over many with an fp8 cache; on A100s."""
    for entry in load_models():
        heads = _heads(entry.config.raw)
        yield entry.id, "H100-80GB", 1, {}
        many = next((tp for tp in (8, 4, 2) if heads % tp == 0), 1)
        yield entry.id, "H100-80GB", many, {"kv_cache_dtype": "fp8", "max_model_len": 8192}
        some = next((tp for tp in (2, 3) if heads % tp == 0), 1)
        yield entry.id, "A100-80GB", some, {}


def _heads(config: dict[str, Any]) -> int:
    """Attention heads of the language model, to choose a tensor parallel size; a wrong choice is only refused."""
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(config.get(name), dict):
            return _heads(config[name])
    names = ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
    return next((config[name] for name in names if isinstance(config.get(name), int)), 8)


def _job(model: str, card: str, args: dict[str, Any]) -> dict[str, Any]:
    entry = find_model(model)
    job: dict[str, Any] = {"model": entry.id, "card": card, "args": args, "available_gib": AVAILABLE_GIB}
    job["config"] = entry.config.raw
    if entry.config.hf_quant_config:
        job["hf_quant_config"] = entry.config.hf_quant_config
    speculative = args.get("speculative_config", {})
    if "config" in speculative:
        job["draft_config"] = speculative["config"]
    elif "model" in speculative:
        job["draft_config"] = find_model(speculative["model"]).config.raw
    return job
