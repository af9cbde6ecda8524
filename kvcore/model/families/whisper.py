"""Whisper, and models with an audio encoder in front of another family's decoder: Qwen2-Audio, Voxtral, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, CrossAttention, Layer, Module, Parameter
from kvcore.model.config import MAX_LAYERS, ModelConfig
from kvcore.model.families.multimodal import with_encoder
from kvcore.model.parts import audio, vision
from kvcore.model.parts.blocks import Heads, cache_of, column, decoder, embedding, norm, row

PROJECTOR: Final = "multi_modal_projector"


def read_whisper(config: ModelConfig) -> Architecture:
    """Whisper: an audio encoder, and a decoder that attends to itself and to the encoder's output.

    Source: vllm/model_executor/models/whisper.py (0.32).
    """
    section = config.language
    width, inner = section.integer("d_model"), section.integer("decoder_ffn_dim")
    heads = vision.heads_of(width, section.integer("decoder_attention_heads"))
    frames, positions = section.integer("max_source_positions"), section.integer("max_target_positions")
    qkv, out, up, down, first, last = vision.block(audio.WHISPER, "", heads, inner)
    crossed = norm("encoder_attn_layer_norm", width, bias=True)
    layer = Layer(
        modules=(qkv, out, *cross_attention(heads, "encoder_attn"), up, down, first, crossed, last),
        caches=(
            cache_of(heads),
            CrossAttention(num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, encoder_tokens=frames),
        ),
    )
    return decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers("decoder_layers"),
        intermediate_size=inner,
        first=(
            embedding(section, "model.decoder.embed_tokens"),
            Parameter(name="model.decoder.embed_positions", replicated=positions * width),
            *audio.whisper(section, "model.encoder"),
        ),
        last=(norm("model.decoder.layer_norm", width, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="model.decoder.layers",
        is_multimodal=True,
    )


def cross_attention(heads: Heads, prefix: str) -> tuple[Module, ...]:
    """Queries of the decoder, keys and values of the encoder."""
    width, parts = heads.hidden_size, (f"{prefix}.k_proj", f"{prefix}.v_proj")
    return (
        column(f"{prefix}.q_proj", width, width, bias=True),
        vision.merged(f"{prefix}.kv_proj", width, width, parts, bias=True),
        row(f"{prefix}.out_proj", width, width, bias=True),
    )


def read_qwen2_audio(config: ModelConfig) -> Architecture:
    """Qwen2-Audio: a replicated Whisper encoder and one linear layer.

    Source: vllm/model_executor/models/qwen2_audio.py (0.32).
    """
    section, text = config.root.section("audio_config"), config.language.integer("hidden_size")
    projector = vision.whole(f"{PROJECTOR}.linear", section.integer("hidden_size"), text)
    return with_encoder(config, (*audio.whole_whisper(section), projector))


def read_flamingo(config: ModelConfig) -> Architecture:
    """Audio Flamingo 3 and Music Flamingo: a replicated Whisper encoder and two linear layers.

    Source: vllm/model_executor/models/audioflamingo3.py (0.32).
    """
    section, text = config.root.section("audio_config"), config.language.integer("hidden_size")
    width, bias = section.integer("hidden_size"), config.root.boolean("projector_bias", True)
    projector = vision.whole_pair(PROJECTOR, width, text, text, bias=bias, quantizable=True)
    return with_encoder(config, (*audio.whole_whisper(section), *projector))


DOWNSAMPLING: Final = 4
"""Positions of the encoder that become one token. Source: params.json of Voxtral-Mini-3B-2507."""


def read_voxtral(config: ModelConfig) -> Architecture:
    """Voxtral: Whisper's encoder, sharded over the ranks, and two replicated linear layers.

    Source: vllm/model_executor/models/voxtral.py (0.32).
    """
    section, text = config.root.section("audio_config"), config.language.integer("hidden_size")
    merged = section.integer("hidden_size") * section.integer("downsample_factor", DOWNSAMPLING, maximum=64)
    names = ("w_in", "w_out")
    modules = (
        *audio.whisper(section, audio.ENCODER, positions_dtype="float32"),
        *vision.whole_pair("audio_language_adapter", merged, text, text, names, bias=False),
    )
    return with_encoder(config, modules)


def read_ultravox(config: ModelConfig) -> Architecture:
    """Ultravox: Whisper's encoder, frames stacked, and a gated projector with a norm before or behind it.

    Source: vllm/model_executor/models/ultravox.py:UltravoxFeedForwardProjector (0.32).
    """
    root, section = config.root, config.root.section("audio_config", "whisper")
    text, inner = config.language.integer("hidden_size"), root.integer("hidden_size", 4096)
    merged = section.integer("hidden_size") * root.integer("stack_factor", 8, maximum=1024)
    half = inner // 2 if root.string("projector_act", "swiglu") == "swiglu" else inner
    further = root.integer("num_projector_layers", 0, minimum=0, maximum=MAX_LAYERS)
    if further:
        raise root.invalid(
            "num_projector_layers", further, "expected 0: a projector of whole layers is not read"
        )
    is_inside = root.boolean("projector_ln_mid", False)
    modules = (
        *audio.whisper(section, audio.ENCODER),
        norm(f"{PROJECTOR}.ln_pre", merged),
        vision.whole(f"{PROJECTOR}.linear_1", merged, inner, bias=False),
        vision.whole(f"{PROJECTOR}.linear_2", half, text, bias=False),
        norm(f"{PROJECTOR}.ln_mid", half) if is_inside else norm(f"{PROJECTOR}.ln_post", text),
    )
    return with_encoder(config, modules)


def read_granite_speech(config: ModelConfig) -> Architecture:
    """Granite Speech: a Conformer, a Q-Former over windows, and Granite.

    Source: vllm/model_executor/models/granite_speech.py (0.32).
    """
    root, text = config.root, config.language.integer("hidden_size")
    section = root.section("projector_config")
    width = section.integer("hidden_size")
    window, rate = root.integer("window_size", 15), root.integer("downsample_rate", 5)
    modules = (
        *audio.granite(root.section("encoder_config")),
        vision.table("projector.query", window // rate, width),
        *vision.q_former(section, "projector.qformer"),
        vision.whole("projector.linear", width, text),
    )
    return with_encoder(config, modules)


def read_dasheng(config: ModelConfig) -> Architecture:
    """MiDashengLM: Dasheng's encoder of spectrogram patches, two linear layers, Qwen2.

    Source: vllm/model_executor/models/midashenglm.py (0.32).
    """
    root = config.root
    section = root.section("audio_encoder_config", "midashenglm_dasheng_encoder")
    width, text = section.integer("embed_dim"), config.language.integer("hidden_size")
    merged = width * root.integer("subsample_factor", 5, maximum=1024)
    modules = (
        *audio.dasheng(section, width),
        *vision.sharded_pair("audio_projector.net", merged, text, text, ("0", "2")),
    )
    return replace(with_encoder(config, modules), layer_prefix="decoder.model.layers")


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    **dict.fromkeys(("WhisperForConditionalGeneration", "whisper"), read_whisper),
    **dict.fromkeys(("Qwen2AudioForConditionalGeneration", "qwen2_audio"), read_qwen2_audio),
    **dict.fromkeys(("AudioFlamingo3ForConditionalGeneration", "audioflamingo3"), read_flamingo),
    **dict.fromkeys(("VoxtralForConditionalGeneration", "voxtral"), read_voxtral),
    **dict.fromkeys(("UltravoxModel", "ultravox"), read_ultravox),
    **dict.fromkeys(("GraniteSpeechForConditionalGeneration", "granite_speech"), read_granite_speech),
    **dict.fromkeys(("MiDashengLMModel", "midashenglm"), read_dasheng),
}
