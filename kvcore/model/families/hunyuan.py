"""Hunyuan with experts: V1, with lists of sizes a layer; Hunyuan 4, with latent attention and residual streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.errors import ModelError
from kvcore.model import architecture as arch
from kvcore.model.architecture import CacheState, SparseIndexer
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.deepseek import which_layers_index
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import CORRECTED_FIRST, MAX_EXPERTS, ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.latent import (
    Latent,
    absorbed,
    as_heads,
    heads_column,
    indexer,
    latent_attention,
    read_latent,
)
from kvcore.model.parts.pattern import by_kind, sparse_but_the_first
from kvcore.model.rope import read_ropes

V1_EXPERTS: Final = ExpertTraits()


def read_v1(config: ModelConfig) -> arch.Architecture:
    """HunYuan V1 with experts.

    Raises ModelError `unknown-architecture` for layers that share the KV cache of another (`use_cla`).

    Source: vllm/model_executor/models/hunyuan_v1.py (0.11).
    """
    section = config.language
    if section.boolean("use_cla", False):
        raise ModelError(
            "unknown-architecture",
            field=f"{section.path}.use_cla",
            architecture="HunYuanMoEV1ForCausalLM",
            reason="layers that share a KV cache are not read",
        )
    heads = blocks.read_heads(section)
    head_dim = section.optional_integer("attention_head_dim")
    if head_dim and not section.has("head_dim"):
        heads = replace(heads, head_dim=head_dim)
    hidden, dense = heads.hidden_size, section.integer("intermediate_size")
    shared = 0
    if section.boolean("use_mixed_mlp_moe", False):
        shared = dense * of_all_layers(section, "num_shared_expert")
    moe = arch.MixtureOfExperts(
        num_experts=section.integer("num_experts", maximum=MAX_EXPERTS),
        top_k=of_all_layers(section, "moe_topk"),
        moe_intermediate_size=of_all_layers(section, "moe_intermediate_size", dense),
        shared_intermediate_size=shared,
    )
    bias = section.boolean("attention_bias", False)
    modules: list[arch.Module] = [
        *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
        *expert_modules(V1_EXPERTS, section, hidden, replace(moe, shared_intermediate_size=0)),
    ]
    if section.boolean("use_qk_norm", False):
        modules += blocks.norms(heads.head_dim, "self_attn.query_layernorm", "self_attn.key_layernorm")
    if shared:
        modules += blocks.gated_mlp(hidden, shared, "mlp.shared_mlp")
    layer = arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),))
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=dense,
        moe=moe,
    )


def of_all_layers(section: Section, name: str, default: int | None = None) -> int:
    """A number, or the one that a list gives for every layer."""
    if not isinstance(section.get(name), list):
        return section.integer(name, default)
    values = set(section.integers(name, minimum=1) or ())
    if len(values) != 1:
        raise section.contradicting(
            name, f"{name} differs between layers, which no checkpoint is known to do"
        )
    return values.pop()


SPARSE_KINDS: Final = ("sparse_attention", "sparse", "indexed_attention", "deepseek_sparse_attention")
"""Layer types with sparse attention. Source: vllm/models/hy_v4/nvidia/attention.py:_SPARSE_LAYER_TYPES (0.32)."""


V4_EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts",
    top_k_key=("num_experts_per_tok", "moe_topk"),
    shared_count_key="n_shared_experts",
    router_dtype="float32",
    correction_bias=True,
    correction="expert_bias",
    order=CORRECTED_FIRST,
)


def read_v4(config: ModelConfig) -> arch.Architecture:
    """Hunyuan 4.

    Source: vllm/models/hy_v4/nvidia/model.py, attention.py, hc.py, moe.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    moe = read_moe(V4_EXPERTS, section)
    count, hidden = section.layers(), latent.hidden_size
    kinds = tuple(zip(which_layers_have_indexers(section, count), sparse_but_the_first(section), strict=True))
    intermediate = section.integer("intermediate_size")
    bodies = {
        True: expert_modules(V4_EXPERTS, section, hidden, moe),
        False: blocks.gated_mlp(hidden, intermediate),
    }
    tied = blocks.is_tied(config, section, False)
    positions = section.integer("max_position_embeddings")
    return blocks.decoder(
        config,
        heads=as_heads(latent),
        layers=by_kind(kinds, lambda kind: read_layer(section, latent, bodies[kind[1]], is_indexed=kind[0])),
        intermediate_size=intermediate,
        last=(
            blocks.norm("model.norm", hidden),
            *stream_mix(section, hidden, "model.hc_head", outputs=1, scales=1),
            *(() if tied else (blocks.head(section),)),
        ),
        tied=tied,
        rotary_tables=(read_ropes(section)[0].table(latent.qk_rope_head_dim, positions),),
        moe=moe,
        is_mla=True,
    )


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


def read_layer(
    section: Section, latent: Latent, body: tuple[arch.Module, ...], *, is_indexed: bool
) -> arch.Layer:
    """One layer."""
    hidden = latent.hidden_size
    modules: list[arch.Module] = [
        *latent_attention(latent),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
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
        sink = arch.Parameter(
            name="self_attn.learnable_sink_param", sharded=latent.num_heads, dtype="float32"
        )
        modules.append(sink)
    for name in ("hc_attn_layer", "hc_mlp_layer"):
        modules += stream_mix(section, hidden, f"{name}.hc_pre", outputs=2, scales=2)
    return arch.Layer(modules=tuple(modules), caches=tuple(caches), loading=(absorbed(latent),))


def stream_mix(
    section: Section, hidden: int, prefix: str, *, outputs: int, scales: int
) -> tuple[arch.Parameter, ...]:
    """What mixes the residual streams: `outputs` numbers a stream from all of them, in float32; () without streams."""
    if not section.boolean("enable_ihc", True):
        return ()
    streams = section.integer("hc_mult", maximum=1024)
    numbers = streams * hidden * outputs * streams + outputs * streams + scales
    return (arch.Parameter(name=prefix, replicated=numbers, dtype="float32"),)


READERS: Final = blocks.named(
    (read_v1, "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"),
    (read_v4, "HYV4ForCausalLM", "hy_v4"),
)
