"""Phi-3 vision (CLIP) and Phi-4-multimodal (SigLIP and a Conformer), in front of Phi-3's decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.model.architecture import Architecture, Module, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder as plain
from kvcore.model.families.clip import clip, siglip
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import named, norm, norms

CLIP_336: Final[Mapping[str, int]] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}
"""Source: vllm/model_executor/models/phi3v.py:CLIP_VIT_LARGE_PATCH14_336_CONFIG (0.32)."""

SIGLIP_448: Final[Mapping[str, int]] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "image_size": 448,
    "patch_size": 14,
}
"""Source: vllm/model_executor/models/phi4mm.py:get_navit_vision_model (0.32)."""

UNUSED_LAYERS: Final = 1
"""The last block of either encoder is not built. Source: Phi4MMImageEncoder of vllm/model_executor/models/phi4mm.py,
layer_idx; phi3v.py (0.32)."""

PATCHES_PER_TOKEN: Final = 4
"""A square of patches becomes one token. Source: vllm/model_executor/models/phi3v.py:Phi3HDImageEmbedding (0.32)."""

PHI3_CROPS: Final = 16
"""Source: preprocessor_config.json of Phi-3-vision-128k-instruct, num_crops."""
PHI4_CROPS: Final = 36
"""Source: preprocessor_config.json of Phi-4-multimodal-instruct, dynamic_hd."""

MEL_ROWS: Final = 8
"""By what the convolutions divide the rows of a spectrogram, rounded up."""

LAYERS: Final = ("0", "2")
"""The two linear layers of a projection, around an activation."""


def read_phi3(config: ModelConfig) -> Architecture:
    """Phi-3 vision and Phi-3.5 vision.

    Source: vllm/model_executor/models/phi3v.py (0.32).
    """
    merged = config.root.section("img_processor").integer("image_dim_out") * PATCHES_PER_TOKEN
    section, prefix = Section(CLIP_336, "config.img_processor", ""), "vision_embed_tokens"
    language = plain.SECTION_READERS["phi3"](config, config.root)
    hidden = language.hidden_size
    modules = (
        *clip(section, section.layers() - UNUSED_LAYERS, f"{prefix}.img_processor"),
        *vision.whole_pair(f"{prefix}.img_projection", merged, hidden, hidden, LAYERS),
        *norms(merged, f"{prefix}.glb_GN", f"{prefix}.sub_GN"),
    )
    return vision.with_images(language, modules, crop_limits(section, PHI3_CROPS))


def read_phi4(config: ModelConfig) -> Architecture:
    """Phi-4-multimodal: besides the encoders, vectors that separate rows and views.

    Source: vllm/model_executor/models/phi4mm.py:Phi4MMImageEncoder (0.32).
    """
    section, prefix = Section(SIGLIP_448, "config.vision_config", ""), "vision_encoder"
    language = plain.SECTION_READERS["phi3"](config, config.root)
    hidden, width = language.hidden_size, section.integer("hidden_size")
    modules = (
        *siglip(section, section.layers() - UNUSED_LAYERS, f"{prefix}.img_processor"),
        *norms(width, f"{prefix}.glb_GN", f"{prefix}.sub_GN"),
        *vision.whole_pair(f"{prefix}.img_projection", width, hidden, hidden, LAYERS),
        *audio_encoder(config.root, hidden),
    )
    return vision.with_images(language, modules, crop_limits(section, PHI4_CROPS))


def crop_limits(section: Section, crops: int) -> VisionEncoder:
    """What the profile run must know of an image and as many as `crops` crops of it."""
    patches = (section.integer("image_size") // section.integer("patch_size")) ** 2
    return vision.input_limits(section, patches // PATCHES_PER_TOKEN * (crops + 1), PATCHES_PER_TOKEN)


def audio_encoder(root: Section, hidden: int) -> tuple[Module, ...]:
    """A Conformer, whole on every rank, and two projections: for audio alone, and for audio with images.

    Source: vllm/model_executor/models/phi4mm_audio.py:ConformerEncoder, AudioEmbedding (0.32).
    """
    section = root.section("audio_processor").section("config")
    width, mels = section.integer("attention_dim"), section.integer("input_size")
    settings = section.optional_section("nemo_conv_settings")
    channels = settings.integer("conv_channels", 256) if settings else 256
    relative = section.optional_section("relative_attention_bias_args")
    distance = relative.integer("t5_bias_max_distance", 1000) if relative else 0
    symmetric = relative.boolean("t5_bias_symmetric", False) if relative else False
    heads = section.integer("attention_heads")
    tokens = "embed_tokens_extend"
    prefix = f"{tokens}.encoder"
    bias = f"{prefix}.relative_attention_bias_layer"
    modules: list[Module] = [
        vision.convolution(f"{prefix}.embed.conv.0", 1, channels, (3, 3), bias=True),
        vision.whole(f"{prefix}.embed.out", channels * -(-mels // MEL_ROWS), width),
        vision.table(f"{prefix}.encoder_embedding", 2, mels),
        Parameter(name=bias, replicated=distance * (1 if symmetric else 2) * heads),
        *vision.whole_pair(f"{tokens}.audio_projection", width, hidden, hidden, LAYERS),
        *vision.whole_pair(f"{tokens}.audio_projection_for_vision", width, hidden, hidden, LAYERS),
    ]
    for step in range(section.integer("time_reduction", 8, maximum=1024).bit_length() - 2):
        modules += (
            vision.convolution(f"{prefix}.embed.conv.{3 * step + 2}", 1, channels, (3, 3), bias=True),
            vision.convolution(f"{prefix}.embed.conv.{3 * step + 3}", channels, channels, (), bias=True),
        )
    wide, kernel = section.integer("linear_units"), section.integer("kernel_size", maximum=4096)
    for index in range(section.layers("num_blocks")):
        modules += conformer_block(f"{prefix}.encoders.{index}", width, wide, kernel)
    return tuple(modules)


def conformer_block(prefix: str, width: int, wide: int, kernel: int) -> tuple[Module, ...]:
    """Two gated half MLPs around attention and a convolution.

    Source: vllm/model_executor/models/phi4mm_audio.py:ConformerEncoderLayer (0.32).
    """
    conv, names = f"{prefix}.conv", ("linear_q", "linear_k", "linear_v", "linear_out")
    return (
        *vision.wholes(f"{prefix}.self_attn", names, width, width),
        *half_mlp(f"{prefix}.feed_forward_in", width, wide),
        *half_mlp(f"{prefix}.feed_forward_out", width, wide),
        *norms(width, f"{conv}.layer_norm", f"{prefix}.layer_norm_att", f"{prefix}.layer_norm", bias=True),
        vision.table(f"{conv}.glu.b", 2, width),
        vision.convolution(f"{conv}.glu.ext_pw_conv_1d", width, 2 * width, (), bias=True),
        vision.convolution(f"{conv}.ext_pw_conv_1d", width, width, (), bias=True),
        vision.convolution(f"{conv}.dw_sep_conv_1d.dw_conv", 1, width, (kernel,), bias=True),
        vision.convolution(f"{conv}.dw_sep_conv_1d.pw_conv", width, width, (), bias=True),
    )


def half_mlp(prefix: str, width: int, wide: int) -> tuple[Module, ...]:
    """A gated MLP behind its norm."""
    return (
        vision.whole(f"{prefix}.net.0.linear", width, 2 * wide),
        vision.whole(f"{prefix}.net.2", wide, width),
        norm(f"{prefix}.layer_norm", width, bias=True),
    )


READERS: Final = named(
    (read_phi3, "Phi3VForCausalLM", "phi3_v"),
    (read_phi4, "Phi4MMForCausalLM", "phi4mm"),
)
