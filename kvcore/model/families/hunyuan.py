"""HunYuan V1 with experts: per-layer lists of sizes, shared experts as wide as the dense MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.errors import ModelError
from kvcore.model.architecture import Architecture, Experts, Layer, MixtureOfExperts, Module
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    attention,
    cache_of,
    decoder,
    gated_mlp,
    norms,
    read_heads,
    replicated,
)


def read(config: ModelConfig) -> Architecture:
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
    heads = read_heads(section)
    head_dim = section.optional_integer("attention_head_dim")
    if head_dim and not section.has("head_dim"):
        heads = replace(heads, head_dim=head_dim)
    hidden, dense = heads.hidden_size, section.integer("intermediate_size")
    experts = Experts(
        name="mlp.experts",
        num_experts=section.integer("num_experts", maximum=65_536),
        hidden_size=hidden,
        intermediate_size=of_all_layers(section, "moe_intermediate_size", dense),
        top_k=of_all_layers(section, "moe_topk"),
    )
    shared = 0
    if section.boolean("use_mixed_mlp_moe", False):
        shared = dense * of_all_layers(section, "num_shared_expert")
    bias = section.boolean("attention_bias", False)
    modules: list[Module] = [
        *attention(heads, qkv_bias=bias, out_bias=bias),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
        replicated("mlp.gate", hidden, experts.num_experts, quantizable=False),
        experts,
    ]
    if section.boolean("use_qk_norm", False):
        modules += norms(heads.head_dim, "self_attn.query_layernorm", "self_attn.key_layernorm")
    if shared:
        modules += gated_mlp(hidden, shared, "mlp.shared_mlp")
    layer = Layer(modules=tuple(modules), caches=(cache_of(heads),))
    return decoder(
        config,
        section,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=dense,
        moe=MixtureOfExperts(
            num_experts=experts.num_experts,
            top_k=experts.top_k,
            moe_intermediate_size=experts.intermediate_size,
            shared_intermediate_size=shared,
        ),
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


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "HunYuanMoEV1ForCausalLM": read,
    "hunyuan_v1_moe": read,
}
