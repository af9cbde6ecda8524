"""Ling and Ring 2.5, Ling 3: linear attention or delta nets in most layers, latent attention in every n-th, experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
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
from kvcore.model.families.mixture import (
    MAX_EXPERTS,
    MIXTURES,
    Mixture,
    expert_modules,
    read_experts,
    shared_size,
)
from kvcore.model.parts.blocks import (
    Heads,
    column,
    decoder,
    embedding,
    gated_mlp,
    head,
    norm,
    norms,
    qkv,
    row,
)
from kvcore.model.parts.latent import Latent, absorbed, as_heads, heads_column, latent_attention
from kvcore.model.parts.states import convolution, read_conv_kernel
from kvcore.model.rope import read_ropes

TRAITS: Final[Mixture] = replace(MIXTURES["bailing_moe"], router_dtype_key="", router_dtype="float32")

V3_TRAITS: Final[Mixture] = replace(TRAITS, correction_bias=True)


def read(config: ModelConfig) -> Architecture:
    """Ling and Ring 2.5.

    Source: vllm/model_executor/models/bailing_moe_linear.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    hidden = latent.hidden_size
    count = section.layers()
    experts = read_experts(TRAITS, section, hidden)
    shared = shared_size(TRAITS, section)
    intermediate = section.integer("intermediate_size")
    bodies = {
        True: expert_modules(router_traits(section), section, experts, shared),
        False: gated_mlp(hidden, intermediate, bias=section.boolean("use_bias", False)),
    }
    heads = linear_heads(section, latent)
    mixers = {
        True: Layer(modules=linear_attention(section, heads), caches=(linear_state(heads),)),
        False: Layer(modules=latent_attention(latent), caches=(latent.cache,), loading=(absorbed(latent),)),
    }
    dense = section.integer("first_k_dense_replace", 0, minimum=0)
    group = section.integer("layer_group_size", 1, minimum=0)
    kinds = tuple(
        (group > 0 and (index + 1) % group != 0, experts.num_experts > 1 and index >= dense)
        for index in range(count)
    )
    around = norms(hidden, "input_layernorm", "post_attention_layernorm")
    layers = {
        kind: replace(mixers[kind[0]], modules=(*mixers[kind[0]].modules, *around, *bodies[kind[1]]))
        for kind in set(kinds)
    }
    built = decoder(
        config,
        section,
        heads=as_heads(latent),
        layers=tuple(layers[kind] for kind in kinds),
        intermediate_size=intermediate,
        first=(embedding(section, "model.word_embeddings"),),
        last=(norm("model.norm", hidden), head(section)),
        tied=False,
        rotary_tables=rotary_tables(section, latent, heads),
        moe=MixtureOfExperts(
            num_experts=experts.num_experts,
            top_k=experts.top_k,
            moe_intermediate_size=experts.intermediate_size,
            shared_intermediate_size=shared,
        ),
    )
    return replace(built, is_mla=True)


def router_traits(section: Section) -> Mixture:
    """The router is in bfloat16 only where the config names another dtype than fp32."""
    name = section.string("router_dtype", "fp32")
    return TRAITS if name == "fp32" else replace(TRAITS, router_dtype="bfloat16")


def read_latent(section: Section) -> Latent:
    """The latent geometry, with the defaults of the engine's class."""
    return Latent(
        hidden_size=section.integer("hidden_size"),
        num_heads=section.integer("num_attention_heads"),
        q_lora_rank=section.optional_integer("q_lora_rank", minimum=1),
        kv_lora_rank=section.integer("kv_lora_rank", 512),
        qk_nope_head_dim=section.integer("qk_nope_head_dim", 128),
        qk_rope_head_dim=section.integer("qk_rope_head_dim", 64),
        v_head_dim=section.integer("v_head_dim", 128),
    )


def linear_heads(section: Section, latent: Latent) -> Heads:
    """The heads of linear attention: as many of keys and values as of queries."""
    heads, hidden = latent.num_heads, latent.hidden_size
    width = section.optional_integer("head_dim", minimum=1)
    return Heads(hidden_size=hidden, num_heads=heads, num_kv_heads=heads, head_dim=width or hidden // heads)


def linear_attention(section: Section, heads: Heads) -> tuple[Module, ...]:
    """Projections, an output gate and its norm over groups of heads.

    Source: vllm/model_executor/layers/mamba/linear/bailing_linear_attn.py:BailingMoELinearAttention (0.32).
    """
    inner, bias = heads.num_heads * heads.head_dim, section.boolean("use_bias", False)
    prefix = "attention"
    names = ("query_layernorm", "key_layernorm") if section.boolean("use_qk_norm", False) else ()
    return (
        qkv(
            heads,
            f"{prefix}.query_key_value",
            ("query_key_value",),
            bias=bias or section.boolean("use_qkv_bias", False),
        ),
        column(f"{prefix}.g_proj", heads.hidden_size, inner),
        row(f"{prefix}.dense", inner, heads.hidden_size, bias=bias),
        Parameter(name=f"{prefix}.g_norm", sharded=inner),
        *norms(heads.head_dim, *(f"{prefix}.{name}" for name in names)),
    )


def linear_state(heads: Heads) -> RecurrentState:
    """One matrix a head."""
    shape = StateShape(sharded=heads.num_heads, replicated=heads.head_dim**2)
    return RecurrentState(kind="linear_attention", heads=heads.num_heads, shapes=(shape,))


def rotary_tables(section: Section, latent: Latent, heads: Heads) -> tuple[RotaryTable, ...]:
    """Of linear attention, part of each head; of latent attention, its rotated part whole."""
    rope = read_ropes(section)[0]
    positions = section.integer("max_position_embeddings")
    whole = replace(rope, partial_rotary_factor=1.0)
    return (rope.table(heads.head_dim, positions), whole.table(latent.qk_rope_head_dim, positions))


def read_v3(config: ModelConfig) -> Architecture:
    """Ling 3: delta nets with a gate for each channel where Ling 2.5 has linear attention.

    Source: vllm/model_executor/models/bailing_moe_v3.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    hidden, count = latent.hidden_size, section.layers()
    experts = read_experts(V3_TRAITS, section, hidden)
    shared = section.integer("moe_shared_expert_intermediate_size") * section.integer(
        "num_shared_experts", maximum=MAX_EXPERTS
    )
    intermediate = section.integer("intermediate_size")
    bodies = {
        True: expert_modules(V3_TRAITS, section, experts, shared),
        False: gated_mlp(hidden, intermediate, bias=section.boolean("use_bias", False)),
    }
    heads = linear_heads(section, latent)
    kernel = read_conv_kernel(section, "short_conv_kernel_size")
    mixers = {
        True: Layer(modules=delta_net(heads, kernel), caches=(delta_state(heads, kernel),)),
        False: Layer(
            modules=(*latent_attention(latent), *output_gate(section, latent)),
            caches=(latent.cache,),
            loading=(absorbed(latent),),
        ),
    }
    dense = section.integer("first_k_dense_replace", 0, minimum=0)
    group = section.integer("layer_group_size")
    whole = count // group * group
    kinds = tuple(((index + 1) % group != 0 and index < whole, index >= dense) for index in range(count))
    around = norms(hidden, "input_layernorm", "post_attention_layernorm")
    layers = {
        kind: replace(mixers[kind[0]], modules=(*mixers[kind[0]].modules, *around, *bodies[kind[1]]))
        for kind in set(kinds)
    }
    rope = replace(read_ropes(section)[0], partial_rotary_factor=1.0)
    built = decoder(
        config,
        section,
        heads=as_heads(latent),
        layers=tuple(layers[kind] for kind in kinds),
        intermediate_size=intermediate,
        first=(embedding(section, "model.word_embeddings"),),
        last=(norm("model.norm", hidden), head(section)),
        tied=False,
        rotary_tables=(rope.table(latent.qk_rope_head_dim, section.integer("max_position_embeddings")),),
        moe=MixtureOfExperts(
            num_experts=experts.num_experts,
            top_k=experts.top_k,
            moe_intermediate_size=experts.intermediate_size,
            shared_intermediate_size=shared,
        ),
    )
    return replace(built, is_mla=True)


def output_gate(section: Section, latent: Latent) -> tuple[Module, ...]:
    """The gate on what latent attention gives: a number a head, or one an element; () without."""
    widths = {"head_wise": 1, "element_wise": latent.v_head_dim}
    width = widths.get(section.string("gated_attention_proj_granularity_type", ""))
    if width is None:
        return ()
    return (heads_column("self_attn.g_proj", latent.hidden_size, latent.num_heads, width),)


def delta_net(heads: Heads, kernel: int) -> tuple[Module, ...]:
    """Projections, three float32 convolutions, decay and output gates of full rank.

    Source: vllm/model_executor/models/bailing_moe_v3.py:BailingMoeV3KimiDeltaAttention (0.32).
    """
    prefix, hidden = "self_attn", heads.hidden_size
    each = Output(units=heads.num_heads, width=heads.head_dim)
    convolutions = (
        replace(convolution(f"{prefix}.{part}_conv1d", kernel, (each,), bias=False), dtype="float32")
        for part in "qkv"
    )
    return (
        Linear(
            name=f"{prefix}.qkvb_proj",
            in_features=hidden,
            outputs=(each, each, each, Output(units=heads.num_heads)),
            split=Split.COLUMN,
            parts=tuple(f"{prefix}.{part}_proj" for part in "qkvb"),
        ),
        *convolutions,
        *(heads_column(f"{prefix}.{part}_proj", hidden, heads.num_heads, heads.head_dim) for part in "fg"),
        Parameter(name=f"{prefix}.dt_bias", sharded=heads.num_heads * heads.head_dim, dtype="float32"),
        Parameter(name=f"{prefix}.A_log", sharded=heads.num_heads, dtype="float32"),
        norm(f"{prefix}.o_norm", heads.head_dim),
        row(f"{prefix}.o_proj", heads.num_heads * heads.head_dim, hidden),
    )


def delta_state(heads: Heads, kernel: int) -> RecurrentState:
    """Convolution rows of queries, keys and values, and float32 state matrices.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py:kda_state_shape, kda_state_dtype (0.32).
    """
    channels = 3 * heads.num_heads * heads.head_dim
    rows = StateShape(sharded=channels * (kernel - 1), replicated=1, sharded_per_speculative_token=channels)
    state = StateShape(sharded=heads.num_heads, replicated=heads.head_dim**2, dtype="float32", is_ssm=True)
    return RecurrentState(kind="kda", heads=heads.num_heads, shapes=(rows, state))


READERS: Final[Mapping[str, object]] = {
    "BailingMoeV2_5ForCausalLM": read,
    "bailing_hybrid": read,
    "BailingMoeV3ForCausalLM": read_v3,
}
