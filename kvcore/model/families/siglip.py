"""SigLIP and its variants in front of a language part; CLIP and SigLIP alone.

Idefics 3, PaliGemma, Command A Vision, Aria, BLIP-2, Isaac, Phi-4 with SigLIP 2, Ovis, PaddleOCR-VL, Keye,
LFM2-VL. CLIP and SigLIP have a transformer for texts next to the one for images.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from kvcore.model.architecture import Architecture, Layer
from kvcore.model.config import ModelConfig
from kvcore.model.families import mamba
from kvcore.model.families.multimodal import behind_encoders, read_root_as
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.image_encoders import Seen, read_siglip, read_siglip2


def idefics3(config: ModelConfig, text: int) -> enc.Encoder:
    """Idefics 3, SmolVLM: SigLIP in Idefics 2's variant, a pixel shuffle and one replicated layer.

    Source: vllm/model_executor/models/idefics3.py (0.32).
    """
    root = config.root
    seen = read_siglip(root.section("vision_config"), "model.vision_model")
    merge = enc.read_merge(root, "scale_factor", 2)
    projector = blocks.replicated("model.connector.modality_projection.proj", seen.own.width * merge**2, text)
    return enc.seeing((*seen.modules, projector), seen.own, (seen.side // merge) ** 2, merge**2)


def paligemma(config: ModelConfig, _text: int) -> enc.Encoder:
    """PaliGemma and PaliGemma 2.

    Source: vllm/model_executor/models/paligemma.py (0.32).
    """
    section = config.root.section("vision_config")
    seen = read_siglip(section, "vision_tower.vision_model")
    projector = enc.whole("multi_modal_projector.linear", seen.own.width, section.integer("projection_dim"))
    return enc.seeing((*seen.modules, projector), seen.own, seen.side**2)


def colpali(config: ModelConfig, text: int) -> enc.Encoder:
    """ColPali: PaliGemma and a projection of every token to a short vector.

    Source: vllm/model_executor/models/colpali.py (0.33).
    """
    seen, root = paligemma(config, text), config.root
    short = root.integer("embed_dim" if root.get("embedding_dim") is None else "embedding_dim", 128)
    projection = replace(enc.whole("custom_text_proj", text, short, bias=False), dtype="float32")
    return replace(seen, modules=(*seen.modules, projection))


def cohere2_vision(config: ModelConfig, text: int) -> enc.Encoder:
    """Command A Vision: a pixel shuffle and a gated projector, sharded over the ranks.

    Source: vllm/model_executor/models/cohere2_vision.py (0.32).
    """
    root = config.root
    seen = read_siglip(root.section("vision_config"), "vision_tower.vision_model")
    merge, double = enc.read_merge(root, "downsample_factor", 2), root.integer("alignment_intermediate_size")
    if double % 2:
        raise root.contradicting("alignment_intermediate_size", f"{double} is two halves, and odd")
    projector = (
        enc.merged("multi_modal_projector.linear_1", seen.own.width * merge**2, double // 2),
        enc.row("multi_modal_projector.linear_2", double // 2, text),
    )
    return enc.seeing((*seen.modules, *projector), seen.own, (seen.side // merge) ** 2, merge**2)


def aria(config: ModelConfig, text: int) -> enc.Encoder:
    """Aria: SigLIP without its last norm, and queries that attend to the patches.

    Source: vllm/model_executor/models/aria.py:AriaProjector (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    layers = enc.read_feature_layers(root, section.layers(), -1)
    seen = read_siglip(section, "vision_tower", layers, last_norm=False)
    counts = root.get("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    if not isinstance(counts, Mapping) or not all(isinstance(count, int) for count in counts.values()):
        raise root.invalid("projector_patch_to_query_dict", counts, "expected numbers of queries by patches")
    queries, width = int(max(counts.values())), seen.own.width
    projector: enc.Modules = (
        enc.tensor("query", queries, width),
        *(enc.whole(f"cross_attn.{name}_proj", width, width, bias=False) for name in "qkv"),
        enc.whole("cross_attn.multihead_attn.in_proj", width, 3 * width),
        enc.whole("cross_attn.multihead_attn.out_proj", width, width),
        enc.whole("cross_attn.linear", width, width),
        enc.norm("cross_attn.layer_norm", width),
        enc.norm("cross_attn.layer_norm_kv", width),
        enc.norm("layer_norm", width),
        enc.column("feed_forward.linear_in", width, text, bias=False),
        enc.row("feed_forward.linear_out", text, text, bias=False),
    )
    modules = (*seen.modules, *enc.behind("multi_modal_projector", projector))
    return enc.seeing(modules, seen.own, queries)


BLIP: Final = replace(enc.CLIP, qkv="self_attn.qkv", out="self_attn.projection")


def blip2(config: ModelConfig, text: int) -> enc.Encoder:
    """BLIP-2: a ViT, a Q-Former and one layer in front of OPT.

    Source: vllm/model_executor/models/blip2.py, blip.py:BlipVisionModel (0.32).
    """
    root = config.root
    section = root.section("vision_config", "blip-2/vision_config")
    former = root.section("qformer_config", "blip-2/qformer_config")
    queries, query_width = root.integer("num_query_tokens", 32), former.integer("hidden_size")
    own = enc.read_sizes(section)
    width, (patch, side) = own.width, enc.read_patches(section)
    layer = enc.block(own, BLIP, qkv_bias=section.boolean("qkv_bias", True))
    vision = (
        enc.tensor("embeddings.class_embedding", width),
        enc.tensor("embeddings.position_embedding", side**2 + 1, width),
        enc.convolution("embeddings.patch_embedding", 3, width, patch, patch),
        enc.norm("post_layernorm", width),
        *enc.repeated("encoder.layers", own.layers, layer),
    )
    modules = (
        enc.tensor("query_tokens", queries, query_width),
        *enc.behind("vision_model", vision),
        *enc.behind("qformer", image_encoders.q_former(former)),
        enc.whole("language_projection", query_width, text),
    )
    return enc.seeing(modules, own, queries)


def isaac(config: ModelConfig, text: int) -> enc.Encoder:
    """Isaac: SigLIP 2, a pixel shuffle and a plain MLP in front of Qwen3.

    Source: vllm/model_executor/models/isaac.py (0.32).
    """
    section = config.root.section("vision_config")
    seen = read_siglip2(section, "vision_embedding.0")
    merge = enc.read_merge(section, "pixel_shuffle_scale_factor", 1)
    shuffled = seen.own.width * merge**2
    projector = (
        enc.column("vision_embedding.1", shuffled, 4 * shuffled, bias=False),
        enc.row("vision_embedding.3", 4 * shuffled, text, bias=False),
    )
    tokens = config.root.integer("vision_max_num_patches", 6144) // merge**2
    return enc.seeing((*seen.modules, *projector), seen.own, tokens, merge**2)


def phi4_siglip(config: ModelConfig, text: int) -> enc.Encoder:
    """Phi-4 with SigLIP 2 but for its last layer and norm.

    Source: vllm/model_executor/models/phi4siglip.py:Phi4ForCausalLMV (0.33).
    """
    root, section = config.root, config.root.section("vision_config", "siglip2_vision_model")
    layers = enc.read_feature_layers(root, section.layers(), -2)
    seen = read_siglip2(section, "vision_tower", layers, last_norm=False)
    projector = (
        enc.column("multi_modal_projector.linear_1", seen.own.width, text),
        enc.row("multi_modal_projector.linear_2", text, text),
    )
    tokens = root.integer("max_num_patches", 3600)
    return enc.seeing((*seen.modules, *projector), seen.own, tokens)


INDICATORS: Final = 4
"""Words that cannot be chosen. Source: vllm/model_executor/models/ovis2_5.py:INDICATOR_IDS (0.32)."""


def ovis2_5(config: ModelConfig, text: int) -> enc.Encoder:
    """Ovis 2.5 and 2.6: SigLIP 2 with a head that chooses from a table of visual words.

    The largest image is 1,792² pixels / 32² (vllm/transformers_utils/processors/ovis2_5.py, max_pixels).

    Source: vllm/model_executor/models/ovis2_5.py, siglip2navit.py (0.32).
    """
    root, section = config.root, config.root.section("vit_config")
    own, words = enc.read_sizes(section, is_checked=False), root.integer("visual_vocab_size")
    word_width, merge = root.integer("hidden_size", text), enc.read_merge(section, "hidden_stride", 2)
    patch, side = enc.read_patches(section)
    positions = section.integer("num_patches", 0, minimum=-1)
    vit = (
        enc.convolution(
            "embeddings.patch_embedding", section.integer("num_channels", 3), own.width, patch, patch
        ),
        enc.norm("post_layernorm", own.width),
        *enc.when(
            section.boolean("preserve_original_pe", True),
            enc.tensor("embeddings.position_embedding", positions if positions > 0 else side**2, own.width),
        ),
        *enc.repeated("encoder.layers", own.layers, image_encoders.siglip_block(own)),
    )
    modules = (
        enc.whole("visual_tokenizer.head.0", own.width * merge**2, words - INDICATORS, bias=False),
        enc.norm("visual_tokenizer.head.1", words - INDICATORS),
        enc.tensor("vte", words, word_width),
        *enc.behind("visual_tokenizer.vit.vision_model", vit),
    )
    return enc.seeing(modules, own, 3136, merge**2)


def paddleocr_vl(config: ModelConfig, text: int) -> enc.Encoder:
    """PaddleOCR-VL: SigLIP with rotary positions as well as its table, a replicated merger, ERNIE 4.5.

    Source: vllm/model_executor/models/paddleocr_vl.py (0.32).
    """
    seen, merge = read_merged(config)
    shuffled = seen.own.width * merge**2
    merger = (
        enc.norm("mlp_AR.pre_norm", seen.own.width),
        blocks.replicated("mlp_AR.linear_1", shuffled, shuffled, bias=True),
        blocks.replicated("mlp_AR.linear_2", shuffled, text, bias=True),
    )
    return enc.seeing((*seen.modules, *merger), seen.own, 3600, merge**2)


def read_merged(config: ModelConfig) -> tuple[Seen, int]:
    """PaddleOCR-VL's and Keye's SigLIP, and the side of a square of patches.

    The largest image is 2,822,400 pixels / 28²: preprocessor_config.json of PaddleOCR-VL, max_pixels.
    """
    section = config.root.section("vision_config")
    return read_siglip(section, "visual.vision_model"), enc.read_merge(section, default=2)


def keye(config: ModelConfig, text: int, *, is_merged_first: bool = False) -> enc.Encoder:
    """Keye: a sharded merger, and a table of packed positions. Keye 1.5 norms patches where they are merged.

    Source: vllm/model_executor/models/keye.py:KeyeVisionEmbeddings, keye_vl1_5.py (0.32).
    """
    seen, merge = read_merged(config)
    width, shuffled = seen.own.width, seen.own.width * merge**2
    merger = (
        enc.norm("mlp_AR.pre_norm", shuffled if is_merged_first else width),
        enc.column("mlp_AR.linear_1", shuffled, shuffled),
        enc.row("mlp_AR.linear_2", shuffled, text),
        enc.tensor("visual.vision_model.embeddings.packing_position_embedding", 32_768, width),
    )
    return enc.seeing((*seen.modules, *merger), seen.own, 3600, merge**2)


def lfm2_vl(config: ModelConfig, text: int) -> enc.Encoder:
    """LFM2-VL: SigLIP 2, a pixel shuffle and two replicated layers in front of LFM2.

    Source: vllm/model_executor/models/lfm2_vl.py, lfm2_siglip2.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config", "siglip2_vision_model")
    layers = enc.read_feature_layers(root, section.layers(), -1)
    seen = read_siglip2(section, "vision_tower.vision_model", layers)
    merge = enc.read_merge(root, "downsample_factor", 2)
    shuffled, inside = seen.own.width * merge**2, root.integer("projector_hidden_size")
    bias = root.boolean("projector_bias", True)
    projector = (
        enc.whole("linear_1", shuffled, inside, bias=bias),
        enc.whole("linear_2", inside, text, bias=bias),
        *enc.when(root.boolean("projector_use_layernorm", True), enc.norm("layer_norm", shuffled)),
    )
    tokens = root.integer("max_image_tokens", 256) * (root.integer("max_tiles", 10, maximum=1024) + 1)
    modules = (*seen.modules, *enc.behind("multi_modal_projector", projector))
    return enc.seeing(modules, seen.own, tokens, merge**2)


def clip_alone(config: ModelConfig, text: int) -> enc.Encoder:
    """CLIP's transformer for images, and both projections.

    Source: vllm/model_executor/models/clip.py:CLIPEmbeddingModel (0.32).
    """
    section = config.root.section("vision_config", "clip_vision_model")
    out = config.root.integer("projection_dim", 512)
    own, (patch, side) = enc.read_sizes(section), enc.read_patches(section)
    modules = (
        *enc.behind("vision_model", image_encoders.clip(own, patch, side, enc.read_channels(section))),
        enc.whole("visual_projection", own.width, out, bias=False),
        enc.whole("text_projection", text, out, bias=False),
    )
    return enc.seeing(modules, own, side**2)


def siglip_alone(config: ModelConfig, text: int) -> enc.Encoder:
    """SigLIP's transformer for images, with a pooling head, and the head of texts.

    Source: vllm/model_executor/models/siglip.py:SiglipEmbeddingModel (0.32).
    """
    section = config.root.section("vision_config", "siglip_vision_model")
    seen, out = read_siglip(section, "vision_model"), config.language.integer("projection_size", text)
    pools = section.boolean("vision_use_head", True)
    modules = (
        *seen.modules,
        *enc.when(pools, *enc.behind("vision_model.head", image_encoders.siglip_head(seen.own))),
        enc.whole("text_model.head", text, out),
    )
    return enc.seeing(modules, seen.own, seen.side**2)


def read_text_encoder(config: ModelConfig, *, is_kept: bool) -> Architecture:
    """The transformer for texts of CLIP and SigLIP; keys and values of texts that are read forwards are kept."""
    text = config.language
    heads = blocks.read_heads(text, "", reads_head_dim=False)
    width, inner = heads.hidden_size, text.integer("intermediate_size")
    prefix, positions = "text_model.embeddings", text.integer("max_position_embeddings")
    caches = (blocks.cache_of(heads),) if is_kept else ()
    layer = Layer(modules=enc.block(enc.read_sizes(text), enc.CLIP), caches=caches)
    return blocks.decoder(
        config,
        section=text,
        heads=heads,
        layers=(layer,) * text.layers(),
        intermediate_size=inner,
        first=(
            enc.sharded_table(f"{prefix}.token_embedding", text.integer("vocab_size"), width),
            enc.sharded_table(f"{prefix}.position_embedding", positions, width),
        ),
        last=(blocks.norm("text_model.final_layer_norm", width, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="text_model.encoder.layers",
    )


READERS: Final = blocks.named(
    (
        behind_encoders(idefics3),
        "Idefics3ForConditionalGeneration idefics3 SmolVLMForConditionalGeneration smolvlm",
    ),
    (behind_encoders(paligemma), "PaliGemmaForConditionalGeneration paligemma"),
    (behind_encoders(colpali), "ColPaliForRetrieval colpali"),
    (behind_encoders(cohere2_vision), "Cohere2VisionForConditionalGeneration cohere2_vision"),
    (behind_encoders(aria), "AriaForConditionalGeneration aria"),
    (behind_encoders(blip2), "Blip2ForConditionalGeneration blip-2"),
    (behind_encoders(isaac), "IsaacForConditionalGeneration isaac"),
    (behind_encoders(phi4_siglip, read_root_as("phi3")), "Phi4ForCausalLMV"),
    (
        behind_encoders(ovis2_5, layer_prefix="llm.model.layers"),
        "Ovis2_5 ovis2_5 Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM",
    ),
    (behind_encoders(paddleocr_vl), "PaddleOCRVLForConditionalGeneration paddleocr_vl"),
    (behind_encoders(keye), "KeyeForConditionalGeneration Keye"),
    (behind_encoders(partial(keye, is_merged_first=True)), "KeyeVL1_5ForConditionalGeneration KeyeVL1_5"),
    (
        behind_encoders(lfm2_vl, mamba.read_lfm2, "model.language_model.layers"),
        "Lfm2VlForConditionalGeneration lfm2_vl",
    ),
    (behind_encoders(clip_alone, partial(read_text_encoder, is_kept=True), "{}"), "CLIPModel clip"),
    (behind_encoders(siglip_alone, partial(read_text_encoder, is_kept=False), "{}"), "SiglipModel siglip"),
)
