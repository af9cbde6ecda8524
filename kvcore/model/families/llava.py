"""LLaVA and models built like it: an image encoder, a projector of a kind of its own, another family's decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvcore.model.architecture import Architecture, Module
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.clip import siglip, siglip2, siglip_blocks
from kvcore.model.families.multimodal import read_encoder, with_encoder
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import norm, norms, replicated, row

PROJECTOR: Final = "multi_modal_projector"


@dataclass(frozen=True, kw_only=True, slots=True)
class Llava:
    """What sets one model with CLIP, SigLIP or Pixtral and two linear layers apart."""

    layer: int = -2
    """The layer of the encoder whose features are used, unless the config names one."""
    is_sharded: bool = True
    """The ranks shard the projector."""
    has_newline: bool = False
    """A vector marks the end of a row of patches."""


def read_llava(traits: Llava, config: ModelConfig) -> Architecture:
    """LLaVA, LLaVA-NeXT, LLaVA-NeXT-Video, LLaVA-OneVision.

    Source: vllm/model_executor/models/llava.py, llava_next.py, llava_next_video.py, llava_onevision.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    pair = vision.sharded_pair if traits.is_sharded else vision.whole_pair
    modules = (
        *read_encoder(section, vision.feature_layers(root, section, traits.layer)),
        *pair(PROJECTOR, width, text, text, bias=root.boolean("multimodal_projector_bias", True)),
        *((norm("image_newline", text),) if traits.has_newline else ()),
    )
    return with_encoder(config, modules, vision.square_limits(section))


def read_mistral3(config: ModelConfig) -> Architecture:
    """Mistral 3 and Mistral Small 4: Pixtral (the class's own when none is written), a merger, two linear layers.

    Source: vllm/model_executor/models/mistral3.py, lightonocr.py (0.32).
    """
    root = config.root
    section = root.optional_section("vision_config") or Section(
        {"model_type": "pixtral"}, "config.vision_config", "mistral3/vision_config"
    )
    layers = vision.feature_layers(root, section, default=-1)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    merge, bias = (
        root.integer("spatial_merge_size", 2, maximum=64),
        root.boolean("multimodal_projector_bias", False),
    )
    modules = (
        *read_encoder(section, layers),
        norm(f"{PROJECTOR}.norm", width),
        vision.patch_merger(f"{PROJECTOR}.patch_merger.merging_layer", width, merge),
        *vision.sharded_pair(PROJECTOR, width, text, text, bias=bias),
    )
    return with_encoder(config, modules, vision.square_limits(section, merge))


PATCH_MERGE: Final = "patch_merge"
"""Source: vllm/model_executor/models/pixtral.py:PATCH_MERGE (0.32)."""


def read_pixtral(config: ModelConfig) -> Architecture:
    """Pixtral as Mistral writes it: its encoder, an optional norm and merger, two replicated layers.

    Source: vllm/model_executor/models/pixtral.py:PixtralForConditionalGeneration (0.32).
    """
    section = config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    merge = section.integer("spatial_merge_size", 1, maximum=64)
    bias = section.boolean("adapter_bias", True)
    modules: list[Module] = [
        *vision.pixtral(section, section.layers(), "vision_encoder"),
        *vision.whole_pair("vision_language_adapter", width, text, text, ("w_in", "w_out"), bias=bias),
    ]
    if section.boolean("add_pre_mm_projector_layer_norm", False):
        modules.append(norm("pre_mm_projector_norm", width))
    if section.string("mm_projector_id", "") == PATCH_MERGE:
        modules.append(vision.patch_merger("patch_merger.merging_layer", width, merge))
    return with_encoder(config, tuple(modules), vision.square_limits(section, merge))


def read_idefics3(config: ModelConfig) -> Architecture:
    """Idefics 3 and SmolVLM: SigLIP in Idefics 2's variant, a pixel shuffle and one replicated layer.

    Source: vllm/model_executor/models/idefics3.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    merge = root.integer("scale_factor", 2, maximum=64)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    modules = (
        *siglip(section, prefix="model.vision_model"),
        replicated("model.connector.modality_projection.proj", width * merge**2, text),
    )
    return with_encoder(config, modules, vision.square_limits(section, merge))


def read_paligemma(config: ModelConfig) -> Architecture:
    """PaliGemma and PaliGemma 2: SigLIP, one replicated layer, Gemma.

    Source: vllm/model_executor/models/paligemma.py (0.32).
    """
    section = config.root.section("vision_config")
    width, out = section.integer("hidden_size"), section.integer("projection_dim")
    modules = (*siglip(section), vision.whole(f"{PROJECTOR}.linear", width, out))
    return with_encoder(config, modules, vision.square_limits(section))


def read_cohere2_vision(config: ModelConfig) -> Architecture:
    """Command A Vision: SigLIP, a pixel shuffle and a gated projector, sharded over the ranks.

    Source: vllm/model_executor/models/cohere2_vision.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    merge = root.integer("downsample_factor", 2, maximum=64)
    wide = root.integer("alignment_intermediate_size")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    if wide % 2:
        raise root.contradicting("alignment_intermediate_size", f"{wide} is two halves, and odd")
    modules = (
        *siglip(section),
        vision.merged(f"{PROJECTOR}.linear_1", width * merge**2, wide // 2, bias=True),
        row(f"{PROJECTOR}.linear_2", wide // 2, text, bias=True),
    )
    return with_encoder(config, modules, vision.square_limits(section, merge))


def read_eagle(config: ModelConfig) -> Architecture:
    """Eagle 2.5: SigLIP up to a chosen block, a pixel shuffle and a replicated MLP.

    Source: vllm/model_executor/models/eagle2_5_vl.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    total = section.layers()
    select = root.integer("select_layer", -1, minimum=-total, maximum=total - 1)
    merge = int(vision.downsampling(root))
    merged, text = section.integer("hidden_size") * merge**2, config.language.integer("hidden_size")
    tiles = root.integer("max_dynamic_tiles", 12, maximum=1024) + 1
    modules = (
        *siglip(section, total + select + 1 if select < 0 else select + 1, "vision_model.vision_model"),
        norm("mlp1.0", merged, bias=True),
        *vision.whole_pair("mlp1", merged, text, text, ("1", "3")),
    )
    return with_encoder(config, modules, vision.square_limits(section, merge, tiles))


def read_aria(config: ModelConfig) -> Architecture:
    """Aria: SigLIP without its last norm, and queries that attend to the patches.

    Source: vllm/model_executor/models/aria.py:AriaProjector (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    encoder = siglip(section, vision.feature_layers(root, section, default=-1), "vision_tower")
    queries, cross = query_counts(root), f"{PROJECTOR}.cross_attn"
    modules = (
        *(module for module in encoder if not module.name.endswith("post_layernorm")),
        vision.table(f"{PROJECTOR}.query", queries, width),
        *vision.wholes(cross, ("q_proj", "k_proj", "v_proj"), width, width, bias=False),
        vision.whole(f"{cross}.multihead_attn.in_proj", width, 3 * width),
        *vision.wholes(cross, ("multihead_attn.out_proj", "linear"), width, width),
        *norms(width, f"{cross}.layer_norm", f"{cross}.layer_norm_kv", f"{PROJECTOR}.layer_norm", bias=True),
        *vision.sharded_pair(
            f"{PROJECTOR}.feed_forward", width, text, text, ("linear_in", "linear_out"), bias=False
        ),
    )
    return with_encoder(config, modules, replace(vision.square_limits(section), max_tokens_per_item=queries))


def query_counts(root: Section) -> int:
    """The most queries of Aria's projector, whatever the number of patches."""
    counts = root.get("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    if not isinstance(counts, Mapping) or not all(isinstance(count, int) for count in counts.values()):
        raise root.invalid("projector_patch_to_query_dict", counts, "expected numbers of queries by patches")
    return int(max(counts.values()))


BLIP: Final = vision.Block(
    qkv="self_attn.qkv", out="self_attn.projection", norms=("layer_norm1", "layer_norm2")
)


def read_blip2(config: ModelConfig) -> Architecture:
    """BLIP-2: a ViT, a Q-Former and one layer in front of OPT.

    Source: vllm/model_executor/models/blip2.py, blip.py:BlipVisionModel (0.32).
    """
    root, section = config.root, config.root.section("vision_config", "blip-2/vision_config")
    former = root.section("qformer_config", "blip-2/qformer_config")
    queries, inner = root.integer("num_query_tokens", 32), former.integer("hidden_size")
    limits = replace(vision.square_limits(section), max_tokens_per_item=queries)
    width, prefix = section.integer("hidden_size"), "vision_model"
    heads = vision.square_heads(section, width)
    block = replace(BLIP, qkv_bias=section.boolean("qkv_bias", True))
    token, patches, positions = vision.embeddings(section, f"{prefix}.embeddings", width)
    modules = (
        vision.table("query_tokens", queries, inner),
        token,
        positions,
        patches,
        norm(f"{prefix}.post_layernorm", width, bias=True),
        *vision.blocks(
            block, f"{prefix}.encoder.layers", section.layers(), heads, section.integer("intermediate_size")
        ),
        *vision.q_former(former, "qformer"),
        vision.whole("language_projection", inner, config.language.integer("hidden_size")),
    )
    return with_encoder(config, modules, limits)


def read_isaac(config: ModelConfig) -> Architecture:
    """Isaac: SigLIP 2 for images of any shape, a pixel shuffle and a plain MLP in front of Qwen3.

    Source: vllm/model_executor/models/isaac.py (0.32).
    """
    section, text = config.root.section("vision_config"), config.language.integer("hidden_size")
    merge = section.integer("pixel_shuffle_scale_factor", 1, maximum=64)
    merged, prefix = section.integer("hidden_size") * merge**2, "vision_embedding"
    tokens = config.root.integer("vision_max_num_patches", 6144) // merge**2
    modules = (
        *siglip2(section, section.layers(), f"{prefix}.0"),
        *vision.sharded_pair(prefix, merged, 4 * merged, text, ("1", "3"), bias=False),
    )
    return with_encoder(config, modules, vision.input_limits(section, tokens, merge**2))


OVIS_INDICATORS: Final = 4
"""Words of the table that the head cannot choose.

Source: vllm/model_executor/models/ovis2_5.py:INDICATOR_IDS (0.32)."""

OVIS_MAX_TOKENS: Final = 3136
"""1,792² pixels / 32². Source: vllm/transformers_utils/processors/ovis2_5.py, max_pixels (0.32)."""


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
    embeddings, chosen = f"{prefix}.embeddings", words - OVIS_INDICATORS
    modules: list[Module] = [
        vision.convolution(f"{embeddings}.patch_embedding", channels, width, (patch, patch), bias=True),
        vision.whole("visual_tokenizer.head.0", width * merge**2, chosen, bias=False),
        norm("visual_tokenizer.head.1", chosen, bias=True),
        vision.table("vte", words, root.integer("hidden_size", config.language.integer("hidden_size"))),
        norm(f"{prefix}.post_layernorm", width, bias=True),
    ]
    if section.boolean("preserve_original_pe", True):
        positions = flat if flat > 0 else side * side
        modules.append(vision.table(f"{embeddings}.position_embedding", positions, width))
    modules += siglip_blocks(section, section.layers(), f"{prefix}.encoder.layers")
    limits = vision.input_limits(section, OVIS_MAX_TOKENS, merge**2)
    return replace(with_encoder(config, tuple(modules), limits), layer_prefix="llm.model.layers")


PADDLE_MAX_TOKENS: Final = 3600
"""2,822,400 pixels / 28². Source: preprocessor_config.json of PaddleOCR-VL, max_pixels."""

PACKING_POSITIONS: Final = 32_768
"""Source: vllm/model_executor/models/keye.py:KeyeVisionEmbeddings (0.32)."""


def read_paddle(config: ModelConfig, *, packing_positions: int = 0, is_stacked: bool = False) -> Architecture:
    """PaddleOCR-VL: SigLIP with rotary positions as well as its table, a replicated merger, ERNIE 4.5.

    Keye, the model with `packing_positions`, shards its merger; Keye 1.5 norms the patches where they are merged.

    Source: vllm/model_executor/models/paddleocr_vl.py, keye.py, keye_vl1_5.py (0.32).
    """
    section = config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    merge = section.integer("spatial_merge_size", 2, maximum=64)
    merged, prefix, projector = width * merge**2, "visual.vision_model", "mlp_AR"
    modules: list[Module] = [
        *siglip(section, prefix=prefix),
        norm(f"{projector}.pre_norm", merged if is_stacked else width, bias=True),
    ]
    if packing_positions:
        modules += vision.sharded_pair(projector, merged, merged, text)
        name = f"{prefix}.embeddings.packing_position_embedding"
        modules.append(vision.table(name, packing_positions, width))
    else:
        modules += vision.whole_pair(projector, merged, merged, text, quantizable=True)
    return with_encoder(
        config, tuple(modules), vision.input_limits(section, PADDLE_MAX_TOKENS, merge * merge)
    )


KEYE: Final = partial(read_paddle, packing_positions=PACKING_POSITIONS)
KEYE_1_5: Final = partial(read_paddle, packing_positions=PACKING_POSITIONS, is_stacked=True)
LLAVA: Final = partial(read_llava, Llava())
LLAVA_NEXT: Final = partial(read_llava, Llava(has_newline=True))
LLAVA_NEXT_VIDEO: Final = partial(read_llava, Llava(is_sharded=False))
LLAVA_ONEVISION: Final = partial(read_llava, Llava(layer=-1, is_sharded=False, has_newline=True))

READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    **dict.fromkeys(("LlavaForConditionalGeneration", "llava"), LLAVA),
    **dict.fromkeys(("LlavaNextForConditionalGeneration", "llava_next"), LLAVA_NEXT),
    **dict.fromkeys(("LlavaNextVideoForConditionalGeneration", "llava_next_video"), LLAVA_NEXT_VIDEO),
    **dict.fromkeys(("LlavaOnevisionForConditionalGeneration", "llava_onevision"), LLAVA_ONEVISION),
    **dict.fromkeys(
        ("Mistral3ForConditionalGeneration", "LightOnOCRForConditionalGeneration", "mistral3"), read_mistral3
    ),
    "PixtralForConditionalGeneration": read_pixtral,
    **dict.fromkeys(("Idefics3ForConditionalGeneration", "idefics3"), read_idefics3),
    **dict.fromkeys(("SmolVLMForConditionalGeneration", "smolvlm"), read_idefics3),
    **dict.fromkeys(("PaliGemmaForConditionalGeneration", "paligemma"), read_paligemma),
    **dict.fromkeys(("Cohere2VisionForConditionalGeneration", "cohere2_vision"), read_cohere2_vision),
    **dict.fromkeys(("Eagle2_5_VLForConditionalGeneration", "eagle_2_5_vl"), read_eagle),
    **dict.fromkeys(("AriaForConditionalGeneration", "aria"), read_aria),
    **dict.fromkeys(("Blip2ForConditionalGeneration", "blip-2"), read_blip2),
    **dict.fromkeys(("IsaacForConditionalGeneration", "isaac"), read_isaac),
    **dict.fromkeys(("Ovis2_5", "ovis2_5", "Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM"), read_ovis),
    **dict.fromkeys(("PaddleOCRVLForConditionalGeneration", "paddleocr_vl"), read_paddle),
    **dict.fromkeys(("KeyeForConditionalGeneration", "Keye"), KEYE),
    **dict.fromkeys(("KeyeVL1_5ForConditionalGeneration", "KeyeVL1_5"), KEYE_1_5),
}
