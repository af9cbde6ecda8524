"""InternVL and Nemotron Nano VL: InternViT or C-RADIO, a pixel shuffle, a replicated MLP, another decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kvcore.errors import ModelError
from kvcore.model.architecture import Architecture, Module, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import nemotron
from kvcore.model.families.multimodal import with_encoder
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import norm, plain_mlp


def read_internvl(config: ModelConfig, *, is_nvlm: bool = False) -> Architecture:
    """InternVL, Skywork R1V, H2OVL: InternViT and a replicated MLP behind a pixel shuffle.

    NVLM-D has more heads than the checkpoint, and a projector as wide as the language part's MLP.

    Source: vllm/model_executor/models/internvl.py, skyworkr1v.py, h2ovl.py, nvlm_d.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    total = section.layers()
    select = root.optional_integer("select_layer", minimum=-total, maximum=total)
    layers = total if select is None else total + select + 1 if select < 0 else select + 1
    merge = int(vision.downsampling(root))
    merged, text = section.integer("hidden_size") * merge**2, config.language.integer("hidden_size")
    inner = config.language.integer("intermediate_size") if is_nvlm else text
    tiles = root.integer("max_dynamic_patch", 12, maximum=1024) + 1
    modules = (
        *intern_vit(section, min(layers, total), dummy_heads=NVLM_DUMMY_HEADS if is_nvlm else 0),
        norm("mlp1.0", merged, bias=True),
        *vision.whole_pair("mlp1", merged, inner, text, ("1", "3"), bias=not is_nvlm),
    )
    return with_encoder(config, modules, vision.square_limits(section, merge, tiles))


def intern_vit(
    section: Section, layers: int, prefix: str = "vision_model", *, dummy_heads: int = 0
) -> tuple[Module, ...]:
    """InternViT up to `layers` blocks; attention whose heads the ranks do not divide is whole on each.

    `dummy_heads` are heads of zeros besides those of the checkpoint.

    Source: vllm/model_executor/models/intern_vit.py (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = vision.square_heads(section, width)
    more = heads.num_heads + dummy_heads
    heads = replace(heads, num_heads=more, num_kv_heads=more)
    inner = more * heads.head_dim
    block = vision.Block(
        has_layer_norms=section.string("norm_type", "rms_norm") == "layer_norm",
        qkv_bias=section.boolean("qkv_bias", False),
    )
    vectors = {"ls1": width, "ls2": width}
    if section.boolean("qk_normalization", True):
        vectors |= {"attn.q_norm": inner, "attn.k_norm": inner}
    blocks = vision.blocks(
        block, f"{prefix}.encoder.layers", layers, heads, intermediate, vectors=vectors, attended=inner
    )
    return (
        *vision.embeddings(section, f"{prefix}.embeddings", width),
        *vision.change_linears(blocks, ".attn.", whole_unless_divided=more),
    )


def read_hugging_face(config: ModelConfig) -> Architecture:
    """InternVL as transformers writes it: attention of the encoder is replicated, its MLP sharded.

    Source: vllm/model_executor/models/interns1.py, interns1_vit.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    image, patch = side_of(section, "image_size"), side_of(section, "patch_size")
    side = vision.patches_per_side(section, image, patch)
    merge = int(vision.downsampling(root))
    channels, merged = section.integer("num_channels", 3, maximum=64), width * merge**2
    prefix, projector = "vision_tower.embeddings", "multi_modal_projector"
    patches = f"{prefix}.patch_embeddings.projection"
    modules: list[Module] = [
        Parameter(name=f"{prefix}.cls_token", replicated=width),
        vision.convolution(patches, channels, width, (patch, patch), bias=True),
    ]
    if section.boolean("use_mask_token", False):
        modules.append(Parameter(name=f"{prefix}.mask_token", replicated=width))
    if section.boolean("use_absolute_position_embeddings", True):
        modules.append(vision.table(f"{prefix}.position_embeddings", side * side + 1, width))
    for index in range(vision.feature_layers(root, section, default=-1)):
        modules += replicated_block(section, width, f"vision_tower.encoder.layer.{index}")
    if not section.boolean("use_mean_pooling", True):
        modules.append(norm("vision_tower.layernorm", width, bias=True))
    modules.append(norm(f"{projector}.layer_norm", merged, bias=True))
    modules += vision.whole_pair(projector, merged, text, text)
    tokens = (side // merge) ** 2 * (MAX_TILES + 1)
    return with_encoder(config, tuple(modules), vision.input_limits(section, tokens, merge * merge))


def replicated_block(section: Section, width: int, block: str) -> tuple[Module, ...]:
    """A block of the encoder in transformers' layout."""
    intermediate, attention = section.integer("intermediate_size"), f"{block}.attention"
    is_layer_norm = section.string("norm_type", "layer_norm") == "layer_norm"
    bias = section.boolean("attention_bias", False)
    qk = ("q_norm", "k_norm") if section.boolean("use_qk_norm", False) else ()
    return (
        *vision.wholes(attention, ("q_proj", "k_proj", "v_proj"), width, width, bias=bias),
        vision.whole(f"{attention}.projection_layer", width, width),
        *(norm(f"{attention}.{name}", width) for name in qk),
        *plain_mlp(width, intermediate, f"{block}.mlp.fc1", f"{block}.mlp.fc2", bias=True),
        norm(f"{block}.layernorm_before", width, bias=is_layer_norm),
        norm(f"{block}.layernorm_after", width, bias=is_layer_norm),
        norm(f"{block}.lambda_1", width),
        norm(f"{block}.lambda_2", width),
    )


def side_of(section: Section, name: str) -> int:
    """A size written once or for both sides of a square."""
    if not isinstance(section.get(name), list):
        return section.integer(name)
    sides = set(section.integers(name, minimum=1) or ())
    if len(sides) != 1:
        raise section.contradicting(name, f"{name} is no square")
    return sides.pop()


NVLM_DUMMY_HEADS: Final = 7
"""Source: vllm/model_executor/models/nvlm_d.py:NVLM_D_Model._init_vision_model (0.32)."""

MAX_TILES: Final = 12
"""Tiles of the largest image.

Source: preprocessor_config.json of InternVL3-8B-hf, max_patches; vllm/model_executor/models/nano_nemotron_vl.py,
max_num_tiles (0.32)."""

RADIO_SIZES: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "vit_small_patch16_224": (384, 12, 6, 1536),
    "vit_base_patch16_224": (768, 12, 12, 3072),
    "vit_large_patch16_224": (1024, 24, 16, 4096),
    "vit_huge_patch16_224": (1280, 32, 16, 5120),
}
"""Width, layers, heads and MLP width. Source: vllm/transformers_utils/configs/radio.py:VIT_TIMM_DIM_BY_NAME (0.32)."""


def read_nemotron(config: ModelConfig) -> Architecture:
    """Nemotron Nano VL 2, and the omni models without their audio encoder.

    Source: vllm/model_executor/models/nano_nemotron_vl.py (0.32).
    """
    root, built = config.root, nemotron.read_h(config)
    section = root.section("vision_config")
    width, inner = root.integer("vit_hidden_size"), root.integer("projector_hidden_size")
    merge = round(vision.downsampling(root))
    merged = width * merge**2
    encoder, intermediate = radio(section)
    modules = [
        *encoder,
        norm("mlp1.0", merged),
        *vision.whole_pair("mlp1", merged, inner, built.hidden_size, ("1", "3"), bias=False),
    ]
    if built.draft_steps:
        modules.append(norm("vision_final_layernorm", width, bias=True))
    side = root.integer("force_image_size", 512) // root.integer("patch_size", 16)
    limits = VisionEncoder(
        hidden_size=width,
        intermediate_size=intermediate,
        max_tokens_per_item=(side // merge) ** 2 * (MAX_TILES + 1),
        patches_per_token=merge**2,
    )
    prefix = f"language_model.{built.layer_prefix}"
    uncounted = ("sound encoder",) if root.has("sound_config") else ()
    return replace(vision.with_images(built, modules, limits, prefix), uncounted=uncounted)


def radio(section: Section) -> tuple[list[Module], int]:
    """C-RADIO, a ViT with tokens for its teachers and a table for large images; and the width of its MLPs.

    Source: vllm/model_executor/models/radio.py:RadioInternVisionModel (0.32).
    """
    arguments = section.section("args")
    name = arguments.string("model")
    if name not in RADIO_SIZES:
        raise ModelError(
            "unknown-architecture",
            field=f"{arguments.path}.model",
            architecture=name,
            reason="this vision encoder is not known",
        )
    width, layers, count, intermediate = RADIO_SIZES[name]
    patch, prefix = section.integer("patch_size", 16, maximum=4096), "vision_model.radio_model.model"
    side = round(arguments.integer("cpe_max_size", 2048) / patch)
    pixels = 3 * patch**2
    frames = section.integer("video_temporal_patch_size", 1, maximum=64)
    generator = f"{prefix}.patch_generator"
    modules: list[Module] = [
        vision.table(f"{generator}.pos_embed", side * side, width),
        vision.table(f"{generator}.embedder", pixels, width),
        vision.table(f"{generator}.cls_token", class_tokens(arguments), width),
    ]
    if frames > 1 and section.boolean("separate_video_embedder", True):
        modules.append(vision.table(f"{generator}.video_embedder", frames * pixels, width))
    blocks = vision.blocks(
        vision.Block(),
        f"{prefix}.blocks",
        layers,
        vision.heads_of(width, count),
        intermediate,
        vectors={"ls1": width, "ls2": width},
    )
    modules += vision.change_linears(blocks, ".attn.", whole_unless_divided=count)
    return modules, intermediate


def class_tokens(arguments: Section) -> int:
    """A token for each teacher, or one, and registers up to a multiple of `register_multiple`."""
    teachers = arguments.sequence("teachers") or ()
    names = {str(each.get("name")) for each in teachers if isinstance(each, Mapping)}
    tokens = max(1, len(names)) if arguments.boolean("cls_token_per_teacher", True) else 1
    multiple = arguments.optional_integer("register_multiple", minimum=0)
    return tokens + (multiple - tokens % multiple if multiple else 0)


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    **dict.fromkeys(("InternVLChatModel", "internvl_chat"), read_internvl),
    **dict.fromkeys(("SkyworkR1VChatModel", "skywork_chat"), read_internvl),
    **dict.fromkeys(("H2OVLChatModel", "h2ovl_chat"), read_internvl),
    "NVLM_D": partial(read_internvl, is_nvlm=True),
    **dict.fromkeys(("InternS1ForConditionalGeneration", "interns1"), read_hugging_face),
    **dict.fromkeys(("InternVLForConditionalGeneration", "internvl"), read_hugging_face),
    **dict.fromkeys(("NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"), read_nemotron),
    **dict.fromkeys(("NemotronH_Super_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3"), read_nemotron),
}
