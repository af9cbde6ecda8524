"""Zamba2: Mamba 2 in every layer, and a few attention blocks that many layers share."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Layer, Linear, Module, Output, Split
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    attention,
    cache_of,
    column,
    decoder,
    embedding,
    gated_mlp,
    head,
    named,
    norm,
    replicated,
    row,
)
from kvcore.model.parts.mixers import Mamba2, read_conv_kernel

HYBRID: Final = "hybrid"
PLAIN: Final = "mamba"


def read(config: ModelConfig) -> Architecture:
    """Zamba2: hybrid layers put a shared attention block, with adapters of their own, in front of the mixer.

    Source: vllm/model_executor/models/zamba2.py (0.32).
    """
    section = config.language
    hidden = section.integer("hidden_size")
    kinds = section.words("layers_block_type", (HYBRID, PLAIN))
    if kinds is None:
        raise section.missing("layers_block_type")
    mixer = read_mixer(section, hidden)
    heads = read_shared_heads(section, hidden)
    plain = Layer(modules=(*mixer.modules("mamba"), norm("input_layernorm", hidden)), caches=(mixer.cache,))
    adapted = (replicated("linear", hidden, hidden), *adapters(section, heads, hidden), *plain.modules)
    hybrid = Layer(modules=adapted, caches=(cache_of(heads), *plain.caches))
    intermediate = mlp_width(section)
    blocks: list[Module] = []
    for index in range(section.integer("num_mem_blocks", 1, maximum=64)):
        blocks += shared_block(section, heads, hidden, intermediate, f"shared_blocks.{index}.")
    tied = section.boolean("tie_word_embeddings", True)
    built = decoder(
        config,
        heads=heads,
        layers=tuple(hybrid if kind == HYBRID else plain for kind in kinds),
        intermediate_size=intermediate,
        first=(replace(embedding(section), embedding_dim=hidden), *blocks),
        last=(
            norm("model.final_layernorm", hidden),
            *(() if tied else (replace(head(section), embedding_dim=hidden),)),
        ),
        tied=tied,
        rotary_tables=None if section.boolean("use_mem_rope", False) else (),
    )
    return replace(built, hidden_size=hidden)


def read_mixer(section: Section, hidden: int) -> Mamba2:
    """The Mamba 2 mixer, under its old or its new names."""
    inner = int(section.number("mamba_expand", section.number("expansion_factor", 2.0)) * hidden)
    if section.has("n_mamba_heads") or not section.has("mamba_headdim"):
        num_heads = section.integer("n_mamba_heads")
    else:
        num_heads = inner // section.integer("mamba_headdim")
    if num_heads < 1 or inner % num_heads:
        raise section.contradicting("n_mamba_heads", f"{inner} is not divisible by {num_heads} state heads")
    return Mamba2(
        hidden_size=hidden,
        num_heads=num_heads,
        head_dim=inner // num_heads,
        n_groups=section.integer("mamba_ngroups", 1),
        state_size=renamed(section, "state_size", "mamba_d_state"),
        conv_kernel=read_conv_kernel(
            section, "conv_dimension" if section.has("conv_dimension") else "mamba_d_conv"
        ),
        conv_bias=section.boolean("use_conv_bias", True),
        bias=section.boolean("add_bias_linear", False),
        chunk_size=section.integer("chunk_size", 2048, minimum=1),
    )


def renamed(section: Section, old: str, new: str) -> int:
    """A size under its old name where the file has it, else under its new one."""
    return section.integer(old if section.has(old) else new)


def mlp_width(section: Section) -> int:
    """The width of the shared MLP."""
    return renamed(section, "ffn_hidden_size", "intermediate_size")


def read_shared_heads(section: Section, hidden: int) -> Heads:
    """Attention over the hidden state with the embedding: twice as wide as the model."""
    heads = section.integer("num_attention_heads")
    if 2 * hidden % heads:
        raise section.contradicting("num_attention_heads", f"{2 * hidden} is not divisible by {heads}")
    return Heads(
        hidden_size=2 * hidden,
        num_heads=heads,
        num_kv_heads=section.integer("num_key_value_heads", heads),
        head_dim=2 * hidden // heads,
    )


def shared_block(
    section: Section, heads: Heads, hidden: int, intermediate: int, prefix: str
) -> tuple[Module, ...]:
    """One shared attention and MLP."""
    bias = section.boolean("add_bias_linear", False)
    query = attention(heads, f"{prefix}self_attn")[0]
    return (
        query,
        row(f"{prefix}self_attn.o_proj", heads.hidden_size, hidden),
        *gated_mlp(hidden, intermediate, f"{prefix}feed_forward", bias=bias),
        norm(f"{prefix}input_layernorm", 2 * hidden),
        norm(f"{prefix}pre_ff_layernorm", hidden),
    )


def adapters(section: Section, heads: Heads, hidden: int) -> tuple[Module, ...]:
    """The low-rank adapters of one hybrid layer on the shared block."""
    rank = renamed(section, "lora_rank", "adapter_rank")
    intermediate = mlp_width(section)
    modules: list[Module] = [
        column("shared_transformer.gate_up_proj_adapter.A", hidden, rank),
        Linear(
            name="shared_transformer.gate_up_proj_adapter.B",
            in_features=rank,
            outputs=(Output(units=intermediate), Output(units=intermediate)),
            split=Split.COLUMN,
        ),
    ]
    if section.boolean("use_shared_attention_adapter", section.boolean("use_shared_attention_lora", False)):
        for part in "qkv":
            name = f"shared_transformer.linear_{part}_adapter"
            modules.append(column(f"{name}.A", heads.hidden_size, rank))
            modules.append(column(f"{name}.B", rank, heads.hidden_size))
    return tuple(modules)


READERS: Final = named(
    (read, "Zamba2ForCausalLM", "zamba2"),
)
