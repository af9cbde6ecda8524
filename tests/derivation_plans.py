"""Plans of every kind that a derivation has to follow."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from kvcore.base.words import Language, words
from kvcore.course import Step, derivation
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request
from tests.present_plans import FITS, RULE_OF_THUMB, TOO_BIG, TOO_LONG

H100 = {"accelerator": "H100-80GB", "max_model_len": 8192}
H200 = {"accelerator": "H200-141GB", "tensor_parallel_size": 8, "max_model_len": 16384}
QWEN = {"model": "Qwen/Qwen3-32B", **H100}
WHISPER: Final = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "torch_dtype": "float16",
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
    "decoder_layers": 32, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "is_encoder_decoder": True,
    "max_source_positions": 1500, "max_target_positions": 448, "num_mel_bins": 128, "vocab_size": 51866,
}  # fmt: skip
"""The sizes of whisper-large-v3 in its config.json: an encoder, and layers that attend to what it heard."""
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "dense": {**QWEN, "tensor_parallel_size": 2},
    "rule of thumb": RULE_OF_THUMB,
    "latent": {"model": "deepseek-ai/DeepSeek-V3", **H200},
    "latent, context parallel": {"model": "deepseek-ai/DeepSeek-V3", **H200, "decode_context_parallel_size": 8},
    "latent, with a draft": {
        "model": "deepseek-ai/DeepSeek-V3", **H200,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
    },
    "sparse": {"model": "deepseek-ai/DeepSeek-V3.2", **H200},
    "compressed": {"model": "deepseek-ai/DeepSeek-V4-Flash", **H200},
    "windows": {"model": "google/gemma-3-27b-it", **H100},
    "windows, other values": {"model": "XiaomiMiMo/MiMo-V2-Flash", **H200},
    "chunks": {"model": "meta-llama/Llama-4-Scout-17B-16E-Instruct", **H100, "tensor_parallel_size": 4},
    "hybrid": {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct", **H100, "tensor_parallel_size": 4},
    "recurrent": {"model": "tiiuae/falcon-mamba-7b", **H100},
    "experts": {"model": "Qwen/Qwen3-30B-A3B", **H100},
    "expert parallel": {
        "model": "Qwen/Qwen3-235B-A22B", **H200, "tensor_parallel_size": 4, "data_parallel_size": 2,
        "enable_expert_parallel": True,
    },
    "copied heads": {"model": "Qwen/Qwen3-235B-A22B", **H100, "tensor_parallel_size": 8},
    "4 bits": {"model": "Qwen/Qwen3-32B-AWQ", "accelerator": "RTX-4090-24GB", "tensor_parallel_size": 2,
               "max_model_len": 8192},
    "fp8": {"model": "Qwen/Qwen3-32B-FP8", **H100, "kv_cache_dtype": "fp8"},
    "scaled heads": {"model": "Qwen/Qwen3-8B", **H100, "kv_cache_dtype": "int8_per_token_head"},
    "pipeline": {"model": "meta-llama/Llama-3.1-70B-Instruct", "accelerator": "A100-80GB", "max_model_len": 8192,
                 "tensor_parallel_size": 2, "pipeline_parallel_size": 3},
    "V0": {"model": "meta-llama/Llama-2-70b-chat-hf", "accelerator": "A100-80GB", "tensor_parallel_size": 4,
           "max_model_len": 4096, "engine_version": "0.6.6"},
    "ascend": {"model": "Qwen/Qwen3-32B", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend",
               "tensor_parallel_size": 4, "max_model_len": 16384},
    "mindspore": {"model": "Qwen/Qwen3-32B", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-mindspore",
                  "engine_version": "0.4.0", "tensor_parallel_size": 4, "max_model_len": 16384},
    "mindspore that profiles": {"model": "Qwen/Qwen3-32B", "accelerator": "Ascend-910B3-64GB",
                                "engine": "vllm-mindspore", "tensor_parallel_size": 4, "max_model_len": 16384},
    "pooling": {"model": "Qwen/Qwen3-Embedding-8B", **H100},
    "sound": {"config": WHISPER, "accelerator": "L40S-48GB", "max_model_len": 448},
    "images": {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "accelerator": "L40S-48GB", "max_model_len": 16384},
    "given memory": {**QWEN, "measured": {"available_kv_gib": 5}},
    "given bytes": {**QWEN, "kv_cache_memory_bytes": 5 << 30},
    "given blocks": {**QWEN, "num_gpu_blocks_override": 1000},
    "too long": TOO_LONG,
    "too big": TOO_BIG,
    "fits": FITS,
    "no card": {"model": "Qwen/Qwen3-32B", "max_model_len": 8192},
}  # fmt: skip
KINDS: Final = tuple(REQUESTS)


@cache
def planned(kind: str) -> Plan:
    """The plan of a kind."""
    return plan(scenario_from_request(REQUESTS[kind]))


@cache
def steps(kind: str, language: Language = Language.ENGLISH) -> tuple[Step, ...]:
    """The derivation of a kind's plan."""
    return derivation(planned(kind), words(language))
