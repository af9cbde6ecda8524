"""Mixtures of experts that rows of decoders.toml do not describe alone: K-EXAONE, K2 Horizon, openPangu, MiniMax, ...

Hunyuan V1, with its lists of sizes a layer, is found here as well.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import ModelError
from kvcore.model import architecture as arch
from kvcore.model.caches import BlockIndexer
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    DraftTraits,
    by_row,
    experts_of,
    read_decoder,
    with_drafts,
    with_everywhere,
)
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import MAX_EXPERTS, expert_modules, read_moe
from kvcore.model.parts.mixers import linear_state
from kvcore.model.parts.pattern import by_kind, crossed, marked, sparse_by_step, with_modules
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


def read_minimax_m2(config: ModelConfig) -> arch.Architecture:
    """MiniMax-M2: norms over all heads of queries and keys, float32 router with a routing bias.

    Source: vllm/model_executor/models/minimax_m2.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    attends = blocks.attention(heads, qkv_bias=section.boolean("attention_bias", False))
    mixer = arch.Layer(modules=(*attends, *norms_of_all_heads(heads)), caches=(blocks.cache_of(heads),))
    built = read_decoder(
        DECODERS["minimax_m2"],
        config,
        heads=heads,
        mixers=(mixer,) * section.layers(),
        rotary_tables=(minimax_table(section, heads),),
    )
    if not section.boolean("use_routing_bias", False) or built.moe is None:
        return built
    name, experts = "block_sparse_moe.e_score_correction_bias", built.moe.num_experts
    return with_everywhere(built, arch.Parameter(name=name, replicated=experts, dtype="float32"))


def minimax_table(section: Section, heads: blocks.Heads) -> arch.RotaryTable:
    """The table of the rotated part of each head."""
    return arch.RotaryTable(
        max_positions=section.integer("max_position_embeddings"),
        rotary_dim=section.integer("rotary_dim", heads.head_dim),
    )


def read_minimax_01(config: ModelConfig) -> arch.Architecture:
    """MiniMax-Text-01 and M1: linear attention, full attention where `attn_type_list` is 1.

    Source: vllm/model_executor/models/minimax_text_01.py (0.19).
    """
    section = config.language
    heads = blocks.read_heads(section)
    moe, count = read_moe(experts_of("minimax"), section), section.layers()
    full, shared = text_01_kinds(section, count), shared_widths(section, count)
    mixers = {
        True: arch.Layer(modules=blocks.attention(heads), caches=(blocks.cache_of(heads),)),
        False: linear_attention(heads),
    }
    built = read_decoder(
        DECODERS["minimax"],
        config,
        heads=heads,
        mixers=tuple(mixers[each] for each in full),
        sparse=(moe.num_experts > 1,) * count,
        rotary_tables=(minimax_table(section, heads),),
    )
    more = {width: shared_mlp(heads.hidden_size, width) for width in shared}
    kinds = zip(map(id, built.layers), shared, strict=True)
    return dataclasses.replace(
        built,
        layers=crossed(kinds, {id(layer): layer for layer in built.layers}, more),
        moe=replace(moe, shared_intermediate_size=max(shared)),
    )


def linear_attention(heads: blocks.Heads) -> arch.Layer:
    """Linear attention of one layer, with its output gate and norm."""
    hidden, inner = heads.hidden_size, heads.attended
    modules = (
        blocks.column("self_attn.qkv_proj", hidden, 3 * inner),
        blocks.column("self_attn.output_gate", hidden, inner),
        blocks.row("self_attn.out_proj", inner, hidden),
        arch.Parameter(name="self_attn.norm", sharded=inner),
    )
    return arch.Layer(modules=modules, caches=(linear_state(heads.num_heads, heads.head_dim),))


def shared_mlp(hidden: int, width: int) -> Pieces:
    """The MLP next to the experts, and its coefficient; () without one."""
    coefficient = blocks.replicated("coefficient", hidden, 1, quantizable=False, dtype="float32")
    return (*blocks.gated_mlp(hidden, width, "shared_mlp"), coefficient) if width else ()


def text_01_kinds(section: Section, count: int) -> tuple[bool, ...]:
    """Layers with full attention."""
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


BIASED: Final = ("minimax_m3_text", "minimax_m3_vl_text")
"""Config classes whose routing has a bias unless set otherwise.

Source: vllm/transformers_utils/configs/minimax_m3.py:MiniMaxM3TextConfig (0.32).
"""


M3_DRAFTS: Final = DraftTraits(
    is_quantized=True,
    norms=("enorm", "hnorm", "final_layernorm"),
    count_key="num_mtp_modules",
    usual_count=1,
    prefix="model.mtp.layers",
)
"""Source: vllm/models/minimax_m3/nvidia/mtp.py:MiniMaxM3MultiTokenPredictorLayer, vllm/config/speculative.py (0.33)."""


def read_minimax_m3(config: ModelConfig) -> arch.Architecture:
    """MiniMax-M3: attention that picks whole blocks; of one that sees, the encoder is named as not counted.

    Source: vllm/models/minimax_m3/nvidia/model.py (0.32).
    """
    section, traits = config.language, DECODERS["minimax_m3"]
    heads, count = blocks.read_heads(section), section.layers()
    biased = section.boolean("use_routing_bias", section.model_type in BIASED)
    traits = replace(traits, experts=replace(experts_of("minimax_m3"), correction_bias=biased))
    indexer = section.optional_section("sparse_attention_config")
    indexed = marked(indexer, "sparse_attention_freq", count) if indexer else (False,) * count
    built = read_decoder(
        traits,
        config,
        heads=heads,
        mixers=by_kind(indexed, lambda is_indexed: m3_layer(heads, indexer if is_indexed else None)),
        sparse=marked(section, "moe_layer_freq", count, default=True),
        width=section.integer("dense_intermediate_size"),
    )
    if indexer:
        experts = replace(experts_of("minimax_m3"), correction_bias=biased)
        body = expert_modules(experts, section, heads.hidden_size, read_moe(experts, section))
        built = with_drafts(built, section, M3_DRAFTS, with_modules(m3_layer(heads, indexer), *body))
    if config.root.optional_section("vision_config") is None:
        return built
    prefix = "language_model.model.layers"
    return dataclasses.replace(built, layer_prefix=prefix, is_multimodal=True, uncounted=("vision tower",))


def m3_layer(heads: blocks.Heads, indexer: Section | None) -> arch.Layer:
    """Attention of one layer, with its indexer where it has one: as many heads of queries as keys have, one of keys.

    Source: vllm/model_executor/layers/linear.py:MinimaxM3QKVParallelLinearWithIndexer (0.32).
    """
    fused, out = blocks.attention(heads)
    names, cache = ("self_attn.q_norm", "self_attn.k_norm"), blocks.cache_of(heads)
    more = blocks.norms(heads.hidden_size, *blocks.TWO_NORMS)
    if indexer is None:
        return arch.Layer(modules=(fused, out, *blocks.norms(heads.head_dim, *names), *more), caches=(cache,))
    width = indexer.integer("sparse_index_dim")
    queries, keys = (
        arch.Output(units=units, width=width, replicable=True) for units in (heads.num_kv_heads, 1)
    )
    parts = (*fused.parts, "self_attn.index_q_proj", "self_attn.index_k_proj")
    fused = replace(fused, outputs=(*fused.outputs, queries, keys), parts=parts)
    own = blocks.norms(heads.head_dim, *names, "self_attn.index_q_norm", "self_attn.index_k_norm")
    return arch.Layer(modules=(fused, out, *own, *more), caches=(cache, BlockIndexer(index_head_dim=width)))


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
        "minimax_m2": read_minimax_m2,
        "minimax": read_minimax_01,
        "minimax_m3": read_minimax_m3,
        "hunyuan_v1_moe": read_hunyuan_v1,
    }
)
