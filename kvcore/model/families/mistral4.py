"""The language part of Mistral Small 4: low-rank projections, whole keys and values in the cache, experts.

The engine runs it through its Transformers backend, which expands the latent vector before the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvcore.model.architecture import Architecture, Experts, Layer, MixtureOfExperts, Module
from kvcore.model.cache_state import FullAttention
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    column,
    decoder,
    gated_mlp,
    norm,
    norms,
    replicated,
    row,
)
from kvcore.model.rope import read_ropes

MAX_EXPERTS: Final = 65_536


def read_section(config: ModelConfig, section: Section) -> Architecture:
    """Mistral 4, text.

    Source: vllm/model_executor/models/transformers (0.32) over transformers' Mistral4 (5.19).
    """
    heads = read_heads(section)
    hidden = heads.hidden_size
    experts = Experts(
        name="mlp.experts",
        num_experts=section.integer("n_routed_experts", maximum=MAX_EXPERTS),
        hidden_size=hidden,
        intermediate_size=section.integer("moe_intermediate_size"),
        top_k=section.integer("num_experts_per_tok", maximum=MAX_EXPERTS),
    )
    shared = experts.intermediate_size * section.integer(
        "n_shared_experts", 0, minimum=0, maximum=MAX_EXPERTS
    )
    common = (
        *low_rank_attention(section, heads),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
    )
    state = FullAttention(
        num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, head_size_v=section.integer("v_head_dim")
    )
    dense = Layer(
        modules=(*common, *gated_mlp(hidden, section.integer("intermediate_size"))),
        caches=(state,),
    )
    sparse_modules: tuple[Module, ...] = (
        replicated("mlp.gate", hidden, experts.num_experts, quantizable=False),
        experts,
        *(gated_mlp(hidden, shared, "mlp.shared_experts") if shared else ()),
    )
    sparse = Layer(modules=(*common, *sparse_modules), caches=(state,))
    first = section.integer("first_k_dense_replace", 0, minimum=0)
    rotary = section.integer("qk_rope_head_dim")
    positions = section.integer("max_position_embeddings")
    return decoder(
        config,
        section,
        heads=heads,
        layers=tuple(dense if index < first else sparse for index in range(section.layers())),
        intermediate_size=section.integer("intermediate_size"),
        tied_default=False,
        rotary_tables=tuple(rope.table(rotary, positions) for rope in read_ropes(section)[:1]),
        moe=MixtureOfExperts(
            num_experts=experts.num_experts,
            top_k=experts.top_k,
            moe_intermediate_size=experts.intermediate_size,
            shared_intermediate_size=shared,
        ),
    )


def read_heads(section: Section) -> Heads:
    """The heads as the cache sees them: as many KV heads as heads, position part included."""
    size = section.integer("qk_nope_head_dim") + section.integer("qk_rope_head_dim")
    heads = section.integer("num_attention_heads")
    return Heads(
        hidden_size=section.integer("hidden_size"), num_heads=heads, num_kv_heads=heads, head_dim=size
    )


def low_rank_attention(section: Section, heads: Heads) -> tuple[Module, ...]:
    """Queries, keys and values through low-rank projections; the narrow sides are replicated."""
    hidden, rank = heads.hidden_size, section.integer("kv_lora_rank")
    nope, rope = section.integer("qk_nope_head_dim"), section.integer("qk_rope_head_dim")
    value = section.integer("v_head_dim")
    bias = section.boolean("attention_bias", False)
    query_rank = section.optional_integer("q_lora_rank")
    queries: tuple[Module, ...] = (column("self_attn.q_proj", hidden, heads.num_heads * heads.head_dim),)
    if query_rank:
        queries = (
            replicated("self_attn.q_a_proj", hidden, query_rank, bias=bias),
            norm("self_attn.q_a_layernorm", query_rank),
            column("self_attn.q_b_proj", query_rank, heads.num_heads * heads.head_dim),
        )
    return (
        *queries,
        replicated("self_attn.kv_a_proj_with_mqa", hidden, rank + rope, bias=bias),
        norm("self_attn.kv_a_layernorm", rank),
        column("self_attn.kv_b_proj", rank, heads.num_heads * (nope + value)),
        row("self_attn.o_proj", heads.num_heads * value, hidden, bias=bias),
    )


def read(config: ModelConfig) -> Architecture:
    """Mistral 4 without a tower."""
    return read_section(config, config.language)


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Mistral4ForCausalLM": read,
    "mistral4": read,
}
