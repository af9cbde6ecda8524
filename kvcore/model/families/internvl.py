"""InternVL: InternViT, a pixel shuffle and a replicated MLP in front of another decoder, in two config layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import vision
from kvcore.model.families.multimodal import square_encoder, with_tower
from kvcore.model.parts.blocks import norm, plain_mlp, qkv, replicated, row, whole_unless_divided


def read_internvl(config: ModelConfig, *, is_nvlm: bool = False) -> Architecture:
    """InternVL, Skywork R1V, H2OVL: InternViT and a replicated MLP behind a pixel shuffle.

    Source: vllm/model_executor/models/internvl.py, skyworkr1v.py, h2ovl.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    select = root.optional_integer("select_layer", minimum=-section.layers(), maximum=section.layers())
    total = section.layers()
    layers = total if select is None else total + select + 1 if select < 0 else select + 1
    ratio = root.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise root.invalid("downsample_ratio", ratio, "expected more than 0 and at most 1")
    merge = int(1 / ratio)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    inner = config.language.integer("intermediate_size") if is_nvlm else text
    modules = (
        *intern_vit(section, min(layers, total), dummy_heads=NVLM_DUMMY_HEADS if is_nvlm else 0),
        norm("mlp1.0", width * merge**2, bias=True),
        replicated("mlp1.1", width * merge**2, inner, bias=not is_nvlm, quantizable=False),
        replicated("mlp1.3", inner, text, bias=not is_nvlm, quantizable=False),
    )
    encoder = square_encoder(section, merge)
    tiles = root.integer("max_dynamic_patch", 12, maximum=1024) + 1
    encoder = replace(encoder, max_tokens_per_item=encoder.max_tokens_per_item * tiles)
    return with_tower(config, vision.Tower(modules=modules, encoder=encoder))


def read_nvlm(config: ModelConfig) -> Architecture:
    """NVLM-D: more heads than the checkpoint has, and a projector as wide as the language part's MLP.

    Source: vllm/model_executor/models/nvlm_d.py (0.32).
    """
    return read_internvl(config, is_nvlm=True)


def intern_vit(
    section: Section, layers: int, prefix: str = "vision_model", *, dummy_heads: int = 0
) -> tuple[Module, ...]:
    """InternViT up to `layers` blocks; attention whose heads the ranks do not divide is whole on each.

    `dummy_heads` are heads of zeros beside those of the checkpoint.

    Source: vllm/model_executor/models/intern_vit.py (0.32).
    """
    hidden, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = vision.square_heads(section, hidden, section.integer("num_attention_heads"))
    more = heads.num_heads + dummy_heads
    heads = replace(heads, num_heads=more, num_kv_heads=more)
    inner = more * heads.head_dim
    patch = section.integer("patch_size", maximum=4096)
    side = vision.patches_per_side(section, section.integer("image_size"), patch)
    is_layer_norm = section.string("norm_type", "rms_norm") == "layer_norm"
    has_qk_norm = section.boolean("qk_normalization", True)
    modules: list[Module] = [
        Parameter(name=f"{prefix}.embeddings.class_embedding", replicated=hidden),
        vision.convolution(f"{prefix}.embeddings.patch_embedding", 3, hidden, (patch, patch), bias=True),
        vision.table(f"{prefix}.embeddings.position_embedding", side * side + 1, hidden),
    ]
    for index in range(layers):
        block = f"{prefix}.encoder.layers.{index}"
        modules += (
            *whole_unless_divided(
                heads.num_heads,
                qkv(heads, f"{block}.attn.qkv", bias=section.boolean("qkv_bias", False)),
                row(f"{block}.attn.proj", inner, hidden, bias=True),
            ),
            *plain_mlp(hidden, intermediate, f"{block}.mlp.fc1", f"{block}.mlp.fc2", bias=True),
            norm(f"{block}.norm1", hidden, bias=is_layer_norm),
            norm(f"{block}.norm2", hidden, bias=is_layer_norm),
            Parameter(name=f"{block}.ls1", replicated=hidden),
            Parameter(name=f"{block}.ls2", replicated=hidden),
        )
        if has_qk_norm:
            modules += (norm(f"{block}.attn.q_norm", inner), norm(f"{block}.attn.k_norm", inner))
    return tuple(modules)


def read_hugging_face(config: ModelConfig) -> Architecture:
    """InternVL as transformers writes it: attention of the tower is replicated, its MLP divided.

    Source: vllm/model_executor/models/interns1.py, interns1_vit.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    image, patch = side_of(section, "image_size"), side_of(section, "patch_size")
    side = vision.patches_per_side(section, image, patch)
    ratio = root.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise root.invalid("downsample_ratio", ratio, "expected more than 0 and at most 1")
    merge = int(1 / ratio)
    channels = section.integer("num_channels", 3, maximum=64)
    modules: list[Module] = [
        Parameter(name="vision_tower.embeddings.cls_token", replicated=width),
        vision.convolution(
            "vision_tower.embeddings.patch_embeddings.projection", channels, width, (patch, patch), bias=True
        ),
    ]
    if section.boolean("use_mask_token", False):
        modules.append(Parameter(name="vision_tower.embeddings.mask_token", replicated=width))
    if section.boolean("use_absolute_position_embeddings", True):
        modules.append(vision.table("vision_tower.embeddings.position_embeddings", side * side + 1, width))
    for index in range(vision.feature_layers(root, section, default=-1)):
        modules += replicated_block(section, width, f"vision_tower.encoder.layer.{index}")
    if not section.boolean("use_mean_pooling", True):
        modules.append(norm("vision_tower.layernorm", width, bias=True))
    modules += projector(width * merge**2, text)
    encoder = VisionEncoder(
        hidden_size=width,
        intermediate_size=section.integer("intermediate_size"),
        max_tokens_per_item=(side // merge) ** 2 * (MAX_TILES + 1),
        patches_per_token=merge * merge,
    )
    return with_tower(config, vision.Tower(modules=tuple(modules), encoder=encoder))


def replicated_block(section: Section, width: int, block: str) -> tuple[Module, ...]:
    """A block of the tower in transformers' layout."""
    intermediate = section.integer("intermediate_size")
    is_layer_norm = section.string("norm_type", "layer_norm") == "layer_norm"
    bias = section.boolean("attention_bias", False)
    names = ("q_proj", "k_proj", "v_proj")
    qk = ("q_norm", "k_norm") if section.boolean("use_qk_norm", False) else ()
    return (
        *(
            replicated(f"{block}.attention.{name}", width, width, bias=bias, quantizable=False)
            for name in names
        ),
        replicated(f"{block}.attention.projection_layer", width, width, bias=True, quantizable=False),
        *(norm(f"{block}.attention.{name}", width) for name in qk),
        *plain_mlp(width, intermediate, f"{block}.mlp.fc1", f"{block}.mlp.fc2", bias=True),
        norm(f"{block}.layernorm_before", width, bias=is_layer_norm),
        norm(f"{block}.layernorm_after", width, bias=is_layer_norm),
        Parameter(name=f"{block}.lambda_1", replicated=width),
        Parameter(name=f"{block}.lambda_2", replicated=width),
    )


def projector(merged: int, text: int) -> tuple[Module, ...]:
    """A norm and two replicated linear layers."""
    return (
        norm("multi_modal_projector.layer_norm", merged, bias=True),
        replicated("multi_modal_projector.linear_1", merged, text, bias=True, quantizable=False),
        replicated("multi_modal_projector.linear_2", text, text, bias=True, quantizable=False),
    )


def side_of(section: Section, name: str) -> int:
    """A size written once or for both sides of a square."""
    if not isinstance(section.get(name), list):
        return section.integer(name)
    sides = set(section.integers(name, minimum=1) or ())
    if len(sides) != 1:
        raise section.contradicting(name, f"{name} is no square")
    return sides.pop()


NVLM_DUMMY_HEADS: Final = 7
"""Source: vllm/model_executor/models/nvlm_d.py:NVLM_D_Model._init_vision_model (0.32)."""

MAX_TILES: Final = 12
"""Tiles of the largest image. Source: preprocessor_config.json of InternVL3-8B-hf, max_patches."""

READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "InternVLChatModel": read_internvl,
    "internvl_chat": read_internvl,
    "SkyworkR1VChatModel": read_internvl,
    "skywork_chat": read_internvl,
    "H2OVLChatModel": read_internvl,
    "h2ovl_chat": read_internvl,
    "NVLM_D": read_nvlm,
    "InternS1ForConditionalGeneration": read_hugging_face,
    "interns1": read_hugging_face,
    "InternVLForConditionalGeneration": read_hugging_face,
    "internvl": read_hugging_face,
}
