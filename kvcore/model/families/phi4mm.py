"""Phi-4-multimodal: SigLIP at 448 pixels and a Conformer in front of Phi-3's decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder as plain
from kvcore.model.families import vision
from kvcore.model.parts.blocks import norms, replicated

SIGLIP_448: Final[Mapping[str, int]] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "image_size": 448,
    "patch_size": 14,
}
"""Source: vllm/model_executor/models/phi4mm.py:get_navit_vision_model (0.32)."""

FEATURE_LAYER: Final = -2
"""Source: vllm/model_executor/models/phi4mm.py:Phi4MMImageEncoder, layer_idx (0.32)."""

PATCHES_PER_TOKEN: Final = 4
MAX_CROPS: Final = 36
"""Source: preprocessor_config.json of Phi-4-multimodal-instruct, dynamic_hd."""

MEL_ROWS: Final = 8
"""By what the convolutions divide the rows of a spectrogram, rounded up."""


def read(config: ModelConfig) -> Architecture:
    """Phi-4-multimodal.

    Source: vllm/model_executor/models/phi4mm.py (0.32).
    """
    language = plain.SECTION_READERS["phi3"](config, config.root)
    hidden = language.hidden_size
    side = SIGLIP_448["image_size"] // SIGLIP_448["patch_size"]
    return replace(
        language,
        model_type=config.model_type,
        every=(*eyes(hidden), *ears(config.root, hidden)),
        vision=VisionEncoder(
            hidden_size=SIGLIP_448["hidden_size"],
            intermediate_size=SIGLIP_448["intermediate_size"],
            max_tokens_per_item=side * side // PATCHES_PER_TOKEN * (MAX_CROPS + 1),
            patches_per_token=PATCHES_PER_TOKEN,
        ),
        is_multimodal=True,
    )


def eyes(hidden: int) -> tuple[Module, ...]:
    """SigLIP up to the block before its last, vectors that part rows and views, two replicated layers.

    Source: vllm/model_executor/models/phi4mm.py:Phi4MMImageEncoder (0.32).
    """
    prefix, width = "vision_encoder", SIGLIP_448["hidden_size"]
    tower = Section(SIGLIP_448, "config.vision_config", "")
    return (
        *vision.siglip(tower, tower.layers() + FEATURE_LAYER + 1, f"{prefix}.img_processor"),
        Parameter(name=f"{prefix}.glb_GN", replicated=width),
        Parameter(name=f"{prefix}.sub_GN", replicated=width),
        *projection(f"{prefix}.img_projection", width, hidden),
    )


def ears(root: Section, hidden: int) -> tuple[Module, ...]:
    """A Conformer that no rank divides, and two projections: for sound alone, and for sound beside pictures.

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
    prefix = "embed_tokens_extend.encoder"
    modules: list[Module] = [
        vision.convolution(f"{prefix}.embed.conv.0", 1, channels, (3, 3), bias=True),
        replicated(
            f"{prefix}.embed.out", channels * -(-mels // MEL_ROWS), width, bias=True, quantizable=False
        ),
        Parameter(name=f"{prefix}.encoder_embedding", replicated=2 * mels),
        Parameter(
            name=f"{prefix}.relative_attention_bias_layer",
            replicated=distance * (1 if symmetric else 2) * heads,
        ),
        *projection("embed_tokens_extend.audio_projection", width, hidden),
        *projection("embed_tokens_extend.audio_projection_for_vision", width, hidden),
    ]
    for step in range(section.integer("time_reduction", 8, maximum=1024).bit_length() - 2):
        modules += (
            vision.convolution(f"{prefix}.embed.conv.{3 * step + 2}", 1, channels, (3, 3), bias=True),
            vision.convolution(f"{prefix}.embed.conv.{3 * step + 3}", channels, channels, (), bias=True),
        )
    wide, kernel = section.integer("linear_units"), section.integer("kernel_size", maximum=4096)
    for index in range(section.layers("num_blocks")):
        modules += block(f"{prefix}.encoders.{index}", width, wide, kernel)
    return tuple(modules)


def block(prefix: str, width: int, wide: int, kernel: int) -> tuple[Module, ...]:
    """Two gated half MLPs around attention and a convolution.

    Source: vllm/model_executor/models/phi4mm_audio.py:ConformerEncoderLayer (0.32).
    """
    conv = f"{prefix}.conv"
    return (
        *(
            replicated(f"{prefix}.self_attn.linear_{name}", width, width, bias=True, quantizable=False)
            for name in ("q", "k", "v", "out")
        ),
        *half_mlp(f"{prefix}.feed_forward_in", width, wide),
        *half_mlp(f"{prefix}.feed_forward_out", width, wide),
        *norms(width, f"{conv}.layer_norm", f"{prefix}.layer_norm_att", f"{prefix}.layer_norm", bias=True),
        Parameter(name=f"{conv}.glu.b", replicated=2 * width),
        vision.convolution(f"{conv}.glu.ext_pw_conv_1d", width, 2 * width, (), bias=True),
        vision.convolution(f"{conv}.ext_pw_conv_1d", width, width, (), bias=True),
        vision.convolution(f"{conv}.dw_sep_conv_1d.dw_conv", 1, width, (kernel,), bias=True),
        vision.convolution(f"{conv}.dw_sep_conv_1d.pw_conv", width, width, (), bias=True),
    )


def half_mlp(prefix: str, width: int, wide: int) -> tuple[Module, ...]:
    """A gated MLP behind its norm."""
    return (
        replicated(f"{prefix}.net.0.linear", width, 2 * wide, bias=True, quantizable=False),
        replicated(f"{prefix}.net.2", wide, width, bias=True, quantizable=False),
        *norms(width, f"{prefix}.layer_norm", bias=True),
    )


def projection(prefix: str, width: int, hidden: int) -> tuple[Module, ...]:
    """Two replicated layers."""
    return (
        replicated(f"{prefix}.0", width, hidden, bias=True, quantizable=False),
        replicated(f"{prefix}.2", hidden, hidden, bias=True, quantizable=False),
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Phi4MMForCausalLM": read,
    "phi4mm": read,
}
