"""Sarvam's latent attention beside experts with a routing bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Experts, Layer, MixtureOfExperts, Module, Parameter
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.mla import rotary_tables
from kvcore.model.parts.blocks import decoder, gated_mlp, is_tied, norms, replicated
from kvcore.model.parts.latent import absorbed, as_heads, latent_attention, read_latent

MAX_EXPERTS: Final = 65_536


def read(config: ModelConfig) -> Architecture:
    """Sarvam with latent attention.

    Source: vllm/model_executor/models/sarvam.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    hidden = latent.hidden_size
    moe = read_moe(section)
    intermediate = section.integer("intermediate_size", 16_384)
    attention = (
        *latent_attention(latent),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
    )
    bodies = {True: expert_modules(section, hidden, moe), False: gated_mlp(hidden, intermediate)}
    layers = {
        sparse: Layer(modules=(*attention, *body), caches=(latent.cache,), loading=(absorbed(latent),))
        for sparse, body in bodies.items()
    }
    dense = section.integer("first_k_dense_replace", 1, minimum=0)
    every = section.integer("moe_layer_freq", 1)
    built = decoder(
        config,
        section,
        heads=as_heads(latent),
        layers=tuple(
            layers[index >= dense and (index - dense) % every == 0] for index in range(section.layers())
        ),
        intermediate_size=intermediate,
        tied=is_tied(config, section, False),
        rotary_tables=rotary_tables(section, latent, with_indexer=False),
        moe=moe,
    )
    return replace(built, is_mla=True)


def read_moe(section: Section) -> MixtureOfExperts:
    """The routed and the shared experts."""
    width = section.integer("moe_intermediate_size")
    shared = section.integer("moe_shared_expert_intermediate_size", width)
    return MixtureOfExperts(
        num_experts=section.integer("num_experts", maximum=MAX_EXPERTS),
        top_k=section.integer("num_experts_per_tok", maximum=MAX_EXPERTS),
        moe_intermediate_size=width,
        shared_intermediate_size=shared
        * section.integer("num_shared_experts", 1, minimum=0, maximum=MAX_EXPERTS),
    )


def expert_modules(section: Section, hidden: int, moe: MixtureOfExperts) -> tuple[Module, ...]:
    """Router, routing bias, routed and shared experts."""
    modules: list[Module] = [
        replicated("mlp.gate", hidden, moe.num_experts, quantizable=False),
        Experts(
            name="mlp.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
    ]
    if section.boolean("moe_router_enable_expert_bias", True):
        name = "mlp.gate.e_score_correction_bias"
        modules.append(Parameter(name=name, replicated=moe.num_experts, dtype="float32"))
    if moe.shared_intermediate_size:
        modules += gated_mlp(hidden, moe.shared_intermediate_size, "mlp.shared_experts")
    return tuple(modules)


READERS: Final[Mapping[str, object]] = {"SarvamMLAForCausalLM": read, "sarvam_mla": read}
