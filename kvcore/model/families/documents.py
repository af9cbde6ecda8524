"""Models that read documents: dots.ocr, GLM-OCR, PaddleOCR-VL, and Keye, whose tower is PaddleOCR-VL's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kvcore.model.architecture import Architecture, Linear, Module, Output, Split, VisionEncoder
from kvcore.model.config import ModelConfig
from kvcore.model.families import vision
from kvcore.model.families.multimodal import with_encoder, with_tower
from kvcore.model.parts.blocks import column, gated_mlp, norm, norms, replicated, row


def read_dots(config: ModelConfig) -> Architecture:
    """dots.ocr: a tower of gated blocks with RMS norms, Qwen2.

    Source: vllm/model_executor/models/dots_ocr.py (0.32).
    """
    section = config.root.section("vision_config")
    width, intermediate = section.integer("embed_dim"), section.integer("intermediate_size")
    heads = vision.square_heads(section, width, section.integer("num_attention_heads"))
    patch, merge = (
        section.integer("patch_size", maximum=4096),
        section.integer("spatial_merge_size", 2, maximum=64),
    )
    bias = section.boolean("use_bias", False)
    prefix, merged = "vision_tower", width * merge**2
    modules: list[Module] = [
        vision.convolution(
            f"{prefix}.patch_embed.patchifier.proj",
            section.integer("num_channels", 3, maximum=64),
            width,
            (patch, patch),
            bias=True,
        ),
        norm(f"{prefix}.patch_embed.patchifier.norm", width),
        norm(f"{prefix}.merger.ln_q", width, bias=True),
        column(f"{prefix}.merger.mlp.0", merged, merged, bias=True),
        row(f"{prefix}.merger.mlp.2", merged, section.integer("hidden_size"), bias=True),
    ]
    if section.boolean("post_norm", True):
        modules.append(norm(f"{prefix}.post_trunk_norm", width))
    for index in range(section.layers()):
        block = f"{prefix}.blocks.{index}"
        modules += vision.encoder_attention(heads, f"{block}.attn", fused="qkv", out="proj", bias=bias)
        modules += (
            Linear(
                name=f"{block}.mlp.fc13",
                in_features=width,
                outputs=(Output(units=intermediate), Output(units=intermediate)),
                split=Split.COLUMN,
                bias=bias,
                parts=(f"{block}.mlp.fc1", f"{block}.mlp.fc3"),
            ),
            row(f"{block}.mlp.fc2", intermediate, width, bias=bias),
            *norms(width, f"{block}.norm1", f"{block}.norm2"),
        )
    encoder = VisionEncoder(
        hidden_size=width,
        intermediate_size=intermediate,
        max_tokens_per_item=DOTS_MAX_TOKENS,
        patches_per_token=merge * merge,
    )
    return with_encoder(config, tuple(modules), encoder)


DOTS_MAX_TOKENS: Final = 14_400
"""11,289,600 pixels / 28². Source: preprocessor_config.json of dots.ocr, max_pixels."""


def read_glm_ocr(config: ModelConfig) -> Architecture:
    """GLM-OCR: GLM-4.1V's tower without a position table, with norms of queries and keys.

    Source: vllm/model_executor/models/glm_ocr.py (0.32).
    """
    section = config.root.section("vision_config")
    width, out = section.integer("hidden_size"), section.integer("out_hidden_size")
    intermediate = section.integer("intermediate_size")
    heads = vision.square_heads(section, width, section.integer("num_heads"))
    merge = section.integer("spatial_merge_size", maximum=64)
    bias = section.boolean("attention_bias", True)
    modules: list[Module] = [
        vision.patch_embed(section, width, bias=True),
        norm("visual.post_layernorm", width),
        vision.convolution("visual.downsample", width, out, (merge, merge), bias=True),
        column("visual.merger.proj", out, out),
        norm("visual.merger.post_projection_norm", out, bias=True),
        *gated_mlp(out, config.language.integer("intermediate_size"), "visual.merger"),
    ]
    for index in range(section.layers("depth")):
        block = f"visual.blocks.{index}"
        modules += vision.encoder_attention(heads, f"{block}.attn", fused="qkv", out="proj", bias=bias)
        modules += gated_mlp(width, intermediate, f"{block}.mlp", bias=bias)
        modules += norms(width, f"{block}.norm1", f"{block}.norm2")
        modules += norms(heads.head_dim, f"{block}.attn.q_norm", f"{block}.attn.k_norm")
    return with_tower(config, vision.qwen_tower(section, modules, width, intermediate, heads))


def read_paddle(config: ModelConfig, *, packing_positions: int = 0, is_stacked: bool = False) -> Architecture:
    """PaddleOCR-VL: SigLIP with rotary positions beside its table, a replicated merger, ERNIE 4.5.

    Keye, the model with `packing_positions`, divides its merger; Keye 1.5 norms the patches where they are merged.

    Source: vllm/model_executor/models/paddleocr_vl.py, keye.py, keye_vl1_5.py (0.32).
    """
    section = config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    merge = section.integer("spatial_merge_size", 2, maximum=64)
    merged, prefix = width * merge**2, "visual.vision_model"
    linears = (
        replicated("mlp_AR.linear_1", merged, merged, bias=True),
        replicated("mlp_AR.linear_2", merged, text, bias=True),
    )
    divided = (
        column("mlp_AR.linear_1", merged, merged, bias=True),
        row("mlp_AR.linear_2", merged, text, bias=True),
    )
    modules: list[Module] = [
        *vision.siglip(section, section.layers(), prefix),
        norm("mlp_AR.pre_norm", merged if is_stacked else width, bias=True),
        *(linears if packing_positions == 0 else divided),
    ]
    if packing_positions:
        modules.append(
            vision.table(f"{prefix}.embeddings.packing_position_embedding", packing_positions, width)
        )
    encoder = VisionEncoder(
        hidden_size=width,
        intermediate_size=section.integer("intermediate_size"),
        max_tokens_per_item=PADDLE_MAX_TOKENS,
        patches_per_token=merge * merge,
    )
    return with_encoder(config, tuple(modules), encoder)


PADDLE_MAX_TOKENS: Final = 3600
"""2,822,400 pixels / 28². Source: preprocessor_config.json of PaddleOCR-VL, max_pixels."""

PACKING_POSITIONS: Final = 32_768
"""Source: vllm/model_executor/models/keye.py:KeyeVisionEmbeddings (0.32)."""

READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "DotsOCRForCausalLM": read_dots,
    "dots_ocr": read_dots,
    "GlmOcrForConditionalGeneration": read_glm_ocr,
    "glm_ocr": read_glm_ocr,
    "PaddleOCRVLForConditionalGeneration": read_paddle,
    "paddleocr_vl": read_paddle,
    "KeyeForConditionalGeneration": partial(read_paddle, packing_positions=PACKING_POSITIONS),
    "Keye": partial(read_paddle, packing_positions=PACKING_POSITIONS),
    "KeyeVL1_5ForConditionalGeneration": partial(
        read_paddle, packing_positions=PACKING_POSITIONS, is_stacked=True
    ),
    "KeyeVL1_5": partial(read_paddle, packing_positions=PACKING_POSITIONS, is_stacked=True),
}
