"""Mixtures of experts that rows of decoders.toml do not describe alone: K-EXAONE, K2 Horizon, openPangu and
Hunyuan V1, with its lists of sizes a layer.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import ModelError
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    by_row,
    experts_of,
    read_decoder,
)
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import MAX_EXPERTS, expert_modules
from kvcore.model.parts.pattern import by_kind, sparse_by_step
from kvcore.model.rope import read_ropes

Pieces = tuple[arch.Module, ...]


def read_exaone_moe(config: ModelConfig, section: Section | None = None) -> arch.Architecture:
    """K-EXAONE, with its prediction layers: each like the layer of its number, with an MLP instead of experts.

    Source: vllm/model_executor/models/exaone_moe.py, exaone_moe_mtp.py (0.32).
    """
    section = section or config.language
    built = read_decoder(DECODERS["exaone_moe"], config, section)
    count = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=built.num_layers)
    if not count:
        return built
    hidden = built.hidden_size
    mlp = blocks.gated_mlp(hidden, built.intermediate_size, bias=section.boolean("mlp_bias", False))
    return dataclasses.replace(
        built,
        draft_layers=tuple(
            replace(layer, modules=(*(each for each in layer.modules if not is_of_mlp(each)), *mlp))
            for layer in built.layers[:count]
        ),
        draft_prefix="mtp.layers",
        draft_modules=(
            blocks.column("mtp.fc", 2 * hidden, hidden),
            *blocks.norms(hidden, "mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding"),
        ),
        draft_steps=count,
    )


def is_of_mlp(module: arch.Module) -> bool:
    """Whether a module belongs to the MLP or the experts."""
    return module.name.startswith("mlp.")


def read_k2_horizon(config: ModelConfig) -> arch.Architecture:
    """K2 Horizon: experts for the values of attention with those of the MLP, a gate on the output of attention.

    Source: vllm/model_executor/models/k2_horizon.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    mixers = by_kind(
        sparse_by_step(section),
        lambda is_sparse: arch.Layer(
            modules=k2_attention(section, heads, is_sparse=is_sparse), caches=(blocks.cache_of(heads),)
        ),
    )
    rotated = section.optional_integer("rope_head_dim", minimum=1) or heads.head_dim
    table = read_ropes(section)[0].table(rotated, section.integer("max_position_embeddings", 8192))
    return read_decoder(
        DECODERS["k2_horizon"],
        config,
        heads=heads,
        mixers=mixers,
        width=section.integer("intermediate_size"),
        rotary_tables=(table,),
    )


def k2_attention(section: Section, heads: blocks.Heads, *, is_sparse: bool) -> Pieces:
    """Projections, norms and the gate; layers with experts may have experts for values too."""
    bias = section.boolean("attention_bias", False)
    count = section.integer("mova_num_experts", 0, minimum=0, maximum=MAX_EXPERTS) if is_sparse else 0
    modules: Pieces = blocks.attention(heads, qkv_bias=bias, out_bias=bias)
    if count:
        modules = value_experts(section, heads, count)
    if section.boolean("query_key_norm", False):
        modules = (*modules, *norms_of_all_heads(heads))
    if section.get("attention_gate_func") is not None:
        modules = (*modules, blocks.column("self_attn.gate_proj", heads.hidden_size, heads.attended))
    return modules


def value_experts(section: Section, heads: blocks.Heads, count: int) -> Pieces:
    """Queries and keys in one projection, and `count` projections of values behind a router.

    Source: vllm/model_executor/models/k2_horizon.py:K2HorizonMoVAAttention (0.32).
    """
    bias, hidden = section.boolean("attention_bias", False), heads.hidden_size
    whole = blocks.qkv(heads, bias=bias)
    queries, keys, _ = whole.outputs
    fused = replace(whole, name="self_attn.qk_proj", outputs=(queries, keys), parts=whole.parts[:2])
    values = replace(whole, outputs=(keys,), bias=False, parts=())
    router_bias: Pieces = ()
    if section.boolean("moe_gate_bias", False):
        router_bias = (arch.Parameter(name="self_attn.v_router.bias", replicated=count, dtype="float32"),)
    return (
        fused,
        blocks.replicated("self_attn.v_router", hidden, count),
        *router_bias,
        *(replace(values, name=f"self_attn.v_experts.{index}") for index in range(count)),
        blocks.row("self_attn.o_proj", heads.attended, hidden, bias=bias),
    )


def norms_of_all_heads(heads: blocks.Heads) -> Pieces:
    """Norms over all queries and all keys: divided, those of keys like the heads one head a rank."""
    keys = arch.Linear(
        name="self_attn.k_norm",
        in_features=1,
        outputs=(arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),),
        split=arch.Split.COLUMN,
        quantizable=False,
    )
    queries = arch.Parameter(name="self_attn.q_norm", sharded=heads.num_heads, replicated=heads.head_dim)
    return (queries, keys)


def read_pangu(config: ModelConfig) -> arch.Architecture:
    """openPangu Pro MoE, second generation: keys and values of a few fixed tokens are parameters.

    Source: vllm/model_executor/models/openpangu.py:OpenPanguSinkAttention, OpenPanguMoE (0.32).
    """
    section = config.language
    count, rotary = section.integer("num_attention_heads"), section.integer("qk_rope_dim")
    heads = blocks.Heads(
        hidden_size=section.integer("hidden_size"),
        num_heads=count,
        num_kv_heads=section.integer("num_key_value_heads", count),
        head_dim=section.integer("qk_nope_dim") + rotary,
        value_dim=section.integer("v_channels"),
    )
    mixer = arch.Layer(modules=sink_attention(section, heads), caches=(blocks.cache_of(heads),))
    positions = section.integer("max_position_embeddings", 8192)
    return read_decoder(
        DECODERS["PanguProMoEV2ForCausalLM"],
        config,
        heads=heads,
        mixers=(mixer,) * section.layers(),
        width=section.integer("intermediate_size"),
        rotary_tables=(arch.RotaryTable(max_positions=positions, rotary_dim=rotary, is_plain=True),),
    )


def sink_attention(section: Section, heads: blocks.Heads) -> Pieces:
    """Projections, the norm of keys, and the keys and values of the fixed tokens."""
    sinks = section.integer("param_sink_number", 0, minimum=0)
    out_bias = section.boolean("attention_bias", section.boolean("bias", False))
    fused, out = blocks.attention(heads, qkv_bias=section.boolean("qkv_bias", out_bias), out_bias=out_bias)
    fused = replace(fused, outputs=tuple(replace(output, replicable=False) for output in fused.outputs))
    kept = (
        arch.Parameter(
            name=f"self_attn.param_sink_{name}", sharded=heads.num_kv_heads, replicated=sinks * width
        )
        for name, width in (("key", heads.head_dim), ("value", heads.head_size_v))
    )
    return (fused, out, blocks.norm("self_attn.k_layernorm", heads.head_dim), *(kept if sinks else ()))


def read_hunyuan_v1(config: ModelConfig) -> arch.Architecture:
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
    bias, traits = section.boolean("attention_bias", False), experts_of("hunyuan_v1_moe")
    modules: list[arch.Module] = [
        *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
        *expert_modules(traits, section, hidden, replace(moe, shared_intermediate_size=0)),
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


READERS: Final = by_row(
    {
        "exaone_moe": read_exaone_moe,
        "k2_horizon": read_k2_horizon,
        "PanguProMoEV2ForCausalLM": read_pangu,
        "hunyuan_v1_moe": read_hunyuan_v1,
    }
)
