"""Whisper: an encoder of sound, and a decoder that attends to itself and to the encoder's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.model.architecture import Architecture, Layer, Linear, Module, Output, Parameter, Split
from kvcore.model.cache_state import CrossAttention
from kvcore.model.config import MAX_INTEGER, MAX_LAYERS, ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    cache_of,
    column,
    decoder,
    embedding,
    norm,
    norms,
    qkv,
    row,
)


def read(config: ModelConfig) -> Architecture:
    """Whisper.

    Source: vllm/model_executor/models/whisper.py (0.32).
    """
    section = config.language
    hidden = section.integer("d_model")
    heads = square_heads(hidden, section.integer("decoder_attention_heads"))
    frames, positions = section.integer("max_source_positions"), section.integer("max_target_positions")
    layer = Layer(
        modules=(
            *self_attention(heads, "self_attn"),
            *cross_attention(heads, "encoder_attn"),
            *mlp(hidden, section.integer("decoder_ffn_dim")),
            *norms(hidden, "self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm", bias=True),
        ),
        caches=(
            cache_of(heads),
            CrossAttention(num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, encoder_tokens=frames),
        ),
    )
    return decoder(
        config,
        section,
        heads=heads,
        layers=(layer,) * section.layers("decoder_layers"),
        intermediate_size=section.integer("decoder_ffn_dim"),
        first=(
            embedding(section, "model.decoder.embed_tokens"),
            Parameter(name="model.decoder.embed_positions", replicated=positions * hidden),
            *encoder(section, "model.encoder"),
        ),
        last=(norm("model.decoder.layer_norm", hidden, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="model.decoder.layers",
        is_multimodal=True,
    )


def encoder(section: Section, prefix: str, *, positions_dtype: str = "") -> tuple[Module, ...]:
    """Two convolutions, a table of positions, and blocks that the ranks divide.

    Source: vllm/model_executor/models/whisper.py:WhisperEncoder (0.32).
    """
    hidden, mels = section.integer("hidden_size"), section.integer("num_mel_bins", 128)
    heads = square_heads(hidden, either(section, "encoder_attention_heads", "num_attention_heads"))
    ears: list[Module] = [
        Parameter(name=f"{prefix}.conv1", replicated=(3 * mels + 1) * hidden),
        Parameter(name=f"{prefix}.conv2", replicated=(3 * hidden + 1) * hidden),
        Parameter(
            name=f"{prefix}.embed_positions",
            replicated=section.integer("max_source_positions") * hidden,
            dtype=positions_dtype,
        ),
        norm(f"{prefix}.layer_norm", hidden, bias=True),
    ]
    for index in range(either(section, "encoder_layers", "num_hidden_layers", maximum=MAX_LAYERS)):
        block = f"{prefix}.layers.{index}."
        ears += self_attention(heads, f"{block}self_attn")
        ears += mlp(hidden, either(section, "encoder_ffn_dim", "intermediate_size"), block)
        ears += norms(hidden, f"{block}self_attn_layer_norm", f"{block}final_layer_norm", bias=True)
    return tuple(ears)


def either(section: Section, name: str, other: str, maximum: int = MAX_INTEGER) -> int:
    """An integer under the first of two names that the section has."""
    return section.integer(name if section.get(name) is not None else other, maximum=maximum)


def square_heads(hidden: int, heads: int) -> Heads:
    """As many key and value heads as queries."""
    return Heads(hidden_size=hidden, num_heads=heads, num_kv_heads=heads, head_dim=hidden // heads)


def self_attention(heads: Heads, prefix: str) -> tuple[Linear, ...]:
    """Attention with biases."""
    return (
        qkv(heads, f"{prefix}.qkv_proj", bias=True),
        row(f"{prefix}.out_proj", heads.hidden_size, heads.hidden_size, bias=True),
    )


def cross_attention(heads: Heads, prefix: str) -> tuple[Linear, ...]:
    """Queries of the decoder, keys and values of the encoder."""
    hidden = heads.hidden_size
    return (
        column(f"{prefix}.q_proj", hidden, hidden, bias=True),
        Linear(
            name=f"{prefix}.kv_proj",
            in_features=hidden,
            outputs=(Output(units=hidden), Output(units=hidden)),
            split=Split.COLUMN,
            bias=True,
            parts=(f"{prefix}.k_proj", f"{prefix}.v_proj"),
        ),
        row(f"{prefix}.out_proj", hidden, hidden, bias=True),
    )


def mlp(hidden: int, width: int, prefix: str = "") -> tuple[Linear, ...]:
    """Two linear layers."""
    return (
        column(f"{prefix}fc1", hidden, width, bias=True),
        row(f"{prefix}fc2", width, hidden, bias=True),
    )


READERS: Final[Mapping[str, object]] = {"WhisperForConditionalGeneration": read, "whisper": read}
