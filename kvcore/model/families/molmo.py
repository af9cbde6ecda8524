"""Molmo: a CLIP-like tower with pooling attention in front of a Qwen2- or OLMo-like decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Layer,
    Linear,
    Module,
    Output,
    Parameter,
    Split,
    VisionEncoder,
    VocabEmbedding,
)
from kvcore.model.config import ModelConfig
from kvcore.model.parts.blocks import (
    attention,
    cache_of,
    column,
    decoder,
    gated_mlp,
    norm,
    norms,
    plain_mlp,
    read_heads,
    row,
)

EXTRA_VOCABULARY: Final = 128
"""Source: vllm/model_executor/models/molmo.py:ADDITIONAL_VOCAB_SIZE (0.32)."""

TOWER_WIDTH: Final = 1024
TOWER_MLP: Final = 4096
TOWER_LAYERS: Final = 23
TOWER_POSITIONS: Final = 577
TOWER_PATCH: Final = 14
FEATURE_LAYERS: Final = 2
MAX_CROPS: Final = 12
"""Source: vllm/model_executor/models/molmo.py:VisionBackboneConfig, VIT_LAYERS (0.32)."""


def read(config: ModelConfig) -> Architecture:
    """Molmo.

    Source: vllm/model_executor/models/molmo.py (0.32).
    """
    section = config.language
    heads = read_heads(section, reads_head_dim=False)
    hidden, double = heads.hidden_size, section.integer("intermediate_size")
    if double % 2:
        raise section.contradicting("intermediate_size", f"{double} holds two halves and is odd")
    modules: list[Module] = [
        *attention(heads, qkv_bias=section.boolean("qkv_bias", False)),
        *gated_mlp(hidden, double // 2),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
    ]
    if section.boolean("attention_layer_norm", False):
        modules.append(norm("self_attn.q_norm", hidden))
        modules.append(norm("self_attn.k_norm", heads.num_kv_heads * heads.head_dim))
    layer = Layer(modules=tuple(modules), caches=(cache_of(heads),))
    vocabulary = section.integer("embedding_size", section.integer("vocab_size"))
    tied = section.boolean("weight_tying", section.boolean("tie_word_embeddings", False))
    output = VocabEmbedding(name="lm_head", num_embeddings=vocabulary, embedding_dim=hidden, quantizable=True)
    final = norm("model.norm", hidden)
    patches = TOWER_POSITIONS - 1
    return decoder(
        config,
        section,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=double // 2,
        first=(
            VocabEmbedding(
                name="model.embed_tokens", num_embeddings=vocabulary + EXTRA_VOCABULARY, embedding_dim=hidden
            ),
        ),
        last=(final,) if tied else (final, output),
        tied=tied,
        every=tower(hidden, double // 2),
        vision=VisionEncoder(
            hidden_size=TOWER_WIDTH,
            intermediate_size=TOWER_MLP,
            max_tokens_per_item=patches // 4 * (MAX_CROPS + 1),
            patches_per_token=4,
        ),
        is_multimodal=True,
        vocab_size=section.integer("vocab_size"),
    )


def tower(hidden: int, intermediate: int) -> tuple[Module, ...]:
    """The image encoder, the pooling attention over two of its layers, and the projector."""
    prefix = "vision_backbone"
    modules: list[Module] = [
        Parameter(name=f"{prefix}.image_vit.class_embedding", replicated=TOWER_WIDTH),
        Parameter(name=f"{prefix}.image_vit.positional_embedding", replicated=TOWER_POSITIONS * TOWER_WIDTH),
        Parameter(name=f"{prefix}.image_vit.patch_embedding", replicated=3 * TOWER_PATCH**2 * TOWER_WIDTH),
        norm(f"{prefix}.image_vit.pre_ln", TOWER_WIDTH, bias=True),
    ]
    for index in range(TOWER_LAYERS):
        block = f"{prefix}.image_vit.transformer.resblocks.{index}"
        modules += dot_product_attention(f"{block}.attention", 1)
        modules += plain_mlp(
            TOWER_WIDTH, TOWER_MLP, f"{block}.feed_forward.w1", f"{block}.feed_forward.w2", bias=True
        )
        modules += norms(TOWER_WIDTH, f"{block}.attention_norm", f"{block}.ffn_norm", bias=True)
    modules += dot_product_attention(f"{prefix}.image_pooling_2d", FEATURE_LAYERS)
    modules += (
        Linear(
            name=f"{prefix}.image_projector.merged_linear",
            in_features=TOWER_WIDTH,
            outputs=(Output(units=intermediate), Output(units=intermediate)),
            split=Split.COLUMN,
        ),
        row(f"{prefix}.image_projector.down_proj", intermediate, hidden),
        Parameter(name=f"{prefix}.pad_embed", replicated=2 * FEATURE_LAYERS * TOWER_WIDTH),
    )
    return tuple(modules)


def dot_product_attention(prefix: str, feature_layers: int) -> tuple[Linear, ...]:
    """Attention whose input is as wide as `feature_layers` layers of the tower."""
    wide = feature_layers * TOWER_WIDTH
    return (
        *(column(f"{prefix}.{name}", wide, TOWER_WIDTH, bias=True) for name in ("wq", "wk", "wv")),
        row(f"{prefix}.wo", TOWER_WIDTH, TOWER_WIDTH, bias=True),
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "MolmoForCausalLM": read,
    "molmo": read,
}
