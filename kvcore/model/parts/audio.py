"""Audio encoders: Whisper's, sharded and whole, Qwen's Omni models', Gemma 4's, Granite Speech's and Dasheng."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Module, Parameter, RotaryTable
from kvcore.model.config import MAX_INTEGER, MAX_LAYERS, Section
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import norm, norms, plain_mlp, replicated

ENCODER: Final = "audio_tower"

WHISPER: Final = vision.Block(
    qkv="self_attn.qkv_proj",
    out="self_attn.out_proj",
    up="fc1",
    down="fc2",
    norms=("self_attn_layer_norm", "final_layer_norm"),
)


def whisper(section: Section, prefix: str, *, positions_dtype: str = "") -> tuple[Module, ...]:
    """Whisper's: two convolutions, a table of positions, and blocks that the ranks shard.

    Source: vllm/model_executor/models/whisper.py:WhisperEncoder (0.32).
    """
    width, mels = section.integer("hidden_size"), section.integer("num_mel_bins", 128)
    heads = vision.heads_of(width, either(section, "encoder_attention_heads", "num_attention_heads"))
    intermediate = either(section, "encoder_ffn_dim", "intermediate_size")
    count = either(section, "encoder_layers", "num_hidden_layers", MAX_LAYERS)
    table = vision.table(f"{prefix}.embed_positions", section.integer("max_source_positions"), width)
    return (
        *convolutions(prefix, mels, width),
        replace(table, dtype=positions_dtype),
        norm(f"{prefix}.layer_norm", width, bias=True),
        *vision.blocks(WHISPER, f"{prefix}.layers", count, heads, intermediate),
    )


def whole_whisper(section: Section, prefix: str = ENCODER) -> tuple[Module, ...]:
    """Whisper's as transformers builds it: no rank shards it, keys have no bias.

    Source: transformers/models/qwen2_audio/modeling_qwen2_audio.py:Qwen2AudioEncoder (5.19).
    """
    width, mels = section.integer("hidden_size"), section.integer("num_mel_bins", 128)
    intermediate = either(section, "encoder_ffn_dim", "intermediate_size")
    count = either(section, "encoder_layers", "num_hidden_layers", MAX_LAYERS)
    return (
        *convolutions(prefix, mels, width),
        vision.table(f"{prefix}.embed_positions", section.integer("max_source_positions"), width),
        norm(f"{prefix}.layer_norm", width, bias=True),
        *whole_blocks(f"{prefix}.layers", count, width, intermediate),
    )


def convolutions(prefix: str, mels: int, width: int) -> tuple[Module, ...]:
    """The two convolutions over a spectrogram of `mels` rows."""
    return (
        vision.convolution(f"{prefix}.conv1", mels, width, (3,), bias=True),
        vision.convolution(f"{prefix}.conv2", width, width, (3,), bias=True),
    )


def whole_blocks(prefix: str, count: int, width: int, intermediate: int) -> list[Module]:
    """Whisper's blocks, whole on every rank; keys have no bias."""
    modules: list[Module] = []
    for index in range(count):
        block = f"{prefix}.{index}"
        modules += vision.wholes(f"{block}.self_attn", ("q_proj", "v_proj", "out_proj"), width, width)
        modules.append(vision.whole(f"{block}.self_attn.k_proj", width, width, bias=False))
        modules += vision.whole_pair(block, width, intermediate, width, ("fc1", "fc2"))
        modules += norms(width, f"{block}.self_attn_layer_norm", f"{block}.final_layer_norm", bias=True)
    return modules


def either(section: Section, name: str, other: str, maximum: int = MAX_INTEGER) -> int:
    """An integer under the first of two names that the section has."""
    return section.integer(name if section.get(name) is not None else other, maximum=maximum)


def qwen2_5_omni(section: Section) -> tuple[Module, ...]:
    """Qwen2.5-Omni: two convolutions, replicated transformer blocks, a projection; keys have no bias.

    Source: transformers/models/qwen2_5_omni/modeling_qwen2_5_omni.py:Qwen2_5OmniAudioEncoder (5.19).
    """
    width, mel = section.integer("d_model"), section.integer("num_mel_bins", 128)
    out, inner = section.integer("output_dim"), section.integer("encoder_ffn_dim")
    return (
        *convolutions(ENCODER, mel, width),
        vision.table(f"{ENCODER}.audio_bos_eos_token", 2, out),
        norm(f"{ENCODER}.ln_post", width, bias=True),
        vision.whole(f"{ENCODER}.proj", width, out),
        *whole_blocks(f"{ENCODER}.layers", section.layers("encoder_layers"), width, inner),
    )


def qwen3_omni(section: Section) -> vision.Encoder:
    """Qwen3-Omni: three convolutions over a spectrogram, sharded blocks, two linear layers; a table of its positions.

    Source: vllm/model_executor/models/qwen3_omni_moe_thinker.py:Qwen3OmniMoeAudioEncoder (0.32).
    """
    width, channels = section.integer("d_model"), section.integer("downsample_hidden_size", maximum=1 << 20)
    rows = section.integer("num_mel_bins", 128)
    for _ in range(3):
        rows = (rows + 1) // 2
    heads = vision.heads_of(width, section.integer("encoder_attention_heads"))
    intermediate, out = section.integer("encoder_ffn_dim"), section.integer("output_dim")
    count = section.layers("encoder_layers")
    modules = (
        vision.convolution(f"{ENCODER}.conv2d1", 1, channels, (3, 3), bias=True),
        vision.convolution(f"{ENCODER}.conv2d2", channels, channels, (3, 3), bias=True),
        vision.convolution(f"{ENCODER}.conv2d3", channels, channels, (3, 3), bias=True),
        vision.whole(f"{ENCODER}.conv_out", channels * rows, width, bias=False),
        norm(f"{ENCODER}.ln_post", width, bias=True),
        *vision.whole_pair(ENCODER, width, width, out, ("proj1", "proj2")),
        *vision.blocks(WHISPER, f"{ENCODER}.layers", count, heads, intermediate),
    )
    positions = section.integer("max_source_positions", 1500)
    table = RotaryTable(max_positions=positions, rotary_dim=width, dtype="float32")
    return vision.Encoder(modules=modules, tables=(table,))


def granite(section: Section) -> tuple[Module, ...]:
    """Granite's Conformer; the ranks shard its MLPs and the two layers in the middle.

    Source: vllm/model_executor/models/granite_speech.py:GraniteSpeechCTCEncoder (0.32).
    """
    width, out, head = (section.integer(key) for key in ("hidden_dim", "output_dim", "dim_head"))
    inner = section.integer("num_heads") * head
    wide = width * section.integer("feedforward_mult", 4)
    channels = width * section.integer("conv_expansion_factor", 2)
    kernel = section.integer("conv_kernel_size", 15)
    positions = 2 * section.integer("max_pos_emb", 512) + 1
    modules: list[Module] = [
        vision.whole("encoder.input_linear", section.integer("input_dim"), width),
        *plain_mlp(width, out, "encoder.out", "encoder.out_mid", bias=True),
    ]
    parts = ("ff1.pre_norm", "ff2.pre_norm", "attn.pre_norm", "conv.norm", "post_norm")
    for index in range(section.layers("num_layers")):
        block = f"encoder.layers.{index}"
        for part in (f"{block}.ff1", f"{block}.ff2"):
            modules += plain_mlp(width, wide, f"{part}.up_proj", f"{part}.down_proj", bias=True)
        modules += (
            *norms(width, *(f"{block}.{part}" for part in parts), bias=True),
            vision.whole(f"{block}.attn.to_q", width, inner, bias=False),
            vision.whole(f"{block}.attn.to_kv", width, 2 * inner, bias=False),
            vision.whole(f"{block}.attn.to_out", inner, width),
            vision.table(f"{block}.attn.rel_pos_emb", positions, head),
            vision.convolution(f"{block}.conv.up_conv", width, 2 * channels, (1,), bias=True),
            vision.convolution(f"{block}.conv.depth_conv.conv", 1, channels, (kernel,), bias=False),
            norm(f"{block}.conv.batch_norm", channels, bias=True),
            vision.convolution(f"{block}.conv.down_conv", channels, width, (1,), bias=True),
        )
    return tuple(modules)


def gemma4_audio(audio: Section, text: int) -> tuple[Module, ...]:
    """Gemma 4's Conformer, whole on every rank, and its projection.

    A layer is attention with relative positions, two MLPs of four times the width, and a light convolution.

    Source: transformers 5.19, models/gemma4/modeling_gemma4.py:Gemma4AudioModel;
    vllm/model_executor/models/gemma4_mm.py (0.32).
    """
    width, kernel = audio.integer("hidden_size"), audio.integer("conv_kernel_size")
    head = width // audio.integer("num_attention_heads")
    channels = audio.integers("subsampling_conv_channels", minimum=1) or ()
    if len(channels) != 2:
        raise audio.invalid("subsampling_conv_channels", channels, "expected two numbers")
    projected = audio.integer("output_proj_dims")
    matrices = 5 + 2 * 8 + 3
    vectors = kernel + 2 * 2 + 2 + 3
    layer = matrices * width**2 + vectors * width + head
    start = (9 + 1) * channels[0] + (9 * channels[0] + 1) * channels[1]
    convolved = f"{ENCODER}.subsample_conv_projection"
    return (
        Parameter(name=convolved, replicated=start),
        vision.table(f"{convolved}.input_proj_linear", channels[0] // 4 * channels[1], width),
        *(Parameter(name=f"{ENCODER}.layers.{index}", replicated=layer) for index in range(audio.layers())),
        vision.table(f"{ENCODER}.output_proj", width + 1, projected),
        replicated("embed_audio.embedding_projection", projected, text),
    )


def dasheng(section: Section, width: int) -> tuple[Module, ...]:
    """Dasheng: patches of a spectrogram, tables of times and frequencies, sharded blocks.

    Source: vllm/model_executor/models/midashenglm.py:DashengAudioTransformer (0.32).
    """
    prefix, patch = "audio_encoder", section.integer("patch_size", 16, maximum=4096)
    mels, stride = section.integer("n_mels", 64), section.integer("patch_stride", 16, maximum=4096)
    frames = section.integer("target_length", 1012)
    heads = vision.square_heads(section, width, "num_heads")
    inner = int(width * section.number("mlp_ratio", 4))
    channels = section.integer("input_channels", 1, maximum=64)
    block = vision.Block(qkv_bias=section.boolean("qkv_bias", True))
    scales = {} if section.get("init_values") is None else dict.fromkeys(("ls1.gamma", "ls2.gamma"), width)
    return (
        norm(f"{prefix}.init_bn", mels, bias=True),
        vision.convolution(f"{prefix}.patch_embed.proj", channels, width, (patch, patch), bias=True),
        vision.table(f"{prefix}.time_pos_embed", frames // stride, width),
        vision.table(f"{prefix}.freq_pos_embed", mels // stride, width),
        norm(f"{prefix}.norm", width, bias=True),
        *vision.blocks(block, f"{prefix}.blocks", section.layers("depth"), heads, inner, vectors=scales),
    )
