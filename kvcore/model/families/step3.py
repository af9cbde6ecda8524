"""Step 3: one KV head, queries through a narrow projection, experts on listed layers; a tower in front of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Experts,
    Layer,
    MixtureOfExperts,
    Module,
    VisionEncoder,
)
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import clip
from kvcore.model.families.step import read_moe, which_layers_are_sparse
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import (
    Heads,
    cache_of,
    column,
    decoder,
    gated_mlp,
    head,
    norm,
    norms,
    read_heads,
    replicated,
    row,
)
from kvcore.model.rope import read_ropes

MAX_PATCHES: Final = 6
"""Tiles of the largest image. Source: vllm/transformers_utils/processors/step3_vl.py:ImagePatcher (0.32)."""


def read(config: ModelConfig) -> Architecture:
    """Step 3, with its tower where the config has one.

    Source: vllm/model_executor/models/step3_text.py (0.32).
    """
    section = config.language
    heads = read_heads(section, "num_attention_groups")
    if heads.num_kv_heads != 1:
        raise section.invalid("num_attention_groups", heads.num_kv_heads, "expected 1")
    moe = read_moe(section)
    layers = {is_sparse: read_layer(section, heads, moe, is_sparse=is_sparse) for is_sparse in (False, True)}
    positions = section.optional_integer("max_position_embedding", minimum=1) or section.integer(
        "max_position_embeddings"
    )
    tower = config.root.optional_section("vision_config", "step3_vision_encoder")
    built = decoder(
        config,
        section,
        heads=heads,
        layers=tuple(layers[each] for each in which_layers_are_sparse(section, section.layers())),
        intermediate_size=section.integer("intermediate_size"),
        last=(norm("model.norm", heads.hidden_size), replace(head(section), quantizable=False)),
        tied=False,
        rotary_tables=tuple(rope.table(heads.head_dim, positions) for rope in read_ropes(section)),
        moe=moe,
    )
    if tower is None:
        return built
    return replace(
        built,
        every=(*eyes(tower), *projector(config.root, tower, heads.hidden_size)),
        vision=encoder_of(tower),
        is_multimodal=True,
    )


def read_layer(section: Section, heads: Heads, moe: MixtureOfExperts, *, is_sparse: bool) -> Layer:
    """One layer; keys, values and the narrow queries are whole on every rank."""
    hidden, all_heads = heads.hidden_size, heads.num_heads * heads.head_dim
    narrow = section.integer("share_q_dim", heads.head_dim)
    modules: list[Module] = [
        replicated("self_attn.qkv_proj", hidden, narrow + 2 * heads.head_dim),
        norm("self_attn.inter_norm", narrow),
        column("self_attn.wq", narrow, all_heads),
        row("self_attn.o_proj", all_heads, hidden),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
    ]
    if is_sparse:
        modules += [
            replicated("moe.gate", hidden, moe.num_experts, quantizable=False),
            Experts(
                name="moe.experts",
                num_experts=moe.num_experts,
                hidden_size=hidden,
                intermediate_size=moe.moe_intermediate_size,
                top_k=moe.top_k,
            ),
            *gated_mlp(hidden, moe.shared_intermediate_size, "share_expert"),
        ]
    else:
        modules += gated_mlp(hidden, section.integer("intermediate_size"))
    return Layer(modules=tuple(modules), caches=(cache_of(heads),))


def eyes(section: Section) -> tuple[Module, ...]:
    """A ViT with a class token.

    Source: vllm/model_executor/models/step3_vl.py:Step3VisionTransformer (0.32).
    """
    width, prefix = section.integer("hidden_size"), "vision_model"
    heads = vision.square_heads(section, width)
    channels, inner = section.integer("num_channels", 3, maximum=64), section.integer("intermediate_size")
    return (
        *vision.embeddings(section, f"{prefix}.embeddings", width, channels),
        *vision.blocks(clip.BLOCK, f"{prefix}.transformer.layers", section.layers(), heads, inner),
    )


def projector(root: Section, section: Section, text: int) -> tuple[Module, ...]:
    """Two convolutions that each take a square of patches to one, and a linear layer.

    Source: vllm/model_executor/models/step3_vl.py:Step3VLForConditionalGeneration (0.32).
    """
    width, out = section.integer("hidden_size"), section.integer("output_hidden_size")
    bias = root.boolean("projector_bias", True)
    return (
        vision.convolution("vit_downsampler", width, out, (2, 2), bias=True),
        vision.convolution("vit_downsampler2", out, 2 * out, (3, 3), bias=True),
        vision.whole("vit_large_projector", 2 * out, text, bias=bias),
    )


def encoder_of(section: Section) -> VisionEncoder:
    """What the profile run sees: a whole image and its tiles, four times four patches a token."""
    side = section.integer("image_size") // section.integer("patch_size")
    return vision.input_limits(section, (-(-side // 4)) ** 2 * (MAX_PATCHES + 1), 16)


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Step3TextForCausalLM": read,
    "step3_text": read,
    "Step3VLForConditionalGeneration": read,
    "step3_vl": read,
}
