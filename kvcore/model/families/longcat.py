"""LongCat-Flash and MiniCPM3: latent projections in layers unlike DeepSeek's."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import FullAttention
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.deepseek import rotary_tables
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import MAX_EXPERTS, ExpertTraits, read_moe, routed_experts
from kvcore.model.parts.latent import Latent, absorbed, as_heads, heads_column, latent_attention, read_latent
from kvcore.model.rope import read_ropes

EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts",
    top_k_key=("moe_topk", "num_experts_per_tok"),
    intermediate_key="expert_ffn_hidden_size",
)


def read_longcat(config: ModelConfig) -> arch.Architecture:
    """LongCat-Flash: two attentions and two MLPs a layer, and experts of which some do nothing.

    Source: vllm/model_executor/models/longcat_flash.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    hidden = latent.hidden_size
    intermediate = section.integer(
        "intermediate_size", section.optional_integer("ffn_hidden_size", minimum=1)
    )
    # The class has a default for the key of its own alone, and a file may give the usual one before it.
    usual = section.has("moe_intermediate_size")
    moe = read_moe(replace(EXPERTS, intermediate_key="moe_intermediate_size") if usual else EXPERTS, section)
    zero = section.integer("zero_expert_num", 0, minimum=0, maximum=MAX_EXPERTS)
    routed = moe.num_experts + zero
    modules: list[arch.Module] = [
        blocks.replicated("mlp.router.classifier", hidden, routed, quantizable=False, dtype="float32"),
        arch.Parameter(name="mlp.router.e_score_correction_bias", replicated=routed, dtype="float32"),
        routed_experts(EXPERTS, hidden, moe),
    ]
    for half in (0, 1):
        modules += latent_attention(latent, f"self_attn.{half}")
        modules += blocks.gated_mlp(hidden, intermediate, f"mlps.{half}")
        modules += blocks.norms(hidden, *(f"{name}.{half}" for name in blocks.TWO_NORMS))
    layer = arch.Layer(modules=tuple(modules), caches=(latent.cache,) * 2, loading=(absorbed(latent),) * 2)
    built = blocks.decoder(
        config,
        heads=as_heads(latent),
        layers=(layer,) * section.layers("num_layers" if section.has("num_layers") else "num_hidden_layers"),
        intermediate_size=intermediate,
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=rotary_tables(section, latent, with_indexer=False),
        moe=moe,
    )
    draft = arch.Layer(
        modules=(
            blocks.replicated("eh_proj", 2 * hidden, hidden),
            *blocks.norms(hidden, "enorm", "hnorm", "final_layernorm", *blocks.TWO_NORMS),
            *latent_attention(latent),
            *blocks.gated_mlp(hidden, intermediate),
        ),
        caches=(latent.cache,),
        loading=(absorbed(latent),),
    )
    return replace(built, is_mla=True, draft_layers=(draft,), draft_prefix="model.mtp.layers", draft_steps=1)


def read_longcat_ngram(config: ModelConfig) -> arch.Architecture:
    """LongCat-Flash-Lite: LongCat-Flash behind embeddings of the last few tokens together.

    Each embedder's table is two rows longer than the one before; all lie in one, divided like the vocabulary.

    Source: vllm/model_executor/models/longcat_flash_ngram.py:NgramEmbedding (0.32).
    """
    built = read_longcat(config)
    section = config.language
    ratio = section.optional_integer("ngram_vocab_size_ratio", maximum=MAX_EXPERTS)
    if not ratio:
        return built
    parts = section.integer("emb_split_num", maximum=1024)
    reach = section.integer("emb_neighbor_num", minimum=2, maximum=64)
    embedders = parts * (reach - 1)
    width = built.hidden_size // embedders
    rows = embedders * (ratio * built.vocab_size) + embedders**2
    tables: tuple[arch.Module, ...] = (
        arch.VocabEmbedding(
            name="model.ngram_embeddings.oe_embedder", num_embeddings=rows, embedding_dim=width
        ),
        arch.Parameter(
            name="model.ngram_embeddings.oe_projection", replicated=embedders * width * built.hidden_size
        ),
    )
    return replace(built, first=(*built.first, *tables))


def read_minicpm3(config: ModelConfig) -> arch.Architecture:
    """MiniCPM3: latent projections, but an ordinary cache of every head's keys and values, values padded.

    Source: vllm/model_executor/models/minicpm3.py (0.32).
    """
    section = config.language
    latent = read_latent_of_minicpm3(section)
    intermediate = section.integer("intermediate_size")
    heads = blocks.Heads(
        hidden_size=latent.hidden_size,
        num_heads=latent.num_heads,
        num_kv_heads=latent.num_heads,
        head_dim=latent.qk_head_dim,
    )
    layer = arch.Layer(
        modules=(
            *minicpm3_attention(latent),
            *blocks.gated_mlp(latent.hidden_size, intermediate),
            *blocks.norms(latent.hidden_size, *blocks.TWO_NORMS),
        ),
        caches=(
            FullAttention(
                num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, head_size_v=heads.head_dim
            ),
        ),
    )
    positions = section.integer("max_position_embeddings")
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate,
        tied=section.boolean("tie_word_embeddings", True),
        rotary_tables=tuple(rope.table(latent.qk_rope_head_dim, positions) for rope in read_ropes(section)),
    )


def read_latent_of_minicpm3(section: Section) -> Latent:
    """MiniCPM3's geometry: values as wide as a head of the hidden size."""
    hidden, heads = section.integer("hidden_size"), section.integer("num_attention_heads")
    return Latent(
        hidden_size=hidden,
        num_heads=heads,
        q_lora_rank=section.integer("q_lora_rank"),
        kv_lora_rank=section.integer("kv_lora_rank"),
        qk_nope_head_dim=section.integer("qk_nope_head_dim"),
        qk_rope_head_dim=section.integer("qk_rope_head_dim"),
        v_head_dim=hidden // heads,
    )


def minicpm3_attention(latent: Latent) -> tuple[arch.Module, ...]:
    """The projections, the two ways down not fused."""
    rank = latent.q_lora_rank or 0
    up = latent.qk_nope_head_dim + latent.v_head_dim
    return (
        blocks.replicated("self_attn.q_a_proj", latent.hidden_size, rank),
        blocks.norm("self_attn.q_a_layernorm", rank),
        heads_column("self_attn.q_b_proj", rank, latent.num_heads, latent.qk_head_dim),
        blocks.replicated(
            "self_attn.kv_a_proj_with_mqa",
            latent.hidden_size,
            latent.kv_lora_rank + latent.qk_rope_head_dim,
        ),
        blocks.norm("self_attn.kv_a_layernorm", latent.kv_lora_rank),
        heads_column("self_attn.kv_b_proj", latent.kv_lora_rank, latent.num_heads, up),
        blocks.row("self_attn.o_proj", latent.num_heads * latent.v_head_dim, latent.hidden_size),
    )


READERS: Final = blocks.named(
    (read_longcat, "LongcatFlashForCausalLM", "longcat_flash"),
    (read_longcat_ngram, "LongcatFlashNgramForCausalLM"),
    (read_minicpm3, "MiniCPM3ForCausalLM", "minicpm3"),
)
