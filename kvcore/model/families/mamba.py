"""Mamba and its hybrids with attention: Mamba, Falcon-Mamba, Mamba 2, Jamba, Falcon-H1, Bamba, Granite 4, Zamba2; LFM2.

Their names, class defaults and experts are in their rows of decoders.toml.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.base.units import round_up
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, attending, by_row, read_decoder
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import MAX_EXPERTS, ExpertTraits, expert_modules, optional_moe
from kvcore.model.parts.mixers import given, mamba1, mamba2, read_conv_kernel, short_convolution, wide_column
from kvcore.model.parts.pattern import by_kind, with_modules


def read_mamba(config: ModelConfig) -> arch.Architecture:
    """Mamba and Falcon-Mamba: nothing but Mamba 1 mixers.

    Source: vllm/model_executor/models/mamba.py (0.32).
    """
    section = config.language
    hidden = section.integer("hidden_size")
    expanded = section.optional_integer("intermediate_size", minimum=1)
    inner = expanded or section.integer("expand") * hidden
    return pure(config, mamba1(section, "mamba", "mixer", hidden, inner), inner)


def read_mamba2(config: ModelConfig) -> arch.Architecture:
    """Mamba 2 alone.

    Source: vllm/model_executor/models/mamba2.py (0.32).
    """
    section = config.language
    hidden, heads = section.integer("hidden_size"), section.integer("num_heads")
    width = section.integer("head_dim")
    return pure(config, mamba2(section, "mamba2", "mixer", hidden, heads, width), heads * width)


def pure(config: ModelConfig, mixer: arch.Layer, inner: int) -> arch.Architecture:
    """A model without attention."""
    section = config.language
    hidden = section.integer("hidden_size")
    heads = blocks.Heads(hidden_size=hidden, num_heads=0, num_kv_heads=0, head_dim=0)
    mixers, norm = (mixer,) * section.layers(), blocks.norms(hidden, "norm")
    return read_decoder(DECODERS["mamba"], config, heads=heads, mixers=mixers, width=inner, mlp=norm)


def read_jamba(config: ModelConfig) -> arch.Architecture:
    """Jamba: Mamba 1, every n-th layer attention, every n-th MLP experts.

    Source: vllm/model_executor/models/jamba.py (0.32).
    """
    row, section = DECODERS["jamba"], config.language
    heads = blocks.read_heads(section, reads_head_dim=row.reads_head_dim)
    hidden = heads.hidden_size
    inner = section.integer("mamba_expand") * hidden
    mixer = mamba1(section, "jamba", "mamba", hidden, inner, has_norms=True)
    attends = attending(row, section, heads)[0]
    chosen = periodic(section, "attn_layer_period", "attn_layer_offset")
    with_experts = periodic(section, "expert_layer_period", "expert_layer_offset")
    has_several = section.integer("num_experts", maximum=MAX_EXPERTS) > 1
    return read_decoder(
        row,
        config,
        heads=heads,
        mixers=tuple(attends if is_chosen else mixer for is_chosen in chosen),
        sparse=tuple(is_sparse and has_several for is_sparse in with_experts),
    )


def periodic(section: Section, period_key: str, offset_key: str) -> tuple[bool, ...]:
    """Layers chosen by a period and an offset."""
    period, offset = section.integer(period_key), section.integer(offset_key, minimum=0)
    return tuple(index % period == offset for index in range(section.layers()))


def bamba_mixer(section: Section, hidden: int, *, has_norm: bool = True) -> arch.Layer:
    """A Mamba 2 mixer under the names that Bamba, Granite and Falcon-H1 use."""
    inner = section.optional_integer("mamba_d_ssm", minimum=1) or int(
        section.number("mamba_expand", 2.0) * hidden
    )
    num_heads = section.integer("mamba_n_heads")
    if inner % num_heads:
        raise section.contradicting("mamba_n_heads", f"{inner} is not divisible by {num_heads} state heads")
    return mamba2(section, "bamba", "mamba", hidden, num_heads, inner // num_heads, has_norm=has_norm)


def read_falcon_h1(config: ModelConfig) -> arch.Architecture:
    """Falcon-H1: attention and Mamba 2 side by side in every layer.

    Source: vllm/model_executor/models/falcon_h1.py (0.32).
    """
    row, section = DECODERS["falcon_h1"], config.language
    heads = blocks.read_heads(section)
    has_norm = section.boolean("mamba_rms_norm", False)
    attends = attending(row, section, heads)[0]
    mixes = bamba_mixer(section, heads.hidden_size, has_norm=has_norm)
    both = replace(with_modules(attends, *mixes.modules), caches=(*attends.caches, *mixes.caches))
    return read_decoder(row, config, heads=heads, mixers=(both,) * section.layers())


def read_bamba(config: ModelConfig) -> arch.Architecture:
    """Bamba: Mamba 2, attention at the layers that the config lists.

    Source: vllm/model_executor/models/bamba.py (0.19).
    """
    row, section = DECODERS["bamba"], config.language
    heads = blocks.read_heads(section, reads_head_dim=row.reads_head_dim)
    attends, mixes = attending(row, section, heads)[0], bamba_mixer(section, heads.hidden_size)
    chosen = frozenset(section.integers("attn_layer_indices") or ())
    mixers = tuple(attends if index in chosen else mixes for index in range(section.layers()))
    return read_decoder(row, config, heads=heads, mixers=mixers)


def read_granite_hybrid(config: ModelConfig) -> arch.Architecture:
    """Granite 4: Mamba 2 and attention by `layer_types`, experts and a shared MLP.

    Source: vllm/model_executor/models/granitemoehybrid.py (0.32).
    """
    row, section = DECODERS["granitemoehybrid"], config.language
    heads = blocks.read_heads(section, reads_head_dim=row.reads_head_dim)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    kinds = section.strings("layer_types") or section.strings("layers_block_type")
    count = section.layers()
    if kinds is None or len(kinds) < count:
        raise section.missing("layer_types")
    traits = row.experts or ExpertTraits()
    moe = optional_moe(traits, section, minimum=0)
    shared = section.integer("shared_intermediate_size", 0, minimum=0)
    body: list[arch.Module] = [*blocks.norms(hidden, *row.layer_norms)]
    if moe:
        body += expert_modules(traits, section, hidden, moe)
        moe = replace(moe, shared_intermediate_size=shared)
    if shared:
        body.append(wide_column("shared_mlp.input_linear", hidden, (arch.Output(units=shared),) * 2))
        body.append(blocks.row("shared_mlp.output_linear", shared, hidden))
    mixers = {"attention": attending(row, section, heads)[0], "mamba": bamba_mixer(section, hidden)}
    unknown = set(kinds[:count]) - set(mixers)
    if unknown:
        raise section.invalid("layer_types", sorted(unknown), "expected mamba and attention")
    uses_rope = section.string("position_embedding_type", "nope") == "rope"
    built = read_decoder(
        replace(row, experts=None, layer_norms=(), rotary=uses_rope),
        config,
        heads=heads,
        mixers=tuple(mixers[kind] for kind in kinds[:count]),
        width=max(intermediate, shared),
        mlp=tuple(body),
    )
    return dataclasses.replace(built, moe=moe)


MLP_WIDTH: Final = ("ffn_hidden_size", "intermediate_size")
"""Width of the MLP that Zamba2's layers share, by its old and its new name."""


def read_zamba2(config: ModelConfig) -> arch.Architecture:
    """Zamba2: Mamba 2 in every layer; hybrid layers put an attention block that many share, with adapters of their
    own, in front of the mixer.

    Source: vllm/model_executor/models/zamba2.py (0.32).
    """
    row, section = DECODERS["zamba2"], config.language
    hidden = section.integer("hidden_size")
    kinds = section.words("layers_block_type", ("hybrid", "mamba"))
    if kinds is None:
        raise section.missing("layers_block_type")
    plain = zamba2_mixer(section, hidden)
    heads = section.integer("num_attention_heads")
    if 2 * hidden % heads:
        raise section.contradicting("num_attention_heads", f"{2 * hidden} is not divisible by {heads}")
    # Shared blocks attend over the hidden state with the embedding: twice as wide as the model.
    kv_heads, head_dim = section.integer("num_key_value_heads", heads), 2 * hidden // heads
    wide = blocks.Heads(hidden_size=2 * hidden, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)
    adapted = (
        blocks.replicated("linear", hidden, hidden),
        *adapters(section, wide, hidden),
        *plain.modules,
    )
    hybrid = arch.Layer(modules=adapted, caches=(blocks.cache_of(wide), *plain.caches))
    width = section.integer(given(section, MLP_WIDTH))
    shared: list[arch.Module] = []
    for index in range(section.integer("num_mem_blocks", 1, maximum=64)):
        shared += shared_block(section, wide, hidden, width, f"shared_blocks.{index}.")
    row = replace(row, rotary=section.boolean("use_mem_rope", False))
    built = read_decoder(
        row,
        config,
        heads=replace(wide, hidden_size=hidden),
        mixers=tuple(hybrid if kind == "hybrid" else plain for kind in kinds),
        width=width,
        mlp=blocks.norms(hidden, "input_layernorm"),
    )
    return dataclasses.replace(built, first=(*built.first, *shared))


def zamba2_mixer(section: Section, hidden: int) -> arch.Layer:
    """The Mamba 2 mixer, under its old or its new names."""
    inner = int(section.number("mamba_expand", section.number("expansion_factor", 2.0)) * hidden)
    if section.has("n_mamba_heads") or not section.has("mamba_headdim"):
        num_heads = section.integer("n_mamba_heads")
    else:
        num_heads = inner // section.integer("mamba_headdim")
    if num_heads < 1 or inner % num_heads:
        raise section.contradicting("n_mamba_heads", f"{inner} is not divisible by {num_heads} state heads")
    return mamba2(section, "zamba2", "mamba", hidden, num_heads, inner // num_heads)


def shared_block(
    section: Section, heads: blocks.Heads, hidden: int, intermediate: int, prefix: str
) -> tuple[arch.Module, ...]:
    """One shared attention and MLP."""
    bias = section.boolean("add_bias_linear", False)
    query = blocks.attention(heads, f"{prefix}self_attn")[0]
    return (
        query,
        blocks.row(f"{prefix}self_attn.o_proj", heads.hidden_size, hidden),
        *blocks.gated_mlp(hidden, intermediate, f"{prefix}feed_forward", bias=bias),
        blocks.norm(f"{prefix}input_layernorm", 2 * hidden),
        blocks.norm(f"{prefix}pre_ff_layernorm", hidden),
    )


def adapters(section: Section, heads: blocks.Heads, hidden: int) -> tuple[arch.Module, ...]:
    """The low-rank adapters of one hybrid layer on the shared block."""
    rank = section.integer(given(section, ("lora_rank", "adapter_rank")))
    width = section.integer(given(section, MLP_WIDTH))
    modules: list[arch.Module] = [
        blocks.column("shared_transformer.gate_up_proj_adapter.A", hidden, rank),
        wide_column("shared_transformer.gate_up_proj_adapter.B", rank, (arch.Output(units=width),) * 2),
    ]
    if section.boolean("use_shared_attention_adapter", section.boolean("use_shared_attention_lora", False)):
        for part in "qkv":
            name = f"shared_transformer.linear_{part}_adapter"
            modules.append(blocks.column(f"{name}.A", heads.hidden_size, rank))
            modules.append(blocks.column(f"{name}.B", rank, heads.hidden_size))
    return tuple(modules)


def read_lfm2(config: ModelConfig) -> arch.Architecture:
    """LFM2 and LFM2-MoE.

    Source: vllm/model_executor/models/lfm2.py, lfm2_moe.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    count = section.layers()
    kinds = lfm2_kinds(section, count)
    moe = optional_moe(LFM2_EXPERTS, section, minimum=0)
    dense = section.integer("num_dense_layers", 0, minimum=0) if moe else count
    layers = by_kind(
        ((is_full, index >= dense) for index, is_full in enumerate(kinds)),
        lambda kind: lfm2_layer(section, heads, moe if kind[1] else None, is_full=kind[0]),
    )
    tied = section.boolean("tie_word_embeddings", section.boolean("tie_embedding", True))
    return blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=lfm2_width(section),
        final_norm="model.embedding_norm",
        tied=tied,
        moe=moe,
    )


def lfm2_kinds(section: Section, count: int) -> tuple[bool, ...]:
    """Layers with attention: by `layer_types`, or by the indices in `full_attn_idxs`."""
    kinds = section.words("layer_types", ("full_attention", "conv"), count)
    if kinds is not None:
        return tuple(kind == "full_attention" for kind in kinds)
    chosen = frozenset(section.integers("full_attn_idxs") or ())
    return tuple(index in chosen for index in range(count))


LFM2_EXPERTS: Final = DECODERS["lfm2"].experts or ExpertTraits()


def lfm2_width(section: Section) -> int:
    """The width of a dense MLP: two thirds of the written one, scaled and rounded up, where that is asked for."""
    width = section.integer("intermediate_size", section.optional_integer("block_ff_dim", minimum=1))
    if not section.boolean("block_auto_adjust_ff_dim", False):
        return width
    width = int(2 * width / 3)
    if section.get("block_ffn_dim_multiplier") is not None:
        width = int(section.number("block_ffn_dim_multiplier") * width)
    return round_up(width, section.integer("block_multiple_of", 256))


def lfm2_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts | None, *, is_full: bool
) -> arch.Layer:
    """One layer."""
    hidden = heads.hidden_size
    modules: list[arch.Module] = [*blocks.norms(hidden, "operator_norm", "ffn_norm")]
    if moe is None:
        modules += blocks.gated_mlp(hidden, lfm2_width(section), "feed_forward")
    else:
        modules += expert_modules(LFM2_EXPERTS, section, hidden, moe)
    if is_full:
        modules += blocks.attention(heads)
        modules += blocks.norms(heads.head_dim, "self_attn.q_layernorm", "self_attn.k_layernorm")
        return arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),))
    kernel = read_conv_kernel(section, "conv_L_cache")
    channels = section.integer("conv_dim", hidden) if moe is None else hidden
    mixer = short_convolution("conv", channels, kernel, bias=section.boolean("conv_bias", False))
    return replace(mixer, modules=(*modules, *mixer.modules))


READERS: Final = by_row(
    {
        "lfm2": read_lfm2,
        "mamba": read_mamba,
        "mamba2": read_mamba2,
        "jamba": read_jamba,
        "falcon_h1": read_falcon_h1,
        "bamba": read_bamba,
        "granitemoehybrid": read_granite_hybrid,
        "zamba2": read_zamba2,
    }
)
