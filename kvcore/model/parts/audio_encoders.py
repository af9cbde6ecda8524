"""Encoders of audio that several models have in front of their language part: Whisper's kind and Qwen's."""

from __future__ import annotations

from typing import Any

from kvcore.model.architecture import RotaryTable
from kvcore.model.config import Section
from kvcore.model.parts import encoder as enc


def either(section: Section, name: str, otherwise: str) -> str:
    """The key that has a value."""
    return otherwise if section.get(name) is None else name


def whole_block(own: enc.Sizes) -> enc.Modules:
    """A block as transformers builds it, which no rank shards. Keys have no bias."""
    width, inner = own.width, own.inner
    return (
        *(enc.whole(f"self_attn.{name}", width, width) for name in ("q_proj", "v_proj", "out_proj")),
        enc.whole("self_attn.k_proj", width, width, bias=False),
        enc.whole("fc1", width, inner),
        enc.whole("fc2", inner, width),
        enc.norm("self_attn_layer_norm", width),
        enc.norm("final_layer_norm", width),
    )


def spectrogram(mels: int, width: int) -> enc.Modules:
    """Two convolutions over a spectrogram."""
    return enc.convolution("conv1", mels, width, 3), enc.convolution("conv2", width, width, 3)


def whisper(
    section: Section,
    tokens: int = 0,
    *,
    is_whole: bool = False,
    table_dtype: str = "",
    columns: int | None = None,
    **figures: Any,
) -> enc.Encoder:
    """Whisper: two convolutions over a spectrogram, a table of positions, and blocks that the ranks shard.

    `is_whole`: as transformers builds it, no rank shards it. `tokens` are those of a chunk; without them as many as
    positions. `columns` are the values that go in for each position, other than two columns of the spectrogram.

    Source: vllm/model_executor/models/whisper.py:WhisperEncoder (0.32);
    transformers/models/qwen2_audio/modeling_qwen2_audio.py:Qwen2AudioEncoder (5.19).
    """
    own = enc.read_sizes(
        section,
        inner=either(section, "encoder_ffn_dim", "intermediate_size"),
        heads=1 if is_whole else either(section, "encoder_attention_heads", "num_attention_heads"),
        layers=either(section, "encoder_layers", "num_hidden_layers"),
        is_checked=False,
    )
    mels, positions = section.integer("num_mel_bins", 128), section.integer("max_source_positions")
    layer = whole_block(own) if is_whole else enc.block(own, enc.WHISPER)
    return enc.hearing(
        (
            *spectrogram(mels, own.width),
            enc.tensor("embed_positions", positions, own.width, dtype=table_dtype),
            enc.norm("layer_norm", own.width),
            *enc.repeated("layers", own.layers, layer),
        ),
        own,
        tokens or positions,
        positions,
        (columns or 2 * mels) * positions,
        is_whole=is_whole,
        **figures,
    )


def halved(positions: int) -> int:
    """Tokens for so many positions, two each."""
    return (positions - 2) // 2 + 1


def qwen2_5_omni(section: Section) -> enc.Encoder:
    """Qwen2.5-Omni's, Whisper with a projection.

    Source: transformers/models/qwen2_5_omni/modeling_qwen2_5_omni.py:Qwen2_5OmniAudioEncoder (5.19).
    """
    own = enc.read_sizes(section, "d_model", "encoder_ffn_dim", 1, "encoder_layers")
    width, out = own.width, section.integer("output_dim")
    mels, positions = section.integer("num_mel_bins", 128), section.integer("max_source_positions", 1500)
    return enc.hearing(
        (
            *spectrogram(mels, width),
            enc.tensor("audio_bos_eos_token", 2, out),
            enc.norm("ln_post", width),
            enc.whole("proj", width, out),
            *enc.repeated("layers", own.layers, whole_block(own)),
        ),
        own,
        halved(positions),
        positions,
        2 * positions * mels,
        is_whole=True,
    )


def qwen3_omni(section: Section) -> enc.Encoder:
    """Qwen3-Omni's and Qwen3-ASR's: three convolutions over a spectrogram that each halve its rows and columns.

    They run on windows of 2 × n_window of its 100 columns a second, each of which gives 13 positions. The longest
    recording that is drawn has 30 seconds: qwen3_asr.py:Qwen3ASRDummyInputsBuilder (0.33.0). The output of the first
    convolution and its GELU live together.

    Source: vllm/model_executor/models/qwen3_omni_moe_thinker.py:Qwen3OmniMoeAudioEncoder (0.32).
    """
    keys = ("d_model", "encoder_ffn_dim", "encoder_attention_heads", "encoder_layers")
    own, columns = enc.read_sizes(section, *keys, is_checked=False), 3000
    width, mels = own.width, section.integer("num_mel_bins", 128)
    channels = section.integer("downsample_hidden_size", maximum=1_048_576)
    half, positions = section.integer("n_window", 50, maximum=65536), columns // 100 * 13
    table = section.integer("max_source_positions", 1500)
    return enc.Encoder(
        modules=(
            enc.convolution("conv2d1", 1, channels, 3, 3),
            enc.convolution("conv2d2", channels, channels, 3, 3),
            enc.convolution("conv2d3", channels, channels, 3, 3),
            enc.whole("conv_out", channels * ((mels + 7) // 8), width, bias=False),
            enc.norm("ln_post", width),
            enc.whole("proj1", width, width),
            enc.whole("proj2", width, section.integer("output_dim")),
            *enc.repeated("layers", own.layers, enc.block(own, enc.WHISPER)),
        ),
        audio=enc.sound(
            own,
            positions,
            positions,
            columns * mels,
            windows_per_chunk=(columns + 2 * half - 1) // (2 * half),
            window_elements=2 * channels * ((mels + 1) // 2) * half,
            most_windows=section.integer("conv_chunksize", 500),
        ),
        tables=(RotaryTable(max_positions=table, rotary_dim=width, dtype="float32"),),
    )
