"""Qwen2-VL to Qwen3-VL, Qwen's Omni models, and encoders built like theirs: GLM-4.1V, GLM-OCR, dots.ocr, EXAONE 4.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kvcore.model.architecture import Architecture, Module, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.multimodal import with_encoder
from kvcore.model.parts import audio, vision
from kvcore.model.parts.blocks import Heads, column, gated_mlp, norm, with_kv_heads
from kvcore.model.parts.vision import Encoder
from kvcore.model.rope import Rope

ROPE_POSITIONS: Final = 8192
"""Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VisionTransformer (0.32)."""

MAX_TOKENS: Final = 16_384
"""Tokens of the largest image: 12,845,056 pixels / 28². Source: preprocessor_config.json of Qwen2-VL-7B-Instruct."""

BLOCKS: Final = "visual.blocks"


def qwen2_encoder(section: Section) -> Encoder:
    """Qwen2-VL: plain MLPs, layer norms; `hidden_size` is the language model's.

    Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VisionTransformer (0.32).
    """
    width, out = section.integer("embed_dim"), section.integer("hidden_size")
    intermediate = int(width * section.number("mlp_ratio"))
    heads = vision.square_heads(section, width, "num_heads")
    modules = [
        patch_embed(section, width, bias=False),
        *vision.blocks(vision.Block(), BLOCKS, section.layers("depth"), heads, intermediate),
        *merger(section, width, out, norm("visual.merger.ln_q", width, bias=True)),
    ]
    return encoder(section, modules, width, intermediate, heads)


def qwen2_5_encoder(section: Section) -> Encoder:
    """Qwen2.5-VL: gated MLPs with biases, RMS norms; EXAONE 4.5's has fewer KV heads.

    Source: vllm/model_executor/models/qwen2_5_vl.py:Qwen2_5_VisionTransformer, exaone4_5.py (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = vision.square_heads(section, width, "num_heads")
    heads = with_kv_heads(section, heads, section.optional_integer("num_key_value_heads"))
    modules = [
        patch_embed(section, width, bias=False),
        *vision.blocks(vision.GATED, BLOCKS, section.layers("depth"), heads, intermediate),
        *merger(section, width, section.integer("out_hidden_size"), norm("visual.merger.ln_q", width)),
    ]
    return encoder(section, modules, width, intermediate, heads)


QWEN3: Final = vision.Block(up="mlp.linear_fc1", down="mlp.linear_fc2")


def qwen3_encoder(section: Section) -> Encoder:
    """Qwen3-VL: a position table, plain MLPs, and further mergers that feed the first decoder layers.

    Source: vllm/model_executor/models/qwen3_vl.py:Qwen3_VisionTransformer (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    out = section.integer("out_hidden_size")
    heads = vision.square_heads(section, width, "num_heads")
    merged = width * section.integer("spatial_merge_size", maximum=64) ** 2
    deep = section.integers("deepstack_visual_indexes") or ()
    mergers = {"visual.merger": width}
    mergers |= {f"visual.deepstack_merger_list.{index}": merged for index in range(len(deep))}
    modules: list[Module] = [
        patch_embed(section, width, bias=True),
        vision.table("visual.pos_embed", section.integer("num_position_embeddings"), width),
        *vision.blocks(QWEN3, BLOCKS, section.layers("depth"), heads, intermediate),
    ]
    for name, size in mergers.items():
        modules.append(norm(f"{name}.norm", size, bias=True))
        modules += vision.sharded_pair(name, merged, merged, out, ("linear_fc1", "linear_fc2"))
    return encoder(section, modules, width, intermediate, heads, deepstack_levels=len(deep))


def glm4v_encoder(section: Section) -> Encoder:
    """GLM-4.1V: its blocks are as wide as `out_hidden_size`, its merger as `intermediate_size`.

    Source: vllm/model_executor/models/glm4_1v.py:Glm4vVisionTransformer (0.32).
    """
    width, out = section.integer("hidden_size"), section.integer("out_hidden_size")
    heads = vision.square_heads(section, width, "num_heads")
    side = vision.patches_per_side(section, section.integer("image_size"), section.integer("patch_size"))
    block = replace(vision.GATED, qkv_bias=False, out_bias=False, mlp_bias=False)
    patches, *merger = glm_merger(section, width, out, section.integer("intermediate_size"))
    modules = [
        patches,
        vision.table("visual.embeddings.position_embedding", side * side, width),
        norm("visual.post_conv_layernorm", width),
        *merger,
        *vision.blocks(block, BLOCKS, section.layers("depth"), heads, out),
    ]
    return encoder(section, modules, width, out, heads)


def glm_merger(section: Section, width: int, out: int, inner: int) -> list[Module]:
    """Patches, and GLM's convolution and gated MLP that turn a square of them into one token."""
    merge = section.integer("spatial_merge_size", maximum=64)
    return [
        patch_embed(section, width, bias=True),
        norm("visual.post_layernorm", width),
        vision.convolution("visual.downsample", width, out, (merge, merge), bias=True),
        column("visual.merger.proj", out, out),
        norm("visual.merger.post_projection_norm", out, bias=True),
        *gated_mlp(out, inner, "visual.merger"),
    ]


def patch_embed(section: Section, width: int, *, bias: bool) -> Parameter:
    """The patch convolution over time and both sides."""
    patch = section.integer("patch_size", maximum=4096)
    kernel = (section.integer("temporal_patch_size", 2, maximum=64), patch, patch)
    channels = section.integer("in_channels", 3, maximum=64)
    return vision.convolution("visual.patch_embed.proj", channels, width, kernel, bias=bias)


def merger(section: Section, width: int, out: int, first_norm: Parameter) -> list[Module]:
    """What turns a square of patches into one token."""
    merged = width * section.integer("spatial_merge_size", maximum=64) ** 2
    return [first_norm, *vision.sharded_pair("visual.merger.mlp", merged, merged, out, ("0", "2"))]


def encoder(
    section: Section,
    modules: list[Module],
    width: int,
    intermediate: int,
    heads: Heads,
    *,
    deepstack_levels: int = 0,
) -> Encoder:
    """An encoder with the rotary table and the limits that all of Qwen's share."""
    limits = VisionEncoder(
        hidden_size=width,
        intermediate_size=intermediate,
        max_tokens_per_item=MAX_TOKENS,
        patches_per_token=section.integer("spatial_merge_size", maximum=64) ** 2,
        deepstack_levels=deepstack_levels,
    )
    table = Rope(partial_rotary_factor=0.5).table(heads.head_dim, ROPE_POSITIONS)
    return Encoder(modules=tuple(modules), vision=limits, tables=(table,))


def read_qwen(found: Callable[[Section], Encoder], config: ModelConfig) -> Architecture:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4.1V, EXAONE 4.5: an encoder with a merger."""
    image = found(config.root.section("vision_config"))
    return with_encoder(config, image.modules, image.vision, image.tables)


def read_glm_ocr(config: ModelConfig) -> Architecture:
    """GLM-OCR: GLM-4.1V's encoder without a position table, with norms of queries and keys.

    Source: vllm/model_executor/models/glm_ocr.py (0.32).
    """
    section = config.root.section("vision_config")
    width, out = section.integer("hidden_size"), section.integer("out_hidden_size")
    intermediate, inner = section.integer("intermediate_size"), config.language.integer("intermediate_size")
    heads = vision.square_heads(section, width, "num_heads")
    bias = section.boolean("attention_bias", True)
    block = replace(vision.GATED, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    norms = dict.fromkeys(("attn.q_norm", "attn.k_norm"), heads.head_dim)
    modules = [
        *glm_merger(section, width, out, inner),
        *vision.blocks(block, BLOCKS, section.layers("depth"), heads, intermediate, vectors=norms),
    ]
    found = encoder(section, modules, width, intermediate, heads)
    return with_encoder(config, found.modules, found.vision, found.tables)


DOTS: Final = vision.Block(up="mlp.fc13", down="mlp.fc2", gate=("mlp.fc1", "mlp.fc3"), has_layer_norms=False)

DOTS_MAX_TOKENS: Final = 14_400
"""11,289,600 pixels / 28². Source: preprocessor_config.json of dots.ocr, max_pixels."""


def read_dots(config: ModelConfig) -> Architecture:
    """dots.ocr: gated blocks with RMS norms, Qwen2.

    Source: vllm/model_executor/models/dots_ocr.py (0.32).
    """
    section = config.root.section("vision_config")
    width, intermediate = section.integer("embed_dim"), section.integer("intermediate_size")
    heads = vision.square_heads(section, width)
    patch, channels = (
        section.integer("patch_size", maximum=4096),
        section.integer("num_channels", 3, maximum=64),
    )
    merge, bias = section.integer("spatial_merge_size", 2, maximum=64), section.boolean("use_bias", False)
    block = replace(DOTS, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    prefix, merged, out = "vision_tower", width * merge**2, section.integer("hidden_size")
    patchifier = f"{prefix}.patch_embed.patchifier"
    modules: list[Module] = [
        vision.convolution(f"{patchifier}.proj", channels, width, (patch, patch), bias=True),
        norm(f"{patchifier}.norm", width),
        norm(f"{prefix}.merger.ln_q", width, bias=True),
        *vision.sharded_pair(f"{prefix}.merger.mlp", merged, merged, out, ("0", "2")),
    ]
    if section.boolean("post_norm", True):
        modules.append(norm(f"{prefix}.post_trunk_norm", width))
    modules += vision.blocks(block, f"{prefix}.blocks", section.layers(), heads, intermediate)
    limits = VisionEncoder(
        hidden_size=width,
        intermediate_size=intermediate,
        max_tokens_per_item=DOTS_MAX_TOKENS,
        patches_per_token=merge * merge,
    )
    return with_encoder(config, tuple(modules), limits)


def read_omni(config: ModelConfig) -> Architecture:
    """Qwen2.5-Omni's thinker, which alone is loaded: an audio encoder, Qwen2.5-VL's encoder and Qwen2.

    Source: vllm/model_executor/models/qwen2_5_omni_thinker.py (0.32).
    """
    thinker = config.root.optional_section("thinker_config") or config.root
    image = qwen2_5_encoder(thinker.section("vision_config", "qwen2_5_vl/vision_config"))
    return with_thinker(config, image, Encoder(modules=audio.qwen2_5_omni(thinker.section("audio_config"))))


def read_omni3(config: ModelConfig) -> Architecture:
    """Qwen3-Omni's thinker: an audio encoder, Qwen3-VL's encoder and Qwen3's mixture of experts.

    Source: vllm/model_executor/models/qwen3_omni_moe_thinker.py (0.32).
    """
    thinker = config.root.optional_section("thinker_config") or config.root
    image = qwen3_encoder(thinker.section("vision_config", "qwen3_omni_moe_vision_encoder"))
    section = thinker.section("audio_config", "qwen3_omni_moe_audio_encoder")
    return with_thinker(config, image, audio.qwen3_omni(section))


def read_asr(config: ModelConfig) -> Architecture:
    """Qwen3-ASR: Qwen3-Omni's audio encoder and Qwen3.

    Source: vllm/model_executor/models/qwen3_asr.py (0.32).
    """
    thinker = config.root.optional_section("thinker_config") or config.root
    return with_thinker(config, audio.qwen3_omni(thinker.section("audio_config")))


def with_thinker(config: ModelConfig, *encoders: Encoder) -> Architecture:
    """The thinker's language part with its encoders; the first one's images are profiled."""
    modules = tuple(module for each in encoders for module in each.modules)
    tables = tuple(table for each in encoders for table in each.tables)
    built = with_encoder(config, modules, encoders[0].vision, tables)
    return replace(built, layer_prefix="thinker.model.layers")


QWEN2_VL: Final = partial(read_qwen, qwen2_encoder)
QWEN2_5_VL: Final = partial(read_qwen, qwen2_5_encoder)
QWEN3_VL: Final = partial(read_qwen, qwen3_encoder)
GLM4V: Final = partial(read_qwen, glm4v_encoder)

READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    **dict.fromkeys(("Qwen2VLForConditionalGeneration", "qwen2_vl"), QWEN2_VL),
    **dict.fromkeys(("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"), QWEN2_5_VL),
    **dict.fromkeys(("OpenCUAForConditionalGeneration", "opencua"), QWEN2_5_VL),
    **dict.fromkeys(("Exaone4_5_ForConditionalGeneration", "exaone4_5"), QWEN2_5_VL),
    **dict.fromkeys(("Qwen3VLForConditionalGeneration", "qwen3_vl"), QWEN3_VL),
    **dict.fromkeys(("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe"), QWEN3_VL),
    **dict.fromkeys(("Glm4vForConditionalGeneration", "glm4v"), GLM4V),
    **dict.fromkeys(("Glm4vMoeForConditionalGeneration", "glm4v_moe"), GLM4V),
    **dict.fromkeys(("GlmOcrForConditionalGeneration", "glm_ocr"), read_glm_ocr),
    **dict.fromkeys(("DotsOCRForCausalLM", "dots_ocr"), read_dots),
    **dict.fromkeys(("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel"), read_omni),
    **dict.fromkeys(("qwen2_5_omni", "qwen2_5_omni_thinker"), read_omni),
    **dict.fromkeys(("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe"), read_omni3),
    **dict.fromkeys(("Qwen3ASRForConditionalGeneration", "qwen3_asr"), read_asr),
}
