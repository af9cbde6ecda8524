"""LFM2: gated short convolutions with attention, dense and with experts."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from kvcore.base.units import round_up
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, by_row
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, expert_modules, optional_moe
from kvcore.model.parts.mixers import read_conv_kernel, short_convolution
from kvcore.model.parts.pattern import by_kind


def read(config: ModelConfig) -> arch.Architecture:
    """LFM2 and LFM2-MoE.

    Source: vllm/model_executor/models/lfm2.py, lfm2_moe.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    count = section.layers()
    kinds = layer_kinds(section, count)
    moe = optional_moe(EXPERTS, section, minimum=0)
    dense = section.integer("num_dense_layers", 0, minimum=0) if moe else count
    layers = by_kind(
        ((is_full, index >= dense) for index, is_full in enumerate(kinds)),
        lambda kind: read_layer(section, heads, moe if kind[1] else None, is_full=kind[0]),
    )
    tied = section.boolean("tie_word_embeddings", section.boolean("tie_embedding", True))
    return blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=dense_width(section),
        final_norm="model.embedding_norm",
        tied=tied,
        moe=moe,
    )


def layer_kinds(section: Section, count: int) -> tuple[bool, ...]:
    """Layers with attention: by `layer_types`, or by the indices in `full_attn_idxs`."""
    kinds = section.words("layer_types", ("full_attention", "conv"), count)
    if kinds is not None:
        return tuple(kind == "full_attention" for kind in kinds)
    chosen = frozenset(section.integers("full_attn_idxs") or ())
    return tuple(index in chosen for index in range(count))


EXPERTS: Final = DECODERS["lfm2"].experts or ExpertTraits()


def dense_width(section: Section) -> int:
    """The width of a dense MLP: two thirds of the written one, scaled and rounded up, where that is asked for."""
    width = section.integer("intermediate_size", section.optional_integer("block_ff_dim", minimum=1))
    if not section.boolean("block_auto_adjust_ff_dim", False):
        return width
    width = int(2 * width / 3)
    if section.get("block_ffn_dim_multiplier") is not None:
        width = int(section.number("block_ffn_dim_multiplier") * width)
    return round_up(width, section.integer("block_multiple_of", 256))


def read_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts | None, *, is_full: bool
) -> arch.Layer:
    """One layer."""
    hidden = heads.hidden_size
    modules: list[arch.Module] = [*blocks.norms(hidden, "operator_norm", "ffn_norm")]
    if moe is None:
        modules += blocks.gated_mlp(hidden, dense_width(section), "feed_forward")
    else:
        modules += expert_modules(EXPERTS, section, hidden, moe)
    if is_full:
        modules += blocks.attention(heads)
        modules += blocks.norms(heads.head_dim, "self_attn.q_layernorm", "self_attn.k_layernorm")
        return arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),))
    kernel = read_conv_kernel(section, "conv_L_cache")
    channels = section.integer("conv_dim", hidden) if moe is None else hidden
    mixer = short_convolution("conv", channels, kernel, bias=section.boolean("conv_bias", False))
    return replace(mixer, modules=(*modules, *mixer.modules))


READERS: Final = by_row({"lfm2": read})
