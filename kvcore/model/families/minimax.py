"""MiniMax: M2; Text-01 and M1 with linear attention in most layers; M3 with attention that picks whole blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import BlockIndexer, CacheState
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import BLOCK_SPARSE, ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.mixers import linear_state
from kvcore.model.parts.pattern import by_kind, marked

EXPERTS: Final = ExpertTraits(
    experts_key="num_local_experts",
    intermediate_key="intermediate_size",
    prefix=BLOCK_SPARSE,
    router_dtype="float32",
    correction="e_score_correction_bias",
)


def read_m2(config: ModelConfig) -> arch.Architecture:
    """MiniMax-M2: norms over all heads of queries and keys, float32 router with a routing bias.

    Source: vllm/model_executor/models/minimax_m2.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(EXPERTS, section)
    bias = section.boolean("attention_bias", False)
    modules: list[arch.Module] = [
        *blocks.attention(heads, qkv_bias=bias),
        arch.Parameter(name="self_attn.q_norm", sharded=heads.num_heads, replicated=heads.head_dim),
        key_norm(heads),
        *expert_modules(EXPERTS, section, hidden, moe),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    ]
    if section.boolean("use_routing_bias", False):
        name = "block_sparse_moe.e_score_correction_bias"
        modules.append(arch.Parameter(name=name, replicated=moe.num_experts, dtype="float32"))
    layer = arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),))
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=moe.moe_intermediate_size,
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=(rotary_table(section, heads),),
        moe=moe,
    )


def key_norm(heads: blocks.Heads) -> arch.Linear:
    """A norm over the keys of all heads: divided, or like the heads one head a rank."""
    return arch.Linear(
        name="self_attn.k_norm",
        in_features=1,
        outputs=(arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),),
        split=arch.Split.COLUMN,
        quantizable=False,
    )


def rotary_table(section: Section, heads: blocks.Heads) -> arch.RotaryTable:
    """The table of the rotated part of each head."""
    return arch.RotaryTable(
        max_positions=section.integer("max_position_embeddings"),
        rotary_dim=section.integer("rotary_dim", heads.head_dim),
    )


def read_text_01(config: ModelConfig) -> arch.Architecture:
    """MiniMax-Text-01 and M1: linear attention, full attention where `attn_type_list` is 1.

    Source: vllm/model_executor/models/minimax_text_01.py (0.19).
    """
    section = config.language
    heads = blocks.read_heads(section)
    moe = read_moe(EXPERTS, section)
    count = section.layers()
    kinds = text_01_kinds(section, count)
    shared = shared_widths(section, count)
    layers = by_kind(
        zip(kinds, shared, strict=True),
        lambda kind: text_01_layer(section, heads, moe, is_full=kind[0], shared=kind[1]),
    )
    return blocks.decoder(
        config,
        heads=heads,
        layers=layers,
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


def text_01_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, *, is_full: bool, shared: int
) -> arch.Layer:
    """One layer of Text-01."""
    hidden, inner = heads.hidden_size, heads.num_heads * heads.head_dim
    body: list[arch.Module] = [*blocks.norms(hidden, *blocks.TWO_NORMS)]
    if moe.num_experts == 1:
        body += blocks.gated_mlp(hidden, moe.moe_intermediate_size)
    else:
        body += expert_modules(EXPERTS, section, hidden, moe)
    if shared:
        body += blocks.gated_mlp(hidden, shared, "shared_mlp")
        body.append(blocks.replicated("coefficient", hidden, 1, quantizable=False, dtype="float32"))
    if is_full:
        return arch.Layer(modules=(*blocks.attention(heads), *body), caches=(blocks.cache_of(heads),))
    mixer = (
        blocks.column("self_attn.qkv_proj", hidden, 3 * inner),
        blocks.column("self_attn.output_gate", hidden, inner),
        blocks.row("self_attn.out_proj", inner, hidden),
        arch.Parameter(name="self_attn.norm", sharded=inner),
    )
    state = linear_state(heads.num_heads, heads.head_dim)
    return arch.Layer(modules=(*mixer, *body), caches=(state,))


def read_m3(config: ModelConfig) -> arch.Architecture:
    """MiniMax-M3; of one that sees, the encoder is named as not counted.

    Source: vllm/models/minimax_m3/nvidia/model.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    traits = replace(
        M3_EXPERTS, correction_bias=section.boolean("use_routing_bias", section.model_type in BIASED)
    )
    moe = read_moe(traits, section)
    indexer = section.optional_section("sparse_attention_config")
    count = section.layers()
    indexed = marked(indexer, "sparse_attention_freq", count) if indexer else (False,) * count
    sparse = marked(section, "moe_layer_freq", count, default=True)
    bodies = {
        True: expert_modules(traits, section, heads.hidden_size, moe),
        False: blocks.gated_mlp(heads.hidden_size, section.integer("dense_intermediate_size")),
    }
    sees = config.root.optional_section("vision_config") is not None
    return blocks.decoder(
        config,
        heads=heads,
        layers=by_kind(
            zip(indexed, sparse, strict=True),
            lambda kind: m3_layer(heads, indexer if kind[0] else None, bodies[kind[1]]),
        ),
        intermediate_size=section.integer("dense_intermediate_size"),
        tied=False,
        layer_prefix="language_model.model.layers" if sees else "model.layers",
        moe=moe,
        is_multimodal=sees,
        uncounted=("vision tower",) if sees else (),
    )


def m3_layer(heads: blocks.Heads, indexer: Section | None, body: tuple[arch.Module, ...]) -> arch.Layer:
    """One layer, with its indexer where it has one."""
    hidden = heads.hidden_size
    caches: tuple[CacheState, ...] = (blocks.cache_of(heads),)
    projection = blocks.qkv(heads)
    names = ["self_attn.q_norm", "self_attn.k_norm"]
    if indexer is not None:
        width = indexer.integer("sparse_index_dim")
        caches = (*caches, BlockIndexer(index_head_dim=width))
        projection = with_indexer(projection, heads, width)
        names += ["self_attn.index_q_norm", "self_attn.index_k_norm"]
    return arch.Layer(
        modules=(
            projection,
            blocks.row("self_attn.o_proj", heads.num_heads * heads.head_dim, hidden),
            *blocks.norms(heads.head_dim, *names),
            *blocks.norms(hidden, *blocks.TWO_NORMS),
            *body,
        ),
        caches=caches,
    )


def with_indexer(projection: arch.Linear, heads: blocks.Heads, width: int) -> arch.Linear:
    """The fused projection with the indexer's queries, as many heads as keys have, and its one head of keys.

    Source: vllm/model_executor/layers/linear.py:MinimaxM3QKVParallelLinearWithIndexer (0.32).
    """
    return arch.Linear(
        name=projection.name,
        in_features=projection.in_features,
        outputs=(
            *projection.outputs,
            arch.Output(units=heads.num_kv_heads, width=width, replicable=True),
            arch.Output(units=1, width=width, replicable=True),
        ),
        split=arch.Split.COLUMN,
        parts=(*projection.parts, "self_attn.index_q_proj", "self_attn.index_k_proj"),
    )


M3_EXPERTS: Final = replace(
    EXPERTS,
    shared_count_key="n_shared_experts",
    shared_width_key="intermediate_size",
    correction="e_score_correction_bias",
)

BIASED: Final = ("minimax_m3_text", "minimax_m3_vl_text")
"""Config classes whose routing has a bias unless set otherwise.

Source: vllm/transformers_utils/configs/minimax_m3.py:MiniMaxM3TextConfig (0.32).
"""


READERS: Final = blocks.named(
    (read_m2, "MiniMaxM2ForCausalLM", "minimax_m2"),
    (
        read_text_01,
        "MiniMaxText01ForCausalLM",
        "MiniMaxM1ForCausalLM",
        "MiniMaxForCausalLM",
        "minimax",
        "minimax_m1",
        "minimax_text_01",
    ),
    (
        read_m3,
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3ForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "minimax_m3",
        "minimax_m3_text",
        "minimax_m3_vl",
    ),
)
