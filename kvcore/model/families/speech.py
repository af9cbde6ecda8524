"""Models for speech: encoders of audio in front of a language part; Whisper, whose decoder attends to its encoder."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model.architecture import Architecture, Layer
from kvcore.model.caches import CrossAttention
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.families import decoder
from kvcore.model.families.multimodal import behind_encoders
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.audio_encoders import halved, spectrogram, whisper
from kvcore.model.parts.blocks import Heads
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
    own = enc.read_sizes(section, width, inner, count, 1, is_checked=False)
    across = CrossAttention(num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, encoder_tokens=frames)
    layer = Layer(modules=whisper_decoder_block(own), caches=(blocks.cache_of(heads), across))
    encoder = whisper(section, items_per_prompt=1)
    built = blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers("decoder_layers"),
        intermediate_size=inner,
        first=(
            enc.tensor("model.decoder.embed_tokens", section.integer("vocab_size"), width),
            enc.tensor("model.decoder.embed_positions", positions, width),
            *enc.behind("model.encoder", encoder.modules),
        ),
        last=(blocks.norm("model.decoder.layer_norm", width, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="model.decoder.layers",
        is_multimodal=True,
    )
    return dataclasses.replace(built, audio=encoder.audio)


def whisper_decoder_block(own: enc.Sizes) -> enc.Modules:
    """A block with attention to the encoder's output, in the order in which the engine moves weights to the host."""
    width = own.width
    own_norm, last_norm = enc.norms(own, enc.WHISPER)
    return (
        *enc.attention(own, enc.WHISPER),
        enc.column("encoder_attn.q_proj", width, width),
        enc.merged("encoder_attn.kv_proj", width, width, ("encoder_attn.k_proj", "encoder_attn.v_proj")),
        enc.row("encoder_attn.out_proj", width, width),
        *enc.mlp(own, enc.WHISPER),
        own_norm,
        enc.norm("encoder_attn_layer_norm", width),
        last_norm,
    )


def qwen2_audio(config: ModelConfig, text: int) -> enc.Encoder:
    """Qwen2-Audio: a replicated Whisper encoder and one linear layer.

    Source: vllm/model_executor/models/qwen2_audio.py (0.32).
    """
    section = config.root.section("audio_config")
    heard = whisper(section, halved(section.integer("max_source_positions")), is_whole=True)
    projector = enc.whole("multi_modal_projector.linear", section.integer("hidden_size"), text)
    return replace(heard, modules=(*enc.behind("audio_tower", heard.modules), projector))


def audio_flamingo(config: ModelConfig, text: int) -> enc.Encoder:
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
    modules = (*enc.behind("audio_tower", heard.modules), *enc.behind("multi_modal_projector", projector))
    return replace(heard, modules=modules)


def voxtral(config: ModelConfig, text: int) -> enc.Encoder:
    """Voxtral: four positions of the encoder become one token: params.json of Voxtral-Mini-3B-2507.

    The recording that is drawn fills the context: voxtral.py:VoxtralProcessingInfo.get_max_audio_tokens (0.11.0,
    0.33.0).

    Source: vllm/model_executor/models/voxtral.py (0.32).
    """
    section = config.root.section("audio_config")
    stacked = enc.read_merge(section, "downsample_factor", 4)
    tokens = section.integer("max_source_positions") // stacked
    heard = whisper(
        section, tokens, table_dtype="float32", columns=2 * 160, chunks_per_item=0, items_per_prompt=5
    )
    adapter = (
        enc.whole("audio_language_adapter.w_in", section.integer("hidden_size") * stacked, text, bias=False),
        enc.whole("audio_language_adapter.w_out", text, text, bias=False),
    )
    return replace(heard, modules=(*enc.behind("audio_tower", heard.modules), *adapter))


def ultravox(config: ModelConfig, text: int) -> enc.Encoder:
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
        enc.tensor("ln_pre", width),
        enc.whole("linear_1", width, inside, bias=False),
        enc.whole("linear_2", half, text, bias=False),
        enc.tensor("ln_mid", half) if is_normed_inside else enc.tensor("ln_post", text),
    )
    modules = (*enc.behind("audio_tower", heard.modules), *enc.behind("multi_modal_projector", projector))
    return replace(heard, modules=modules)


POSITIONS_DRAWN: Final = 25_000
"""500 seconds, 50 positions each.

Source: granite_speech.py:GraniteSpeechMultiModalProcessingInfo.get_max_audio_len (0.11.0, 0.33.0)."""


def granite_audio(section: Section, tokens: int) -> enc.Encoder:
    """A Conformer; the ranks shard its MLPs and the two layers in the middle.

    Source: vllm/model_executor/models/granite_speech.py:GraniteSpeechCTCEncoder (0.32).
    """
    width, out = section.integer("hidden_dim"), section.integer("output_dim")
    heads, head = section.integer("num_heads"), section.integer("dim_head")
    wide, mels = width * section.integer("feedforward_mult", 4), section.integer("input_dim")
    channels = width * section.integer("conv_expansion_factor", 2)
    kernel = section.integer("conv_kernel_size", 15)
    own = enc.read_sizes(section, width, wide, heads, "num_layers", head=head)
    half = (
        enc.norm("pre_norm", width),
        enc.column("up_proj", width, wide),
        enc.row("down_proj", wide, width),
    )
    layer = (
        *enc.behind("ff1", half),
        *enc.behind("ff2", half),
        enc.norm("attn.pre_norm", width),
        enc.norm("conv.norm", width),
        enc.norm("post_norm", width),
        enc.whole("attn.to_q", width, heads * head, bias=False),
        enc.whole("attn.to_kv", width, 2 * heads * head, bias=False),
        enc.whole("attn.to_out", heads * head, width),
        enc.tensor("attn.rel_pos_emb", 2 * section.integer("max_pos_emb", 512) + 1, head),
        enc.convolution("conv.up_conv", width, 2 * channels),
        enc.convolution("conv.depth_conv.conv", 1, channels, kernel, bias=False),
        enc.norm("conv.batch_norm", channels),
        enc.convolution("conv.down_conv", channels, width),
    )
    return enc.hearing(
        (
            enc.whole("input_linear", mels, width),
            enc.column("out", width, out),
            enc.row("out_mid", out, width),
            *enc.repeated("layers", own.layers, layer),
        ),
        own,
        tokens,
        POSITIONS_DRAWN,
        POSITIONS_DRAWN * mels,
        items_per_prompt=1,
        pair_elements=heads * section.integer("context_size", 200, maximum=65536) * head,
    )


def granite_speech(config: ModelConfig, text: int) -> enc.Encoder:
    """Granite Speech: a Conformer, a Q-Former over windows, and Granite.

    Source: vllm/model_executor/models/granite_speech.py (0.32).
    """
    root, section = config.root, config.root.section("projector_config")
    window, rate = root.integer("window_size", 15), root.integer("downsample_rate", 5)
    heard = granite_audio(root.section("encoder_config"), -(-POSITIONS_DRAWN // window) * (window // rate))
    width = section.integer("hidden_size")
    modules = (
        *enc.behind("encoder", heard.modules),
        enc.tensor("projector.query", window // rate, width),
        *enc.behind("projector.qformer", q_former(section)),
        enc.whole("projector.linear", width, text),
    )
    return replace(heard, modules=modules)


def dasheng(section: Section, subsampling: int) -> enc.Encoder:
    """Patches of a spectrogram, tables of times and frequencies, sharded blocks.

    Ten seconds are drawn: 1,001 columns, of which one in 4 stays, then one in `subsampling`; the engine takes 5:
    midashenglm.py:calculate_mel_frames_dasheng (0.11.0, 0.33.0).

    Source: vllm/model_executor/models/midashenglm.py:DashengAudioTransformer (0.32).
    """
    width = section.integer("embed_dim")
    own = enc.read_sizes(section, width, enc.share(section, width, 4), "num_heads", "depth")
    patch, stride = (
        section.integer(f"patch_{name}", 16, maximum=enc.MAX_PATCH) for name in ("size", "stride")
    )
    mels, frames = section.integer("n_mels", 64), section.integer("target_length", 1012)
    channels = section.integer("input_channels", 1, maximum=64)
    is_scaled = section.get("init_values") is not None
    layer = (
        *enc.block(own, enc.TIMM, qkv_bias=section.boolean("qkv_bias", True)),
        *enc.when(is_scaled, enc.tensor("ls1.gamma", width), enc.tensor("ls2.gamma", width)),
    )
    return enc.hearing(
        (
            enc.norm("init_bn", mels),
            enc.convolution("patch_embed.proj", channels, width, patch, patch),
            enc.tensor("time_pos_embed", frames // stride, width),
            enc.tensor("freq_pos_embed", mels // stride, width),
            enc.norm("norm", width),
            *enc.repeated("blocks", own.layers, layer),
        ),
        own,
        50,
        50 * subsampling,
        160_000,
    )


def midasheng(config: ModelConfig, text: int) -> enc.Encoder:
    """MiDashengLM: Dasheng's encoder, two linear layers, Qwen2.

    Source: vllm/model_executor/models/midashenglm.py (0.32).
    """
    section = config.root.section("audio_encoder_config", "midashenglm_dasheng_encoder")
    subsampling = config.root.integer("subsample_factor", 5, maximum=1024)
    heard = dasheng(section, subsampling)
    modules = (
        *enc.behind("audio_encoder", heard.modules),
        enc.column("audio_projector.net.0", section.integer("embed_dim") * subsampling, text),
        enc.row("audio_projector.net.2", text, text),
    )
    return replace(heard, modules=modules)


def read_glm_asr(config: ModelConfig) -> Architecture:
    """GLM-ASR's Llama, whose lm_head is the embedding unless the whole config denies it.

    Source: transformers/models/glmasr/configuration_glmasr.py:GlmAsrConfig (5.20); weights of vLLM 0.33.
    """
    tied = config.root.boolean("tie_word_embeddings", True)
    keys = {**config.language.raw, "tie_word_embeddings": tied}
    return decoder.SECTION_READERS["llama"](config, Section(keys, config.language.path, "llama"))


def glm_asr(config: ModelConfig, text: int) -> enc.Encoder:
    """GLM-ASR: sound in pieces of 30 seconds, four positions a token, up to 655 seconds (DEFAULT_MAX_AUDIO_LEN_S).

    Its layers are called as Llama's, with rotary positions in place of a table.

    Source: vllm/model_executor/models/glmasr.py:GlmAsrEncoder (0.33).
    """
    section = config.root.section("audio_config")
    own = enc.with_kv_heads(section, enc.read_sizes(section))
    mels, positions = section.integer("num_mel_bins", 128), section.integer("max_position_embeddings", 1500)
    encoder = (
        *spectrogram(mels, own.width),
        enc.norm("norm", own.width),
        *enc.repeated("layers", own.layers, enc.block(own, enc.LLAMA)),
    )
    modules = (
        *enc.behind("audio_tower", encoder),
        enc.column("multi_modal_projector.linear_1", own.inner, 2 * text),
        enc.row("multi_modal_projector.linear_2", 2 * text, text),
    )
    audio = enc.sound(own, positions // 4, positions, 2 * positions * mels, chunks_per_item=21)
    return enc.Encoder(modules=modules, audio=audio)


READERS: Final = blocks.named(
    (read_whisper, "WhisperForConditionalGeneration whisper"),
    (behind_encoders(qwen2_audio), "Qwen2AudioForConditionalGeneration qwen2_audio"),
    (behind_encoders(audio_flamingo), "AudioFlamingo3ForConditionalGeneration audioflamingo3"),
    (behind_encoders(voxtral), "VoxtralForConditionalGeneration voxtral"),
    (behind_encoders(ultravox), "UltravoxModel ultravox"),
    (
        behind_encoders(granite_speech),
        "GraniteSpeechForConditionalGeneration granite_speech",
        "GraniteSpeechPlusForConditionalGeneration granite_speech_plus",
    ),
    (behind_encoders(midasheng, layer_prefix="decoder.model.layers"), "MiDashengLMModel midashenglm"),
    (behind_encoders(glm_asr, read_glm_asr), "GlmAsrForConditionalGeneration glmasr"),
)
