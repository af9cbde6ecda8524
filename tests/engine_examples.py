"""Scenarios of the engine and memory tests: small configs of published models."""

from __future__ import annotations

from typing import Any

from kvcore.base.units import GIB
from kvcore.engine.protocol import Resolved, Setting
from kvcore.engine.rank_memory import RankMemory
from kvcore.engine.setting import setting_of
from kvcore.engines.registry import card_of, engine_of, view_of
from kvcore.memory.budget import rank_memory
from kvcore.memory.weights import WeightBytes
from kvcore.model.families import read_architecture
from kvcore.scenario import Scenario
from kvcore.wire.request import scenario_from_request

H100 = {"memory_gib": 79.19, "vendor": "nvidia", "name": "NVIDIA H100 80GB HBM3"}
A100 = {"memory_gib": 79.25, "vendor": "nvidia", "name": "NVIDIA A100-SXM4-80GB"}
B200 = {"memory_gib": 178.35, "vendor": "nvidia", "name": "NVIDIA B200"}
L40S = {"memory_gib": 44.4, "vendor": "nvidia", "name": "NVIDIA L40S"}
RTX_3090 = {"memory_gib": 23.57, "vendor": "nvidia", "name": "NVIDIA GeForce RTX 3090"}
T4 = {"memory_gib": 14.56, "vendor": "nvidia", "name": "Tesla T4"}
ASCEND = {"memory_gib": 60.96, "vendor": "huawei", "name": "Ascend 910B2 64GB"}

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_14B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN25_05B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
QWEN25_7B = {
    **QWEN25_05B, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
GEMMA3_12B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
    "mm_tokens_per_image": 256,
    "text_config": {"model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360,
                    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
                    "sliding_window": 1024, "vocab_size": 262208},
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                      "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14},
}  # fmt: skip


def scenario_of(config: dict[str, Any] = LLAMA_8B, **fields: Any) -> Scenario:
    """A scenario of `config`; on an H100 unless `accelerator` says otherwise."""
    return scenario_from_request({"model": "a model", "config": config, "accelerator": H100, **fields})


def resolved_of(config: dict[str, Any] = LLAMA_8B, **fields: Any) -> Resolved:
    """The resolved flags of that scenario."""
    scenario = scenario_of(config, **fields)
    accelerator = card_of(scenario)
    return engine_of(scenario).resolve(
        scenario, read_architecture(scenario.config), view_of(accelerator, scenario.accelerator is None)
    )


def setting_for(config: dict[str, Any] = LLAMA_8B, stage: int = 0, **fields: Any) -> Setting:
    """The memory setting of that scenario."""
    scenario = scenario_of(config, **fields)
    architecture = read_architecture(scenario.config)
    assert scenario.accelerator is not None
    resolved = engine_of(scenario).resolve(scenario, architecture, view_of(scenario.accelerator))
    return setting_of(scenario, architecture, resolved, scenario.accelerator, stage)


def memory_with(setting: Setting, weights_gib: float) -> RankMemory:
    """The memory of a rank of that setting with weights of a given size."""
    return rank_memory(
        scenario=setting.scenario,
        architecture=setting.architecture,
        resolved=setting.resolved,
        accelerator=setting.accelerator,
        weights=WeightBytes(parameters=int(weights_gib * GIB), buffers=0, loading=0),
        stage=0,
    )
