"""DeepSeek-V4.1: compressed caches in a few layers that the layers behind them share, tables of n-grams, an image
encoder, DSpark stages in the checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.caches import CacheState, CompressedLatent, LatentWindow, TokenRing
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.families.decoder import by_row
from kvcore.model.families.deepseek import (
    INDEX_BYTES,
    LATENT_BYTES,
    V4_EXPERTS,
    float32,
    spark_modules,
    spark_states,
    v4_attention,
    v4_experts,
)
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts import latent as mla
from kvcore.model.parts.experts import read_moe
from kvcore.model.parts.pattern import by_kind
from kvcore.model.rope import read_ropes

MX_LATENT_BYTES: Final = 528
"""One packed latent of Blackwell's kernel.

Source: vllm/models/deepseek_v41/attention.py:DeepseekV4Attention (0.33.0).
"""
WINDOW_BLOCK: Final = 32
"""Source: the same, `swa_cache_layer`."""
RING_ROWS: Final = 8
"""Source: vllm/models/deepseek_v41/compressor.py:CompressorStateCache (0.33.0)."""
TABLE_BLOCK: Final = 32
"""Elements of a row of a table of n-grams that share a scale. Source: the same, common/engram.py."""
RATIOS: Final = frozenset({0, 1, 2})
"""Tokens that a compressed latent stands for. Source: the same, `compress_ratio`."""


def read(config: ModelConfig) -> arch.Architecture:
    """DeepSeek-V4.1. The tables of n-grams stay in the host's memory.

    Source: vllm/models/deepseek_v41/nvidia/model.py, vl_model.py, attention.py, compressor.py, common/engram.py,
    vllm/config/engram.py:EngramConfig.cpu_offload (0.33.0).
    """
    section = config.language
    hidden, count = section.integer("hidden_size"), section.layers()
    heads = blocks.Heads(
        hidden_size=hidden,
        num_heads=section.integer("num_attention_heads"),
        num_kv_heads=1,
        head_dim=section.integer("head_dim"),
    )
    ratios = section.integers("compress_ratios") or ()
    if len(ratios) < count or set(ratios) - RATIOS:
        raise section.contradicting("compress_ratios", f"{len(ratios)} ratios for {count} layers")
    sources, indexers, tables = (
        frozenset(section.integers(key) or ())
        for key in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids")
    )
    vision = config.root.optional_section("vision_config")
    moe = read_moe(V4_EXPERTS, section)
    body = layer_body(section, heads, moe, sees=vision is not None)
    rotary, positions = section.integer("qk_rope_head_dim"), section.integer("max_position_embeddings")
    rows = (positions, read_ropes(section)[0].table_positions(positions))
    head = arch.VocabEmbedding(
        name="head", num_embeddings=section.integer("vocab_size"), embedding_dim=hidden
    )
    kinds = ((ratios[i], i in sources, i in indexers, i in tables) for i in range(count))
    built = dataclasses.replace(
        blocks.decoder(
            config,
            heads=heads,
            layers=by_kind(kinds, lambda kind: with_sources(section, body, *kind)),
            intermediate_size=moe.moe_intermediate_size,
            first=(blocks.embedding(section, "embed"),),
            last=(blocks.norm("norm", hidden), head),
            tied=section.boolean("tie_word_embeddings", False),
            rotary_tables=tuple(
                arch.RotaryTable(max_positions=each, rotary_dim=rotary, dtype="float32") for each in rows
            ),
            layer_prefix="layers",
            moe=moe,
            is_mla=True,
        ),
        residual_streams=section.integer("hc_mult"),
        token_choice=chosen(section),
        host_tables=read_tables(section),
        spark=read_spark(section, heads, sees=vision is not None),
    )
    return built if vision is None else enc.with_encoders(built, image_encoder(vision, hidden))


def read_tables(section: Section) -> tuple[arch.HostTable, ...]:
    """The tables of n-grams, one for each layer that looks them up.

    Source: vllm/models/deepseek_v41/common/engram.py:EngramLayout, can_share_engram_tables (0.33.0): block_size 32.
    """
    rows = section.integers("engram_num_embeddings") or ()
    if not rows:
        return ()
    width = section.integer("engram_head_dim")
    return tuple(
        arch.HostTable(rows=count, row_bytes=width, scale_bytes=width // TABLE_BLOCK) for count in rows
    )


def layer_body(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, *, sees: bool
) -> arch.Layer:
    """What all layers have: attention over a window, experts, and what mixes the residual streams."""
    hidden, streams = heads.hidden_size, section.integer("hc_mult")
    mixes = (2 + streams) * streams
    return arch.Layer(
        modules=(
            *v4_attention(section, heads),
            *v4_experts(section, hidden, moe, is_hashed=False),
            *enc.when(sees, float32("ffn.gate.bias_vl", moe.num_experts)),
            *blocks.norms(hidden, "attn_norm", "ffn_norm"),
            *(float32(name, mixes * streams * hidden + mixes + 3) for name in ("hc_attn", "hc_ffn")),
        ),
        caches=(
            LatentWindow(
                sliding_window=section.integer("sliding_window"),
                state_bytes=LATENT_BYTES,
                mx_bytes=MX_LATENT_BYTES,
                page_alignment=mla.PAGE_ALIGNMENT,
                block_size=WINDOW_BLOCK,
                width=heads.head_dim,
            ),
        ),
    )


def with_sources(
    section: Section, body: arch.Layer, ratio: int, keeps: bool, indexes: bool, looks_up: bool
) -> arch.Layer:
    """A layer with what it produces for those behind it: compressed latents, the choice of tokens; n-grams before it.

    Source: vllm/models/deepseek_v41/attention.py:DeepseekV4Attention, DeepseekV4Indexer, common/engram.py:Engram
    (0.33.0).
    """
    hidden, width, key = (section.integer(name) for name in ("hidden_size", "head_dim", "index_head_dim"))
    modules: list[arch.Module] = list(body.modules)
    caches: list[CacheState] = list(body.caches)
    if indexes:
        count = section.integer("index_n_heads")
        modules += (
            blocks.replicated("attn.indexer.wq_b", section.integer("q_lora_rank"), key * count),
            blocks.replicated("attn.indexer.weights_proj", hidden, count, quantizable=False),
        )
    if keeps:
        parts = 2 if ratio > 1 else 1
        modules += (
            blocks.replicated("attn.compressor.fused_wkv_wgate", hidden, parts * width, quantizable=False),
            blocks.norm("attn.compressor.norm", width),
            blocks.replicated("attn.indexer.wk", width, key, quantizable=False),
            blocks.norm("attn.indexer.k_norm", key),
        )
        caches += (
            compressed(LATENT_BYTES, MX_LATENT_BYTES, max(ratio, 1), width),
            compressed(INDEX_BYTES, INDEX_BYTES, max(ratio, 1), key, is_index=True),
        )
        if ratio > 1:
            row = 2 * width * mla.FLOAT32_BYTES
            ring = TokenRing(tokens_per_group=ratio, row_bytes=row, in_powers=True, least_rows=RING_ROWS)
            caches.append(ring)
    if looks_up:
        columns = (section.integer("engram_max_ngram_size", minimum=2) - 1) * section.integer(
            "engram_n_heads"
        )
        streams = section.integer("hc_mult")
        inputs = columns * section.integer("engram_head_dim")
        modules += (
            blocks.column("engram.wkv", inputs, (streams + 1) * hidden),
            *(enc.tensor(f"engram.{name}_weight", streams, hidden) for name in "qk"),
        )
    return arch.Layer(modules=tuple(modules), caches=tuple(caches))


def compressed(
    state_bytes: int, mx_bytes: int, ratio: int, width: int, *, is_index: bool = False
) -> CompressedLatent:
    """A cache of one vector for every `ratio` tokens."""
    return CompressedLatent(
        tokens_per_state=ratio,
        state_bytes=state_bytes,
        mx_bytes=mx_bytes,
        page_alignment=mla.PAGE_ALIGNMENT,
        width=width,
        is_index=is_index,
    )


def chosen(section: Section) -> arch.TokenChoice | None:
    """The buffer of chosen tokens, and the one of candidate blocks that later indexers look among.

    Source: vllm/models/deepseek_v41/nvidia/model.py:DeepseekV4Model.candidate_block_buffer (0.33.0).
    """
    topk = section.optional_integer("index_topk", minimum=1)
    if topk is None:
        return None
    source = section.integer("candidate_source_layer_id", -1, minimum=-1)
    candidates = section.integer("candidate_topk_blocks", 0, minimum=0) if source >= 0 else 0
    return arch.TokenChoice(topk=topk + candidates)


def read_spark(section: Section, heads: blocks.Heads, *, sees: bool) -> arch.SparkDraft | None:
    """The DSpark stages, with experts of their own number; the streams are mixed as the last layer mixes them.

    Source: vllm/models/deepseek_v41/nvidia/dspark.py:DSparkDeepseekV4Model, model.py:DeepseekV4MoE (0.33.0).
    """
    stages = section.integer("n_mtp_layers", 0, minimum=0, maximum=MAX_LAYERS)
    count = stages or section.integer("num_nextn_predict_layers", 3, minimum=1, maximum=MAX_LAYERS)
    modules = spark_modules(section)
    if not modules:
        return None
    keys = ("n_routed_experts", "num_experts_per_tok")
    own = {name: section.optional_integer(f"dspark_{name}") or section.get(name) for name in keys}
    experts = Section({**section.raw, **own}, section.path)
    layer = layer_body(experts, heads, read_moe(V4_EXPERTS, experts), sees=sees)
    return arch.SparkDraft(
        layers=(layer,) * count,
        modules=modules,
        tokens=section.optional_integer("dspark_block_size", minimum=1),
        kept_elements=spark_states(section, 0),
    )


VIT: Final = enc.Names("attn.wqkv", "attn.wo", "mlp.w1", "mlp.w2", ("norm1", "norm2"), parts=())


def image_encoder(section: Section, text: int) -> enc.Encoder:
    """Gated blocks with norms in float32, a square of patches to one token, vectors around an image; unquantized.

    Source: vllm/models/deepseek_v4/common/vision.py, deepseek_v41/nvidia/vl_model.py (0.33.0).
    """
    own, patch = enc.read_sizes(section), section.integer("patch_size", 14, maximum=enc.MAX_PATCH)
    merge = enc.read_merge(section, "downsample_ratio", 3)
    layer = (
        *enc.attention(own, VIT),
        *enc.mlp(own, VIT, gates=("mlp.w1", "mlp.w3"), bias=False),
        *(float32(name, own.width) for name in VIT.norms),
    )
    modules = (
        enc.whole("vision.patch_embed.proj", 3 * patch**2, own.width),
        *enc.changed(enc.repeated("vision.blocks", own.layers, layer), quantizable=False),
        float32("vision.norm", own.width),
        *enc.changed(
            (enc.column("aligner.w1", own.width * merge**2, text), enc.row("aligner.w2", text, text)),
            quantizable=False,
        ),
        *(float32(f"image_{name}", text) for name in ("start", "end", "newline")),
    )
    return enc.seeing(modules, own, section.integer("max_image_tokens", 1024), merge**2)


READERS: Final = by_row({"deepseek_v41": read})
