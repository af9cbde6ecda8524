"""Step 1, a plain decoder; Step 3.5 and 3.7: sliding and full layers of different width, a gate for each head,
experts from the first layers on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Experts, Layer, MixtureOfExperts, Module, Parameter
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    attention,
    cache_of,
    column,
    decoder,
    gated_mlp,
    head,
    norms,
    read_heads,
    replicated,
)

MAX_EXPERTS: Final = 65_536
SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"


def read_step1(config: ModelConfig) -> Architecture:
    """Step 1: a plain decoder whose positions are ALiBi's.

    Source: vllm/model_executor/models/step1.py (0.32), which runs on the Triton backend alone.
    """
    section = config.language
    heads = read_heads(
        section,
        "num_attention_groups" if section.has("num_attention_groups") else "num_key_value_heads",
        reads_head_dim=False,
    )
    inner = section.integer("intermediate_size")
    bias = section.boolean("attention_bias", False)
    modules: tuple[Module, ...] = (
        *attention(heads, qkv_bias=bias, out_bias=bias),
        *gated_mlp(heads.hidden_size, inner, bias=section.boolean("mlp_bias", False)),
        *norms(heads.hidden_size, "input_layernorm", "post_attention_layernorm"),
    )
    layer = Layer(modules=modules, caches=(cache_of(heads),))
    return decoder(
        config,
        section,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=inner,
        tied_default=True,
        rotary_tables=(),
    )


def read(config: ModelConfig) -> Architecture:
    """Step 3.5 Flash and 3.7 Flash.

    Source: vllm/model_executor/models/step3p5.py, step3p7.py (0.32).
    """
    section = config.language
    heads = read_heads(
        section, "num_attention_groups" if section.has("num_attention_groups") else "num_key_value_heads"
    )
    count = section.layers()
    kinds = section.words("layer_types", (SLIDING, FULL)) or ()
    if kinds and len(kinds) < count:
        raise section.contradicting("layer_types", f"{len(kinds)} layer types for {count} layers")
    sliding = tuple(kind == SLIDING for kind in kinds[:count]) or tuple(i % 2 == 0 for i in range(count))
    moe = read_moe(section)
    sparse = which_layers_are_sparse(section, count)
    variants: dict[tuple[bool, bool], Layer] = {}
    for key in zip(sliding, sparse, strict=True):
        if key not in variants:
            variants[key] = read_layer(section, heads, moe, is_sliding=key[0], is_sparse=key[1])
    built = decoder(
        config,
        section,
        heads=heads,
        layers=tuple(variants[key] for key in zip(sliding, sparse, strict=True)),
        intermediate_size=section.integer("intermediate_size"),
        tied=section.boolean("tie_word_embeddings", False),
        moe=moe,
        is_multimodal=config.root.optional_section("vision_config") is not None,
        uncounted=("vision tower",) if config.root.optional_section("vision_config") is not None else (),
    )
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    return replace(
        built,
        draft_layers=tuple(
            draft_layer(
                section,
                heads,
                moe,
                is_sliding=kinds[index] == SLIDING if index < len(kinds) else index % 2 == 0,
            )
            for index in range(count, count + drafts)
        ),
        draft_steps=drafts,
    )


def draft_layer(section: Section, heads: Heads, moe: MixtureOfExperts, *, is_sliding: bool) -> Layer:
    """A prediction layer: a dense layer behind a projection of two hidden states, with an lm_head of its own.

    Source: vllm/model_executor/models/step3p5_mtp.py (0.32).
    """
    hidden = heads.hidden_size
    body = read_layer(section, heads, moe, is_sliding=is_sliding, is_sparse=False)
    return replace(
        body,
        modules=(
            replicated("eh_proj", 2 * hidden, hidden, quantizable=False),
            *norms(hidden, "enorm", "hnorm", "shared_head.norm"),
            head(section, "shared_head.head"),
            *body.modules,
        ),
    )


def read_moe(section: Section) -> MixtureOfExperts:
    """The routed experts and the shared one."""
    width = section.integer("moe_intermediate_size")
    experts = section.optional_integer("moe_num_experts", minimum=1, maximum=MAX_EXPERTS)
    top_k = section.optional_integer("moe_top_k", minimum=1)
    return MixtureOfExperts(
        num_experts=experts or section.integer("num_experts", maximum=MAX_EXPERTS),
        top_k=top_k or section.integer("num_experts_per_tok"),
        moe_intermediate_size=width,
        shared_intermediate_size=section.integer("share_expert_dim", width),
    )


def which_layers_are_sparse(section: Section, count: int) -> tuple[bool, ...]:
    """Which layers have experts: those that `moe_layers_enum` lists, or all after the dense ones."""
    listed = section.get("moe_layers_enum")
    if isinstance(listed, str):
        numbers = [part.strip() for part in listed.split(",")]
        if not all(part.isdigit() for part in numbers):
            raise section.invalid("moe_layers_enum", listed, "expected layer numbers with commas between")
        chosen = {int(part) for part in numbers}
        return tuple(index in chosen for index in range(count))
    dense = section.integer("first_k_dense_replace", 1, minimum=0)
    return tuple(index >= dense for index in range(count))


def read_layer(
    section: Section, heads: Heads, moe: MixtureOfExperts, *, is_sliding: bool, is_sparse: bool
) -> Layer:
    """One layer; sliding layers may have heads of their own."""
    own = heads
    other = section.optional_section("attention_other_setting")
    if is_sliding and other is not None and other.string("attention_type", SLIDING) == SLIDING:
        own = replace(
            heads,
            num_heads=other.integer("num_attention_heads", heads.num_heads),
            num_kv_heads=other.integer("num_attention_groups", heads.num_kv_heads),
            head_dim=other.integer("head_dim", heads.head_dim),
        )
    hidden = own.hidden_size
    modules: list[Module] = [
        *attention(own, qkv_bias=section.boolean("attention_bias", False)),
        *norms(own.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *norms(hidden, "input_layernorm", "post_attention_layernorm"),
    ]
    if section.boolean("use_head_wise_attn_gate", False):
        modules.append(column("self_attn.g_proj", hidden, own.num_heads))
    if is_sparse:
        modules += [
            replicated("moe.gate", hidden, moe.num_experts, quantizable=False, dtype="float32"),
            Parameter(name="moe.router_bias", replicated=moe.num_experts, dtype="float32"),
            Experts(
                name="moe.experts",
                num_experts=moe.num_experts,
                hidden_size=hidden,
                intermediate_size=moe.moe_intermediate_size,
                top_k=moe.top_k,
            ),
            *gated_mlp(hidden, moe.shared_intermediate_size, "moe.share_expert"),
        ]
    else:
        modules += gated_mlp(hidden, section.integer("intermediate_size"))
    window = section.integer("sliding_window") if is_sliding else None
    return Layer(modules=tuple(modules), caches=(cache_of(own, window),))


READERS: Final[Mapping[str, object]] = {
    "Step1ForCausalLM": read_step1,
    "step1": read_step1,
    "Step3p5ForCausalLM": read,
    "step3p5": read,
    "Step3p7ForConditionalGeneration": read,
    "Step3p7FlashForCausalLM": read,
    "step3p7": read,
}
