"""Llama 3.2 Vision: a ViT with a second transformer over its tiles, and layers of a Llama that attend to the image."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import CrossAttention
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, read_decoder
from kvcore.model.families.multimodal import behind_encoders
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc

EXTRA_ROWS: Final = 8
"""Rows of the embedding beyond the vocabulary.

Source: vllm/model_executor/models/mllama.py:MllamaTextModel (0.10.1.1).
"""
BLOCK: Final = replace(enc.LLAMA, qkv="self_attn.qkv_proj", out="self_attn.proj")
MAX_TILES: Final = 64


def read_language(config: ModelConfig) -> arch.Architecture:
    """The Llama: `cross_attention_layers` look at the image alone, with gates and norms of queries and keys.

    Source: vllm/model_executor/models/mllama.py:MllamaTextModel, MllamaCrossAttentionDecoderLayer (0.10.1.1).
    """
    section = config.language
    heads = blocks.read_heads(section)
    count = section.layers()
    across = frozenset(section.integers("cross_attention_layers") or ())
    if not across <= frozenset(range(count)):
        raise section.contradicting("cross_attention_layers", f"the model has {count} layers")
    plain = arch.Layer(modules=blocks.attention(heads), caches=(blocks.cache_of(heads),))
    tiles, patches = tiles_and_patches(vision_of(config))
    looking = arch.Layer(
        modules=(
            *blocks.attention(heads, "cross_attn"),
            *blocks.norms(heads.head_dim, "cross_attn.q_norm", "cross_attn.k_norm"),
            enc.tensor("cross_attn_attn_gate", 1),
            enc.tensor("cross_attn_mlp_gate", 1),
        ),
        caches=(
            CrossAttention(
                num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, encoder_tokens=tiles * patches
            ),
        ),
    )
    mixers = tuple(looking if place in across else plain for place in range(count))
    built = read_decoder(DECODERS["llama"], config, section, heads=heads, mixers=mixers)
    rows = section.integer("vocab_size") + EXTRA_ROWS
    table = enc.sharded_table("model.embed_tokens", rows, heads.hidden_size)
    return dataclasses.replace(built, first=(table, *built.first[1:]))


def vision_of(config: ModelConfig) -> Section:
    """The section of the encoder."""
    return config.root.section("vision_config")


def tiles_and_patches(section: Section) -> tuple[int, int]:
    """Tiles of the largest image, and patches of a tile with the one that stands for the whole."""
    _, side = enc.read_patches(section)
    return section.integer("max_num_tiles", maximum=MAX_TILES), side**2 + 1


def images(config: ModelConfig, text: int) -> enc.Encoder:
    """The ViT, its tables by tile and shape of the image, and the projection that every rank has whole.

    Source: vllm/model_executor/models/mllama.py:MllamaVisionModel, MllamaForConditionalGeneration (0.10.1.1); how many
    shapes there are: transformers configuration_mllama.py:MllamaVisionConfig.max_aspect_ratio_id (4.57).
    """
    section = vision_of(config)
    own = enc.read_sizes(section, heads="attention_heads")
    patch, _ = enc.read_patches(section)
    tiles, patches = tiles_and_patches(section)
    shapes = len(section.sequence("supported_aspect_ratios") or _shapes(tiles)) + 1
    width, channels = own.width, enc.read_channels(section)
    layer = (
        *enc.attention(own, BLOCK, bias=False, out_bias=False),
        *enc.mlp(own, BLOCK),
        *enc.norms(own, BLOCK),
    )
    gated = (*layer, enc.tensor("gate_attn", 1), enc.tensor("gate_ffn", 1))
    far = section.integer("num_global_layers")
    modules = (
        replace(
            enc.column("patch_embedding._linear", channels * patch**2, width, bias=False), quantizable=False
        ),
        enc.tensor("class_embedding", width),
        enc.tensor("gated_positional_embedding.gate", 1),
        enc.tensor("gated_positional_embedding.embedding", patches, width),
        enc.tensor("gated_positional_embedding.tile_embedding", shapes, tiles * patches * width),
        *(
            module
            for place in ("pre", "post")
            for module in (
                enc.tensor(f"{place}_tile_positional_embedding.embedding", shapes, tiles * width),
                enc.tensor(f"{place}_tile_positional_embedding.gate", 1),
            )
        ),
        enc.norm("layernorm_pre", width),
        enc.norm("layernorm_post", width),
        *enc.repeated("transformer.layers", own.layers, layer),
        *enc.repeated("global_transformer.layers", far, gated),
    )
    projector = blocks.replicated(
        "multi_modal_projector", section.integer("vision_output_dim"), text, bias=True
    )
    return enc.seeing((*enc.behind("vision_model", modules), projector), own, tiles * patches)


def _shapes(tiles: int) -> tuple[tuple[int, int], ...]:
    """Ways to lay up to `tiles` tiles out, as the processor counts them."""
    return tuple((wide, high) for wide in range(1, tiles + 1) for high in range(1, tiles // wide + 1))


READERS: Final = blocks.named(
    (behind_encoders(images, read_language), "MllamaForConditionalGeneration mllama")
)
