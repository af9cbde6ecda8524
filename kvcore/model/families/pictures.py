"""Models that see, with a tower and a projector of their own kind in front of a decoder that another family reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Linear, Module, Output, Parameter, Split, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import vision
from kvcore.model.families.lfm2 import siglip2
from kvcore.model.families.multimodal import (
    square_encoder,
    tower_modules,
    with_encoder,
)
from kvcore.model.families.towers import read_siglip, siglip_layer
from kvcore.model.parts.blocks import column, norm, norms, plain_mlp, qkv, replicated, row

PROJECTOR: Final = "multi_modal_projector"


def read_paligemma(config: ModelConfig) -> Architecture:
    """PaliGemma and PaliGemma 2: SigLIP, one replicated layer, Gemma.

    Source: vllm/model_executor/models/paligemma.py (0.32).
    """
    section = config.root.section("vision_config")
    width, out = section.integer("hidden_size"), section.integer("projection_dim")
    return with_encoder(
        config,
        (
            *vision.siglip(section, section.layers()),
            replicated(f"{PROJECTOR}.linear", width, out, bias=True, quantizable=False),
        ),
        square_encoder(section),
    )


def read_llava_next_video(config: ModelConfig) -> Architecture:
    """LLaVA-NeXT-Video: as LLaVA, with a projector that every rank holds whole.

    Source: vllm/model_executor/models/llava_next_video.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    bias = root.boolean("multimodal_projector_bias", True)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    return with_encoder(
        config,
        (
            *tower_modules(section, vision.feature_layers(root, section)),
            replicated(f"{PROJECTOR}.linear_1", width, text, bias=bias, quantizable=False),
            replicated(f"{PROJECTOR}.linear_2", text, text, bias=bias, quantizable=False),
        ),
        square_encoder(section),
    )


def read_cohere2_vision(config: ModelConfig) -> Architecture:
    """Command A Vision: SigLIP, a pixel shuffle and a gated projector, divided over the ranks.

    Source: vllm/model_executor/models/cohere2_vision.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    merge, wide = (
        root.integer("downsample_factor", 2, maximum=64),
        root.integer("alignment_intermediate_size"),
    )
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    if wide % 2:
        raise root.contradicting("alignment_intermediate_size", f"{wide} holds two halves and is odd")
    return with_encoder(
        config,
        (
            *vision.siglip(section, section.layers()),
            Linear(
                name=f"{PROJECTOR}.linear_1",
                in_features=width * merge**2,
                outputs=(Output(units=wide // 2), Output(units=wide // 2)),
                split=Split.COLUMN,
                bias=True,
            ),
            row(f"{PROJECTOR}.linear_2", wide // 2, text, bias=True),
        ),
        square_encoder(section, merge),
    )


def read_eagle(config: ModelConfig) -> Architecture:
    """Eagle 2.5: SigLIP up to a chosen block, a pixel shuffle and a replicated MLP.

    Source: vllm/model_executor/models/eagle2_5_vl.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    total = section.layers()
    select = root.integer("select_layer", -1, minimum=-total, maximum=total - 1)
    layers = total + select + 1 if select < 0 else select + 1
    ratio = root.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise root.invalid("downsample_ratio", ratio, "expected more than 0 and at most 1")
    merge = int(1 / ratio)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    encoder = square_encoder(section, merge)
    tiles = root.integer("max_dynamic_tiles", 12, maximum=1024) + 1
    return with_encoder(
        config,
        (
            *vision.siglip(section, layers, "vision_model.vision_model"),
            norm("mlp1.0", width * merge**2, bias=True),
            replicated("mlp1.1", width * merge**2, text, bias=True, quantizable=False),
            replicated("mlp1.3", text, text, bias=True, quantizable=False),
        ),
        replace(encoder, max_tokens_per_item=encoder.max_tokens_per_item * tiles),
    )


def read_aria(config: ModelConfig) -> Architecture:
    """Aria: SigLIP without its last norm, and queries that attend to the patches.

    Source: vllm/model_executor/models/aria.py:AriaProjector (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    layers = vision.feature_layers(root, section, default=-1)
    tower = read_siglip(section, "vision_tower.", layers)
    queries = query_counts(root)
    cross = f"{PROJECTOR}.cross_attn"
    encoder = replace(square_encoder(section), max_tokens_per_item=queries)
    return with_encoder(
        config,
        (
            *(module for module in tower if not module.name.endswith("post_layernorm")),
            Parameter(name=f"{PROJECTOR}.query", replicated=queries * width),
            *(
                replicated(f"{cross}.{name}", width, width, quantizable=False)
                for name in ("q_proj", "k_proj", "v_proj")
            ),
            replicated(f"{cross}.multihead_attn.in_proj", width, 3 * width, bias=True, quantizable=False),
            replicated(f"{cross}.multihead_attn.out_proj", width, width, bias=True, quantizable=False),
            replicated(f"{cross}.linear", width, width, bias=True, quantizable=False),
            *norms(
                width,
                f"{cross}.layer_norm",
                f"{cross}.layer_norm_kv",
                f"{PROJECTOR}.layer_norm",
                bias=True,
            ),
            column(f"{PROJECTOR}.feed_forward.linear_in", width, text),
            row(f"{PROJECTOR}.feed_forward.linear_out", text, text),
        ),
        encoder,
    )


def query_counts(root: Section) -> int:
    """The most queries of Aria's projector, whatever the number of patches."""
    counts = root.get("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    if not isinstance(counts, Mapping) or not all(isinstance(count, int) for count in counts.values()):
        raise root.invalid("projector_patch_to_query_dict", counts, "expected numbers of queries by patches")
    return int(max(counts.values()))


def read_blip2(config: ModelConfig) -> Architecture:
    """BLIP-2: a ViT, a Q-Former and one layer in front of OPT.

    Source: vllm/model_executor/models/blip2.py, blip.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config", "blip-2/vision_config")
    former = root.section("qformer_config", "blip-2/qformer_config")
    queries, width = root.integer("num_query_tokens", 32), former.integer("hidden_size")
    encoder = replace(square_encoder(section), max_tokens_per_item=queries)
    text = config.language.integer("hidden_size")
    return with_encoder(
        config,
        (
            Parameter(name="query_tokens", replicated=queries * width),
            *blip_vit(section),
            *vision.q_former(former, "qformer"),
            replicated("language_projection", width, text, bias=True, quantizable=False),
        ),
        encoder,
    )


def blip_vit(section: Section) -> tuple[Module, ...]:
    """BLIP's ViT.

    Source: vllm/model_executor/models/blip.py:BlipVisionModel (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = vision.square_heads(section, width, section.integer("num_attention_heads"))
    patch = section.integer("patch_size", maximum=4096)
    side = vision.patches_per_side(section, section.integer("image_size"), patch)
    prefix = "vision_model"
    modules: list[Module] = [
        Parameter(name=f"{prefix}.embeddings.class_embedding", replicated=width),
        vision.table(f"{prefix}.embeddings.position_embedding", side * side + 1, width),
        vision.convolution(f"{prefix}.embeddings.patch_embedding", 3, width, (patch, patch), bias=True),
        norm(f"{prefix}.post_layernorm", width, bias=True),
    ]
    bias = section.boolean("qkv_bias", True)
    for index in range(section.layers()):
        block = f"{prefix}.encoder.layers.{index}"
        modules += (
            qkv(heads, f"{block}.self_attn.qkv", bias=bias),
            row(f"{block}.self_attn.projection", width, width, bias=True),
            *plain_mlp(width, intermediate, f"{block}.mlp.fc1", f"{block}.mlp.fc2", bias=True),
            norm(f"{block}.layer_norm1", width, bias=True),
            norm(f"{block}.layer_norm2", width, bias=True),
        )
    return tuple(modules)


def read_pixtral(config: ModelConfig) -> Architecture:
    """Pixtral as Mistral writes it: its tower, an optional norm and merger, two replicated layers.

    Source: vllm/model_executor/models/pixtral.py:PixtralForConditionalGeneration (0.32).
    """
    section = config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    merge = section.integer("spatial_merge_size", 1, maximum=64)
    bias = section.boolean("adapter_bias", True)
    modules: list[Module] = [
        *vision.pixtral(section, section.layers(), "vision_encoder"),
        replicated("vision_language_adapter.w_in", width, text, bias=bias, quantizable=False),
        replicated("vision_language_adapter.w_out", text, text, bias=bias, quantizable=False),
    ]
    if section.boolean("add_pre_mm_projector_layer_norm", False):
        modules.append(norm("pre_mm_projector_norm", width))
    if section.string("mm_projector_id", "") == PATCH_MERGE:
        modules.append(vision.patch_merger_linear("patch_merger.merging_layer", width, merge))
    return with_encoder(config, tuple(modules), square_encoder(section, merge))


PATCH_MERGE: Final = "patch_merge"
"""Source: vllm/model_executor/models/pixtral.py:PATCH_MERGE (0.32)."""


def read_isaac(config: ModelConfig) -> Architecture:
    """Isaac: SigLIP 2 for images of any shape, a pixel shuffle and a plain MLP in front of Qwen3.

    Source: vllm/model_executor/models/isaac.py (0.32).
    """
    section, text = config.root.section("vision_config"), config.language.integer("hidden_size")
    merge = section.integer("pixel_shuffle_scale_factor", 1, maximum=64)
    merged, prefix = section.integer("hidden_size") * merge**2, "vision_embedding"
    encoder = VisionEncoder(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        max_tokens_per_item=config.root.integer("vision_max_num_patches", 6144) // merge**2,
        patches_per_token=merge**2,
    )
    modules = (
        *siglip2(section, section.layers(), f"{prefix}.0"),
        column(f"{prefix}.1", merged, 4 * merged),
        row(f"{prefix}.3", 4 * merged, text),
    )
    return with_encoder(config, modules, encoder)


def read_ovis(config: ModelConfig) -> Architecture:
    """Ovis 2.5 and 2.6: SigLIP 2 with a head that chooses from a table of visual words.

    Source: vllm/model_executor/models/ovis2_5.py, siglip2navit.py (0.32).
    """
    root, section = config.root, config.root.section("vit_config")
    width, prefix = section.integer("hidden_size"), "visual_tokenizer.vit.vision_model"
    words, merge = root.integer("visual_vocab_size"), section.integer("hidden_stride", 2, maximum=64)
    patch, channels = section.integer("patch_size", maximum=4096), section.integer("num_channels", 3)
    flat = section.optional_integer("num_patches", minimum=-1) or 0
    side = vision.patches_per_side(section, section.integer("image_size"), patch)
    chosen = words - OVIS_INDICATORS
    modules: list[Module] = [
        vision.convolution(
            f"{prefix}.embeddings.patch_embedding", channels, width, (patch, patch), bias=True
        ),
        replicated("visual_tokenizer.head.0", width * merge**2, chosen, quantizable=False),
        norm("visual_tokenizer.head.1", chosen, bias=True),
        vision.table("vte", words, root.integer("hidden_size", config.language.integer("hidden_size"))),
        norm(f"{prefix}.post_layernorm", width, bias=True),
    ]
    if section.boolean("preserve_original_pe", True):
        positions = flat if flat > 0 else side * side
        modules.append(vision.table(f"{prefix}.embeddings.position_embedding", positions, width))
    for index in range(section.layers()):
        modules += siglip_layer(section, width, f"{prefix}.encoder.layers.{index}.")
    encoder = VisionEncoder(
        hidden_size=width,
        intermediate_size=section.integer("intermediate_size"),
        max_tokens_per_item=OVIS_MAX_TOKENS,
        patches_per_token=merge**2,
    )
    return replace(with_encoder(config, tuple(modules), encoder), layer_prefix="llm.model.layers")


OVIS_INDICATORS: Final = 4
"""Words of the table that the head cannot choose.

Source: vllm/model_executor/models/ovis2_5.py:INDICATOR_IDS (0.32)."""

OVIS_MAX_TOKENS: Final = 3136
"""1,792² pixels / 32². Source: vllm/transformers_utils/processors/ovis2_5.py, max_pixels (0.32)."""

READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "PixtralForConditionalGeneration": read_pixtral,
    "IsaacForConditionalGeneration": read_isaac,
    "isaac": read_isaac,
    "Ovis2_5": read_ovis,
    "ovis2_5": read_ovis,
    "Ovis2_6ForCausalLM": read_ovis,
    "Ovis2_6_MoeForCausalLM": read_ovis,
    "PaliGemmaForConditionalGeneration": read_paligemma,
    "paligemma": read_paligemma,
    "LlavaNextVideoForConditionalGeneration": read_llava_next_video,
    "llava_next_video": read_llava_next_video,
    "Cohere2VisionForConditionalGeneration": read_cohere2_vision,
    "cohere2_vision": read_cohere2_vision,
    "Eagle2_5_VLForConditionalGeneration": read_eagle,
    "eagle_2_5_vl": read_eagle,
    "AriaForConditionalGeneration": read_aria,
    "aria": read_aria,
    "Blip2ForConditionalGeneration": read_blip2,
    "blip-2": read_blip2,
}
