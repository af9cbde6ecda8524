"""openPangu with ordinary attention with experts: keys and values of a few fixed tokens are parameters."""

from __future__ import annotations

from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import FullAttention
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import by_kind, sparse_from

SANDWICH: Final = ("pre_mlp_layernorm", "post_mlp_layernorm")


EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts",
    top_k_key=("num_experts_per_tok", "moe_topk"),
    shared_count_key="n_shared_experts",
    correction_bias=("router_enable_expert_bias", False),
    shared_whole=True,
)


def read(config: ModelConfig) -> arch.Architecture:
    """openPangu Pro MoE, second generation.

    Source: vllm/model_executor/models/openpangu.py:OpenPanguSinkAttention, OpenPanguMoE (0.32).
    """
    section = config.language
    heads = read_wide_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(EXPERTS, section)
    names = (*blocks.TWO_NORMS, *SANDWICH) if section.boolean("sandwich_norm", False) else blocks.TWO_NORMS
    common = (*sink_attention(section, heads), *blocks.norms(hidden, *names))
    intermediate = section.integer("intermediate_size")
    cache = FullAttention(
        num_kv_heads=heads.num_kv_heads,
        head_size=heads.head_dim,
        head_size_v=section.integer("v_channels"),
    )
    bodies = {
        True: expert_modules(EXPERTS, section, hidden, moe),
        False: blocks.gated_mlp(hidden, intermediate),
    }
    positions = section.integer("max_position_embeddings", 8192)
    return blocks.decoder(
        config,
        heads=heads,
        layers=by_kind(
            sparse_from(section),
            lambda is_sparse: arch.Layer(modules=(*common, *bodies[is_sparse]), caches=(cache,)),
        ),
        intermediate_size=intermediate,
        tied=blocks.is_tied(config, section, False),
        rotary_tables=(
            arch.RotaryTable(
                max_positions=positions, rotary_dim=section.integer("qk_rope_dim"), is_plain=True
            ),
        ),
        moe=moe,
    )


def read_wide_heads(section: Section) -> blocks.Heads:
    """Heads whose queries and keys have a rotated part with one that is not."""
    heads = section.integer("num_attention_heads")
    return blocks.Heads(
        hidden_size=section.integer("hidden_size"),
        num_heads=heads,
        num_kv_heads=section.integer("num_key_value_heads", heads),
        head_dim=section.integer("qk_nope_dim") + section.integer("qk_rope_dim"),
    )


def sink_attention(section: Section, heads: blocks.Heads) -> tuple[arch.Module, ...]:
    """Projections, the norm of keys, and the keys and values of the fixed tokens."""
    values, sinks = section.integer("v_channels"), section.integer("param_sink_number", 0, minimum=0)
    out_bias = section.boolean("attention_bias", section.boolean("bias", False))
    kv = heads.num_kv_heads
    sink = tuple(
        arch.Parameter(name=f"self_attn.param_sink_{name}", sharded=kv, replicated=sinks * width)
        for name, width in (("key", heads.head_dim), ("value", values))
    )
    return (
        arch.Linear(
            name="self_attn.qkv_proj",
            in_features=heads.hidden_size,
            outputs=(
                arch.Output(units=heads.num_heads, width=heads.head_dim),
                arch.Output(units=kv, width=heads.head_dim),
                arch.Output(units=kv, width=values),
            ),
            split=arch.Split.COLUMN,
            bias=section.boolean("qkv_bias", out_bias),
            parts=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ),
        blocks.row("self_attn.o_proj", heads.num_heads * values, heads.hidden_size, bias=out_bias),
        blocks.norm("self_attn.k_layernorm", heads.head_dim),
        *(sink if sinks else ()),
    )


READERS: Final = blocks.named(
    (read, "PanguProMoEV2ForCausalLM"),
)
