"""MiMo V2: sliding and full layers of two geometries, values narrower than keys, experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import CacheState, FullAttention, SlidingWindow
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import CORRECTED_FIRST, ExpertTraits, expert_modules, read_moe

MIMO_EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts", correction_bias=True, order=CORRECTED_FIRST
)


def read_mimo_v2(config: ModelConfig) -> arch.Architecture:
    """MiMo V2: two attention geometries with narrower values, sinks on sliding layers, experts after the first layer.

    Source: vllm/model_executor/models/mimo_v2.py (0.32).
    """
    section = config.language
    count = section.layers()
    pattern = section.integers("hybrid_layer_pattern") or ()
    sparse = section.integers("moe_layer_freq") or ()
    if len(pattern) < count or len(sparse) < count:
        raise section.contradicting("hybrid_layer_pattern", f"patterns shorter than {count} layers")
    heads = blocks.read_heads(section)
    local = blocks.Heads(
        hidden_size=heads.hidden_size,
        num_heads=section.integer("swa_num_attention_heads", heads.num_heads),
        num_kv_heads=section.integer("swa_num_key_value_heads", heads.num_kv_heads),
        head_dim=section.integer("swa_head_dim", heads.head_dim),
    )
    moe = read_moe(MIMO_EXPERTS, section)
    widths = (
        section.integer("v_head_dim", heads.head_dim),
        section.integer("swa_v_head_dim", local.head_dim),
    )
    variants = {
        (kind, is_sparse): mimo_layer(
            section, (heads, local)[kind], widths[kind], moe, is_sliding=bool(kind), is_sparse=is_sparse
        )
        for kind in (0, 1)
        for is_sparse in (False, True)
    }
    positions = section.integer("max_position_embeddings")
    share = section.number("partial_rotary_factor", 1.0)
    built = blocks.decoder(
        config,
        heads=heads,
        layers=tuple(variants[int(pattern[i] == 1), bool(sparse[i])] for i in range(count)),
        intermediate_size=section.integer("intermediate_size"),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=tuple(
            arch.RotaryTable(max_positions=positions, rotary_dim=int(dim * share))
            for dim in (heads.head_dim, local.head_dim)
        ),
        moe=moe,
        uncounted=("vision tower",) if config.root.optional_section("vision_config") is not None else (),
    )
    return replace(
        built,
        draft_layers=(mimo_draft(section, local, widths[1], moe),),
        draft_prefix="model.mtp.layers",
        draft_steps=1,
    )


def mimo_draft(section: Section, heads: blocks.Heads, v_dim: int, moe: arch.MixtureOfExperts) -> arch.Layer:
    """The one prediction layer that the engine takes: a sliding layer with an MLP behind a projection of two states.

    Source: vllm/model_executor/models/mimo_v2_mtp.py (0.32).
    """
    hidden = heads.hidden_size
    body = mimo_layer(section, heads, v_dim, moe, is_sliding=True, is_sparse=False)
    plain = tuple(
        replace(module, quantizable=False)
        if isinstance(module, arch.Linear) and module.name == "self_attn.o_proj"
        else module
        for module in body.modules
    )
    start: tuple[arch.Module, ...] = (
        blocks.replicated("eh_proj", 2 * hidden, hidden, quantizable=False),
        *blocks.norms(hidden, "enorm", "hnorm", "final_layernorm"),
    )
    return replace(body, modules=(*start, *plain))


def mimo_layer(
    section: Section,
    heads: blocks.Heads,
    v_dim: int,
    moe: arch.MixtureOfExperts,
    *,
    is_sliding: bool,
    is_sparse: bool,
) -> arch.Layer:
    """One layer of MiMo V2."""
    hidden = heads.hidden_size
    modules: list[arch.Module] = [
        qkv_with_narrow_values(heads, v_dim, bias=section.boolean("attention_bias", False)),
        blocks.row("self_attn.o_proj", heads.num_heads * v_dim, hidden),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    ]
    if is_sliding and section.boolean("add_swa_attention_sink_bias", False):
        modules.append(arch.Parameter(name="self_attn.attention_sink_bias", sharded=heads.num_heads))
    if is_sparse:
        traits = replace(MIMO_EXPERTS, router_dtype=section.string("moe_router_dtype", "float32"))
        modules += expert_modules(traits, section, hidden, moe)
    else:
        modules += blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    cache: CacheState = FullAttention(
        num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, head_size_v=v_dim
    )
    if is_sliding:
        cache = SlidingWindow(
            num_kv_heads=heads.num_kv_heads,
            head_size=heads.head_dim,
            head_size_v=v_dim,
            sliding_window=section.integer("sliding_window_size", section.integer("sliding_window", 128)),
        )
    return arch.Layer(modules=tuple(modules), caches=(cache,))


def qkv_with_narrow_values(heads: blocks.Heads, v_dim: int, *, bias: bool = False) -> arch.Linear:
    """A fused projection whose values have another width than queries and keys."""
    return arch.Linear(
        name="self_attn.qkv_proj",
        in_features=heads.hidden_size,
        outputs=(
            arch.Output(units=heads.num_heads, width=heads.head_dim),
            arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),
            arch.Output(units=heads.num_kv_heads, width=v_dim, replicable=True),
        ),
        split=arch.Split.COLUMN,
        bias=bias,
        parts=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    )


READERS: Final = blocks.named(
    (read_mimo_v2, "MiMoV2FlashForCausalLM", "mimo_v2_flash", "MiMoV2ForCausalLM", "mimo_v2"),
)
