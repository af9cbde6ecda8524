"""Models for speech: encoders of audio in front of a language part; Whisper, whose decoder attends to its encoder."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model.architecture import Architecture, CrossAttention, Layer
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.families import decoder
from kvcore.model.families.multimodal import behind_encoders
from kvcore.model.parts import blocks
from kvcore.model.parts.audio_encoders import halved, spectrogram, whisper
from kvcore.model.parts.blocks import Heads
from kvcore.model.parts.encoder import (
    LLAMA,
    MAX_PATCH,
    TIMM,
    WHISPER,
    Encoder,
    Modules,
    Sizes,
    behind,
    block,
    column,
    convolution,
    merged,
    norm,
    read_merge,
    read_sizes,
    repeated,
    row,
    share,
    sound,
    tensor,
    when,
    whole,
    with_kv_heads,
)
from kvcore.model.parts.image_encoders import q_former


def read_whisper(config: ModelConfig) -> Architecture:
    """Whisper: an audio encoder, and a decoder that attends to itself and to the encoder's output.

    Source: vllm/model_executor/models/whisper.py (0.32).
    """
    section = config.language
    width, inner = section.integer("d_model"), section.integer("decoder_ffn_dim")
    count = section.integer("decoder_attention_heads")
    heads = Heads(hidden_size=width, num_heads=count, num_kv_heads=count, head_dim=width // count)
    frames, positions = section.integer("max_source_positions"), section.integer("max_target_positions")
    own = read_sizes(section, width, inner, count, 1, is_checked=False)
    across = CrossAttention(num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, encoder_tokens=frames)
    layer = Layer(modules=whisper_decoder_block(own), caches=(blocks.cache_of(heads), across))
    encoder = whisper(section, items_per_prompt=1)
    built = blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers("decoder_layers"),
        intermediate_size=inner,
        first=(
            tensor("model.decoder.embed_tokens", section.integer("vocab_size"), width),
            tensor("model.decoder.embed_positions", positions, width),
            *behind("model.encoder", encoder.modules),
        ),
        last=(blocks.norm("model.decoder.layer_norm", width, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="model.decoder.layers",
        is_multimodal=True,
    )
    return dataclasses.replace(built, audio=encoder.audio)


def whisper_decoder_block(own: Sizes) -> Modules:
    """A block with attention to the encoder's output."""
    width = own.width
    return (
        *block(own, WHISPER),
        column("encoder_attn.q_proj", width, width),
        merged("encoder_attn.kv_proj", width, width, ("encoder_attn.k_proj", "encoder_attn.v_proj")),
        row("encoder_attn.out_proj", width, width),
        norm("encoder_attn_layer_norm", width),
    )


def qwen2_audio(config: ModelConfig, text: int) -> Encoder:
    """Qwen2-Audio: a replicated Whisper encoder and one linear layer.

    Source: vllm/model_executor/models/qwen2_audio.py (0.32).
    """
    section = config.root.section("audio_config")
    heard = whisper(section, halved(section.integer("max_source_positions")), is_whole=True)
    projector = whole("multi_modal_projector.linear", section.integer("hidden_size"), text)
    return replace(heard, modules=(*behind("audio_tower", heard.modules), projector))


def audio_flamingo(config: ModelConfig, text: int) -> Encoder:
    """Audio Flamingo 3 and Music Flamingo.

    The longest recording has 600 seconds: max_audio_len of the processors (transformers 5.19).

    Source: vllm/model_executor/models/audioflamingo3.py (0.32).
    """
    section, bias = config.root.section("audio_config"), config.root.boolean("projector_bias", True)
    tokens = halved(section.integer("max_source_positions"))
    heard = whisper(section, tokens, is_whole=True, chunks_per_item=20, items_per_prompt=1)
    projector = (
        blocks.replicated("linear_1", section.integer("hidden_size"), text, bias=bias),
        blocks.replicated("linear_2", text, text, bias=bias),
    )
    modules = (*behind("audio_tower", heard.modules), *behind("multi_modal_projector", projector))
    return replace(heard, modules=modules)


def voxtral(config: ModelConfig, text: int) -> Encoder:
    """Voxtral: four positions of the encoder become one token: params.json of Voxtral-Mini-3B-2507.

    The recording that is drawn fills the context: voxtral.py:VoxtralProcessingInfo.get_max_audio_tokens (0.11.0,
    0.33.0).

    Source: vllm/model_executor/models/voxtral.py (0.32).
    """
    section = config.root.section("audio_config")
    stacked = read_merge(section, "downsample_factor", 4)
    tokens = section.integer("max_source_positions") // stacked
    heard = whisper(
        section, tokens, table_dtype="float32", columns=2 * 160, chunks_per_item=0, items_per_prompt=5
    )
    adapter = (
        whole("audio_language_adapter.w_in", section.integer("hidden_size") * stacked, text, bias=False),
        whole("audio_language_adapter.w_out", text, text, bias=False),
    )
    return replace(heard, modules=(*behind("audio_tower", heard.modules), *adapter))


def ultravox(config: ModelConfig, text: int) -> Encoder:
    """Ultravox: frames are stacked; a gated projector of two layers with a norm before or behind it.

    A recording of 16 chunks is drawn, and as many run at once: ultravox.py:_MAX_ENCODER_BATCH_SIZE (0.11.0, 0.33.0).

    Source: vllm/model_executor/models/ultravox.py:UltravoxFeedForwardProjector (0.32).
    """
    root, section = config.root, config.root.section("audio_config", "whisper")
    further = root.integer("num_projector_layers", 0, minimum=0, maximum=MAX_LAYERS)
    if further:
        raise root.invalid(
            "num_projector_layers", further, "expected 0: a projector of whole layers is not read"
        )
    stacked, inside = root.integer("stack_factor", 8, maximum=1024), root.integer("hidden_size", 4096)
    tokens = -(-section.integer("max_source_positions") // stacked)
    heard = whisper(section, tokens, chunks_per_item=16, chunks_at_once=16)
    half = inside // 2 if root.string("projector_act", "swiglu") == "swiglu" else inside
    is_normed_inside = root.boolean("projector_ln_mid", False)
    width = section.integer("hidden_size") * stacked
    projector = (
        tensor("ln_pre", width),
        whole("linear_1", width, inside, bias=False),
        whole("linear_2", half, text, bias=False),
        tensor("ln_mid", half) if is_normed_inside else tensor("ln_post", text),
    )
    modules = (*behind("audio_tower", heard.modules), *behind("multi_modal_projector", projector))
    return replace(heard, modules=modules)


POSITIONS_DRAWN: Final = 25_000
"""500 seconds, 50 positions each.

Source: granite_speech.py:GraniteSpeechMultiModalProcessingInfo.get_max_audio_len (0.11.0, 0.33.0)."""


def granite_audio(section: Section, tokens: int) -> Encoder:
    """A Conformer; the ranks shard its MLPs and the two layers in the middle.

    Source: vllm/model_executor/models/granite_speech.py:GraniteSpeechCTCEncoder (0.32).
    """
    width, out = section.integer("hidden_dim"), section.integer("output_dim")
    heads, head = section.integer("num_heads"), section.integer("dim_head")
    wide, mels = width * section.integer("feedforward_mult", 4), section.integer("input_dim")
    channels, kernel = (
        width * section.integer("conv_expansion_factor", 2),
        section.integer("conv_kernel_size", 15),
    )
    own = read_sizes(section, width, wide, heads, "num_layers", head=head)
    half = (norm("pre_norm", width), column("up_proj", width, wide), row("down_proj", wide, width))
    layer = (
        *behind("ff1", half),
        *behind("ff2", half),
        norm("attn.pre_norm", width),
        norm("conv.norm", width),
        norm("post_norm", width),
        whole("attn.to_q", width, heads * head, bias=False),
        whole("attn.to_kv", width, 2 * heads * head, bias=False),
        whole("attn.to_out", heads * head, width),
        tensor("attn.rel_pos_emb", 2 * section.integer("max_pos_emb", 512) + 1, head),
        convolution("conv.up_conv", width, 2 * channels),
        convolution("conv.depth_conv.conv", 1, channels, kernel, bias=False),
        norm("conv.batch_norm", channels),
        convolution("conv.down_conv", channels, width),
    )
    return Encoder(
        modules=(
            whole("input_linear", mels, width),
            column("out", width, out),
            row("out_mid", out, width),
            *repeated("layers", own.layers, layer),
        ),
        audio=sound(
            own,
            tokens,
            POSITIONS_DRAWN,
            POSITIONS_DRAWN * mels,
            items_per_prompt=1,
            pair_elements=heads * section.integer("context_size", 200, maximum=65536) * head,
        ),
    )


def granite_speech(config: ModelConfig, text: int) -> Encoder:
    """Granite Speech: a Conformer, a Q-Former over windows, and Granite.

    Source: vllm/model_executor/models/granite_speech.py (0.32).
    """
    root, section = config.root, config.root.section("projector_config")
    window, rate = root.integer("window_size", 15), root.integer("downsample_rate", 5)
    heard = granite_audio(root.section("encoder_config"), -(-POSITIONS_DRAWN // window) * (window // rate))
    width = section.integer("hidden_size")
    modules = (
        *behind("encoder", heard.modules),
        tensor("projector.query", window // rate, width),
        *behind("projector.qformer", q_former(section)),
        whole("projector.linear", width, text),
    )
    return replace(heard, modules=modules)


def dasheng(section: Section, subsampling: int) -> Encoder:
    """Patches of a spectrogram, tables of times and frequencies, sharded blocks.

    Ten seconds are drawn: 1,001 columns, one of 4 and then of `subsampling` stays, of which the engine takes 5:
    midashenglm.py:calculate_mel_frames_dasheng (0.11.0, 0.33.0).

    Source: vllm/model_executor/models/midashenglm.py:DashengAudioTransformer (0.32).
    """
    width = section.integer("embed_dim")
    own = read_sizes(section, width, share(section, width, 4), "num_heads", "depth")
    patch, stride = (section.integer(f"patch_{name}", 16, maximum=MAX_PATCH) for name in ("size", "stride"))
    mels, frames = section.integer("n_mels", 64), section.integer("target_length", 1012)
    channels = section.integer("input_channels", 1, maximum=64)
    is_scaled = section.get("init_values") is not None
    layer = (
        *block(own, TIMM, qkv_bias=section.boolean("qkv_bias", True)),
        *when(is_scaled, tensor("ls1.gamma", width), tensor("ls2.gamma", width)),
    )
    return Encoder(
        modules=(
            norm("init_bn", mels),
            convolution("patch_embed.proj", channels, width, patch, patch),
            tensor("time_pos_embed", frames // stride, width),
            tensor("freq_pos_embed", mels // stride, width),
            norm("norm", width),
            *repeated("blocks", own.layers, layer),
        ),
        audio=sound(own, 50, 50 * subsampling, 160_000),
    )


def midasheng(config: ModelConfig, text: int) -> Encoder:
    """MiDashengLM: Dasheng's encoder, two linear layers, Qwen2.

    Source: vllm/model_executor/models/midashenglm.py (0.32).
    """
    section = config.root.section("audio_encoder_config", "midashenglm_dasheng_encoder")
    subsampling = config.root.integer("subsample_factor", 5, maximum=1024)
    heard = dasheng(section, subsampling)
    modules = (
        *behind("audio_encoder", heard.modules),
        column("audio_projector.net.0", section.integer("embed_dim") * subsampling, text),
        row("audio_projector.net.2", text, text),
    )
    return replace(heard, modules=modules)


def read_glm_asr(config: ModelConfig) -> Architecture:
    """GLM-ASR's Llama, whose lm_head is the embedding unless the whole config says otherwise.

    Source: transformers/models/glmasr/configuration_glmasr.py:GlmAsrConfig (5.20); weights of vLLM 0.33.
    """
    tied = config.root.boolean("tie_word_embeddings", True)
    keys = {**config.language.raw, "tie_word_embeddings": tied}
    return decoder.SECTION_READERS["llama"](config, Section(keys, config.language.path, "llama"))


def glm_asr(config: ModelConfig, text: int) -> Encoder:
    """GLM-ASR: sound in pieces of 30 seconds, four positions a token, up to 655 seconds (DEFAULT_MAX_AUDIO_LEN_S).

    Its layers are called as Llama's, with rotary positions in place of a table.

    Source: vllm/model_executor/models/glmasr.py:GlmAsrEncoder (0.33).
    """
    section = config.root.section("audio_config")
    own = with_kv_heads(section, read_sizes(section))
    mels, positions = section.integer("num_mel_bins", 128), section.integer("max_position_embeddings", 1500)
    encoder = (
        *spectrogram(mels, own.width),
        norm("norm", own.width),
        *repeated("layers", own.layers, block(own, LLAMA)),
    )
    modules = (
        *behind("audio_tower", encoder),
        column("multi_modal_projector.linear_1", own.inner, 2 * text),
        row("multi_modal_projector.linear_2", 2 * text, text),
    )
    audio = sound(own, positions // 4, positions, 2 * positions * mels, chunks_per_item=21)
    return Encoder(modules=modules, audio=audio)


READERS: Final = blocks.named(
    (read_whisper, "WhisperForConditionalGeneration", "whisper"),
    (behind_encoders(qwen2_audio), "Qwen2AudioForConditionalGeneration", "qwen2_audio"),
    (behind_encoders(audio_flamingo), "AudioFlamingo3ForConditionalGeneration", "audioflamingo3"),
    (behind_encoders(voxtral), "VoxtralForConditionalGeneration", "voxtral"),
    (behind_encoders(ultravox), "UltravoxModel", "ultravox"),
    (
        behind_encoders(granite_speech),
        "GraniteSpeechForConditionalGeneration",
        "granite_speech",
        "GraniteSpeechPlusForConditionalGeneration",
        "granite_speech_plus",
    ),
    (
        behind_encoders(midasheng, layer_prefix="decoder.model.layers"),
        "MiDashengLMModel",
        "midashenglm",
    ),
    (behind_encoders(glm_asr, read_glm_asr), "GlmAsrForConditionalGeneration", "glmasr"),
)
