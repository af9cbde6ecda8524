"""Laguna: layers with their own number of heads, a gate on what attention gives, windows with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import CORRECTED_FIRST, ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import by_kind, layer_windows, sparse_but_the_first

EXPERTS: Final = ExpertTraits(
    shared_size_key="shared_expert_intermediate_size",
    correction_bias=True,
    correction="experts.e_score_correction_bias",
    shared="shared_expert",
    order=CORRECTED_FIRST,
)


def read(config: ModelConfig) -> arch.Architecture:
    """Laguna.

    Source: vllm/model_executor/models/laguna.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    moe = read_moe(EXPERTS, section)
    intermediate = section.integer("intermediate_size")
    windows = layer_windows(section) if section.has("layer_types") else (None,) * section.layers()
    kinds = tuple(zip(heads_by_layer(section, heads), windows, sparse_but_the_first(section), strict=True))
    bodies = {
        True: expert_modules(EXPERTS, section, heads.hidden_size, moe),
        False: blocks.gated_mlp(heads.hidden_size, intermediate),
    }
    layers = by_kind(
        kinds,
        lambda kind: arch.Layer(
            modules=(*gated_attention(section, kind[0], is_sliding=kind[1] is not None), *bodies[kind[2]]),
            caches=(blocks.cache_of(kind[0], kind[1]),),
        ),
    )
    return blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=intermediate,
        tied=blocks.is_tied(config, section, False),
        moe=moe,
    )


def heads_by_layer(section: Section, heads: blocks.Heads) -> tuple[blocks.Heads, ...]:
    """The attention geometry of each layer: its own number of heads, the same KV heads."""
    count = section.layers()
    own = section.integers("num_attention_heads_per_layer", minimum=1)
    if own is None:
        return (heads,) * count
    if len(own) < count:
        raise section.contradicting("num_attention_heads_per_layer", f"{len(own)} entries for {count} layers")
    return tuple(
        blocks.with_kv_heads(section, replace(heads, num_heads=number), heads.num_kv_heads)
        for number in own[:count]
    )


def gated_attention(section: Section, heads: blocks.Heads, *, is_sliding: bool) -> tuple[arch.Module, ...]:
    """Projections, norms, the gate and, in sliding layers of some models, one sink a head."""
    bias = section.boolean("attention_bias", False)
    modules: list[arch.Module] = [
        *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
        *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *blocks.norms(heads.hidden_size, *blocks.TWO_NORMS),
    ]
    gating = section.get("gating")
    if gating:
        is_per_head = gating is True or gating == "per-head"
        width = heads.num_heads * (1 if is_per_head else heads.head_dim)
        modules.append(blocks.column("self_attn.g_proj", heads.hidden_size, width))
    if is_sliding and section.boolean("swa_attention_sink_enabled", False):
        modules.append(arch.Parameter(name="self_attn.sink", sharded=heads.num_heads))
    return tuple(modules)


READERS: Final = blocks.named(
    (read, "LagunaForCausalLM", "laguna"),
)
