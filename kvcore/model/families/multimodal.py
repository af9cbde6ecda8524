"""Multimodal models: encoders and projectors in front of a decoder that another family reads, rows of multimodal.toml.

Among them CLIP and SigLIP, in which a transformer for texts stands next to one for images; next to them Whisper, whose
decoder attends to its encoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import ModelError, shorten
from kvcore.model.architecture import Architecture, CrossAttention, Layer
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.families import decoder, deepseek, gemma, gpt, lfm2, longcat, mixtures, nemotron, qwen
from kvcore.model.parts import blocks, vision
from kvcore.model.parts.blocks import Heads, Reader
from kvcore.model.parts.encoder import Scope, not_read, read_encoder
from kvcore.model.parts.encoder_rows import Row, load_rows


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
    "PanguEmbedded": ("openpangu_vl",),
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


def read_language(config: ModelConfig) -> Architecture:
    """The language part of a multimodal config.

    Raises ModelError `unknown-architecture` when it is no plain decoder that is known.
    """
    section = config.language
    reader = LANGUAGE_MODELS.get(section.model_type)
    if reader is None:
        raise not_read(section, section.model_type, reason="no family reads this language part")
    return reader(config, section)


MINICPM_LANGUAGES: Final[Mapping[str, str]] = {
    "2.5": "llama",
    "2.6": "qwen2",
    "4.0": "llama",
    "4.5": "qwen3",
}
"""Source: vllm/model_executor/models/minicpmv.py:_SUPPORT_VERSION (0.32)."""


def read_minicpm(config: ModelConfig) -> Architecture:
    """MiniCPM-V's language part.

    Raises ModelError `unknown-architecture` for the versions whose encoder another library builds.
    """
    version = str(config.root.get("version") or "2.0")
    if version not in MINICPM_LANGUAGES:
        raise ModelError(
            "unknown-architecture",
            field="config.version",
            architecture="MiniCPMV",
            reason=f"only {', '.join(MINICPM_LANGUAGES)} are read, not {shorten(version, 20)}",
        )
    return decoder.SECTION_READERS[MINICPM_LANGUAGES[version]](config, config.root)


def read_glm_asr(config: ModelConfig) -> Architecture:
    """GLM-ASR's Llama, whose lm_head is the embedding unless the whole config says otherwise.

    Source: transformers/models/glmasr/configuration_glmasr.py:GlmAsrConfig (5.20); weights of vLLM 0.33.
    """
    tied = config.root.boolean("tie_word_embeddings", True)
    keys = {**config.language.raw, "tie_word_embeddings": tied}
    return decoder.SECTION_READERS["llama"](config, Section(keys, config.language.path, "llama"))


def read_text_encoder(config: ModelConfig, *, is_kept: bool) -> Architecture:
    """The transformer for texts of CLIP and SigLIP; keys and values of texts that are read forwards are kept."""
    text = config.language
    heads = blocks.read_heads(text, "", reads_head_dim=False)
    width, inner = heads.hidden_size, text.integer("intermediate_size")
    prefix, positions = "text_model.embeddings", text.integer("max_position_embeddings")
    caches = (blocks.cache_of(heads),) if is_kept else ()
    layer = Layer(modules=read_encoder("clip_block", text).modules, caches=caches)
    return blocks.decoder(
        config,
        section=text,
        heads=heads,
        layers=(layer,) * text.layers(),
        intermediate_size=inner,
        first=(
            vision.sharded_table(f"{prefix}.token_embedding", text.integer("vocab_size"), width),
            vision.sharded_table(f"{prefix}.position_embedding", positions, width),
        ),
        last=(blocks.norm("text_model.final_layer_norm", width, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="text_model.encoder.layers",
    )


PLAIN_ATTENTION: Final = replace(decoder.DECODERS["deepseek"], qkv_bias=False, reads_head_dim=False)
"""The config class names a head_dim that only latent attention means.

Source: vllm/model_executor/models/deepseek_v2.py:DeepseekAttention (0.32)."""


PROJECTORS: Final = ("downsample_mlp_gelu", "linear")
"""Of DeepSeek's vision models; the first is the class's own."""


def read_deepseek(config: ModelConfig) -> Architecture:
    """DeepSeek V2 behind an encoder: plain attention where no part of a head is named, else latent attention.

    Source: vllm/model_executor/models/deepseek_v2.py:DeepseekV2DecoderLayer (0.32).
    """
    projector = config.root.section("projector_config")
    kind = projector.string("projector_type", PROJECTORS[0])
    if kind not in PROJECTORS:
        raise projector.invalid("projector_type", kind, "expected linear or downsample_mlp_gelu")
    section = config.root.section("language_config", "deepseek_v2")
    if section.integer("qk_nope_head_dim", minimum=0) or section.integer("qk_rope_head_dim", minimum=0):
        return dataclasses.replace(deepseek.read(config), uncounted=())
    return decoder.read_decoder(PLAIN_ATTENTION, config, section)


LANGUAGES: Final[Mapping[str, Reader]] = {
    "phi3": lambda config: decoder.SECTION_READERS["phi3"](config, config.root),
    "nemotron_h": nemotron.read_h,
    "lfm2": lfm2.read,
    "deepseek_vl": read_deepseek,
    "clip": partial(read_text_encoder, is_kept=True),
    "siglip": partial(read_text_encoder, is_kept=False),
    "minicpmv": read_minicpm,
    "glm_asr": read_glm_asr,
    "minicpmv4_6": qwen.read_text,
    "qwen3_5": qwen.read_text,
}
"""Of rows that name their language part."""


def read_row(row: Row, config: ModelConfig) -> Architecture:
    """The model of a row: its encoders and projectors in front of its language part.

    Raises ModelError for a missing or unusable key, or for a language part or an encoder that is not known.
    """
    language = LANGUAGES[row.language](config) if row.language else None
    given = {"text": language.hidden_size} if language else {}
    built = Scope(row, {"root": config.root, "text": config.language}, given).build()
    language = language or read_language(config)
    language = dataclasses.replace(language, rotary_tables=(*language.rotary_tables, *built.tables))
    prefix = row.layer_prefix.format(language.layer_prefix)
    return vision.with_images(language, built.modules, built.vision, prefix, built.audio)


def read_whisper(config: ModelConfig) -> Architecture:
    """Whisper: an audio encoder, and a decoder that attends to itself and to the encoder's output.

    Source: vllm/model_executor/models/whisper.py (0.32).
    """
    section = config.language
    width, inner = section.integer("d_model"), section.integer("decoder_ffn_dim")
    count = section.integer("decoder_attention_heads")
    heads = Heads(hidden_size=width, num_heads=count, num_kv_heads=count, head_dim=width // count)
    frames, positions = section.integer("max_source_positions"), section.integer("max_target_positions")
    block = read_encoder("whisper_decoder_block", section, width=width, inner=inner, heads=count)
    across = CrossAttention(num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, encoder_tokens=frames)
    layer = Layer(modules=block.modules, caches=(blocks.cache_of(heads), across))
    encoder = read_encoder("whisper", section, "model.encoder", audio_most=1)
    built = blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers("decoder_layers"),
        intermediate_size=inner,
        first=(
            vision.table("model.decoder.embed_tokens", section.integer("vocab_size"), width),
            vision.table("model.decoder.embed_positions", positions, width),
            *encoder.modules,
        ),
        last=(blocks.norm("model.decoder.layer_norm", width, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="model.decoder.layers",
        is_multimodal=True,
    )
    return dataclasses.replace(built, audio=encoder.audio)


def read_ultravox(config: ModelConfig) -> Architecture:
    """Ultravox, whose projector is two layers and no more."""
    further = config.root.integer("num_projector_layers", 0, minimum=0, maximum=MAX_LAYERS)
    if further:
        raise config.root.invalid(
            "num_projector_layers", further, "expected 0: a projector of whole layers is not read"
        )
    return read_row(ROWS["ultravox"], config)


def read_nemotron(config: ModelConfig) -> Architecture:
    """Nemotron Nano VL 2, and the omni models without their audio encoder."""
    uncounted = ("sound encoder",) if config.root.has("sound_config") else ()
    return dataclasses.replace(read_row(ROWS["nemotron_vl"], config), uncounted=uncounted)


ROWS: Final = load_rows(__package__, "multimodal.toml")

OTHERS: Final[Mapping[str, Reader]] = {"ultravox": read_ultravox, "nemotron_vl": read_nemotron}
"""Rows with a check or an uncounted part of their own."""


def named_reader(name: str, row: Row) -> tuple[Reader, *tuple[str, ...]]:
    """What reads a row's model, and what a config calls it."""
    return (OTHERS.get(name) or partial(read_row, row), *row.classes)


READERS: Final = blocks.named(
    (read_whisper, "WhisperForConditionalGeneration", "whisper"),
    *(named_reader(name, row) for name, row in ROWS.items()),
)
