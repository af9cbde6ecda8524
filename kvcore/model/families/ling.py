"""Ling (Bailing) and Ring 2.5, Ling 3: linear attention or delta nets, latent attention in some layers, experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import MAX_EXPERTS, ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.latent import Latent, as_heads, heads_column, latent_layer
from kvcore.model.parts.mixers import convolution, kda_state, linear_state, read_conv_kernel
from kvcore.model.parts.pattern import crossed
from kvcore.model.rope import read_ropes

EXPERTS: Final = replace(
    DECODERS["bailing_moe"].experts or ExpertTraits(), router_dtype_key="", router_dtype="float32"
)
V3_EXPERTS: Final = replace(EXPERTS, correction_bias=True)


def read(config: ModelConfig) -> arch.Architecture:
    """Ling and Ring 2.5.

    Source: vllm/model_executor/models/bailing_moe_linear.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    heads = linear_heads(section, latent)
    traits = router_traits(section)
    moe = read_moe(traits, section)
    linear = arch.Layer(
        modules=linear_attention(section, heads), caches=(linear_state(heads.num_heads, heads.head_dim),)
    )
    dense = section.integer("first_k_dense_replace", 0, minimum=0)
    group = section.integer("layer_group_size", 1, minimum=0)
    kinds = tuple(
        (group > 0 and (index + 1) % group != 0, moe.num_experts > 1 and index >= dense)
        for index in range(section.layers())
    )
    tables = rotary_tables(section, latent, heads)
    return build(config, latent, traits, moe, linear, latent_layer(latent), kinds, tables)


def build(
    config: ModelConfig,
    latent: Latent,
    traits: ExpertTraits,
    moe: arch.MixtureOfExperts,
    linear: arch.Layer,
    attending: arch.Layer,
    kinds: tuple[tuple[bool, bool], ...],
    rotary: tuple[arch.RotaryTable, ...],
) -> arch.Architecture:
    """Linear and latent layers, by `kinds`: whether each is linear, and whether it has experts."""
    section, hidden = config.language, latent.hidden_size
    intermediate, bias = section.integer("intermediate_size"), section.boolean("use_bias", False)
    bodies = {
        True: expert_modules(traits, section, hidden, moe, shared_bias=bias),
        False: blocks.gated_mlp(hidden, intermediate, bias=bias),
    }
    around = blocks.norms(hidden, *blocks.TWO_NORMS)
    return blocks.decoder(
        config,
        section=section,
        heads=as_heads(latent),
        layers=crossed(kinds, {True: linear, False: attending}, bodies, around),
        intermediate_size=intermediate,
        first=(blocks.embedding(section, "model.word_embeddings"),),
        last=(blocks.norm("model.norm", hidden), blocks.head(section)),
        tied=False,
        rotary_tables=rotary,
        moe=moe,
        is_mla=True,
    )


def router_traits(section: Section) -> ExpertTraits:
    """The router is in bfloat16 only where the config names another dtype than fp32."""
    name = section.string("router_dtype", "fp32")
    return EXPERTS if name == "fp32" else replace(EXPERTS, router_dtype="bfloat16")


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


def linear_heads(section: Section, latent: Latent) -> blocks.Heads:
    """The heads of linear attention: as many of keys and values as of queries."""
    heads, hidden = latent.num_heads, latent.hidden_size
    width = section.optional_integer("head_dim", minimum=1)
    return blocks.Heads(
        hidden_size=hidden, num_heads=heads, num_kv_heads=heads, head_dim=width or hidden // heads
    )


def linear_attention(section: Section, heads: blocks.Heads) -> tuple[arch.Module, ...]:
    """Projections, an output gate and its norm over groups of heads.

    Source: vllm/model_executor/layers/mamba/linear/bailing_linear_attn.py:BailingMoELinearAttention (0.32).
    """
    inner, bias = heads.num_heads * heads.head_dim, section.boolean("use_bias", False)
    prefix = "attention"
    names = ("query_layernorm", "key_layernorm") if section.boolean("use_qk_norm", False) else ()
    return (
        blocks.qkv(
            heads,
            f"{prefix}.query_key_value",
            ("query_key_value",),
            bias=bias or section.boolean("use_qkv_bias", False),
        ),
        blocks.column(f"{prefix}.g_proj", heads.hidden_size, inner),
        blocks.row(f"{prefix}.dense", inner, heads.hidden_size, bias=bias),
        arch.Parameter(name=f"{prefix}.g_norm", sharded=inner),
        *blocks.norms(heads.head_dim, *(f"{prefix}.{name}" for name in names)),
    )


def rotary_tables(section: Section, latent: Latent, heads: blocks.Heads) -> tuple[arch.RotaryTable, ...]:
    """Of linear attention, part of each head; of latent attention, its rotated part whole."""
    rope = read_ropes(section)[0]
    positions = section.integer("max_position_embeddings")
    whole = replace(rope, partial_rotary_factor=1.0)
    return (rope.table(heads.head_dim, positions), whole.table(latent.qk_rope_head_dim, positions))


def read_v3(config: ModelConfig) -> arch.Architecture:
    """Ling 3: delta nets with a gate for each channel where Ling 2.5 has linear attention.

    Source: vllm/model_executor/models/bailing_moe_v3.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    count = section.layers()
    shared = section.integer("moe_shared_expert_intermediate_size") * section.integer(
        "num_shared_experts", maximum=MAX_EXPERTS
    )
    moe = replace(read_moe(V3_EXPERTS, section), shared_intermediate_size=shared)
    heads = linear_heads(section, latent)
    kernel = read_conv_kernel(section, "short_conv_kernel_size")
    linear = arch.Layer(
        modules=delta_net(heads, kernel), caches=(kda_state(heads.num_heads, heads.head_dim, kernel),)
    )
    dense = section.integer("first_k_dense_replace", 0, minimum=0)
    group = section.integer("layer_group_size")
    whole = count // group * group
    kinds = tuple(((index + 1) % group != 0 and index < whole, index >= dense) for index in range(count))
    rope = replace(read_ropes(section)[0], partial_rotary_factor=1.0)
    table = rope.table(latent.qk_rope_head_dim, section.integer("max_position_embeddings"))
    attending = latent_layer(latent, *output_gate(section, latent))
    return build(config, latent, V3_EXPERTS, moe, linear, attending, kinds, (table,))


def output_gate(section: Section, latent: Latent) -> tuple[arch.Module, ...]:
    """The gate on what latent attention gives: a number a head, or one an element; () without."""
    widths = {"head_wise": 1, "element_wise": latent.v_head_dim}
    width = widths.get(section.string("gated_attention_proj_granularity_type", ""))
    if width is None:
        return ()
    return (heads_column("self_attn.g_proj", latent.hidden_size, latent.num_heads, width),)


def delta_net(heads: blocks.Heads, kernel: int) -> tuple[arch.Module, ...]:
    """Projections, three float32 convolutions, decay and output gates of full rank.

    Source: vllm/model_executor/models/bailing_moe_v3.py:BailingMoeV3KimiDeltaAttention (0.32).
    """
    prefix, hidden = "self_attn", heads.hidden_size
    each = arch.Output(units=heads.num_heads, width=heads.head_dim)
    convolutions = (
        replace(convolution(f"{prefix}.{part}_conv1d", kernel, (each,), bias=False), dtype="float32")
        for part in "qkv"
    )
    return (
        arch.Linear(
            name=f"{prefix}.qkvb_proj",
            in_features=hidden,
            outputs=(each, each, each, arch.Output(units=heads.num_heads)),
            split=arch.Split.COLUMN,
            parts=tuple(f"{prefix}.{part}_proj" for part in "qkvb"),
        ),
        *convolutions,
        *(heads_column(f"{prefix}.{part}_proj", hidden, heads.num_heads, heads.head_dim) for part in "fg"),
        arch.Parameter(name=f"{prefix}.dt_bias", sharded=heads.num_heads * heads.head_dim, dtype="float32"),
        arch.Parameter(name=f"{prefix}.A_log", sharded=heads.num_heads, dtype="float32"),
        blocks.norm(f"{prefix}.o_norm", heads.head_dim),
        blocks.row(f"{prefix}.o_proj", heads.num_heads * heads.head_dim, hidden),
    )


READERS: Final = blocks.named(
    (read, "BailingMoeV2_5ForCausalLM", "bailing_hybrid"),
    (read_v3, "BailingMoeV3ForCausalLM"),
)
