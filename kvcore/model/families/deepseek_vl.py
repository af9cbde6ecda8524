"""DeepSeek's vision models: DeepSeek-VL2 (SigLIP) and DeepSeek-OCR (SAM, then CLIP), in front of DeepSeek V2."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder, deepseek
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import named, norm
from kvcore.model.parts.encoder import read_encoder

OCR_TOKENS: Final = 693
"""Of the largest image, 1,280 pixels square: 16 · 17 for the whole, 20 · 21 for 2 × 2 tiles, and one.

Source: vllm/model_executor/models/deepseek_ocr.py:get_num_image_tokens (0.32)."""

SIGLIP_IMAGE: Final = 384
SIGLIP_PATCH: Final = 14
"""Source: vllm/model_executor/models/deepseek_vl2.py:_init_vision_module (0.32); timm vision_transformer.py."""

PLAIN_ATTENTION: Final = replace(decoder.DECODERS["deepseek"], qkv_bias=False, reads_head_dim=False)
"""The config class names a head_dim that only latent attention means.

Source: vllm/model_executor/models/deepseek_v2.py:DeepseekAttention (0.32)."""


def read_ocr(config: ModelConfig) -> Architecture:
    """DeepSeek-OCR.

    Source: vllm/model_executor/models/deepseek_ocr.py (0.32).
    """
    language = read_language(config, "model.layers")
    sam = read_encoder("sam", config.root, "model.sam_model", out=1024, tokens=OCR_TOKENS)
    modules = (
        *sam.modules,
        *read_encoder("ocr_clip", config.root, "model.vision_model").modules,
        *projector(config.root.section("projector_config"), "model.projector.layers"),
        *separators(language.hidden_size, "model"),
    )
    return vision.with_images(language, modules, sam.vision)


def read_ocr2(config: ModelConfig) -> Architecture:
    """DeepSeek-OCR 2: SAM, then a Qwen2 that reads patches and queries, whole on every rank.

    Source: vllm/model_executor/models/deepseek_ocr2.py (0.32).
    """
    language = read_language(config, "model.layers")
    sam = read_encoder("sam", config.root, "model.sam_model", out=896, tokens=OCR2_TOKENS)
    modules = (
        *sam.modules,
        *read_encoder("ocr_reader", config.root, "model.qwen2_model").modules,
        *projector(config.root.section("projector_config"), "model.projector.layers"),
        norm("model.view_seperator", language.hidden_size),
    )
    return vision.with_images(language, modules, sam.vision)


OCR2_TOKENS: Final = 1121
"""Of the largest image: 256 for the whole, 144 for each of six tiles, and one.

Source: vllm/model_executor/models/deepseek_ocr2.py:get_num_image_tokens (0.32)."""


def read_vl2(config: ModelConfig) -> Architecture:
    """DeepSeek-VL2.

    Source: vllm/model_executor/models/deepseek_vl2.py (0.32).
    """
    language = read_language(config, "language.model.layers")
    section = config.root.section("projector_config")
    merge = section.integer("downsample_ratio", 2, maximum=64)
    image = read_encoder(
        "timm_siglip", config.root, "vision", tokens=most_tokens(config.root, merge), merge=merge
    )
    modules = (
        *image.modules,
        *projector(section, "projector.layers"),
        *separators(language.hidden_size, ""),
    )
    return vision.with_images(language, modules, image.vision)


def read_language(config: ModelConfig, layer_prefix: str) -> Architecture:
    """DeepSeek V2, with plain attention where no part of a head is named, else with latent attention.

    Source: vllm/model_executor/models/deepseek_v2.py:DeepseekV2DecoderLayer (0.32).
    """
    section = config.root.section("language_config", "deepseek_v2")
    if section.integer("qk_nope_head_dim", minimum=0) or section.integer("qk_rope_head_dim", minimum=0):
        built = replace(deepseek.read(config), uncounted=())
    else:
        built = decoder.read_decoder(PLAIN_ATTENTION, config, section)
    return replace(built, layer_prefix=layer_prefix)


def projector(section: Section, prefix: str) -> tuple[Module, ...]:
    """One linear layer, or several behind a square of patches.

    Source: vllm/model_executor/models/deepseek_vl2.py:MlpProjector; transformers_utils/configs/deepseek_vl2.py (0.32).
    """
    width, out = section.integer("input_dim", 1152), section.integer("n_embed", 2048)
    kind = section.string("projector_type", "downsample_mlp_gelu")
    if kind == "linear":
        return (vision.whole(prefix, width, out),)
    if kind != "downsample_mlp_gelu":
        raise section.invalid("projector_type", kind, "expected linear or downsample_mlp_gelu")
    merge, inner = section.integer("downsample_ratio", 2, maximum=64), out * section.integer("mlp_ratio", 1)
    depth = section.integer("depth", 2, minimum=2, maximum=64)
    sizes = (width * merge * merge, *(inner,) * (depth - 1), out)
    return tuple(
        vision.whole(f"{prefix}.{2 * index}", sizes[index], sizes[index + 1]) for index in range(depth)
    )


def separators(hidden_size: int, prefix: str) -> tuple[Module, ...]:
    """The vectors between rows and between views; the second is spelt as the checkpoint spells it."""
    names = (".".join(filter(None, (prefix, name))) for name in ("image_newline", "view_seperator"))
    return tuple(norm(name, hidden_size) for name in names)


def most_tokens(root: Section, merge: int) -> int:
    """Tokens of the largest of `candidate_resolutions`: the whole image, its tiles, a separator a row, and one.

    Source: vllm/model_executor/models/deepseek_vl2.py:get_num_image_tokens (0.32).
    """
    side = -(-(SIGLIP_IMAGE // SIGLIP_PATCH) // merge)
    tiles = [(1, 1)]
    for sides in root.sequence("candidate_resolutions") or ():
        if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(each, int) for each in sides):
            raise root.invalid("candidate_resolutions", sides, "expected pairs of integers")
        tiles.append((sides[0] // SIGLIP_IMAGE, sides[1] // SIGLIP_IMAGE))
    largest = max(height * side * (width * side + 1) for width, height in tiles)
    return side * (side + 1) + largest + 1


READERS: Final = named(
    (read_ocr, "DeepseekOCRForCausalLM", "DeepseekOCR", "deepseek_ocr"),
    (read_ocr2, "DeepseekOCR2ForCausalLM"),
    (read_vl2, "DeepseekVLV2ForCausalLM", "deepseek_vl_v2"),
)
