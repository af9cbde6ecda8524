"""MiniMax-M3: full attention in the first layers, attention that picks whole blocks in the others."""

from __future__ import annotations

from collections.abc import Mapping
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
from kvcore.model.cache_state import BlockIndexer, CacheState
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    cache_of,
    decoder,
    gated_mlp,
    norms,
    qkv,
    read_heads,
    replicated,
    row,
)

MAX_EXPERTS: Final = 65_536


def read(config: ModelConfig) -> Architecture:
    """MiniMax-M3; of one that sees, the tower is named as not counted.

    Source: vllm/models/minimax_m3/nvidia/model.py (0.32).
    """
    section = config.language
    heads = read_heads(section)
    count = section.layers()
    moe = read_moe(section)
    indexer = section.optional_section("sparse_attention_config")
    indexed = marked(indexer, "sparse_attention_freq", count) if indexer else (False,) * count
    sparse = marked(section, "moe_layer_freq", count, default=True)
    bodies = {
        True: expert_modules(section, heads.hidden_size, moe),
        False: gated_mlp(heads.hidden_size, section.integer("dense_intermediate_size")),
    }
    kinds = tuple(zip(indexed, sparse, strict=True))
    layers = {kind: read_layer(heads, indexer if kind[0] else None, bodies[kind[1]]) for kind in set(kinds)}
    sees = config.root.optional_section("vision_config") is not None
    return decoder(
        config,
        section,
        heads=heads,
        layers=tuple(layers[kind] for kind in kinds),
        intermediate_size=section.integer("dense_intermediate_size"),
        tied=False,
        layer_prefix="language_model.model.layers" if sees else "model.layers",
        moe=moe,
        is_multimodal=sees,
        uncounted=("vision tower",) if sees else (),
    )


def marked(section: Section, name: str, count: int, *, default: bool = False) -> tuple[bool, ...]:
    """Which layers the list `name` marks with something else than 0; all of them `default` without a list."""
    marks = section.integers(name)
    if marks is None:
        return (default,) * count
    if len(marks) < count:
        raise section.contradicting(name, f"{len(marks)} entries for {count} layers")
    return tuple(mark != 0 for mark in marks[:count])


def read_layer(heads: Heads, indexer: Section | None, body: tuple[Module, ...]) -> Layer:
    """One layer, with its indexer where it has one."""
    hidden = heads.hidden_size
    caches: tuple[CacheState, ...] = (cache_of(heads),)
    projection = qkv(heads)
    names = ["self_attn.q_norm", "self_attn.k_norm"]
    if indexer is not None:
        width = indexer.integer("sparse_index_dim")
        caches = (*caches, BlockIndexer(index_head_dim=width))
        projection = with_indexer(projection, heads, width)
        names += ["self_attn.index_q_norm", "self_attn.index_k_norm"]
    return Layer(
        modules=(
            projection,
            row("self_attn.o_proj", heads.num_heads * heads.head_dim, hidden),
            *norms(heads.head_dim, *names),
            *norms(hidden, "input_layernorm", "post_attention_layernorm"),
            *body,
        ),
        caches=caches,
    )


def with_indexer(projection: Linear, heads: Heads, width: int) -> Linear:
    """The fused projection with the indexer's queries, as many heads as keys have, and its one head of keys.

    Source: vllm/model_executor/layers/linear.py:MinimaxM3QKVParallelLinearWithIndexer (0.32).
    """
    return Linear(
        name=projection.name,
        in_features=projection.in_features,
        outputs=(
            *projection.outputs,
            Output(units=heads.num_kv_heads, width=width, replicable=True),
            Output(units=1, width=width, replicable=True),
        ),
        split=Split.COLUMN,
        parts=(*projection.parts, "self_attn.index_q_proj", "self_attn.index_k_proj"),
    )


def read_moe(section: Section) -> MixtureOfExperts:
    """The routed and the shared experts, of one width."""
    width = section.integer("intermediate_size")
    return MixtureOfExperts(
        num_experts=section.integer("num_local_experts", maximum=MAX_EXPERTS),
        top_k=section.integer("num_experts_per_tok", maximum=MAX_EXPERTS),
        moe_intermediate_size=width,
        shared_intermediate_size=width
        * section.integer("n_shared_experts", 0, minimum=0, maximum=MAX_EXPERTS),
    )


def expert_modules(section: Section, hidden: int, moe: MixtureOfExperts) -> tuple[Module, ...]:
    """Float32 router, routing bias, routed and shared experts."""
    prefix = "block_sparse_moe"
    modules: list[Module] = [
        replicated(f"{prefix}.gate", hidden, moe.num_experts, quantizable=False, dtype="float32"),
        Experts(
            name=f"{prefix}.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
    ]
    if section.boolean("use_routing_bias", section.model_type in BIASED):
        name = f"{prefix}.e_score_correction_bias"
        modules.append(Parameter(name=name, replicated=moe.num_experts, dtype="float32"))
    if moe.shared_intermediate_size:
        modules += gated_mlp(hidden, moe.shared_intermediate_size, f"{prefix}.shared_experts")
    return tuple(modules)


BIASED: Final = ("minimax_m3_text", "minimax_m3_vl_text")
"""Config classes whose routing has a bias unless told otherwise.

Source: vllm/transformers_utils/configs/minimax_m3.py:MiniMaxM3TextConfig (0.32).
"""

READERS: Final[Mapping[str, object]] = {
    "MiniMaxM3SparseForCausalLM": read,
    "MiniMaxM3ForCausalLM": read,
    "MiniMaxM3SparseForConditionalGeneration": read,
    "minimax_m3": read,
    "minimax_m3_text": read,
    "minimax_m3_vl": read,
}
