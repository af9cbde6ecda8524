"""Qwen 1: a biased fused attention, an MLP whose `intermediate_size` counts gate and up together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvcore.model.architecture import Architecture, Layer
from kvcore.model.config import ModelConfig
from kvcore.model.parts.blocks import (
    cache_of,
    decoder,
    embedding,
    gated_mlp,
    head,
    is_tied,
    norm,
    norms,
    qkv,
    read_heads,
    row,
)


def read(config: ModelConfig) -> Architecture:
    """Qwen 1; of Qwen-VL the language part, its tower named as not counted.

    Source: vllm/model_executor/models/qwen.py (0.28).
    """
    section = config.language
    heads = read_heads(section, "", reads_head_dim=False)
    hidden, double = heads.hidden_size, section.integer("intermediate_size")
    if double % 2:
        raise section.contradicting("intermediate_size", f"{double} holds two halves and is odd")
    layer = Layer(
        modules=(
            qkv(heads, "attn.c_attn", ("c_attn",), bias=True),
            row("attn.c_proj", heads.num_heads * heads.head_dim, hidden),
            *gated_mlp(hidden, double // 2),
            *norms(hidden, "ln_1", "ln_2"),
        ),
        caches=(cache_of(heads),),
    )
    tied = is_tied(config, section, False)
    final = norm("transformer.ln_f", hidden)
    has_tower = config.root.has("visual")
    return decoder(
        config,
        section,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=double // 2,
        first=(embedding(section, "transformer.wte"),),
        last=(final,) if tied else (final, head(section)),
        tied=tied,
        layer_prefix="transformer.h",
        is_multimodal=has_tower,
        uncounted=("visual",) if has_tower else (),
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {"QWenLMHeadModel": read, "qwen": read}
