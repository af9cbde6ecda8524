"""Hunyuan 4: latent attention with a sparse indexer, a gate and sinks; several residual streams; experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Experts,
    Layer,
    MixtureOfExperts,
    Module,
    Parameter,
)
from kvcore.model.cache_state import CacheState, SparseIndexer
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.mla import read_moe, which_layers_index
from kvcore.model.parts.blocks import decoder, gated_mlp, head, is_tied, norm, norms, replicated
from kvcore.model.parts.latent import (
    Latent,
    absorbed,
    as_heads,
    heads_column,
    indexer,
    latent_attention,
    read_latent,
)
from kvcore.model.parts.pattern import MLP_KINDS
from kvcore.model.rope import read_ropes

SPARSE_KINDS: Final = ("sparse_attention", "sparse", "indexed_attention", "deepseek_sparse_attention")
"""Layer types with sparse attention. Source: vllm/models/hy_v4/nvidia/attention.py:_SPARSE_LAYER_TYPES (0.32)."""


def read(config: ModelConfig) -> Architecture:
    """Hunyuan 4.

    Source: vllm/models/hy_v4/nvidia/model.py, attention.py, hc.py, moe.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    moe = read_moe(section)
    if moe is None:
        raise section.missing("n_routed_experts")
    count, hidden = section.layers(), latent.hidden_size
    kinds = tuple(zip(which_layers_have_indexers(section, count), sparse_mlps(section, count), strict=True))
    intermediate = section.integer("intermediate_size")
    bodies = {True: expert_modules(hidden, moe), False: gated_mlp(hidden, intermediate)}
    layers = {kind: read_layer(section, latent, bodies[kind[1]], is_indexed=kind[0]) for kind in set(kinds)}
    tied = is_tied(config, section, False)
    positions = section.integer("max_position_embeddings")
    built = decoder(
        config,
        section,
        heads=as_heads(latent),
        layers=tuple(layers[kind] for kind in kinds),
        intermediate_size=intermediate,
        last=(
            norm("model.norm", hidden),
            *stream_mix(section, hidden, "model.hc_head", outputs=1, scales=1),
            *(() if tied else (head(section),)),
        ),
        tied=tied,
        rotary_tables=(read_ropes(section)[0].table(latent.qk_rope_head_dim, positions),),
        moe=moe,
    )
    return replace(built, is_mla=True)


def which_layers_have_indexers(section: Section, count: int) -> tuple[bool, ...]:
    """Which layers choose their own tokens: of those with sparse attention, the ones that share no other's choice.

    Source: vllm/transformers_utils/configs/hy_v4.py:HYV4Config (0.32).
    """
    kinds = section.words("layer_types", ("full_attention", *SPARSE_KINDS), count)
    if kinds is None:
        return (False,) * count
    own = tuple(index == 0 or (index - 1) % 4 == 0 for index in range(count))
    if section.has("indexer_types"):
        own = which_layers_index(section, count)
    return tuple(each and kind in SPARSE_KINDS for each, kind in zip(own, kinds, strict=False))


def sparse_mlps(section: Section, count: int) -> tuple[bool, ...]:
    """Whether each layer has experts; without a list all but the first have."""
    kinds = section.words("mlp_layer_types", MLP_KINDS, count)
    if kinds is None:
        return tuple(index > 0 for index in range(count))
    return tuple(kind == "sparse" for kind in kinds)


def read_layer(section: Section, latent: Latent, body: tuple[Module, ...], *, is_indexed: bool) -> Layer:
    """One layer."""
    hidden = latent.hidden_size
    modules: list[Module] = [
        *latent_attention(latent),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
        *body,
    ]
    caches: list[CacheState] = [latent.cache]
    if is_indexed:
        modules += indexer(section, latent)
        caches.insert(0, SparseIndexer(index_head_dim=section.integer("index_head_dim")))
    if section.boolean("gated_mla", True):
        is_per_head = section.string("gating_type", "elementwise") == "headwise"
        width = 1 if is_per_head else latent.v_head_dim
        modules.append(heads_column("self_attn.linear_gate", hidden, latent.num_heads, width))
    if section.boolean("learnable_sink", True):
        sink = Parameter(name="self_attn.learnable_sink_param", sharded=latent.num_heads, dtype="float32")
        modules.append(sink)
    for name in ("hc_attn_layer", "hc_mlp_layer"):
        modules += stream_mix(section, hidden, f"{name}.hc_pre", outputs=2, scales=2)
    return Layer(modules=tuple(modules), caches=tuple(caches), loading=(absorbed(latent),))


def stream_mix(
    section: Section, hidden: int, prefix: str, *, outputs: int, scales: int
) -> tuple[Parameter, ...]:
    """What mixes the residual streams: `outputs` numbers a stream from all of them, in float32; () without streams."""
    if not section.boolean("enable_ihc", True):
        return ()
    streams = section.integer("hc_mult", maximum=1024)
    numbers = streams * hidden * outputs * streams + outputs * streams + scales
    return (Parameter(name=prefix, replicated=numbers, dtype="float32"),)


def expert_modules(hidden: int, moe: MixtureOfExperts) -> tuple[Module, ...]:
    """Float32 router, routing bias, routed and shared experts."""
    shared = moe.shared_intermediate_size
    return (
        replicated("mlp.gate", hidden, moe.num_experts, quantizable=False, dtype="float32"),
        Parameter(name="mlp.expert_bias", replicated=moe.num_experts, dtype="float32"),
        Experts(
            name="mlp.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
        *(gated_mlp(hidden, shared, "mlp.shared_experts") if shared else ()),
    )


READERS: Final[Mapping[str, object]] = {"HYV4ForCausalLM": read, "hy_v4": read}
