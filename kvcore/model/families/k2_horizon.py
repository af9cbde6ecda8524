"""K2 Horizon: experts for the values of attention with those of the MLP, a gate on what attention gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import EXPERT_KEYS
from kvcore.model.families.minimax import key_norm
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import MAX_EXPERTS, ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import by_kind, sparse_by_step
from kvcore.model.rope import read_ropes

EXPERTS: Final = ExpertTraits(experts_key=EXPERT_KEYS, shared_count_key="num_shared_experts")


def read(config: ModelConfig) -> arch.Architecture:
    """K2 Horizon.

    Source: vllm/model_executor/models/k2_horizon.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(EXPERTS, section)
    intermediate = section.integer("intermediate_size")
    bodies = {
        True: (
            *expert_modules(EXPERTS, section, hidden, moe),
            *router_bias(section, "mlp.gate", moe.num_experts),
        ),
        False: blocks.gated_mlp(hidden, intermediate),
    }
    around = blocks.norms(hidden, *blocks.TWO_NORMS)
    return blocks.decoder(
        config,
        heads=heads,
        layers=by_kind(
            sparse_by_step(section),
            lambda is_sparse: arch.Layer(
                modules=(*read_attention(section, heads, is_sparse=is_sparse), *around, *bodies[is_sparse]),
                caches=(blocks.cache_of(heads),),
            ),
        ),
        intermediate_size=intermediate,
        tied=blocks.is_tied(config, section, False),
        rotary_tables=(rotary_table(section, heads),),
        moe=moe,
    )


def rotary_table(section: Section, heads: blocks.Heads) -> arch.RotaryTable:
    """The table of the rotated part of each head."""
    width = section.optional_integer("rope_head_dim", minimum=1) or heads.head_dim
    return read_ropes(section)[0].table(width, section.integer("max_position_embeddings", 8192))


def router_bias(section: Section, name: str, experts: int) -> tuple[arch.Parameter, ...]:
    """The float32 bias of a router, where the model's routers have one."""
    if not section.boolean("moe_gate_bias", False):
        return ()
    return (arch.Parameter(name=f"{name}.bias", replicated=experts, dtype="float32"),)


def read_attention(section: Section, heads: blocks.Heads, *, is_sparse: bool) -> tuple[arch.Module, ...]:
    """Projections, norms and the gate; layers with experts may have experts for values too."""
    bias = section.boolean("attention_bias", False)
    inner = heads.num_heads * heads.head_dim
    count = section.integer("mova_num_experts", 0, minimum=0, maximum=MAX_EXPERTS) if is_sparse else 0
    modules: list[arch.Module] = [
        *(
            value_experts(section, heads, count)
            if count
            else blocks.attention(heads, qkv_bias=bias, out_bias=bias)
        )
    ]
    if section.boolean("query_key_norm", False):
        norm_of_queries = arch.Parameter(
            name="self_attn.q_norm", sharded=heads.num_heads, replicated=heads.head_dim
        )
        modules += [norm_of_queries, key_norm(heads)]
    if section.get("attention_gate_func") is not None:
        modules.append(blocks.column("self_attn.gate_proj", heads.hidden_size, inner))
    return tuple(modules)


def value_experts(section: Section, heads: blocks.Heads, count: int) -> tuple[arch.Module, ...]:
    """Queries and keys in one projection, and `count` projections of values behind a router.

    Source: vllm/model_executor/models/k2_horizon.py:K2HorizonMoVAAttention (0.32).
    """
    bias, hidden = section.boolean("attention_bias", False), heads.hidden_size
    keys = arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True)
    fused = arch.Linear(
        name="self_attn.qk_proj",
        in_features=hidden,
        outputs=(arch.Output(units=heads.num_heads, width=heads.head_dim), keys),
        split=arch.Split.COLUMN,
        bias=bias,
        parts=("self_attn.q_proj", "self_attn.k_proj"),
    )
    values = replace(fused, name="self_attn.v_experts", outputs=(keys,), bias=False, parts=())
    return (
        fused,
        blocks.replicated("self_attn.v_router", hidden, count),
        *router_bias(section, "self_attn.v_router", count),
        *(replace(values, name=f"self_attn.v_experts.{index}") for index in range(count)),
        blocks.row("self_attn.o_proj", heads.num_heads * heads.head_dim, hidden, bias=bias),
    )


READERS: Final = blocks.named(
    (read, "K2HorizonForCausalLM", "k2_horizon"),
)
