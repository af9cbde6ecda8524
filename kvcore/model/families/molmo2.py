"""Molmo 2: a SigLIP-like tower, pooling attention over two of its layers, and a decoder like Qwen3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Layer,
    Linear,
    Module,
    Output,
    Split,
    VisionEncoder,
    VocabEmbedding,
)
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import vision
from kvcore.model.parts.blocks import (
    Heads,
    cache_of,
    column,
    decoder,
    gated_mlp,
    norm,
    norms,
    plain_mlp,
    qkv,
    read_heads,
    replicated,
    row,
)

MAX_CROPS: Final = 8
"""Source: preprocessor_config.json of Molmo2-8B, max_crops."""


def read(config: ModelConfig) -> Architecture:
    """Molmo 2.

    Source: vllm/model_executor/models/molmo2.py (0.32).
    """
    section = config.language
    heads = read_heads(section)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    modules: list[Module] = [
        qkv(heads, "self_attn.att_proj", ("att_proj",), bias=section.boolean("qkv_bias", False)),
        row("self_attn.attn_out", heads.num_heads * heads.head_dim, hidden),
        *gated_mlp(hidden, intermediate),
        *norms(hidden, "attn_norm", "ff_norm"),
    ]
    if section.boolean("use_qk_norm", False):
        per_head = section.string("qk_norm_type", "olmo") == "qwen3"
        modules += (
            norm("self_attn.q_norm", heads.head_dim * (1 if per_head else heads.num_heads)),
            norm("self_attn.k_norm", heads.head_dim * (1 if per_head else heads.num_kv_heads)),
        )
    vocabulary = section.integer("vocab_size")
    adapter, tower = config.root.section("adapter_config"), config.root.section("vit_config")
    image, patch = tower.integers("image_default_input_size", minimum=1), tower.integer("image_patch_size")
    side = (image[0] if image else 378) // patch
    return decoder(
        config,
        section,
        heads=heads,
        layers=(Layer(modules=tuple(modules), caches=(cache_of(heads),)),) * section.layers(),
        intermediate_size=intermediate,
        first=(
            VocabEmbedding(
                name="model.transformer.wte",
                num_embeddings=vocabulary + section.integer("additional_vocab_size", 128),
                embedding_dim=hidden,
            ),
        ),
        every=(*eyes(tower, adapter), *pooling(tower, adapter)),
        tied=section.boolean("tie_word_embeddings", False),
        vision=VisionEncoder(
            hidden_size=tower.integer("hidden_size"),
            intermediate_size=tower.integer("intermediate_size"),
            max_tokens_per_item=(-(-side // 2)) ** 2 * (MAX_CROPS + 1),
            patches_per_token=4,
        ),
        is_multimodal=True,
        layer_prefix="model.transformer.blocks",
    )


def feature_layers(tower: Section, adapter: Section) -> tuple[int, ...]:
    """Which blocks of the tower the pooling looks at, counted from its start."""
    total = tower.layers()
    chosen = adapter.get("vit_layers") or [-3, -9]
    if not isinstance(chosen, list) or not all(
        isinstance(index, int) and -total <= index < total for index in chosen
    ):
        raise adapter.invalid("vit_layers", chosen, f"expected numbers of the tower's {total} layers")
    return tuple(index + total if index < 0 else index for index in chosen)


def eyes(tower: Section, adapter: Section) -> tuple[Module, ...]:
    """The tower up to the deepest block that is looked at.

    Source: vllm/model_executor/models/molmo2.py:Molmo2VisionTransformer (0.32).
    """
    prefix = "vision_backbone.image_vit"
    width, intermediate = tower.integer("hidden_size"), tower.integer("intermediate_size")
    heads = Heads(
        hidden_size=width,
        num_heads=tower.integer("num_attention_heads"),
        num_kv_heads=tower.integer("num_key_value_heads", tower.integer("num_attention_heads")),
        head_dim=tower.integer("head_dim"),
    )
    pixels = 3 * tower.integer("image_patch_size", maximum=4096) ** 2
    modules: list[Module] = [
        vision.table(f"{prefix}.positional_embedding", tower.integer("image_num_pos"), width),
        replicated(f"{prefix}.patch_embedding", pixels, width, bias=True, quantizable=False),
    ]
    for index in range(max(feature_layers(tower, adapter)) + 1):
        block = f"{prefix}.transformer.resblocks.{index}"
        modules += (
            qkv(heads, f"{block}.attention.merged_qkv", ("wq", "wk", "wv"), bias=True),
            row(f"{block}.attention.wo", heads.num_heads * heads.head_dim, width, bias=True),
            *plain_mlp(
                width, intermediate, f"{block}.feed_forward.w1", f"{block}.feed_forward.w2", bias=True
            ),
            *norms(width, f"{block}.attention_norm", f"{block}.ffn_norm", bias=True),
        )
    return tuple(modules)


def pooling(tower: Section, adapter: Section) -> tuple[Module, ...]:
    """Attention of a square of patches, and a gated projector.

    Source: vllm/model_executor/models/molmo2.py:ImagePoolingAttention, ImageProjectorMLP (0.32).
    """
    prefix = "vision_backbone"
    wide = tower.integer("hidden_size") * len(feature_layers(tower, adapter))
    width, head_dim = adapter.integer("hidden_size"), adapter.integer("head_dim")
    heads = adapter.integer("num_attention_heads")
    kv_heads = adapter.integer("num_key_value_heads", heads)
    inner, text = adapter.integer("intermediate_size"), adapter.integer("text_hidden_size")
    keys = Output(units=kv_heads, width=head_dim, replicable=True)
    return (
        column(f"{prefix}.image_pooling_2d.wq", wide, heads * head_dim, bias=True),
        Linear(
            name=f"{prefix}.image_pooling_2d.merged_kv",
            in_features=wide,
            outputs=(keys, keys),
            split=Split.COLUMN,
            bias=True,
            parts=(f"{prefix}.image_pooling_2d.wk", f"{prefix}.image_pooling_2d.wv"),
        ),
        row(f"{prefix}.image_pooling_2d.wo", heads * head_dim, width, bias=True),
        Linear(
            name=f"{prefix}.image_projector.merged_linear",
            in_features=width,
            outputs=(Output(units=inner), Output(units=inner)),
            split=Split.COLUMN,
            parts=(f"{prefix}.image_projector.w1", f"{prefix}.image_projector.w3"),
        ),
        row(f"{prefix}.image_projector.w2", inner, text),
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Molmo2ForConditionalGeneration": read,
    "molmo2": read,
}
