"""Kimi Linear: KDA, a delta net with a gate for each channel, beside latent attention without rotation."""

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
    Split,
)
from kvcore.model.cache_state import RecurrentState, StateShape
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import column, decoder, gated_mlp, norm, norms, replicated, row
from kvcore.model.parts.latent import absorbed, as_heads, heads_column, latent_attention, read_latent
from kvcore.model.parts.states import read_conv_kernel

MAX_EXPERTS: Final = 65_536


def read(config: ModelConfig) -> Architecture:
    """Kimi Linear.

    Source: vllm/model_executor/models/kimi_linear.py, layers/kda.py (0.19).
    """
    section = config.language
    if section.has("routed_expert_hidden_size") or section.has("attn_res_block_size"):
        raise section.invalid(
            "model_type", "kimi_linear", "these are Kimi K3's layers: the whole config is read as kimi_k3"
        )
    hidden = section.integer("hidden_size")
    latent = read_latent(section)
    linear = section.section("linear_attn_config")
    kda = frozenset(linear.integers("kda_layers", minimum=1) or ())
    moe = read_moe(section)
    dense = section.integer("first_k_dense_replace", 0, minimum=0)
    every = section.integer("moe_layer_freq", 1)
    variants: dict[tuple[bool, bool], Layer] = {}
    order = []
    for index in range(section.layers()):
        key = (index + 1 in kda, moe is not None and index >= dense and index % every == 0)
        if key not in variants:
            body = (
                expert_modules(section, hidden, moe)
                if key[1] and moe is not None
                else gated_mlp(hidden, section.integer("intermediate_size"))
            )
            shared = (*body, *norms(hidden, "input_layernorm", "post_attention_layernorm"))
            if key[0]:
                mixer = kda_modules(linear, hidden)
                variants[key] = Layer(modules=(*mixer, *shared), caches=(kda_state(linear),))
            else:
                variants[key] = Layer(
                    modules=(*latent_attention(latent), *shared),
                    caches=(latent.cache,),
                    loading=(absorbed(latent),),
                )
        order.append(variants[key])
    built = decoder(
        config,
        section,
        heads=as_heads(latent),
        layers=tuple(order),
        intermediate_size=section.integer("intermediate_size"),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=(),
        moe=moe,
    )
    return replace(built, is_mla=True)


def read_moe(section: Section) -> MixtureOfExperts | None:
    """The experts, where the model has them."""
    count = section.optional_integer("num_experts", minimum=1, maximum=MAX_EXPERTS)
    if count is None:
        return None
    width = section.integer("moe_intermediate_size")
    shared = section.integer("num_shared_experts", 0, minimum=0, maximum=MAX_EXPERTS)
    top_k = section.optional_integer("num_experts_per_token", minimum=1)
    return MixtureOfExperts(
        num_experts=count,
        top_k=top_k or section.integer("num_experts_per_tok"),
        moe_intermediate_size=width,
        shared_intermediate_size=width * shared,
    )


def expert_modules(section: Section, hidden: int, moe: MixtureOfExperts) -> tuple[Module, ...]:
    """Router with its bias, routed and shared experts."""
    prefix = "block_sparse_moe"
    return (
        replicated(f"{prefix}.gate", hidden, moe.num_experts, quantizable=False),
        Parameter(name=f"{prefix}.gate.e_score_correction_bias", replicated=moe.num_experts),
        Experts(
            name=f"{prefix}.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
        *(
            gated_mlp(hidden, moe.shared_intermediate_size, f"{prefix}.shared_experts")
            if moe.shared_intermediate_size
            else ()
        ),
    )


def kda_modules(linear: Section, hidden: int) -> tuple[Module, ...]:
    """Projections, three float32 convolutions, decay and output gates of low rank."""
    heads, width = linear.integer("num_heads"), linear.integer("head_dim")
    kernel, size = read_conv_kernel(linear, "short_conv_kernel_size"), heads * width
    return (
        *(heads_column(f"self_attn.{part}_proj", hidden, heads, width) for part in "qkv"),
        *(
            Linear(
                name=f"self_attn.{part}_conv1d",
                in_features=kernel,
                outputs=(Output(units=heads, width=width),),
                split=Split.COLUMN,
                quantizable=False,
                dtype="float32",
            )
            for part in "qkv"
        ),
        replicated("self_attn.f_a_proj", hidden, width),
        heads_column("self_attn.f_b_proj", width, heads, width),
        column("self_attn.b_proj", hidden, heads),
        replicated("self_attn.g_a_proj", hidden, width),
        heads_column("self_attn.g_b_proj", width, heads, width),
        Parameter(name="self_attn.dt_bias", sharded=size, dtype="float32"),
        Parameter(name="self_attn.A_log", sharded=heads, dtype="float32"),
        norm("self_attn.o_norm", width),
        row("self_attn.o_proj", size, hidden),
    )


def kda_state(linear: Section) -> RecurrentState:
    """Convolution rows of queries, keys and values, and float32 state matrices.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py:kda_state_shape, kda_state_dtype (0.32).
    """
    heads, width = linear.integer("num_heads"), linear.integer("head_dim")
    channels = 3 * heads * width
    return RecurrentState(
        kind="kda",
        heads=heads,
        shapes=(
            StateShape(
                sharded=channels * (read_conv_kernel(linear, "short_conv_kernel_size") - 1),
                replicated=1,
                sharded_per_speculative_token=channels,
            ),
            StateShape(sharded=heads, replicated=width**2, dtype="float32", is_ssm=True),
        ),
    )


READERS: Final[Mapping[str, object]] = {"KimiLinearForCausalLM": read, "kimi_linear": read}
