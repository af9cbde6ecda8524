"""Molmo and Molmo 2: an image encoder, pooling attention over two of its layers, a decoder like Qwen's or OLMo's."""

from __future__ import annotations

from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks, vision
from kvcore.model.parts.encoder import read_encoder

EXTRA_VOCABULARY: Final = 128
"""Source: vllm/model_executor/models/molmo.py:ADDITIONAL_VOCAB_SIZE (0.32)."""

MAX_CROPS_2: Final = 8
"""Source: preprocessor_config.json of Molmo2-8B, max_crops."""

PREFIX: Final = "vision_backbone"


def read(config: ModelConfig) -> arch.Architecture:
    """Molmo.

    Source: vllm/model_executor/models/molmo.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, double = heads.hidden_size, section.integer("intermediate_size")
    if double % 2:
        raise section.contradicting("intermediate_size", f"{double} is two halves, and odd")
    modules: list[arch.Module] = [
        *blocks.attention(heads, qkv_bias=section.boolean("qkv_bias", False)),
        *blocks.gated_mlp(hidden, double // 2),
        *blocks.norms(hidden, "input_layernorm", "post_attention_layernorm"),
    ]
    if section.boolean("attention_layer_norm", False):
        modules.append(blocks.norm("self_attn.q_norm", hidden))
        modules.append(blocks.norm("self_attn.k_norm", heads.num_kv_heads * heads.head_dim))
    vocabulary = section.integer("embedding_size", section.integer("vocab_size"))
    tied = section.boolean("weight_tying", section.boolean("tie_word_embeddings", False))
    output = arch.VocabEmbedding(
        name="lm_head", num_embeddings=vocabulary, embedding_dim=hidden, quantizable=True
    )
    final = blocks.norm("model.norm", hidden)
    image = read_encoder("molmo", config.root, PREFIX, gate=double // 2, text=hidden)
    return blocks.decoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),)),) * section.layers(),
        intermediate_size=double // 2,
        first=(vision.sharded_table("model.embed_tokens", vocabulary + EXTRA_VOCABULARY, hidden),),
        last=(final,) if tied else (final, output),
        tied=tied,
        every=image.modules,
        vision=image.vision,
        is_multimodal=True,
        vocab_size=section.integer("vocab_size"),
    )


def read_molmo2(config: ModelConfig) -> arch.Architecture:
    """Molmo 2.

    Source: vllm/model_executor/models/molmo2.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    modules: list[arch.Module] = [
        blocks.qkv(heads, "self_attn.att_proj", ("att_proj",), bias=section.boolean("qkv_bias", False)),
        blocks.row("self_attn.attn_out", heads.num_heads * heads.head_dim, hidden),
        *blocks.gated_mlp(hidden, intermediate),
        *blocks.norms(hidden, "attn_norm", "ff_norm"),
    ]
    if section.boolean("use_qk_norm", False):
        per_head = section.string("qk_norm_type", "olmo") == "qwen3"
        modules += (
            blocks.norm("self_attn.q_norm", heads.head_dim * (1 if per_head else heads.num_heads)),
            blocks.norm("self_attn.k_norm", heads.head_dim * (1 if per_head else heads.num_kv_heads)),
        )
    vocabulary = section.integer("vocab_size") + section.integer("additional_vocab_size", 128)
    adapter, vit = config.root.section("adapter_config"), config.root.section("vit_config")
    sides, patch = vit.integers("image_default_input_size", minimum=1), vit.integer("image_patch_size")
    side = (sides[0] if sides else 378) // patch
    looked_at = feature_layers(vit, adapter)
    tokens = (-(-side // 2)) ** 2 * (MAX_CROPS_2 + 1)
    image = read_encoder("molmo2", vit, f"{PREFIX}.image_vit", layers=max(looked_at) + 1, tokens=tokens)
    wide = vit.integer("hidden_size") * len(looked_at)
    return blocks.decoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),)),) * section.layers(),
        intermediate_size=intermediate,
        first=(vision.sharded_table("model.transformer.wte", vocabulary, hidden),),
        every=(*image.modules, *read_encoder("molmo2_pooling", adapter, PREFIX, wide=wide).modules),
        tied=section.boolean("tie_word_embeddings", False),
        vision=image.vision,
        is_multimodal=True,
        layer_prefix="model.transformer.blocks",
    )


def feature_layers(vit: Section, adapter: Section) -> tuple[int, ...]:
    """Which blocks of the encoder the pooling looks at, counted from its start."""
    total = vit.layers()
    chosen = adapter.get("vit_layers") or [-3, -9]
    if not isinstance(chosen, list) or not all(
        isinstance(index, int) and -total <= index < total for index in chosen
    ):
        raise adapter.invalid("vit_layers", chosen, f"expected numbers of the encoder's {total} layers")
    return tuple(index + total if index < 0 else index for index in chosen)


READERS: Final = blocks.named(
    (read, "MolmoForCausalLM", "molmo"),
    (read_molmo2, "Molmo2ForConditionalGeneration", "molmo2"),
)
