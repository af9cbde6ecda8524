"""MiniMax: M2 with full attention, and Text-01 and M1 with linear attention in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Experts,
    Layer,
    Linear,
    MixtureOfExperts,
    Module,
    Output,
    Parameter,
    RotaryTable,
    Split,
)
from kvcore.model.cache_state import RecurrentState, StateShape
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    attention,
    cache_of,
    column,
    decoder,
    gated_mlp,
    norms,
    read_heads,
    replicated,
    row,
)

MAX_EXPERTS: Final = 65_536
TWO_NORMS: Final = ("input_layernorm", "post_attention_layernorm")


def read_m2(config: ModelConfig) -> Architecture:
    """MiniMax-M2: norms over all heads of queries and keys, float32 router with a routing bias.

    Source: vllm/model_executor/models/minimax_m2.py (0.32).
    """
    section = config.language
    heads = read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(section)
    bias = section.boolean("attention_bias", False)
    modules: list[Module] = [
        *attention(heads, qkv_bias=bias),
        Parameter(name="self_attn.q_norm", sharded=heads.num_heads, replicated=heads.head_dim),
        key_norm(heads),
        *routed(moe, hidden),
        *norms(hidden, *TWO_NORMS),
    ]
    if section.boolean("use_routing_bias", False):
        name = "block_sparse_moe.e_score_correction_bias"
        modules.append(Parameter(name=name, replicated=moe.num_experts, dtype="float32"))
    layer = Layer(modules=tuple(modules), caches=(cache_of(heads),))
    return decoder(
        config,
        section,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=moe.moe_intermediate_size,
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=(rotary_table(section, heads),),
        moe=moe,
    )


def read_moe(section: Section) -> MixtureOfExperts:
    """The routed experts."""
    return MixtureOfExperts(
        num_experts=section.integer("num_local_experts", maximum=MAX_EXPERTS),
        top_k=section.integer("num_experts_per_tok"),
        moe_intermediate_size=section.integer("intermediate_size"),
    )


def routed(moe: MixtureOfExperts, hidden: int) -> tuple[Module, ...]:
    """Float32 router and experts."""
    return (
        replicated("block_sparse_moe.gate", hidden, moe.num_experts, quantizable=False, dtype="float32"),
        Experts(
            name="block_sparse_moe.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
    )


def key_norm(heads: Heads) -> Linear:
    """A norm over the keys of all heads: divided, or like the heads one head a rank."""
    return Linear(
        name="self_attn.k_norm",
        in_features=1,
        outputs=(Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),),
        split=Split.COLUMN,
        quantizable=False,
    )


def rotary_table(section: Section, heads: Heads) -> RotaryTable:
    """The table of the rotated part of each head."""
    return RotaryTable(
        max_positions=section.integer("max_position_embeddings"),
        rotary_dim=section.integer("rotary_dim", heads.head_dim),
    )


def read_text_01(config: ModelConfig) -> Architecture:
    """MiniMax-Text-01 and M1: linear attention, full attention where `attn_type_list` is 1.

    Source: vllm/model_executor/models/minimax_text_01.py (0.19).
    """
    section = config.language
    heads = read_heads(section)
    moe = read_moe(section)
    count = section.layers()
    kinds = text_01_kinds(section, count)
    shared = shared_widths(section, count)
    variants: dict[tuple[bool, int], Layer] = {}
    for key in zip(kinds, shared, strict=True):
        if key not in variants:
            variants[key] = text_01_layer(heads, moe, is_full=key[0], shared=key[1])
    return decoder(
        config,
        section,
        heads=heads,
        layers=tuple(variants[key] for key in zip(kinds, shared, strict=True)),
        intermediate_size=moe.moe_intermediate_size,
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=(rotary_table(section, heads),),
        moe=replace(moe, shared_intermediate_size=max(shared)),
    )


def text_01_kinds(section: Section, count: int) -> tuple[bool, ...]:
    """Which layers have full attention."""
    written = section.integers("attn_type_list") or section.integers("decoder_attention_types")
    if written is None:
        kinds = section.words("layer_types", ("full_attention", "linear_attention")) or ()
        written = tuple(int(kind == "full_attention") for kind in kinds)
    if len(written) < count:
        raise section.contradicting("attn_type_list", f"{len(written)} attention types for {count} layers")
    return tuple(kind == 1 for kind in written[:count])


def shared_widths(section: Section, count: int) -> tuple[int, ...]:
    """The width of each layer's shared MLP, 0 for none."""
    if isinstance(section.get("shared_intermediate_size"), list | tuple):
        widths = section.integers("shared_intermediate_size") or ()
        return tuple(widths[index] if index < len(widths) else 0 for index in range(count))
    return (section.integer("shared_intermediate_size", 0, minimum=0),) * count


def text_01_layer(heads: Heads, moe: MixtureOfExperts, *, is_full: bool, shared: int) -> Layer:
    """One layer of Text-01."""
    hidden, inner = heads.hidden_size, heads.num_heads * heads.head_dim
    body: list[Module] = [*norms(hidden, *TWO_NORMS)]
    if moe.num_experts == 1:
        body += gated_mlp(hidden, moe.moe_intermediate_size)
    else:
        body += routed(moe, hidden)
    if shared:
        body += gated_mlp(hidden, shared, "shared_mlp")
        body.append(replicated("coefficient", hidden, 1, quantizable=False, dtype="float32"))
    if is_full:
        return Layer(modules=(*attention(heads), *body), caches=(cache_of(heads),))
    mixer = (
        column("self_attn.qkv_proj", hidden, 3 * inner),
        column("self_attn.output_gate", hidden, inner),
        row("self_attn.out_proj", inner, hidden),
        Parameter(name="self_attn.norm", sharded=inner),
    )
    state = RecurrentState(
        kind="linear_attention",
        heads=heads.num_heads,
        shapes=(StateShape(sharded=heads.num_heads, replicated=heads.head_dim**2),),
    )
    return Layer(modules=(*mixer, *body), caches=(state,))


READERS: Final[Mapping[str, object]] = {
    "MiniMaxM2ForCausalLM": read_m2,
    "minimax_m2": read_m2,
    "MiniMaxText01ForCausalLM": read_text_01,
    "MiniMaxM1ForCausalLM": read_text_01,
    "MiniMaxForCausalLM": read_text_01,
    "minimax": read_text_01,
    "minimax_m1": read_text_01,
    "minimax_text_01": read_text_01,
}
