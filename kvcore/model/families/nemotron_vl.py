"""Nemotron Nano VL: C-RADIO and a replicated MLP behind a pixel shuffle, in front of Nemotron-H."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.errors import ModelError
from kvcore.model.architecture import Architecture, Module, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import nemotron_h, vision
from kvcore.model.parts.blocks import (
    norm,
    norms,
    plain_mlp,
    qkv,
    replicated,
    row,
    whole_unless_divided,
)

TOWERS: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "vit_small_patch16_224": (384, 12, 6, 1536),
    "vit_base_patch16_224": (768, 12, 12, 3072),
    "vit_large_patch16_224": (1024, 24, 16, 4096),
    "vit_huge_patch16_224": (1280, 32, 16, 5120),
}
"""Width, layers, heads and MLP width. Source: vllm/transformers_utils/configs/radio.py:VIT_TIMM_DIM_BY_NAME (0.32)."""

MAX_TILES: Final = 12
"""Source: vllm/model_executor/models/nano_nemotron_vl.py, max_num_tiles (0.32)."""


def read(config: ModelConfig) -> Architecture:
    """Nemotron Nano VL 2, and the omni models as far as they see.

    Source: vllm/model_executor/models/nano_nemotron_vl.py (0.32).
    """
    root, built = config.root, nemotron_h.read_nemotron_h(config)
    section = root.section("vision_config")
    width, inner = root.integer("vit_hidden_size"), root.integer("projector_hidden_size")
    ratio = root.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise root.invalid("downsample_ratio", ratio, "expected more than 0 and at most 1")
    merge = round(1 / ratio)
    eyes, intermediate = radio(section)
    modules = [
        *eyes,
        norm("mlp1.0", width * merge**2),
        replicated("mlp1.1", width * merge**2, inner, quantizable=False),
        replicated("mlp1.3", inner, built.hidden_size, quantizable=False),
    ]
    if built.draft_steps:
        modules.append(norm("vision_final_layernorm", width, bias=True))
    side = root.integer("force_image_size", 512) // root.integer("patch_size", 16)
    return replace(
        built,
        every=tuple(modules),
        vision=VisionEncoder(
            hidden_size=width,
            intermediate_size=intermediate,
            max_tokens_per_item=(side // merge) ** 2 * (MAX_TILES + 1),
            patches_per_token=merge**2,
        ),
        is_multimodal=True,
        layer_prefix=f"language_model.{built.layer_prefix}",
        uncounted=("sound encoder",) if root.has("sound_config") else (),
    )


def radio(section: Section) -> tuple[tuple[Module, ...], int]:
    """C-RADIO, a ViT with tokens for its teachers and a table for large images; and the width of its MLPs.

    Source: vllm/model_executor/models/radio.py:RadioInternVisionModel (0.32).
    """
    arguments = section.section("args")
    name = arguments.string("model")
    if name not in TOWERS:
        raise ModelError(
            "unknown-architecture",
            field=f"{arguments.path}.model",
            architecture=name,
            reason="this vision tower is not known",
        )
    width, layers, count, intermediate = TOWERS[name]
    heads = vision.square_heads(section, width, count)
    patch, prefix = section.integer("patch_size", 16, maximum=4096), "vision_model.radio_model.model"
    side = round(arguments.integer("cpe_max_size", 2048) / patch)
    pixels = 3 * patch**2
    frames = section.integer("video_temporal_patch_size", 1, maximum=64)
    modules: list[Module] = [
        vision.table(f"{prefix}.patch_generator.pos_embed", side * side, width),
        Parameter(name=f"{prefix}.patch_generator.embedder", replicated=pixels * width),
        vision.table(f"{prefix}.patch_generator.cls_token", class_tokens(arguments), width),
    ]
    if frames > 1 and section.boolean("separate_video_embedder", True):
        modules.append(
            Parameter(name=f"{prefix}.patch_generator.video_embedder", replicated=frames * pixels * width)
        )
    for index in range(layers):
        block = f"{prefix}.blocks.{index}"
        modules += (
            *whole_unless_divided(
                count,
                qkv(heads, f"{block}.attn.qkv", bias=True),
                row(f"{block}.attn.proj", width, width, bias=True),
            ),
            *plain_mlp(width, intermediate, f"{block}.mlp.fc1", f"{block}.mlp.fc2", bias=True),
            *norms(width, f"{block}.norm1", f"{block}.norm2", bias=True),
            Parameter(name=f"{block}.ls1", replicated=width),
            Parameter(name=f"{block}.ls2", replicated=width),
        )
    return tuple(modules), intermediate


def class_tokens(arguments: Section) -> int:
    """A token for each teacher, or one, and registers up to a multiple of `register_multiple`."""
    teachers = arguments.sequence("teachers") or ()
    names = {str(each.get("name")) for each in teachers if isinstance(each, Mapping)}
    tokens = max(1, len(names)) if arguments.boolean("cls_token_per_teacher", True) else 1
    multiple = arguments.optional_integer("register_multiple", minimum=0)
    return tokens + (multiple - tokens % multiple if multiple else 0)


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "NemotronH_Nano_VL_V2": read,
    "NemotronH_Nano_Omni_Reasoning_V3": read,
    "NemotronH_Super_Omni_Reasoning_V3": read,
    "NemotronH_Omni_Reasoning_V3": read,
}
