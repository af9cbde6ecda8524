"""The language part of Mistral Small 4: low-rank projections, whole keys and values in the cache, experts.

The engine runs it through its Transformers backend, which expands the latent vector before the cache.
"""

from __future__ import annotations

from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import FullAttention
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import by_kind, sparse_from
from kvcore.model.rope import read_ropes

EXPERTS: Final = ExpertTraits(experts_key="n_routed_experts", shared_count_key="n_shared_experts")


def read_section(config: ModelConfig, section: Section) -> arch.Architecture:
    """Mistral 4, text.

    Source: vllm/model_executor/models/transformers (0.32) over transformers' Mistral4 (5.19).
    """
    heads = read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(EXPERTS, section)
    common = (
        *low_rank_attention(section, heads),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    )
    state = FullAttention(
        num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, head_size_v=section.integer("v_head_dim")
    )
    bodies = {
        True: expert_modules(EXPERTS, section, hidden, moe),
        False: blocks.gated_mlp(hidden, section.integer("intermediate_size")),
    }
    rotary = section.integer("qk_rope_head_dim")
    positions = section.integer("max_position_embeddings")
    return blocks.decoder(
        config,
        section=section,
        heads=heads,
        layers=by_kind(
            sparse_from(section),
            lambda is_sparse: arch.Layer(modules=(*common, *bodies[is_sparse]), caches=(state,)),
        ),
        intermediate_size=section.integer("intermediate_size"),
        tied=blocks.is_tied(config, section, False),
        rotary_tables=tuple(rope.table(rotary, positions) for rope in read_ropes(section)[:1]),
        moe=moe,
    )


def read_heads(section: Section) -> blocks.Heads:
    """The heads as the cache sees them: as many KV heads as heads, position part included."""
    size = section.integer("qk_nope_head_dim") + section.integer("qk_rope_head_dim")
    heads = section.integer("num_attention_heads")
    return blocks.Heads(
        hidden_size=section.integer("hidden_size"), num_heads=heads, num_kv_heads=heads, head_dim=size
    )


def low_rank_attention(section: Section, heads: blocks.Heads) -> tuple[arch.Module, ...]:
    """Queries, keys and values through low-rank projections; the narrow sides are replicated."""
    hidden, rank = heads.hidden_size, section.integer("kv_lora_rank")
    nope, rope = section.integer("qk_nope_head_dim"), section.integer("qk_rope_head_dim")
    value = section.integer("v_head_dim")
    bias = section.boolean("attention_bias", False)
    query_rank = section.optional_integer("q_lora_rank")
    queries: tuple[arch.Module, ...] = (
        blocks.column("self_attn.q_proj", hidden, heads.num_heads * heads.head_dim),
    )
    if query_rank:
        queries = (
            blocks.replicated("self_attn.q_a_proj", hidden, query_rank, bias=bias),
            blocks.norm("self_attn.q_a_layernorm", query_rank),
            blocks.column("self_attn.q_b_proj", query_rank, heads.num_heads * heads.head_dim),
        )
    return (
        *queries,
        blocks.replicated("self_attn.kv_a_proj_with_mqa", hidden, rank + rope, bias=bias),
        blocks.norm("self_attn.kv_a_layernorm", rank),
        blocks.column("self_attn.kv_b_proj", rank, heads.num_heads * (nope + value)),
        blocks.row("self_attn.o_proj", heads.num_heads * value, hidden, bias=bias),
    )


def read(config: ModelConfig) -> arch.Architecture:
    """Mistral 4 without an encoder."""
    return read_section(config, config.language)


READERS: Final = blocks.named(
    (read, "Mistral4ForCausalLM", "mistral4"),
)
