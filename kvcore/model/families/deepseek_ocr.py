"""DeepSeek-OCR and DeepSeek-VL2: encoders of fixed sizes, whatever the config says, in front of DeepSeek V2."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder, deepseek
from kvcore.model.families.multimodal import behind_encoders
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc

PLAIN_ATTENTION: Final = replace(decoder.DECODERS["deepseek"], qkv_bias=False, reads_head_dim=False)
"""The config class names a head_dim that only latent attention means.

Source: vllm/model_executor/models/deepseek_v2.py:DeepseekAttention (0.32)."""


PROJECTORS: Final = ("downsample_mlp_gelu", "linear")
"""Projectors of DeepSeek's vision models; the first is the class's default."""


def read_deepseek(config: ModelConfig) -> Architecture:
    """DeepSeek V2 behind an encoder: plain attention where no part of a head is named, else latent attention.

    Source: vllm/model_executor/models/deepseek_v2.py:DeepseekV2DecoderLayer (0.32).
    """
    projector = config.root.section("projector_config")
    kind = projector.string("projector_type", PROJECTORS[0])
    if kind not in PROJECTORS:
        raise projector.invalid("projector_type", kind, "expected linear or downsample_mlp_gelu")
    section = config.root.section("language_config", "deepseek_v2")
    if section.integer("qk_nope_head_dim", minimum=0) or section.integer("qk_rope_head_dim", minimum=0):
        return dataclasses.replace(deepseek.read(config), uncounted=())
    return decoder.read_decoder(PLAIN_ATTENTION, config, section)


def projector(section: Section) -> enc.Modules:
    """One linear layer, or several behind a square of patches.

    Source: vllm/model_executor/models/deepseek_vl2.py:MlpProjector; transformers_utils/configs/deepseek_vl2.py (0.32).
    """
    width, out = section.integer("input_dim", 1152), section.integer("n_embed", 2048)
    if section.string("projector_type", PROJECTORS[0]) == "linear":
        return enc.behind("layers", (enc.whole("", width, out),))
    merge, inside = enc.read_merge(section, "downsample_ratio", 2), out * section.integer("mlp_ratio", 1)
    depth = section.integer("depth", 2, minimum=2, maximum=64)
    sizes = (width * merge**2, *(inside,) * (depth - 1), out)
    layers = (enc.whole(f"{2 * at}", sizes[at], sizes[at + 1]) for at in range(depth))
    return enc.behind("layers", layers)


SAM_SIDE: Final = 64
"""Patches along the side of an image of 1,024 pixels."""
SAM_WINDOW: Final = 14


def sam(root: Section, out: int, tokens: int) -> enc.Encoder:
    """SAM's ViT-B for images of 1,024 pixels and the convolutions behind it, the last `out` wide; whole on every rank.

    It has relative positions, global attention in every third block and windows of 14 patches in the others.

    Source: vllm/model_executor/models/deepencoder.py:build_sam_vit_b, ImageEncoderViT (0.32).
    """
    own = enc.read_sizes(root, 768, 3072, 12, 12)
    width, names = own.width, replace(enc.TIMM, up="mlp.lin1", down="mlp.lin2")

    def layer(index: int) -> enc.Modules:
        rows = 2 * (SAM_SIDE if index % 3 == 2 else SAM_WINDOW) - 1
        block = (
            *enc.attention(own, names),
            enc.tensor("attn.rel_pos_h", rows, own.head),
            enc.tensor("attn.rel_pos_w", rows, own.head),
            *enc.mlp(own, names),
            *enc.norms(own, names),
        )
        return enc.behind(f"blocks.{index}", enc.never_sharded(block))

    modules = (
        enc.convolution("patch_embed.proj", 3, width, 16, 16),
        enc.tensor("pos_embed", SAM_SIDE, SAM_SIDE, width),
        *(module for index in range(own.layers) for module in layer(index)),
        enc.convolution("neck.0", width, 256, bias=False),
        enc.norm("neck.1", 256),
        enc.convolution("neck.2", 256, 256, 3, 3, bias=False),
        enc.norm("neck.3", 256),
        enc.convolution("net_2", 256, 512, 3, 3, bias=False),
        enc.convolution("net_3", 512, out, 3, 3, bias=False),
    )
    return enc.seeing(enc.behind("model.sam_model", modules), own, tokens, 16)


def deepseek_ocr(config: ModelConfig, text: int) -> enc.Encoder:
    """DeepSeek-OCR: SAM, then CLIP.

    The largest image, 1,280 pixels square, is 16 x 17 tokens for the whole, 20 x 21 for 2 x 2 tiles, and one
    (get_num_image_tokens). The vector between views is spelt as the checkpoint spells it.

    Source: vllm/model_executor/models/deepseek_ocr.py:DeepseekOCRForCausalLM (0.32).
    """
    root = config.root
    own, seen = enc.read_sizes(root, 1024, 4096, 16, 24), sam(root, 1024, 16 * 17 + 20 * 21 + 1)
    clip = (
        enc.tensor("embeddings.class_embedding", own.width),
        enc.convolution("embeddings.patch_embedding", 3, own.width, 14, 14, bias=False),
        enc.tensor("embeddings.position_embedding", (224 // 14) ** 2 + 1, own.width),
        enc.norm("pre_layrnorm", own.width),
        *enc.repeated("transformer.layers", own.layers, enc.block(own, enc.CLIP)),
    )
    modules = (
        *seen.modules,
        *enc.behind("model.vision_model", clip),
        *enc.behind("model.projector", projector(root.section("projector_config"))),
        enc.tensor("model.image_newline", text),
        enc.tensor("model.view_seperator", text),
    )
    return replace(seen, modules=modules)


def deepseek_ocr2(config: ModelConfig, text: int) -> enc.Encoder:
    """DeepSeek-OCR 2: SAM, then a Qwen2 that reads patches and queries, whole on every rank.

    The largest image is 256 tokens for the whole, 144 for each of six tiles, and one (get_num_image_tokens).

    Source: vllm/model_executor/models/deepseek_ocr2.py, deepencoder2.py:Qwen2Decoder2Encoder (0.32).
    """
    root, width, inner = config.root, 896, 4864
    seen = sam(root, width, 256 + 6 * 144 + 1)
    layer: enc.Modules = (
        enc.whole("self_attn.q_proj", width, width),
        enc.whole("self_attn.k_proj", width, 128),
        enc.whole("self_attn.v_proj", width, 128),
        enc.whole("self_attn.o_proj", width, width, bias=False),
        enc.whole("mlp.gate_proj", width, inner, bias=False),
        enc.whole("mlp.up_proj", width, inner, bias=False),
        enc.whole("mlp.down_proj", inner, width, bias=False),
        *(enc.tensor(name, width) for name in blocks.TWO_NORMS),
    )
    reader = (
        enc.tensor("model.model.norm", width),
        enc.tensor("query_768", 144, width),
        enc.tensor("query_1024", 256, width),
        *enc.repeated("model.model.layers", 24, layer),
    )
    modules = (
        *seen.modules,
        *enc.behind("model.qwen2_model", reader),
        *enc.behind("model.projector", projector(root.section("projector_config"))),
        enc.tensor("model.view_seperator", text),
    )
    return replace(seen, modules=modules)


SIGLIP_IMAGE: Final = 384
SIGLIP_PATCH: Final = 14
SIGLIP_SIDE: Final = SIGLIP_IMAGE // SIGLIP_PATCH


def largest_image_tokens(root: Section, merge: int) -> int:
    """Tokens of the largest of `candidate_resolutions`: the whole image, its tiles, a separator a row, and one.

    Source: vllm/model_executor/models/deepseek_vl2.py:get_num_image_tokens (0.32).
    """
    side, tiles = -(-SIGLIP_SIDE // merge), [(1, 1)]
    for sides in root.sequence("candidate_resolutions") or ():
        if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(each, int) for each in sides):
            raise root.invalid("candidate_resolutions", sides, "expected pairs of integers")
        tiles.append((sides[0] // SIGLIP_IMAGE, sides[1] // SIGLIP_IMAGE))
    largest = max(height * side * (width * side + 1) for width, height in tiles)
    return side * (side + 1) + largest + 1


def deepseek_vl2(config: ModelConfig, text: int) -> enc.Encoder:
    """DeepSeek-VL2: vit_so400m_patch14_siglip_384.webli of timm with its pooling head; the ranks shard only the MLPs.

    Source: vllm/model_executor/models/deepseek_vl2.py:_init_vision_module, patch_vit_for_tp (0.32); timm
    vision_transformer.py.
    """
    root, section = config.root, config.root.section("projector_config")
    own, merge = enc.read_sizes(root, 1152, 4304, 16, 27), enc.read_merge(section, "downsample_ratio", 2)
    width = own.width
    layer = (
        *enc.never_sharded(enc.attention(own, enc.TIMM)),
        *enc.mlp(own, enc.TIMM),
        *enc.norms(own, enc.TIMM),
    )
    vision = (
        enc.convolution("patch_embed.proj", 3, width, SIGLIP_PATCH, SIGLIP_PATCH),
        enc.tensor("pos_embed", SIGLIP_SIDE**2, width),
        *enc.repeated("blocks", own.layers, layer),
        enc.norm("norm", width),
        enc.tensor("attn_pool.latent", width),
        enc.whole("attn_pool.q", width, width),
        enc.whole("attn_pool.kv", width, 2 * width),
        enc.whole("attn_pool.proj", width, width),
        enc.norm("attn_pool.norm", width),
        *enc.behind("attn_pool", enc.mlp(own, enc.TIMM)),
    )
    modules = (
        *enc.behind("vision", vision),
        *enc.behind("projector", projector(section)),
        enc.tensor("image_newline", text),
        enc.tensor("view_seperator", text),
    )
    return enc.seeing(modules, own, largest_image_tokens(root, merge), merge**2)


READERS: Final = blocks.named(
    (
        behind_encoders(deepseek_ocr, read_deepseek, "model.layers"),
        "DeepseekOCRForCausalLM DeepseekOCR deepseek_ocr UnlimitedOCRForCausalLM unlimited-ocr",
        "unlimited_ocr",
    ),
    (behind_encoders(deepseek_ocr2, read_deepseek, "model.layers"), "DeepseekOCR2ForCausalLM"),
    (
        behind_encoders(deepseek_vl2, read_deepseek, "language.model.layers"),
        "DeepseekVLV2ForCausalLM deepseek_vl_v2",
    ),
)
