"""Delta nets and linear attention between layers of full attention: Qwen3-Next and 3.5, Olmo Hybrid, Ling and Ring."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    DraftTraits,
    by_row,
    experts_of,
    feed_forward,
    read_decoder,
    with_drafts,
)
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts.encoder import under, with_encoders
from kvcore.model.parts.experts import expert_modules, optional_moe, read_moe
from kvcore.model.parts.latent import Latent, as_heads, heads_column, latent_layer, read_latent
from kvcore.model.parts.mixers import (
    DeltaNet,
    convolution,
    kda_layer,
    linear_state,
    read_conv_kernel,
    wide_column,
)
from kvcore.model.parts.pattern import sparse_from, with_modules
from kvcore.model.rope import read_ropes

LINEAR: Final = "linear_attention"
FULL: Final = "full_attention"
INTEGER_METHODS: Final = ("awq", "gptq", "auto-round", "intel/auto-round", "inc")
"""Checkpoints that run on Marlin. Source: qwen_gdn_linear_attn.py:maybe_disable_tp (0.32)."""


def read(config: ModelConfig) -> arch.Architecture:
    """Qwen3-Next and Qwen3.5: mostly gated delta nets, every fourth layer full attention with an output gate.

    Source: vllm/model_executor/models/qwen3_next.py, qwen3_5.py (0.32).
    """
    built, encoder = read_text(config), config.root.optional_section("vision_config")
    if encoder is None:
        return built
    return with_encoders(built, under("visual", image_encoders.qwen3_vl(encoder)))


def read_text(config: ModelConfig) -> arch.Architecture:
    """The decoder."""
    section, traits = config.language, DECODERS["qwen3_next"]
    heads, net = blocks.read_heads(section), read_delta_net(config, section)
    hidden, moe = heads.hidden_size, optional_moe(experts_of("qwen3_next"), section, minimum=0)
    if moe is None:
        traits = replace(traits, experts=None)
    mixers = {
        LINEAR: arch.Layer(modules=net.modules("linear_attn"), caches=(net.cache,)),
        FULL: arch.Layer(modules=gated_attention(section, heads), caches=(blocks.cache_of(heads),)),
    }
    width = section.optional_integer("intermediate_size", minimum=1) if moe else None
    width = width or (moe.moe_intermediate_size if moe else section.integer("intermediate_size"))
    built = read_decoder(
        traits,
        config,
        heads=heads,
        mixers=tuple(mixers[kind] for kind in layer_kinds(section)),
        width=width,
    )
    if config.root.optional_section("vision_config") is not None:
        built = dataclasses.replace(built, layer_prefix="model.language_model.layers")
    published = 1 if section.model_type == "qwen3_next" else 0
    drafts = section.integer(
        "mtp_num_hidden_layers",
        section.integer("num_nextn_predict_layers", published, minimum=0),
        minimum=0,
        maximum=16,
    )
    body = feed_forward(traits, section, hidden, width, moe)
    draft = with_modules(mixers[FULL], *body, *blocks.norms(hidden, *blocks.TWO_NORMS))
    return dataclasses.replace(
        built,
        draft_layers=(draft,) * drafts,
        draft_prefix="mtp.layers",
        draft_modules=draft_modules(config, hidden) if drafts else (),
        draft_steps=drafts,
    )


def read_delta_net(config: ModelConfig, section: Section) -> DeltaNet:
    """The delta net's sizes."""
    method = quantization_method(config)
    is_interleaved = section.model_type == "qwen3_next"
    return DeltaNet(
        hidden_size=section.integer("hidden_size"),
        num_k_heads=section.integer("linear_num_key_heads"),
        num_v_heads=section.integer("linear_num_value_heads"),
        head_k_dim=section.integer("linear_key_head_dim"),
        head_v_dim=section.integer("linear_value_head_dim"),
        conv_kernel=read_conv_kernel(section, "linear_conv_kernel_dim"),
        state_dtype=section.string("mamba_ssm_dtype", ""),
        is_interleaved=is_interleaved,
        replicates_ba=not is_interleaved and method in INTEGER_METHODS,
    )


def layer_kinds(section: Section) -> tuple[str, ...]:
    """linear_attention or full_attention, layer by layer."""
    count = section.layers()
    kinds = section.words("layer_types", (LINEAR, FULL), count)
    if kinds is None:
        every = section.integer("full_attention_interval", 4)
        return tuple(FULL if (index + 1) % every == 0 else LINEAR for index in range(count))
    return kinds


def gated_attention(section: Section, heads: blocks.Heads) -> tuple[arch.Module, ...]:
    """Full attention; with an output gate, queries are twice as wide."""
    gate = section.boolean("attn_output_gate", True)
    bias = section.boolean("qkv_bias", False)
    return (
        *blocks.attention(heads, qkv_bias=bias, query_parts=2 if gate else 1),
        *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
    )


def draft_modules(config: ModelConfig, hidden: int) -> tuple[arch.Module, ...]:
    """Modules that the prediction layers share: a projection of two hidden states, and norms.

    NVIDIA's 4-bit checkpoints leave the projection alone without saying so.

    Source: vllm/model_executor/models/qwen3_next_mtp.py, qwen3_5_mtp.py (0.32).
    """
    names_it = not quantization_method(config).startswith("modelopt")
    return (
        replace(blocks.column("mtp.fc", 2 * hidden, hidden), quantizable=names_it),
        *blocks.norms(hidden, "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding", "mtp.norm"),
    )


def quantization_method(config: ModelConfig) -> str:
    """The quantization method that the checkpoint names, "" where it names none."""
    section = config.root.optional_section("quantization_config")
    section = section or config.language.optional_section("quantization_config")
    if section is None:
        return "modelopt" if config.hf_quant_config else ""
    return section.string("quant_method", "")


def read_olmo_hybrid(config: ModelConfig) -> arch.Architecture:
    """Olmo Hybrid: delta nets with norms before, full attention with norms behind; rotary positions are optional.

    Source: vllm/model_executor/models/olmo_hybrid.py, layers/mamba/gdn/olmo_gdn_linear_attn.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, net = heads.hidden_size, replace(read_delta_net(config, section), exports_states=False)
    body = blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    attends: tuple[arch.Module, ...] = (
        *blocks.attention(heads),
        blocks.norm("self_attn.q_norm", hidden),
        blocks.norm("self_attn.k_norm", heads.num_kv_heads * heads.head_dim),
    )
    behind = blocks.norms(hidden, "post_attention_layernorm", "post_feedforward_layernorm")
    before = blocks.norms(hidden, *blocks.TWO_NORMS)
    layers = {
        LINEAR: arch.Layer(modules=(*olmo_delta_net(net), *body, *before), caches=(net.cache,)),
        FULL: arch.Layer(modules=(*attends, *body, *behind), caches=(blocks.cache_of(heads),)),
    }
    rope = section.optional_section("rope_parameters")
    return blocks.decoder(
        config,
        heads=heads,
        layers=tuple(layers[kind] for kind in layer_kinds(section)),
        intermediate_size=section.integer("intermediate_size"),
        tied=blocks.is_tied(config, section, default=False),
        rotary_tables=None if rope is not None and rope.get("rope_theta") is not None else (),
    )


def olmo_delta_net(net: DeltaNet) -> tuple[arch.Module, ...]:
    """Projections, convolution, norm and gate vectors of one delta net, all in the model's dtype."""
    prefix, steps = "linear_attn", arch.Output(units=net.num_v_heads)
    return (
        convolution(f"{prefix}.conv1d", net.conv_kernel, (net.keys, net.keys, net.values), bias=False),
        wide_column(
            f"{prefix}.in_proj_qkvg",
            net.hidden_size,
            (net.keys, net.keys, net.values, net.values),
            tuple(f"{prefix}.{part}_proj" for part in "qkvg"),
        ),
        *(wide_column(f"{prefix}.{name}_proj", net.hidden_size, (steps,)) for name in "ba"),
        arch.Parameter(name=f"{prefix}.dt_bias", sharded=net.num_v_heads),
        arch.Parameter(name=f"{prefix}.A_log", sharded=net.num_v_heads),
        blocks.norm(f"{prefix}.o_norm", net.head_v_dim),
        blocks.row(f"{prefix}.o_proj", net.num_v_heads * net.head_v_dim, net.hidden_size),
    )


def read_ling(config: ModelConfig) -> arch.Architecture:
    """Ling and Ring 2.5.

    Source: vllm/model_executor/models/bailing_moe_linear.py (0.32).
    """
    section, experts = config.language, experts_of("bailing_hybrid")
    if section.string("router_dtype", "fp32") != "fp32":
        experts = replace(experts, router_dtype="bfloat16")
    latent = read_latent(section, **LATENT)
    attending, heads = latent_layer(latent), linear_heads(section, latent)
    linear = arch.Layer(
        modules=linear_attention(section, heads), caches=(linear_state(heads.num_heads, heads.head_dim),)
    )
    group = section.integer("layer_group_size", 1, minimum=0)
    is_linear = tuple(group > 0 and (index + 1) % group != 0 for index in range(section.layers()))
    has_experts = read_moe(experts, section).num_experts > 1
    rope, positions = read_ropes(section)[0], section.integer("max_position_embeddings")
    whole = replace(rope, partial_rotary_factor=1.0).table(latent.qk_rope_head_dim, positions)
    built = read_decoder(
        replace(DECODERS["bailing_hybrid"], experts=experts),
        config,
        heads=as_heads(latent),
        mixers=tuple(linear if each else attending for each in is_linear),
        sparse=tuple(has_experts and each for each in sparse_from(section)),
        width=section.integer("intermediate_size"),
        rotary_tables=(rope.table(heads.head_dim, positions), whole),
    )
    built = dataclasses.replace(built, is_mla=True)
    moe, hidden = read_moe(experts, section), latent.hidden_size
    body = (*expert_modules(experts, section, hidden, moe), *blocks.norms(hidden, *blocks.TWO_NORMS))
    return with_drafts(built, section, LING_DRAFTS, with_modules(attending, *body))


LING_DRAFTS: Final = DraftTraits(norms=("enorm", "hnorm", "final_layernorm"))
"""Source: vllm/model_executor/models/bailing_moe_mtp.py, bailing_moe_v3_mtp.py (0.33)."""
LATENT: Final = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""Defaults of Ling's class. Source: vllm/model_executor/models/bailing_moe_linear.py (0.32)."""


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
    bias, prefix = section.boolean("use_bias", False), "attention"
    names = ("query_layernorm", "key_layernorm") if section.boolean("use_qk_norm", False) else ()
    return (
        blocks.qkv(heads, f"{prefix}.query_key_value", bias=bias or section.boolean("use_qkv_bias", False)),
        blocks.column(f"{prefix}.g_proj", heads.hidden_size, heads.attended),
        blocks.row(f"{prefix}.dense", heads.attended, heads.hidden_size, bias=bias),
        arch.Parameter(name=f"{prefix}.g_norm", sharded=heads.attended),
        *blocks.norms(heads.head_dim, *(f"{prefix}.{name}" for name in names)),
    )


def read_ling3(config: ModelConfig) -> arch.Architecture:
    """Ling 3: delta nets with a gate for each channel where Ling 2.5 has linear attention.

    Source: vllm/model_executor/models/bailing_moe_v3.py (0.32).
    """
    section = config.language
    latent = read_latent(section, **LATENT)
    for key in ("moe_shared_expert_intermediate_size", "num_shared_experts"):
        section.integer(key)
    heads, count = linear_heads(section, latent), section.layers()
    kernel = read_conv_kernel(section, "short_conv_kernel_size")
    linear = delta_net(heads, kernel)
    attending = latent_layer(latent, *output_gate(section, latent))
    group = section.integer("layer_group_size")
    whole = count // group * group
    rope = replace(read_ropes(section)[0], partial_rotary_factor=1.0)
    table = rope.table(latent.qk_rope_head_dim, section.integer("max_position_embeddings"))
    built = read_decoder(
        DECODERS["BailingMoeV3ForCausalLM"],
        config,
        heads=as_heads(latent),
        mixers=tuple(
            linear if (index + 1) % group and index < whole else attending for index in range(count)
        ),
        width=section.integer("intermediate_size"),
        rotary_tables=(table,),
    )
    built, experts = dataclasses.replace(built, is_mla=True), experts_of("BailingMoeV3ForCausalLM")
    moe, hidden = read_moe(experts, section), latent.hidden_size
    body = (*expert_modules(experts, section, hidden, moe), *blocks.norms(hidden, *blocks.TWO_NORMS))
    traits = replace(LING_DRAFTS, is_quantized=True)
    return with_drafts(built, section, traits, with_modules(attending, *body))


def output_gate(section: Section, latent: Latent) -> tuple[arch.Module, ...]:
    """The gate on the output of latent attention: a number a head, or one an element; () without."""
    widths = {"head_wise": 1, "element_wise": latent.v_head_dim}
    width = widths.get(section.string("gated_attention_proj_granularity_type", ""))
    if width is None:
        return ()
    return (heads_column("self_attn.g_proj", latent.hidden_size, latent.num_heads, width),)


def delta_net(heads: blocks.Heads, kernel: int) -> arch.Layer:
    """A delta net with one projection, its decay and output gates of full rank.

    Source: vllm/model_executor/models/bailing_moe_v3.py:BailingMoeV3KimiDeltaAttention (0.32).
    """
    prefix, hidden, count, width = "self_attn", heads.hidden_size, heads.num_heads, heads.head_dim
    each = arch.Output(units=count, width=width)
    outputs = (each, each, each, arch.Output(units=count))
    names = tuple(f"{prefix}.{part}_proj" for part in "qkvb")
    start = (wide_column(f"{prefix}.qkvb_proj", hidden, outputs, names),)
    gates = tuple(heads_column(f"{prefix}.{part}_proj", hidden, count, width) for part in "fg")
    return kda_layer(prefix, hidden, (count, width), kernel, start, gates)


READERS: Final = by_row(
    {
        "qwen3_next": read,
        "olmo_hybrid": read_olmo_hybrid,
        "bailing_hybrid": read_ling,
        "BailingMoeV3ForCausalLM": read_ling3,
    }
)
