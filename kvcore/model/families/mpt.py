"""MPT and DBRX: attention keys in a section of their own, one fused projection."""

from __future__ import annotations

from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.gpt import Pieces, build
from kvcore.model.parts import blocks
from kvcore.model.rope import Rope


def read_mpt(config: ModelConfig) -> arch.Architecture:
    """MPT: ALiBi or a position table, no biases unless the config wants them.

    Source: vllm/model_executor/models/mpt.py (0.28).
    """
    section = config.language
    attn = section.optional_section("attn_config") or Section({}, "config.attn_config", "mpt/attn_config")
    heads = blocks.with_kv_heads(
        section, blocks.read_heads(section, reads_head_dim=False), attn.optional_integer("kv_n_heads")
    )
    hidden = heads.hidden_size
    bias = not section.boolean("no_bias", True)
    inner = hidden * section.integer("expansion_ratio", 4)
    learned = section.boolean("learned_pos_emb", True) and not attn.boolean("alibi", False)
    qk_norms = (
        blocks.norms(hidden, "attn.q_ln", "attn.k_ln", bias=bias) if attn.boolean("qk_ln", False) else ()
    )
    modules: Pieces = (
        blocks.qkv(heads, "attn.Wqkv", ("Wqkv",), bias=bias),
        blocks.row("attn.out_proj", hidden, hidden, bias=bias),
        *blocks.plain_mlp(hidden, inner, "ffn.up_proj", "ffn.down_proj", bias=bias),
        *blocks.norms(hidden, "norm_1", "norm_2", bias=bias),
        *qk_norms,
    )
    positions = arch.Parameter(name="transformer.wpe", replicated=section.integer("max_seq_len") * hidden)
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=inner,
        first=(positions,) if learned else (),
        last=(blocks.norm("transformer.norm_f", hidden, bias=bias),),
        tied=True,
        prefix="transformer.blocks",
    )


def read_dbrx(config: ModelConfig) -> arch.Architecture:
    """DBRX; its norms lose their biases when the model is built.

    Source: vllm/model_executor/models/dbrx.py (0.32).
    """
    section = config.language
    attn, ffn = section.section("attn_config"), section.section("ffn_config")
    heads = blocks.with_kv_heads(
        section, blocks.read_heads(section, reads_head_dim=False), attn.optional_integer("kv_n_heads")
    )
    hidden = heads.hidden_size
    experts = arch.Experts(
        name="ffn.experts",
        num_experts=ffn.integer("moe_num_experts", maximum=65_536),
        hidden_size=hidden,
        intermediate_size=ffn.integer("ffn_hidden_size"),
        top_k=ffn.integer("moe_top_k", maximum=65_536),
    )
    layer = arch.Layer(
        modules=(
            blocks.qkv(heads, "norm_attn_norm.attn.Wqkv", ("Wqkv",)),
            blocks.row("norm_attn_norm.attn.out_proj", hidden, hidden),
            *blocks.norms(hidden, "norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
            blocks.replicated("ffn.router.layer", hidden, experts.num_experts, quantizable=False),
            experts,
        ),
        caches=(blocks.cache_of(heads),),
    )
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=experts.intermediate_size,
        first=(blocks.embedding(section, "transformer.wte"),),
        last=(blocks.norm("transformer.norm_f", hidden), blocks.head(section)),
        tied=False,
        rotary_tables=(Rope().table(heads.head_dim, section.integer("max_seq_len")),),
        layer_prefix="transformer.blocks",
        moe=arch.MixtureOfExperts(
            num_experts=experts.num_experts,
            top_k=experts.top_k,
            moe_intermediate_size=experts.intermediate_size,
        ),
    )


READERS: Final = blocks.named(
    (read_dbrx, "DbrxForCausalLM", "dbrx"),
    (read_mpt, "MPTForCausalLM", "MptForCausalLM", "mpt"),
)
