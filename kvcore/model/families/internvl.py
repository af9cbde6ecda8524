"""InternVL and models with a pixel shuffle like its own: Qianfan-OCR, NVLM, Eagle 2.5, Nemotron Nano VL."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import nemotron
from kvcore.model.families.multimodal import behind_encoders
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.image_encoders import read_siglip


def read_shuffle(root: Section) -> float:
    """Patches along a side that a pixel shuffle makes one, from its ratio."""
    ratio = root.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise root.invalid("downsample_ratio", ratio, "expected more than 0 and at most 1")
    return 1 / ratio


def shuffled_mlp(shuffled: int, inside: int, text: int, *, bias: bool = True) -> enc.Modules:
    """A norm and two layers behind a pixel shuffle, whole on every rank."""
    return (
        enc.norm("mlp1.0", shuffled),
        enc.whole("mlp1.1", shuffled, inside, bias=bias),
        enc.whole("mlp1.3", inside, text, bias=bias),
    )


def intern_vit(
    section: Section, own: enc.Sizes, patch: int, side: int, *, dummies: int = 0, is_qianfan: bool = False
) -> enc.Modules:
    """InternViT, whole on ranks that do not divide its heads; `dummies` are heads of zeros besides the checkpoint's.

    `is_qianfan`: with the spellings and defaults of Qianfan-OCR.

    Source: vllm/model_executor/models/intern_vit.py (0.32), qianfan_ocr.py:_add_intern_vit_fields (0.33).
    """

    def flag(name: str, other: str, default: bool) -> bool:
        return section.boolean(other if is_qianfan and section.get(name) is None else name, default)

    norm_type = section.string("norm_type", "layer_norm" if is_qianfan else "rms_norm")
    width, heads = own.width, own.heads + dummies
    attended = heads * own.head
    own = replace(own, heads=heads, kv_heads=heads, attended=attended)
    qkv_bias = flag("qkv_bias", "attention_bias", False)
    qk_normed = flag("qk_normalization", "use_qk_norm", not is_qianfan)
    layers = scaled_block(own, heads, qkv_bias=qkv_bias, norm_bias=norm_type == "layer_norm")
    layer = (
        *layers,
        *enc.when(qk_normed, enc.tensor("attn.q_norm", attended), enc.tensor("attn.k_norm", attended)),
    )
    return (
        enc.tensor("embeddings.class_embedding", width),
        enc.convolution("embeddings.patch_embedding", 3, width, patch, patch),
        enc.tensor("embeddings.position_embedding", side**2 + 1, width),
        *enc.repeated("encoder.layers", own.layers, layer),
    )


def scaled_block(
    own: enc.Sizes, indivisible: int, *, qkv_bias: bool = True, norm_bias: bool = True
) -> enc.Modules:
    """A block of timm with scales of both halves; attention is whole on ranks that do not divide so many heads."""
    return (
        *enc.changed(enc.attention(own, enc.TIMM, bias=qkv_bias), whole_unless_divided=indivisible),
        *enc.mlp(own, enc.TIMM),
        *enc.norms(own, enc.TIMM, bias=norm_bias),
        enc.tensor("ls1", own.width),
        enc.tensor("ls2", own.width),
    )


def internvl_chat(
    config: ModelConfig,
    text: int,
    *,
    dummies: int = 0,
    has_wide_projector: bool = False,
    is_qianfan: bool = False,
) -> enc.Encoder:
    """InternVL, Skywork R1V, H2OVL: InternViT and a replicated MLP behind a pixel shuffle.

    Qianfan-OCR spells its vision part as transformers does. NVLM has more heads than the checkpoint, `dummies`, and a
    projector as wide as the language part's MLP.

    Source: vllm/model_executor/models/internvl.py, skyworkr1v.py, h2ovl.py,
    nvlm_d.py:NVLM_D_Model._init_vision_model (0.32), qianfan_ocr.py (0.33).
    """
    root = config.root
    section = root.section("vision_config", "qianfan_ocr_vision" if is_qianfan else None)
    total = section.layers()
    chosen = root.integer("select_layer", -1, minimum=-total, maximum=total)
    layers = total + chosen + 1 if chosen < 0 else min(chosen + 1, total)
    if is_qianfan:
        image, patch = enc.square(section, "image_size", 448), enc.square(section, "patch_size", 14)
    else:
        image, patch = section.integer("image_size"), section.integer("patch_size", maximum=enc.MAX_PATCH)
    side, own = enc.patches_a_side(section, image, patch), enc.read_sizes(section, layers=layers)
    vit = intern_vit(section, own, patch, side, dummies=dummies, is_qianfan=is_qianfan)
    merge = int(read_shuffle(root))
    inside = config.language.integer("intermediate_size") if has_wide_projector else text
    projector = shuffled_mlp(own.width * merge**2, inside, text, bias=not has_wide_projector)
    tokens = (side // merge) ** 2 * (root.integer("max_dynamic_patch", 12, maximum=1024) + 1)
    modules = (*enc.behind("vision_model", vit), *projector)
    return enc.seeing(modules, own, tokens, merge**2)


def eagle2_5(config: ModelConfig, text: int) -> enc.Encoder:
    """Eagle 2.5: SigLIP up to a chosen block, a pixel shuffle and a replicated MLP.

    Source: vllm/model_executor/models/eagle2_5_vl.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    total = section.layers()
    chosen = root.integer("select_layer", -1, minimum=-total, maximum=total - 1)
    layers = (total if chosen < 0 else 0) + chosen + 1
    seen, merge = read_siglip(section, "vision_model.vision_model", layers), int(read_shuffle(root))
    tiles = root.integer("max_dynamic_tiles", 12, maximum=1024)
    tokens = (seen.side // merge) ** 2 * (tiles + 1)
    projector = shuffled_mlp(seen.own.width * merge**2, text, text)
    return enc.seeing((*seen.modules, *projector), seen.own, tokens, merge**2)


TILES: Final = 12
"""Source: preprocessor_config.json of InternVL3-8B-hf, max_patches."""


def internvl(config: ModelConfig, text: int) -> enc.Encoder:
    """InternVL and InternS1 as transformers writes them: attention is replicated, the MLP sharded.

    Source: vllm/model_executor/models/interns1.py, interns1_vit.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    own = enc.read_sizes(section, heads=1, layers=enc.read_feature_layers(root, section.layers(), -1))
    width, channels, merge = own.width, enc.read_channels(section), int(read_shuffle(root))
    image, patch = enc.square(section, "image_size"), enc.square(section, "patch_size")
    side = enc.patches_a_side(section, image, patch)
    bias = section.boolean("attention_bias", False)
    is_layer_norm = section.string("norm_type", "layer_norm") == "layer_norm"
    layer = (
        *(enc.whole(f"attention.{name}_proj", width, width, bias=bias) for name in "qkv"),
        enc.whole("attention.projection_layer", width, width),
        *enc.when(
            section.boolean("use_qk_norm", False),
            enc.tensor("attention.q_norm", width),
            enc.tensor("attention.k_norm", width),
        ),
        *enc.mlp(own, enc.CLIP),
        enc.norm("layernorm_before", width, bias=is_layer_norm),
        enc.norm("layernorm_after", width, bias=is_layer_norm),
        enc.tensor("lambda_1", width),
        enc.tensor("lambda_2", width),
    )
    has_mask = section.boolean("use_mask_token", False)
    has_positions = section.boolean("use_absolute_position_embeddings", True)
    vit = (
        enc.tensor("embeddings.cls_token", width),
        enc.convolution("embeddings.patch_embeddings.projection", channels, width, patch, patch),
        *enc.when(has_mask, enc.tensor("embeddings.mask_token", width)),
        *enc.when(has_positions, enc.tensor("embeddings.position_embeddings", side**2 + 1, width)),
        *enc.repeated("encoder.layer", own.layers, layer),
        *enc.when(not section.boolean("use_mean_pooling", True), enc.norm("layernorm", width)),
    )
    projector = (
        enc.norm("multi_modal_projector.layer_norm", width * merge**2),
        enc.whole("multi_modal_projector.linear_1", width * merge**2, text),
        enc.whole("multi_modal_projector.linear_2", text, text),
    )
    tokens = (side // merge) ** 2 * (TILES + 1)
    return enc.seeing((*enc.behind("vision_tower", vit), *projector), own, tokens, merge**2)


RADIO: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "vit_small_patch16_224": (384, 1536, 6, 12),
    "vit_base_patch16_224": (768, 3072, 12, 12),
    "vit_large_patch16_224": (1024, 4096, 16, 24),
    "vit_huge_patch16_224": (1280, 5120, 16, 32),
}
"""Width, width of the MLP, heads and layers of C-RADIO.

Source: vllm/transformers_utils/configs/radio.py:VIT_TIMM_DIM_BY_NAME (0.32)."""


def radio(section: Section) -> tuple[enc.Sizes, enc.Modules]:
    """C-RADIO: a ViT with tokens for its teachers and a table for large images; widths by the name of its size.

    It has a token for each teacher, or one, and registers up to a multiple of `register_multiple`.

    Source: vllm/model_executor/models/radio.py:RadioInternVisionModel (0.32).
    """
    arguments = section.section("args")
    name = arguments.string("model")
    if name not in RADIO:
        raise enc.not_read(arguments, name, reason="this vision encoder is not known", key="model")
    width, inner, heads, layers = RADIO[name]
    own = enc.read_sizes(section, width, inner, heads, layers)
    patch = section.integer("patch_size", 16, maximum=enc.MAX_PATCH)
    frames = enc.read_merge(section, "video_temporal_patch_size", 1)
    side = round(arguments.integer("cpe_max_size", 2048) / patch)
    teachers = arguments.sequence("teachers") or ()
    names = {str(each.get("name")) for each in teachers if isinstance(each, Mapping)}
    tokens = max(1, len(names)) if arguments.boolean("cls_token_per_teacher", True) else 1
    multiple = arguments.optional_integer("register_multiple", minimum=0)
    tokens += multiple - tokens % multiple if multiple else 0
    has_video = frames > 1 and section.boolean("separate_video_embedder", True)
    modules = (
        enc.tensor("patch_generator.pos_embed", side**2, width),
        enc.tensor("patch_generator.embedder", 3 * patch**2, width),
        enc.tensor("patch_generator.cls_token", tokens, width),
        *enc.when(has_video, enc.tensor("patch_generator.video_embedder", 3 * frames * patch**2, width)),
        *enc.repeated("blocks", layers, scaled_block(own, heads)),
    )
    return own, modules


def nano_nemotron(config: ModelConfig, text: int) -> enc.Encoder:
    """Nemotron Nano VL 2, and the omni models without their audio encoder. The largest image has 12 tiles.

    Source: vllm/model_executor/models/nano_nemotron_vl.py (0.32).
    """
    root = config.root
    own, vit = radio(root.section("vision_config"))
    features, projected = root.integer("vit_hidden_size"), root.integer("projector_hidden_size")
    merge = round(read_shuffle(root))
    side = root.integer("force_image_size", 512) // root.integer("patch_size", 16) // merge
    drafts = config.language.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    modules = (
        *enc.behind("vision_model.radio_model.model", vit),
        enc.tensor("mlp1.0", features * merge**2),
        enc.whole("mlp1.1", features * merge**2, projected, bias=False),
        enc.whole("mlp1.3", projected, text, bias=False),
        *enc.when(drafts > 0, enc.norm("vision_final_layernorm", features)),
    )
    return enc.seeing(modules, replace(own, width=features), side**2 * 13, merge**2)


def read_nemotron(config: ModelConfig) -> Architecture:
    """Nemotron Nano VL 2, and the omni models, whose encoder of sound is not counted."""
    uncounted = ("sound encoder",) if config.root.has("sound_config") else ()
    return dataclasses.replace(behind_encoders(nano_nemotron, nemotron.read_h)(config), uncounted=uncounted)


READERS: Final = blocks.named(
    (
        behind_encoders(internvl_chat),
        "InternVLChatModel internvl_chat SkyworkR1VChatModel skywork_chat H2OVLChatModel",
        "h2ovl_chat",
    ),
    (
        behind_encoders(partial(internvl_chat, is_qianfan=True)),
        "QianfanOCRForConditionalGeneration qianfan_ocr",
    ),
    (behind_encoders(partial(internvl_chat, dummies=7, has_wide_projector=True)), "NVLM_D"),
    (behind_encoders(eagle2_5), "Eagle2_5_VLForConditionalGeneration eagle_2_5_vl"),
    (
        behind_encoders(internvl),
        "InternS1ForConditionalGeneration interns1 InternVLForConditionalGeneration internvl",
    ),
    (
        read_nemotron,
        "NemotronH_Nano_VL_V2 NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3",
        "NemotronH_Omni_Reasoning_V3",
    ),
)
