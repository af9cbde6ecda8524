"""MPT and DBRX: attention keys in a section of their own, one fused projection."""

from __future__ import annotations

from typing import Final

from kvcore.model.architecture import Architecture, Experts, Layer, MixtureOfExperts, Parameter
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.gpt import Pieces, build
from kvcore.model.parts.blocks import (
    cache_of,
    decoder,
    embedding,
    head,
    named,
    norm,
    norms,
    plain_mlp,
    qkv,
    read_heads,
    replicated,
    row,
    with_kv_heads,
)
from kvcore.model.rope import Rope


def read_mpt(config: ModelConfig) -> Architecture:
    """MPT: ALiBi or a position table, no biases unless the config wants them.

    Source: vllm/model_executor/models/mpt.py (0.28).
    """
    section = config.language
    attn = section.optional_section("attn_config") or Section({}, "config.attn_config", "mpt/attn_config")
    heads = with_kv_heads(
        section, read_heads(section, reads_head_dim=False), attn.optional_integer("kv_n_heads")
    )
    hidden = heads.hidden_size
    bias = not section.boolean("no_bias", True)
    inner = hidden * section.integer("expansion_ratio", 4)
    learned = section.boolean("learned_pos_emb", True) and not attn.boolean("alibi", False)
    qk_norms = norms(hidden, "attn.q_ln", "attn.k_ln", bias=bias) if attn.boolean("qk_ln", False) else ()
    modules: Pieces = (
        qkv(heads, "attn.Wqkv", ("Wqkv",), bias=bias),
        row("attn.out_proj", hidden, hidden, bias=bias),
        *plain_mlp(hidden, inner, "ffn.up_proj", "ffn.down_proj", bias=bias),
        *norms(hidden, "norm_1", "norm_2", bias=bias),
        *qk_norms,
    )
    positions = Parameter(name="transformer.wpe", replicated=section.integer("max_seq_len") * hidden)
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=inner,
        first=(positions,) if learned else (),
        last=(norm("transformer.norm_f", hidden, bias=bias),),
        tied=True,
        prefix="transformer.blocks",
    )


def read_dbrx(config: ModelConfig) -> Architecture:
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
    (read_dbrx, "DbrxForCausalLM", "dbrx"),
    (read_mpt, "MPTForCausalLM", "MptForCausalLM", "mpt"),
)
