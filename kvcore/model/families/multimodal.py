"""Models with encoders and projectors in front of a decoder that another family reads: their language parts.

The models themselves are in llava.py, siglip.py, internvl.py, qwen_vl.py, minicpm_v.py, phi_vision.py, deepseek_ocr.py
and speech.py: a function each from the config and the width of the language part to the encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder, deepseek, gemma, gpt, longcat, mixtures
from kvcore.model.parts.blocks import Reader
from kvcore.model.parts.encoder import Encoder, not_read, with_encoders


def read_isaac_text(config: ModelConfig, section: Section) -> Architecture:
    """Isaac's Qwen3. Its `max_sequence_length` is the processor's, not the model's.

    Source: vllm/transformers_utils/configs/isaac.py:IsaacConfig (0.32).
    """
    keys = {name: value for name, value in section.raw.items() if name != "max_sequence_length"}
    return decoder.SECTION_READERS["qwen3"](config, Section(keys, section.path))


def read_mistral_large(_config: ModelConfig, section: Section) -> Architecture:
    """Mistral Large 3's DeepSeek V3, behind Pixtral.

    Source: vllm/model_executor/models/mistral_large_3.py, vllm/transformers_utils/configs/mistral.py (0.33).
    """
    return deepseek.read(ModelConfig.from_mapping(section.raw))


READ_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen2": (
        *("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        "dots_ocr",
    ),
    "qwen3": ("qwen3_asr_text", "qwen3_vl_text", "Keye", "KeyeVL1_5"),
    "qwen3_moe": ("qwen3_omni_moe_text", "qwen3_vl_moe_text"),
    "exaone4": ("exaone4_5_text",),
    "ernie4_5": ("paddleocr_vl", "paddleocr_vl_text"),
    "PanguEmbedded": ("openpangu_vl",),
    "glm4": ("glm_ocr_text", "glm4v", "glm4v_text"),
    "glm4_moe": ("glm4v_moe", "glm4v_moe_text"),
}
"""The model_types of language parts that are read as another's."""

LANGUAGE_MODELS: Final[Mapping[str, Callable[[ModelConfig, Section], Architecture]]] = {
    **decoder.SECTION_READERS,
    **{name: decoder.SECTION_READERS[same] for same, names in READ_AS.items() for name in names},
    "mistral4": longcat.read_mistral4,
    "deepseek_v3": read_mistral_large,
    "exaone_moe": mixtures.read_exaone_moe,
    "gemma2": lambda config, section: gemma.read_gemma2(config),
    "opt": lambda config, section: gpt.read_opt(config),
    "isaac": read_isaac_text,
}
"""Readers by the model_type of the language part."""


def read_language(config: ModelConfig) -> Architecture:
    """The language part of a multimodal config.

    Raises ModelError `unknown-architecture` when it is no plain decoder that is known.
    """
    section = config.language
    reader = LANGUAGE_MODELS.get(section.model_type)
    if reader is None:
        raise not_read(section, section.model_type, reason="no family reads this language part")
    return reader(config, section)


def read_root_as(name: str) -> Reader:
    """A reader of a language part that is the whole config, by its row in decoders.toml."""
    return lambda config: decoder.SECTION_READERS[name](config, config.root)


Builder: TypeAlias = Callable[[ModelConfig, int], Encoder]
"""Makes the encoders with their projectors, from a config and the width of its language part."""


def behind_encoders(
    build: Builder, language: Reader = read_language, layer_prefix: str = "language_model.{}"
) -> Reader:
    """A reader of models with encoders in front of a language part, read by its model_type unless `language` does.

    `layer_prefix` is that of the language part's layers, in place of `{}` as it calls them itself.
    """

    def read(config: ModelConfig) -> Architecture:
        built = language(config)
        seen = build(config, built.hidden_size)
        return with_encoders(built, seen, layer_prefix.format(built.layer_prefix))

    return read
