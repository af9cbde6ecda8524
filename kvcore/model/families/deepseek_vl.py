"""DeepSeek's vision models: DeepSeek-VL2 (SigLIP) and DeepSeek-OCR (SAM, then CLIP), in front of DeepSeek V2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import clip, decoder, deepseek
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import Heads, named, norm, norms, plain_mlp

CLIP: Final[Mapping[str, int]] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "image_size": 224,
    "patch_size": 14,
}
"""Source: vllm/model_executor/models/deepseek_ocr.py:DeepseekOCRForCausalLM (0.32)."""

SAM_WIDTH: Final = 768
SAM_BLOCKS: Final = 12
SAM_HEADS: Final = 12
SAM_GLOBAL_BLOCKS: Final = (2, 5, 8, 11)
SAM_IMAGE: Final = 1024
SAM_PATCH: Final = 16
SAM_WINDOW: Final = 14
SAM_NECK: Final = (256, 512, 1024)
SAM_BLOCK: Final = vision.Block(up="mlp.lin1", down="mlp.lin2")
"""Source: vllm/model_executor/models/deepencoder.py:build_sam_vit_b (0.32)."""

OCR_TOKENS: Final = 693
"""Of the largest image, 1,280 pixels square: 16 · 17 for the whole, 20 · 21 for 2 × 2 tiles, and one.

Source: vllm/model_executor/models/deepseek_ocr.py:get_num_image_tokens (0.32)."""
OCR_PATCHES_PER_TOKEN: Final = 16

SIGLIP_WIDTH: Final = 1152
SIGLIP_BLOCKS: Final = 27
SIGLIP_HEADS: Final = 16
SIGLIP_INTERMEDIATE: Final = 4304
SIGLIP_IMAGE: Final = 384
SIGLIP_PATCH: Final = 14
"""Of vit_so400m_patch14_siglip_384.webli, whatever the config says.

Source: vllm/model_executor/models/deepseek_vl2.py:_init_vision_module (0.32); timm vision_transformer.py."""

PLAIN_ATTENTION: Final = replace(decoder.DECODERS["deepseek"], qkv_bias=False, reads_head_dim=False)
"""The config class names a head_dim that only latent attention means.

Source: vllm/model_executor/models/deepseek_v2.py:DeepseekAttention (0.32)."""


def read_ocr(config: ModelConfig) -> Architecture:
    """DeepSeek-OCR.

    Source: vllm/model_executor/models/deepseek_ocr.py (0.32).
    """
    section = Section(CLIP, "config.vision_config", "")
    language = read_language(config, "model.layers")
    encoder = (
        *sam("model.sam_model"),
        *clip.clip(
            section, section.layers(), "model.vision_model", blocks="transformer", has_last_norm=False
        ),
        *projector(config.root.section("projector_config"), "model.projector.layers"),
        *separators(language.hidden_size, "model"),
    )
    return vision.with_images(language, encoder, sam_limits(OCR_TOKENS))


def read_ocr2(config: ModelConfig) -> Architecture:
    """DeepSeek-OCR 2: SAM, then a Qwen2 that reads patches and queries, whole on every rank.

    Source: vllm/model_executor/models/deepseek_ocr2.py (0.32).
    """
    language = read_language(config, "model.layers")
    encoder = (
        *sam("model.sam_model", OCR2_NECK),
        *query_encoder("model.qwen2_model"),
        *projector(config.root.section("projector_config"), "model.projector.layers"),
        norm("model.view_seperator", language.hidden_size),
    )
    return vision.with_images(language, encoder, sam_limits(OCR2_TOKENS))


def sam_limits(max_tokens: int) -> VisionEncoder:
    """What the profile run must know of SAM with an image of `max_tokens`."""
    return VisionEncoder(
        hidden_size=SAM_WIDTH,
        intermediate_size=4 * SAM_WIDTH,
        max_tokens_per_item=max_tokens,
        patches_per_token=OCR_PATCHES_PER_TOKEN,
    )


OCR2_NECK: Final = (256, 512, 896)
"""Source: vllm/model_executor/models/deepencoder.py:build_sam_vit_b, deepseek_ocr2.py (0.32)."""

READER_LAYERS: Final = 24
READER_HEADS: Final = Heads(hidden_size=896, num_heads=14, num_kv_heads=2, head_dim=64)
READER_INTERMEDIATE: Final = 4864
READER_QUERIES: Final = (144, 256)
"""Source: vllm/model_executor/models/deepencoder2.py:Qwen2Decoder2Encoder (0.32)."""

OCR2_TOKENS: Final = 1121
"""Of the largest image: 256 for the whole, 144 for each of six tiles, and one.

Source: vllm/model_executor/models/deepseek_ocr2.py:get_num_image_tokens (0.32)."""


def query_encoder(prefix: str) -> tuple[Module, ...]:
    """A Qwen2 of 24 layers without embedding and head, with two sets of queries.

    Source: vllm/model_executor/models/deepencoder2.py:Qwen2Decoder2Encoder (0.32).
    """
    width, keys = READER_HEADS.hidden_size, READER_HEADS.num_kv_heads * READER_HEADS.head_dim
    modules: list[Module] = [norm(f"{prefix}.model.model.norm", width)]
    for image, count in zip((768, 1024), READER_QUERIES, strict=True):
        modules.append(vision.table(f"{prefix}.query_{image}", count, width))
    for index in range(READER_LAYERS):
        block = f"{prefix}.model.model.layers.{index}"
        modules += (
            vision.whole(f"{block}.self_attn.q_proj", width, width),
            *vision.wholes(f"{block}.self_attn", ("k_proj", "v_proj"), width, keys),
            vision.whole(f"{block}.self_attn.o_proj", width, width, bias=False),
            *vision.wholes(f"{block}.mlp", ("gate_proj", "up_proj"), width, READER_INTERMEDIATE, bias=False),
            vision.whole(f"{block}.mlp.down_proj", READER_INTERMEDIATE, width, bias=False),
            *norms(width, f"{block}.input_layernorm", f"{block}.post_attention_layernorm"),
        )
    return tuple(modules)


def read_vl2(config: ModelConfig) -> Architecture:
    """DeepSeek-VL2.

    Source: vllm/model_executor/models/deepseek_vl2.py (0.32).
    """
    language = read_language(config, "language.model.layers")
    section = config.root.section("projector_config")
    merge = section.integer("downsample_ratio", 2, maximum=64)
    encoder = (
        *siglip("vision"),
        *projector(section, "projector.layers"),
        *separators(language.hidden_size, ""),
    )
    limits = VisionEncoder(
        hidden_size=SIGLIP_WIDTH,
        intermediate_size=SIGLIP_INTERMEDIATE,
        max_tokens_per_item=most_tokens(config.root, merge),
        patches_per_token=merge * merge,
    )
    return vision.with_images(language, encoder, limits)


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


def sam(prefix: str, neck: tuple[int, int, int] = SAM_NECK) -> tuple[Module, ...]:
    """SAM's ViT-B with relative positions, and the convolutions behind it; whole on every rank.

    Source: vllm/model_executor/models/deepencoder.py:ImageEncoderViT (0.32).
    """
    width, heads = SAM_WIDTH, vision.heads_of(SAM_WIDTH, SAM_HEADS)
    whole_side = SAM_IMAGE // SAM_PATCH
    blocks: list[Module] = []
    for index in range(SAM_BLOCKS):
        side, block = whole_side if index in SAM_GLOBAL_BLOCKS else SAM_WINDOW, f"{prefix}.blocks.{index}."
        positions = (2 * side - 1) * heads.head_dim
        attention, out, *rest = vision.block(SAM_BLOCK, block, heads, 4 * width)
        blocks += (
            attention,
            out,
            *norms(positions, f"{block}attn.rel_pos_h", f"{block}attn.rel_pos_w"),
            *rest,
        )
    first, second, third = neck
    return (
        vision.convolution(f"{prefix}.patch_embed.proj", 3, width, (SAM_PATCH, SAM_PATCH), bias=True),
        vision.table(f"{prefix}.pos_embed", whole_side * whole_side, width),
        *vision.made_whole(blocks),
        vision.convolution(f"{prefix}.neck.0", width, first, (), bias=False),
        norm(f"{prefix}.neck.1", first, bias=True),
        vision.convolution(f"{prefix}.neck.2", first, first, (3, 3), bias=False),
        norm(f"{prefix}.neck.3", first, bias=True),
        vision.convolution(f"{prefix}.net_2", first, second, (3, 3), bias=False),
        vision.convolution(f"{prefix}.net_3", second, third, (3, 3), bias=False),
    )


def siglip(prefix: str) -> tuple[Module, ...]:
    """SigLIP as timm builds it, with its pooling head; the ranks shard only the MLPs.

    Source: vllm/model_executor/models/deepseek_vl2.py:patch_vit_for_tp (0.32).
    """
    width, inner, pool = SIGLIP_WIDTH, SIGLIP_INTERMEDIATE, f"{prefix}.attn_pool"
    side, heads = SIGLIP_IMAGE // SIGLIP_PATCH, vision.heads_of(SIGLIP_WIDTH, SIGLIP_HEADS)
    blocks = vision.blocks(vision.Block(), f"{prefix}.blocks", SIGLIP_BLOCKS, heads, inner)
    return (
        vision.convolution(f"{prefix}.patch_embed.proj", 3, width, (SIGLIP_PATCH, SIGLIP_PATCH), bias=True),
        vision.table(f"{prefix}.pos_embed", side * side, width),
        *vision.made_whole(blocks, ".attn."),
        norm(f"{prefix}.norm", width, bias=True),
        norm(f"{pool}.latent", width),
        vision.whole(f"{pool}.q", width, width),
        vision.whole(f"{pool}.kv", width, 2 * width),
        vision.whole(f"{pool}.proj", width, width),
        norm(f"{pool}.norm", width, bias=True),
        *plain_mlp(width, inner, f"{pool}.mlp.fc1", f"{pool}.mlp.fc2", bias=True),
    )


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
