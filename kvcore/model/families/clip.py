"""CLIP and SigLIP as models of their own: a transformer for texts beside one for images, each embedding for itself.

CLIP's texts are read forwards, so their keys and values are kept; SigLIP's are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Layer, Module, Parameter, VisionEncoder, VocabEmbedding
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import vision
from kvcore.model.families.towers import read_siglip
from kvcore.model.parts.blocks import (
    Heads,
    cache_of,
    decoder,
    norm,
    plain_mlp,
    read_heads,
    replicated,
)


def read_clip(config: ModelConfig) -> Architecture:
    """CLIP.

    Source: vllm/model_executor/models/clip.py:CLIPEmbeddingModel (0.32).
    """
    root, section = config.root, config.root.section("vision_config", "clip_vision_model")
    width, out = section.integer("hidden_size"), root.integer("projection_dim", 512)
    text = config.language.integer("hidden_size")
    modules = (
        *vision.clip(section, section.layers(), "vision_model"),
        replicated("visual_projection", width, out, quantizable=False),
        replicated("text_projection", text, out, quantizable=False),
    )
    return build(config, section, modules, is_kept=True)


def read_siglip_model(config: ModelConfig) -> Architecture:
    """SigLIP, with its pooling head.

    Source: vllm/model_executor/models/siglip.py:SiglipEmbeddingModel (0.32).
    """
    section = config.root.section("vision_config", "siglip_vision_model")
    text = config.language.integer("hidden_size")
    out = config.language.integer("projection_size", text)
    modules = (
        *read_siglip(section, "vision_model."),
        *(pooling_head(section) if section.boolean("vision_use_head", True) else ()),
        replicated("text_model.head", text, out, bias=True, quantizable=False),
    )
    return build(config, section, modules, is_kept=False)


def pooling_head(section: Section) -> tuple[Module, ...]:
    """A query that attends to all patches, and an MLP.

    Source: vllm/model_executor/models/siglip.py:SiglipMultiheadAttentionPoolingHead (0.32).
    """
    width, prefix = section.integer("hidden_size"), "vision_model.head"
    up, down = f"{prefix}.mlp.fc1", f"{prefix}.mlp.fc2"
    return (
        Parameter(name=f"{prefix}.probe", replicated=width),
        replicated(f"{prefix}.attention.in_proj", width, 3 * width, bias=True, quantizable=False),
        replicated(f"{prefix}.attention.out_proj", width, width, bias=True, quantizable=False),
        norm(f"{prefix}.layernorm", width, bias=True),
        *plain_mlp(width, section.integer("intermediate_size"), up, down, bias=True),
    )


def build(
    config: ModelConfig, section: Section, modules: tuple[Module, ...], *, is_kept: bool
) -> Architecture:
    """The text transformer's layers, with `modules` beside them."""
    text = config.language
    heads = read_heads(text, "", reads_head_dim=False)
    inner = text.integer("intermediate_size")
    side = vision.patches_per_side(section, section.integer("image_size"), section.integer("patch_size"))
    built = decoder(
        config,
        text,
        heads=heads,
        layers=(text_layer(heads, inner, is_kept=is_kept),) * text.layers(),
        intermediate_size=inner,
        first=(
            table("text_model.embeddings.token_embedding", text.integer("vocab_size"), heads),
            table("text_model.embeddings.position_embedding", text.integer("max_position_embeddings"), heads),
        ),
        every=modules,
        last=(norm("text_model.final_layer_norm", heads.hidden_size, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="text_model.encoder.layers",
        is_multimodal=True,
    )
    encoder = VisionEncoder(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        max_tokens_per_item=side * side,
    )
    return replace(built, vision=encoder)


def text_layer(heads: Heads, inner: int, *, is_kept: bool) -> Layer:
    """A layer for texts."""
    named = vision.transformer_block(heads, inner, "layer")
    modules = tuple(replace(module, name=module.name.removeprefix("layer.")) for module in named)
    return Layer(modules=modules, caches=(cache_of(heads),) if is_kept else ())


def table(name: str, rows: int, heads: Heads) -> VocabEmbedding:
    """A table that is divided like the vocabulary."""
    return VocabEmbedding(name=name, num_embeddings=rows, embedding_dim=heads.hidden_size)


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "CLIPModel": read_clip,
    "clip": read_clip,
    "SiglipModel": read_siglip_model,
    "siglip": read_siglip_model,
}
