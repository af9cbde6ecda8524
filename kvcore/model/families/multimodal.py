"""How a multimodal model is composed: encoders and projectors in front of a decoder that another family reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.errors import ModelError
from kvcore.model.architecture import Architecture, Module, RotaryTable, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import clip, decoder, gemma, gpt, longcat, mixtures
from kvcore.model.parts import vision


def read_isaac_text(config: ModelConfig, section: Section) -> Architecture:
    """Isaac's Qwen3. Its `max_sequence_length` is the processor's, not the model's.

    Source: vllm/transformers_utils/configs/isaac.py:IsaacConfig (0.32).
    """
    keys = {name: value for name, value in section.raw.items() if name != "max_sequence_length"}
    return decoder.SECTION_READERS["qwen3"](config, Section(keys, section.path))


READ_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen2": (
        *("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        "dots_ocr",
    ),
    "qwen3": ("qwen3_asr_text", "qwen3_vl_text", "Keye", "KeyeVL1_5"),
    "qwen3_moe": ("qwen3_omni_moe_text", "qwen3_vl_moe_text"),
    "exaone4": ("exaone4_5_text",),
    "ernie4_5": ("paddleocr_vl", "paddleocr_vl_text"),
    "glm4": ("glm_ocr_text", "glm4v", "glm4v_text"),
    "glm4_moe": ("glm4v_moe", "glm4v_moe_text"),
}
"""The model_types of language parts that are read as another's."""

LANGUAGE_MODELS: Final[Mapping[str, Callable[[ModelConfig, Section], Architecture]]] = {
    **decoder.SECTION_READERS,
    **{name: decoder.SECTION_READERS[same] for same, names in READ_AS.items() for name in names},
    "mistral4": longcat.read_mistral4,
    "exaone_moe": mixtures.read_exaone_moe,
    "gemma2": lambda config, section: gemma.read_gemma2(config),
    "opt": lambda config, section: gpt.read_opt(config),
    "isaac": read_isaac_text,
}
"""By the model_type of the language part."""

ENCODERS: Final[Mapping[str, Callable[[Section, int], tuple[Module, ...]]]] = {
    "clip_vision_model": clip.clip,
    "siglip_vision_model": clip.siglip,
    "pixtral": vision.pixtral,
}
"""By the model_type of the vision part."""


def read_language(config: ModelConfig) -> Architecture:
    """The language part of a multimodal config.

    Raises ModelError `unknown-architecture` when it is no plain decoder that is known.
    """
    section = config.language
    reader = LANGUAGE_MODELS.get(section.model_type)
    if reader is None:
        raise not_read(section, "no family reads this language part")
    return reader(config, section)


def read_encoder(section: Section, layers: int) -> tuple[Module, ...]:
    """The encoder that a vision config names, up to `layers` blocks.

    Raises ModelError `unknown-architecture` when it is none that is known.
    """
    encoder = ENCODERS.get(section.model_type)
    if encoder is None:
        raise not_read(section, "this vision encoder is not known")
    return encoder(section, layers)


def not_read(section: Section, reason: str) -> ModelError:
    """The error that the model_type of a section is not known."""
    return ModelError(
        "unknown-architecture",
        field=f"{section.path}.model_type",
        architecture=section.model_type or "(none named)",
        reason=reason,
    )


def with_encoder(
    config: ModelConfig,
    modules: tuple[Module, ...],
    limits: VisionEncoder | None = None,
    tables: tuple[RotaryTable, ...] = (),
) -> Architecture:
    """The language part with `modules` on every pipeline stage; without `limits` no image is profiled."""
    language = read_language(config)
    language = replace(language, rotary_tables=(*language.rotary_tables, *tables))
    return vision.with_images(language, modules, limits, f"language_model.{language.layer_prefix}")
