"""Llama and the models that the engine runs with the same layers: fused qkv, gated MLP, two RMS norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.model.architecture import Architecture, Layer
from kvcore.model.config import ModelConfig
from kvcore.model.families.blocks import attention, cache_of, decoder, gated_mlp, norms, read_heads


def read(config: ModelConfig) -> Architecture:
    """Llama: biases on attention and MLP as the config says.

    Source: vllm/model_executor/models/llama.py (0.32).
    """
    section = config.language
    heads = read_heads(section)
    intermediate = section.integer("intermediate_size")
    bias = section.boolean("attention_bias", section.boolean("bias", False))
    layer = Layer(
        modules=(
            *attention(heads, qkv_bias=bias, out_bias=bias),
            *gated_mlp(heads.hidden_size, intermediate, bias=section.boolean("mlp_bias", False)),
            *norms(heads.hidden_size, "input_layernorm", "post_attention_layernorm"),
        ),
        caches=(cache_of(heads),),
    )
    return decoder(
        config,
        section,
        family="llama",
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate,
    )


READERS: Final[Mapping[str, object]] = {"LlamaForCausalLM": read, "llama": read}
