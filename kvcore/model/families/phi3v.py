"""Phi-3 vision: CLIP ViT-L/14 at 336 pixels, a replicated projection, Phi-3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder as plain
from kvcore.model.families import vision
from kvcore.model.parts.blocks import replicated

CLIP_VIT_LARGE_336: Final[Mapping[str, int]] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}
"""Source: vllm/model_executor/models/phi3v.py:CLIP_VIT_LARGE_PATCH14_336_CONFIG (0.32)."""

PATCHES_PER_TOKEN: Final = 4
"""A square of patches becomes one token. Source: vllm/model_executor/models/phi3v.py:Phi3HDImageEmbedding (0.32)."""

MAX_CROPS: Final = 16
"""Source: preprocessor_config.json of Phi-3-vision-128k-instruct, num_crops."""


def read(config: ModelConfig) -> Architecture:
    """Phi-3 vision and Phi-3.5 vision.

    Source: vllm/model_executor/models/phi3v.py (0.32).
    """
    processor = config.root.section("img_processor")
    width = processor.integer("image_dim_out")
    tower = Section(CLIP_VIT_LARGE_336, "config.img_processor", "")
    language = plain.SECTION_READERS["phi3"](config, config.root)
    hidden = language.hidden_size
    merged = width * PATCHES_PER_TOKEN
    patches = (CLIP_VIT_LARGE_336["image_size"] // CLIP_VIT_LARGE_336["patch_size"]) ** 2
    return replace(
        language,
        model_type=config.model_type,
        every=(
            *vision.clip(
                tower, CLIP_VIT_LARGE_336["num_hidden_layers"] - 1, "vision_embed_tokens.img_processor"
            ),
            replicated("vision_embed_tokens.img_projection.0", merged, hidden, bias=True, quantizable=False),
            replicated("vision_embed_tokens.img_projection.2", hidden, hidden, bias=True, quantizable=False),
            Parameter(name="vision_embed_tokens.glb_GN", replicated=merged),
            Parameter(name="vision_embed_tokens.sub_GN", replicated=merged),
        ),
        vision=VisionEncoder(
            hidden_size=CLIP_VIT_LARGE_336["hidden_size"],
            intermediate_size=CLIP_VIT_LARGE_336["intermediate_size"],
            max_tokens_per_item=patches // PATCHES_PER_TOKEN * (MAX_CROPS + 1),
            patches_per_token=PATCHES_PER_TOKEN,
        ),
        is_multimodal=True,
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Phi3VForCausalLM": read,
    "phi3_v": read,
}
