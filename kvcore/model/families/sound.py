"""Models that hear: an encoder of sound and a projector in front of a plain decoder that another family reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module, Parameter, RotaryTable
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.families import vision, whisper
from kvcore.model.families.multimodal import with_encoder
from kvcore.model.parts.blocks import column, norm, norms, plain_mlp, qkv, replicated, row

TOWER: Final = "audio_tower"
PROJECTOR: Final = "multi_modal_projector"


def read_qwen2_audio(config: ModelConfig) -> Architecture:
    """Qwen2-Audio: a replicated Whisper encoder and one linear layer.

    Source: vllm/model_executor/models/qwen2_audio.py (0.32).
    """
    section, text = config.root.section("audio_config"), config.language.integer("hidden_size")
    width = section.integer("hidden_size")
    return with_encoder(
        config,
        (
            *whole_whisper(section),
            replicated(f"{PROJECTOR}.linear", width, text, bias=True, quantizable=False),
        ),
    )


def read_flamingo(config: ModelConfig) -> Architecture:
    """Audio Flamingo 3 and Music Flamingo: a replicated Whisper encoder and two linear layers.

    Source: vllm/model_executor/models/audioflamingo3.py (0.32).
    """
    section, text = config.root.section("audio_config"), config.language.integer("hidden_size")
    width, bias = section.integer("hidden_size"), config.root.boolean("projector_bias", True)
    return with_encoder(
        config,
        (
            *whole_whisper(section),
            replicated(f"{PROJECTOR}.linear_1", width, text, bias=bias),
            replicated(f"{PROJECTOR}.linear_2", text, text, bias=bias),
        ),
    )


def whole_whisper(section: Section, prefix: str = TOWER) -> tuple[Module, ...]:
    """Whisper's encoder as transformers builds it: no rank divides it, keys have no bias.

    Source: transformers/models/qwen2_audio/modeling_qwen2_audio.py:Qwen2AudioEncoder (5.19).
    """
    width, mel = section.integer("hidden_size"), section.integer("num_mel_bins", 128)
    intermediate = whisper.either(section, "encoder_ffn_dim", "intermediate_size")
    modules: list[Module] = [
        vision.convolution(f"{prefix}.conv1", mel, width, (3,), bias=True),
        vision.convolution(f"{prefix}.conv2", width, width, (3,), bias=True),
        vision.table(f"{prefix}.embed_positions", section.integer("max_source_positions"), width),
        norm(f"{prefix}.layer_norm", width, bias=True),
    ]
    for index in range(whisper.either(section, "encoder_layers", "num_hidden_layers", MAX_LAYERS)):
        modules += encoder_block(width, intermediate, f"{prefix}.layers.{index}")
    return tuple(modules)


def encoder_block(width: int, intermediate: int, block: str) -> tuple[Module, ...]:
    """One block of the audio encoder."""
    biased = ("q_proj", "v_proj", "out_proj")
    return (
        *(
            replicated(f"{block}.self_attn.{name}", width, width, bias=True, quantizable=False)
            for name in biased
        ),
        replicated(f"{block}.self_attn.k_proj", width, width, quantizable=False),
        replicated(f"{block}.fc1", width, intermediate, bias=True, quantizable=False),
        replicated(f"{block}.fc2", intermediate, width, bias=True, quantizable=False),
        *norms(width, f"{block}.self_attn_layer_norm", f"{block}.final_layer_norm", bias=True),
    )


DOWNSAMPLING: Final = 4
"""Positions of the encoder that become one token. Source: params.json of Voxtral-Mini-3B-2507."""


def read_voxtral(config: ModelConfig) -> Architecture:
    """Voxtral: Whisper's encoder, divided over the ranks, and two replicated linear layers.

    Source: vllm/model_executor/models/voxtral.py (0.32).
    """
    section, text = config.root.section("audio_config"), config.language.integer("hidden_size")
    merged = section.integer("hidden_size") * section.integer("downsample_factor", DOWNSAMPLING, maximum=64)
    adapter = "audio_language_adapter"
    return with_encoder(
        config,
        (
            *whisper.encoder(section, TOWER, positions_dtype="float32"),
            replicated(f"{adapter}.w_in", merged, text, quantizable=False),
            replicated(f"{adapter}.w_out", text, text, quantizable=False),
        ),
    )


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
    return with_encoder(
        config,
        (
            *whisper.encoder(section, TOWER),
            norm(f"{PROJECTOR}.ln_pre", merged),
            replicated(f"{PROJECTOR}.linear_1", merged, inner, quantizable=False),
            replicated(f"{PROJECTOR}.linear_2", half, text, quantizable=False),
            norm(f"{PROJECTOR}.ln_mid", half) if is_inside else norm(f"{PROJECTOR}.ln_post", text),
        ),
    )


def read_qwen3_asr(config: ModelConfig) -> Architecture:
    """Qwen3-ASR: Qwen3-Omni's encoder of sound and Qwen3.

    Source: vllm/model_executor/models/qwen3_asr.py (0.32).
    """
    thinker = config.root.optional_section("thinker_config") or config.root
    modules, table = qwen3_encoder(thinker.section("audio_config"))
    architecture = with_encoder(config, modules, tables=(table,))
    return replace(architecture, layer_prefix="thinker.model.layers")


def qwen3_encoder(section: Section) -> tuple[tuple[Module, ...], RotaryTable]:
    """Three convolutions over a picture of the sound, blocks that the ranks divide, two linear layers; its positions.

    Source: vllm/model_executor/models/qwen3_omni_moe_thinker.py:Qwen3OmniMoeAudioEncoder (0.32).
    """
    width, channels = section.integer("d_model"), section.integer("downsample_hidden_size", maximum=1 << 20)
    rows = section.integer("num_mel_bins", 128)
    for _ in range(3):
        rows = (rows + 1) // 2
    modules: list[Module] = [
        vision.convolution(f"{TOWER}.conv2d1", 1, channels, (3, 3), bias=True),
        vision.convolution(f"{TOWER}.conv2d2", channels, channels, (3, 3), bias=True),
        vision.convolution(f"{TOWER}.conv2d3", channels, channels, (3, 3), bias=True),
        replicated(f"{TOWER}.conv_out", channels * rows, width, quantizable=False),
        norm(f"{TOWER}.ln_post", width, bias=True),
        replicated(f"{TOWER}.proj1", width, width, bias=True, quantizable=False),
        replicated(f"{TOWER}.proj2", width, section.integer("output_dim"), bias=True, quantizable=False),
    ]
    heads = whisper.square_heads(width, section.integer("encoder_attention_heads"))
    intermediate = section.integer("encoder_ffn_dim")
    for index in range(section.layers("encoder_layers")):
        block = f"{TOWER}.layers.{index}."
        modules += whisper.self_attention(heads, f"{block}self_attn")
        modules += whisper.mlp(width, intermediate, block)
        modules += norms(width, f"{block}self_attn_layer_norm", f"{block}final_layer_norm", bias=True)
    positions = section.integer("max_source_positions", 1500)
    return tuple(modules), RotaryTable(max_positions=positions, rotary_dim=width, dtype="float32")


def read_granite_speech(config: ModelConfig) -> Architecture:
    """Granite Speech: a Conformer, a Q-Former over windows, and Granite.

    Source: vllm/model_executor/models/granite_speech.py (0.32).
    """
    root, text = config.root, config.language.integer("hidden_size")
    section = root.section("projector_config")
    width = section.integer("hidden_size")
    window, rate = root.integer("window_size", 15), root.integer("downsample_rate", 5)
    return with_encoder(
        config,
        (
            *conformer(root.section("encoder_config")),
            Parameter(name="projector.query", replicated=window // rate * width),
            *vision.q_former(section, "projector.qformer"),
            replicated("projector.linear", width, text, bias=True, quantizable=False),
        ),
    )


def conformer(section: Section) -> tuple[Module, ...]:
    """Granite's Conformer; the ranks divide its MLPs and the two layers in the middle.

    Source: vllm/model_executor/models/granite_speech.py:GraniteSpeechCTCEncoder (0.32).
    """
    width, out = section.integer("hidden_dim"), section.integer("output_dim")
    head = section.integer("dim_head")
    inner = section.integer("num_heads") * head
    wide = width * section.integer("feedforward_mult", 4)
    channels, kernel = (
        width * section.integer("conv_expansion_factor", 2),
        section.integer("conv_kernel_size", 15),
    )
    positions = 2 * section.integer("max_pos_emb", 512) + 1
    modules: list[Module] = [
        replicated("encoder.input_linear", section.integer("input_dim"), width, bias=True, quantizable=False),
        *plain_mlp(width, out, "encoder.out", "encoder.out_mid", bias=True),
    ]
    for index in range(section.layers("num_layers")):
        block = f"encoder.layers.{index}"
        for part in ("ff1", "ff2"):
            modules += plain_mlp(
                width, wide, f"{block}.{part}.up_proj", f"{block}.{part}.down_proj", bias=True
            )
        modules += (
            *norms(
                width,
                *(f"{block}.{part}.pre_norm" for part in ("ff1", "ff2", "attn")),
                f"{block}.conv.norm",
                f"{block}.post_norm",
                bias=True,
            ),
            replicated(f"{block}.attn.to_q", width, inner, quantizable=False),
            replicated(f"{block}.attn.to_kv", width, 2 * inner, quantizable=False),
            replicated(f"{block}.attn.to_out", inner, width, bias=True, quantizable=False),
            vision.table(f"{block}.attn.rel_pos_emb", positions, head),
            vision.convolution(f"{block}.conv.up_conv", width, 2 * channels, (1,), bias=True),
            vision.convolution(f"{block}.conv.depth_conv.conv", 1, channels, (kernel,), bias=False),
            norm(f"{block}.conv.batch_norm", channels, bias=True),
            vision.convolution(f"{block}.conv.down_conv", channels, width, (1,), bias=True),
        )
    return tuple(modules)


def read_dasheng(config: ModelConfig) -> Architecture:
    """MiDashengLM: Dasheng's encoder of spectrogram patches, two linear layers, Qwen2.

    Source: vllm/model_executor/models/midashenglm.py (0.32).
    """
    root = config.root
    section = root.section("audio_encoder_config", "midashenglm_dasheng_encoder")
    width, text = section.integer("embed_dim"), config.language.integer("hidden_size")
    merged = width * root.integer("subsample_factor", 5, maximum=1024)
    return replace(
        with_encoder(
            config,
            (
                *dasheng(section, width),
                column("audio_projector.net.0", merged, text, bias=True),
                row("audio_projector.net.2", text, text, bias=True),
            ),
        ),
        layer_prefix="decoder.model.layers",
    )


def dasheng(section: Section, width: int) -> tuple[Module, ...]:
    """Dasheng: patches of a spectrogram, tables of times and frequencies, blocks that the ranks divide.

    Source: vllm/model_executor/models/midashenglm.py:DashengAudioTransformer (0.32).
    """
    prefix, patch = "audio_encoder", section.integer("patch_size", 16, maximum=4096)
    mels, stride = section.integer("n_mels", 64), section.integer("patch_stride", 16, maximum=4096)
    frames = section.integer("target_length", 1012)
    heads = vision.square_heads(section, width, section.integer("num_heads"))
    inner = int(width * section.number("mlp_ratio", 4))
    channels = section.integer("input_channels", 1, maximum=64)
    modules: list[Module] = [
        norm(f"{prefix}.init_bn", mels, bias=True),
        vision.convolution(f"{prefix}.patch_embed.proj", channels, width, (patch, patch), bias=True),
        vision.table(f"{prefix}.time_pos_embed", frames // stride, width),
        vision.table(f"{prefix}.freq_pos_embed", mels // stride, width),
        norm(f"{prefix}.norm", width, bias=True),
    ]
    is_scaled = section.get("init_values") is not None
    for index in range(section.layers("depth")):
        block = f"{prefix}.blocks.{index}"
        modules += (
            qkv(heads, f"{block}.attn.qkv", bias=section.boolean("qkv_bias", True)),
            row(f"{block}.attn.proj", width, width, bias=True),
            *plain_mlp(width, inner, f"{block}.mlp.fc1", f"{block}.mlp.fc2", bias=True),
            *norms(width, f"{block}.norm1", f"{block}.norm2", bias=True),
            *(norms(width, f"{block}.ls1.gamma", f"{block}.ls2.gamma") if is_scaled else ()),
        )
    return tuple(modules)


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Qwen2AudioForConditionalGeneration": read_qwen2_audio,
    "qwen2_audio": read_qwen2_audio,
    "AudioFlamingo3ForConditionalGeneration": read_flamingo,
    "audioflamingo3": read_flamingo,
    "VoxtralForConditionalGeneration": read_voxtral,
    "voxtral": read_voxtral,
    "UltravoxModel": read_ultravox,
    "ultravox": read_ultravox,
    "Qwen3ASRForConditionalGeneration": read_qwen3_asr,
    "qwen3_asr": read_qwen3_asr,
    "GraniteSpeechForConditionalGeneration": read_granite_speech,
    "MiDashengLMModel": read_dasheng,
    "midashenglm": read_dasheng,
    "granite_speech": read_granite_speech,
}
