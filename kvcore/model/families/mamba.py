"""Mamba and its hybrids with attention: Mamba, Falcon-Mamba, Mamba 2, Jamba, Falcon-H1, Bamba, Granite 4, Zamba2.

What they differ by in names, class defaults and experts is in their rows of decoders.toml.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    Decoder,
    attention,
    before_layers,
    behind_layers,
    by_row,
)
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, expert_modules, optional_moe, read_moe
from kvcore.model.parts.mixers import Mamba1, Mamba2, read_conv_kernel, wide_column
from kvcore.model.parts.pattern import by_kind, crossed, with_modules
from kvcore.units import ceil_div


def hybrid(
    row: Decoder,
    config: ModelConfig,
    heads: blocks.Heads,
    layers: tuple[arch.Layer, ...],
    intermediate_size: int,
    moe: arch.MixtureOfExperts | None = None,
) -> arch.Architecture:
    """The model of a row around its layers."""
    section = config.language
    hidden, vocab = heads.hidden_size, section.integer("vocab_size")
    tied = section.boolean("tie_word_embeddings", row.tied)
    return blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=intermediate_size,
        first=before_layers(row, section, hidden, vocab),
        last=behind_layers(row, section, hidden, vocab, tied=tied),
        tied=tied,
        rotary_tables=None if row.rotary else (),
        layer_prefix=row.names.layers,
        moe=moe,
    )


def attending(row: Decoder, section: Section, heads: blocks.Heads) -> arch.Layer:
    """What of a layer attends."""
    return arch.Layer(modules=attention(row, section, heads), caches=(blocks.cache_of(heads),))


def mixing(mixer: Mamba1 | Mamba2, prefix: str = "mamba") -> arch.Layer:
    """What of a layer keeps a state."""
    return arch.Layer(modules=mixer.modules(prefix), caches=(mixer.cache,))


def mlp_with_norms(row: Decoder, section: Section, hidden: int, width: int) -> tuple[arch.Module, ...]:
    """The MLP of a layer, and its norms."""
    bias = blocks.flag(section, row.mlp_bias)
    return (
        *blocks.gated_mlp(hidden, width, "feed_forward", bias=bias),
        *blocks.norms(hidden, *row.layer_norms),
    )


def read_mamba(config: ModelConfig) -> arch.Architecture:
    """Mamba and Falcon-Mamba: nothing but Mamba 1 mixers.

    Source: vllm/model_executor/models/mamba.py (0.32).
    """
    section = config.language
    hidden = section.integer("hidden_size")
    expanded = section.optional_integer("intermediate_size", minimum=1)
    mixer = Mamba1(
        hidden_size=hidden,
        intermediate_size=expanded or section.integer("expand") * hidden,
        state_size=section.integer("state_size"),
        conv_kernel=read_conv_kernel(section, "conv_kernel"),
        time_step_rank=time_step_rank(section, "time_step_rank", hidden),
        conv_bias=section.boolean("use_conv_bias", True),
        bias=section.boolean("use_bias", False),
    )
    return pure(config, mixer)


def read_mamba2(config: ModelConfig) -> arch.Architecture:
    """Mamba 2 alone.

    Source: vllm/model_executor/models/mamba2.py (0.32).
    """
    section = config.language
    mixer = Mamba2(
        hidden_size=section.integer("hidden_size"),
        num_heads=section.integer("num_heads"),
        head_dim=section.integer("head_dim"),
        n_groups=section.integer("n_groups"),
        state_size=section.integer("state_size"),
        conv_kernel=read_conv_kernel(section, "conv_kernel"),
        conv_bias=section.boolean("use_conv_bias", True),
        bias=section.boolean("use_bias", False),
        chunk_size=section.integer("chunk_size", 2048, minimum=1),
    )
    return pure(config, mixer)


def pure(config: ModelConfig, mixer: Mamba1 | Mamba2) -> arch.Architecture:
    """A model without attention."""
    hidden = mixer.hidden_size
    heads = blocks.Heads(hidden_size=hidden, num_heads=0, num_kv_heads=0, head_dim=0)
    layer = with_modules(mixing(mixer, "mixer"), blocks.norm("norm", hidden))
    layers = (layer,) * config.language.layers()
    return hybrid(DECODERS["mamba"], config, heads, layers, mixer.intermediate_size)


def time_step_rank(section: Section, key: str, hidden_size: int) -> int:
    """The rank of the time step projection; `auto` is a sixteenth of the hidden size."""
    if section.get(key) == "auto":
        return ceil_div(hidden_size, 16)
    return section.integer(key)


def read_jamba(config: ModelConfig) -> arch.Architecture:
    """Jamba: Mamba 1, every n-th layer attention, every n-th MLP experts.

    Source: vllm/model_executor/models/jamba.py (0.32).
    """
    row, section = DECODERS["jamba"], config.language
    heads = blocks.read_heads(section, reads_head_dim=row.reads_head_dim)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    mixer = Mamba1(
        hidden_size=hidden,
        intermediate_size=section.integer("mamba_expand") * hidden,
        state_size=section.integer("mamba_d_state"),
        conv_kernel=read_conv_kernel(section, "mamba_d_conv"),
        time_step_rank=time_step_rank(section, "mamba_dt_rank", hidden),
        conv_bias=section.boolean("mamba_conv_bias", True),
        bias=section.boolean("mamba_proj_bias", False),
        has_norms=True,
    )
    traits = row.experts or ExpertTraits()
    moe = read_moe(traits, section)
    bodies = dict.fromkeys((False, True), mlp_with_norms(row, section, hidden, intermediate))
    if moe.num_experts > 1:
        around = blocks.norms(hidden, *row.layer_norms)
        bodies[True] = (*expert_modules(traits, section, hidden, moe), *around)
    kinds = zip(
        periodic(section, "attn_layer_period", "attn_layer_offset"),
        periodic(section, "expert_layer_period", "expert_layer_offset"),
        strict=True,
    )
    layers = crossed(kinds, {True: attending(row, section, heads), False: mixing(mixer)}, bodies)
    return hybrid(row, config, heads, layers, intermediate, moe)


def periodic(section: Section, period_key: str, offset_key: str) -> tuple[bool, ...]:
    """Which layers a period and an offset choose."""
    period, offset = section.integer(period_key), section.integer(offset_key, minimum=0)
    return tuple(index % period == offset for index in range(section.layers()))


def read_mamba2_sizes(section: Section, hidden: int) -> Mamba2:
    """A Mamba 2 mixer under the names that Bamba, Granite and Falcon-H1 use."""
    inner = section.optional_integer("mamba_d_ssm", minimum=1) or int(
        section.number("mamba_expand", 2.0) * hidden
    )
    num_heads = section.integer("mamba_n_heads")
    if inner % num_heads:
        raise section.contradicting("mamba_n_heads", f"{inner} is not divisible by {num_heads} state heads")
    return Mamba2(
        hidden_size=hidden,
        num_heads=num_heads,
        head_dim=inner // num_heads,
        n_groups=section.integer("mamba_n_groups", 1),
        state_size=section.integer("mamba_d_state"),
        conv_kernel=read_conv_kernel(section, "mamba_d_conv"),
        conv_bias=section.boolean("mamba_conv_bias", True),
        bias=section.boolean("mamba_proj_bias", False),
        chunk_size=section.integer("mamba_chunk_size", 2048, minimum=1),
    )


def read_falcon_h1(config: ModelConfig) -> arch.Architecture:
    """Falcon-H1: attention and Mamba 2 side by side in every layer.

    Source: vllm/model_executor/models/falcon_h1.py (0.32).
    """
    row, section = DECODERS["falcon_h1"], config.language
    heads = blocks.read_heads(section)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    mixer = replace(read_mamba2_sizes(section, hidden), has_norm=section.boolean("mamba_rms_norm", False))
    first, second = attending(row, section, heads), mixing(mixer)
    body = mlp_with_norms(row, section, hidden, intermediate)
    layer = arch.Layer(
        modules=(*first.modules, *second.modules, *body), caches=(*first.caches, *second.caches)
    )
    return hybrid(row, config, heads, (layer,) * section.layers(), intermediate)


def read_bamba(config: ModelConfig) -> arch.Architecture:
    """Bamba: Mamba 2, attention at the layers that the config lists.

    Source: vllm/model_executor/models/bamba.py (0.19).
    """
    row, section = DECODERS["bamba"], config.language
    heads = blocks.read_heads(section, reads_head_dim=row.reads_head_dim)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    mixers = {True: attending(row, section, heads), False: mixing(read_mamba2_sizes(section, hidden))}
    body = mlp_with_norms(row, section, hidden, intermediate)
    chosen = frozenset(section.integers("attn_layer_indices") or ())
    kinds = (index in chosen for index in range(section.layers()))
    layers = by_kind(kinds, lambda kind: with_modules(mixers[kind], *body))
    return hybrid(row, config, heads, layers, intermediate)


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
    mixer = mixing(read_mamba2_sizes(section, hidden))
    mixers = {"attention": attending(row, section, heads), "mamba": mixer}
    unknown = set(kinds[:count]) - set(mixers)
    if unknown:
        raise section.invalid("layer_types", sorted(unknown), "expected mamba and attention")
    layers = by_kind(kinds[:count], lambda kind: with_modules(mixers[kind], *body))
    row = replace(row, rotary=section.string("position_embedding_type", "nope") == "rope")
    return hybrid(row, config, heads, layers, max(intermediate, shared), moe)


HYBRID: Final = "hybrid"
PLAIN: Final = "mamba"


def read_zamba2(config: ModelConfig) -> arch.Architecture:
    """Zamba2: Mamba 2 in every layer; hybrid layers put an attention block that many share, with adapters of their
    own, in front of the mixer.

    Source: vllm/model_executor/models/zamba2.py (0.32).
    """
    row, section = DECODERS["zamba2"], config.language
    hidden = section.integer("hidden_size")
    kinds = section.words("layers_block_type", (HYBRID, PLAIN))
    if kinds is None:
        raise section.missing("layers_block_type")
    mixer = mixing(read_zamba2_sizes(section, hidden))
    heads = read_shared_heads(section, hidden)
    plain = with_modules(mixer, blocks.norm("input_layernorm", hidden))
    adapted = (
        blocks.replicated("linear", hidden, hidden),
        *adapters(section, heads, hidden),
        *plain.modules,
    )
    hybrid_layer = arch.Layer(modules=adapted, caches=(blocks.cache_of(heads), *plain.caches))
    width = renamed(section, *MLP_WIDTH)
    shared: list[arch.Module] = []
    for index in range(section.integer("num_mem_blocks", 1, maximum=64)):
        shared += shared_block(section, heads, hidden, width, f"shared_blocks.{index}.")
    row = replace(row, rotary=section.boolean("use_mem_rope", False))
    layers = tuple(hybrid_layer if kind == HYBRID else plain for kind in kinds)
    built = hybrid(row, config, replace(heads, hidden_size=hidden), layers, width)
    return replace(built, first=(*built.first, *shared))


MLP_WIDTH: Final = ("ffn_hidden_size", "intermediate_size")
"""Of the shared MLP, by its old and its new name."""


def read_zamba2_sizes(section: Section, hidden: int) -> Mamba2:
    """The Mamba 2 mixer, under its old or its new names."""
    inner = int(section.number("mamba_expand", section.number("expansion_factor", 2.0)) * hidden)
    if section.has("n_mamba_heads") or not section.has("mamba_headdim"):
        num_heads = section.integer("n_mamba_heads")
    else:
        num_heads = inner // section.integer("mamba_headdim")
    if num_heads < 1 or inner % num_heads:
        raise section.contradicting("n_mamba_heads", f"{inner} is not divisible by {num_heads} state heads")
    conv_key = "conv_dimension" if section.has("conv_dimension") else "mamba_d_conv"
    return Mamba2(
        hidden_size=hidden,
        num_heads=num_heads,
        head_dim=inner // num_heads,
        n_groups=section.integer("mamba_ngroups", 1),
        state_size=renamed(section, "state_size", "mamba_d_state"),
        conv_kernel=read_conv_kernel(section, conv_key),
        conv_bias=section.boolean("use_conv_bias", True),
        bias=section.boolean("add_bias_linear", False),
        chunk_size=section.integer("chunk_size", 2048, minimum=1),
    )


def renamed(section: Section, old: str, new: str) -> int:
    """A size under its old name where the file has it, else under its new one."""
    return section.integer(old if section.has(old) else new)


def read_shared_heads(section: Section, hidden: int) -> blocks.Heads:
    """Attention over the hidden state with the embedding: twice as wide as the model."""
    heads = section.integer("num_attention_heads")
    if 2 * hidden % heads:
        raise section.contradicting("num_attention_heads", f"{2 * hidden} is not divisible by {heads}")
    return blocks.Heads(
        hidden_size=2 * hidden,
        num_heads=heads,
        num_kv_heads=section.integer("num_key_value_heads", heads),
        head_dim=2 * hidden // heads,
    )


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
    rank = renamed(section, "lora_rank", "adapter_rank")
    width = renamed(section, *MLP_WIDTH)
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


READERS: Final = by_row(
    {
        "mamba": read_mamba,
        "mamba2": read_mamba2,
        "jamba": read_jamba,
        "falcon_h1": read_falcon_h1,
        "bamba": read_bamba,
        "granitemoehybrid": read_granite_hybrid,
        "zamba2": read_zamba2,
    }
)
