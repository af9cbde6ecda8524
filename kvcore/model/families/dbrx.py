"""DBRX: sixteen experts in every layer, attention and feed-forward keys in sections of their own."""

from __future__ import annotations

from typing import Final

from kvcore.model.architecture import Architecture, Experts, Layer, MixtureOfExperts
from kvcore.model.config import ModelConfig
from kvcore.model.parts.blocks import (
    cache_of,
    decoder,
    embedding,
    head,
    named,
    norm,
    norms,
    qkv,
    read_heads,
    replicated,
    row,
    with_kv_heads,
)
from kvcore.model.rope import Rope


def read(config: ModelConfig) -> Architecture:
    """DBRX; its norms lose their biases when the model is built.

    Source: vllm/model_executor/models/dbrx.py (0.32).
    """
    section = config.language
    attn, ffn = section.section("attn_config"), section.section("ffn_config")
    heads = with_kv_heads(
        section, read_heads(section, reads_head_dim=False), attn.optional_integer("kv_n_heads")
    )
    hidden = heads.hidden_size
    experts = Experts(
        name="ffn.experts",
        num_experts=ffn.integer("moe_num_experts", maximum=65_536),
        hidden_size=hidden,
        intermediate_size=ffn.integer("ffn_hidden_size"),
        top_k=ffn.integer("moe_top_k", maximum=65_536),
    )
    layer = Layer(
        modules=(
            qkv(heads, "norm_attn_norm.attn.Wqkv", ("Wqkv",)),
            row("norm_attn_norm.attn.out_proj", hidden, hidden),
            *norms(hidden, "norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
            replicated("ffn.router.layer", hidden, experts.num_experts, quantizable=False),
            experts,
        ),
        caches=(cache_of(heads),),
    )
    return decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=experts.intermediate_size,
        first=(embedding(section, "transformer.wte"),),
        last=(norm("transformer.norm_f", hidden), head(section)),
        tied=False,
        rotary_tables=(Rope().table(heads.head_dim, section.integer("max_seq_len")),),
        layer_prefix="transformer.blocks",
        moe=MixtureOfExperts(
            num_experts=experts.num_experts,
            top_k=experts.top_k,
            moe_intermediate_size=experts.intermediate_size,
        ),
    )


READERS: Final = named(
    (read, "DbrxForCausalLM", "dbrx"),
)
