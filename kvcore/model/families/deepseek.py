"""DeepSeek V2 to V4 and those with latent attention like V2's: Kimi K2, GLM-5, openPangu Ultra, A.X K1, Sarvam."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import LatentWindow
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    Decoder,
    DraftTraits,
    by_row,
    feed_forward,
    layer_norms,
    read_decoder,
    with_drafts,
)
from kvcore.model.families.drafts import sequential
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts import latent as mla
from kvcore.model.parts.experts import ExpertTraits, expert_modules, optional_moe, read_moe
from kvcore.model.parts.pattern import by_kind, sparse_by_frequency, with_modules
from kvcore.model.rope import read_ropes


def read(config: ModelConfig, row: Decoder = DECODERS["deepseek_v3"]) -> arch.Architecture:
    """DeepSeek V2, V3 and V3.2 and the models that the engine runs with the same layers, some with further norms: A.X
    K1, and openPangu Ultra where its config asks for them.

    Source: vllm/model_executor/models/deepseek_v2.py, deepseek_mtp.py, AXK1.py, openpangu.py (0.32).
    """
    section = config.language
    latent = mla.read_latent(section)
    hidden, moe = latent.hidden_size, optional_moe(EXPERTS, section)
    row = replace(row, experts=experts_of(section) if moe else None)
    count = section.layers()
    sparse = sparse_by_frequency(section) if moe else (False,) * count
    indexed = which_layers_index(section, count)
    topk = section.optional_integer("index_topk", minimum=0)
    around = blocks.norms(hidden, *blocks.TWO_NORMS)

    def attending(is_indexed: bool) -> arch.Layer:
        if not is_indexed:
            return mla.latent_layer(latent, *around)
        return mla.latent_layer(latent, *around, *mla.indexer(section, latent), indexed=section)

    vision = config.root.optional_section("vision_config")
    seen = MOONVIT.get(config.model_type)
    encoder = seen(vision, hidden) if vision and seen else None
    built = dataclasses.replace(
        read_decoder(
            row,
            config,
            heads=mla.as_heads(latent),
            mixers=by_kind(indexed, attending),
            sparse=sparse,
            width=section.integer("intermediate_size"),
            rotary_tables=rotary_tables(section, latent, with_indexer=any(indexed)),
        ),
        every=encoder.modules if encoder else (),
        vision=encoder.vision if encoder else None,
        layer_prefix="language_model.model.layers" if vision else "model.layers",
        is_multimodal=vision is not None,
        is_mla=True,
        token_choice=arch.TokenChoice(topk=topk, groups=indexed) if topk and any(indexed) else None,
        uncounted=("vision tower",) if vision and not seen else (),
    )
    if not moe or not section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64):
        return built
    body = feed_forward(row, section, hidden, built.intermediate_size, moe)
    behind = layer_norms(row, section, mla.as_heads(latent))
    draft = attending(section.optional_integer("index_topk") is not None)
    return with_drafts(built, section, DraftTraits(), with_modules(draft, *body, *behind))


DIVIDES_SHARED_EXPERTS: Final = ("glm4_moe_lite",)
"""Models whose shared experts the ranks always divide. Source: vllm/model_executor/models/glm4_moe_lite.py (0.32)."""

CORRECTED: Final = ("AXK1", "axk1")
"""Models whose routing has a bias unless set otherwise. Source: vllm/model_executor/models/AXK1.py (0.32)."""

MOONVIT: Final = {"kimi_k25": image_encoders.moonvit3d, "kimi_vl": image_encoders.moonvit}
"""Models whose vision encoder is MoonViT."""


def rotary_tables(
    section: Section, latent: mla.Latent, *, with_indexer: bool
) -> tuple[arch.RotaryTable, ...]:
    """The table of the rotated part; a sparse indexer has its own, in another style."""
    positions = section.integer("max_position_embeddings")
    table = read_ropes(section)[0].table(latent.qk_rope_head_dim, positions)
    is_other_style = with_indexer and not section.boolean("indexer_rope_interleave", False)
    return (table, table) if is_other_style else (table,)


EXPERTS: Final = DECODERS["deepseek_v3"].experts or ExpertTraits()
SARVAM_EXPERTS: Final = DECODERS["sarvam_mla"].experts or ExpertTraits()
V4_EXPERTS: Final = DECODERS["deepseek_v4"].experts or ExpertTraits()


def experts_of(section: Section) -> ExpertTraits:
    """The experts of a config: whether the routing has a bias, whether ranks divide the shared ones."""
    usual = "noaux_tc" if section.model_type in CORRECTED else ""
    return replace(
        EXPERTS,
        correction_bias=section.string("topk_method", usual) == "noaux_tc",
        shared_whole=section.model_type not in DIVIDES_SHARED_EXPERTS,
    )


def which_layers_index(section: Section, count: int) -> tuple[bool, ...]:
    """Layers that choose their own tokens; the others use the choice of the last one that did.

    By `indexer_types`, a pattern, or a frequency.

    Source: vllm/model_executor/models/deepseek_v2.py:DeepseekV2MLAAttention (0.32).
    """
    if section.optional_integer("index_topk") is None:
        return (False,) * count
    types = section.words("indexer_types", ("full", "shared"), count)
    if types is not None:
        return tuple(kind == "full" for kind in types)
    pattern = section.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str | list):
            raise section.invalid("index_topk_pattern", pattern, "expected the letters F and S")
        return tuple(not (index < len(pattern) and pattern[index] == "S") for index in range(count))
    every = section.integer("index_topk_freq", 1)
    offset = section.integer("index_skip_topk_offset", 2, minimum=0)
    return tuple(max(index - offset + 1, 0) % every == 0 for index in range(count))


def read_sarvam(config: ModelConfig) -> arch.Architecture:
    """Sarvam with latent attention.

    Source: vllm/model_executor/models/sarvam.py (0.32).
    """
    section = config.language
    latent = mla.read_latent(section)
    hidden = latent.hidden_size
    moe = read_moe(SARVAM_EXPERTS, section)
    intermediate = section.integer("intermediate_size", 16_384)
    around = blocks.norms(hidden, *blocks.TWO_NORMS)
    bodies = {
        True: expert_modules(SARVAM_EXPERTS, section, hidden, moe),
        False: blocks.gated_mlp(hidden, intermediate),
    }
    dense = section.integer("first_k_dense_replace", 1, minimum=0)
    every = section.integer("moe_layer_freq", 1)
    sparse = (index >= dense and (index - dense) % every == 0 for index in range(section.layers()))
    return blocks.decoder(
        config,
        heads=mla.as_heads(latent),
        layers=by_kind(sparse, lambda is_sparse: mla.latent_layer(latent, *around, *bodies[is_sparse])),
        intermediate_size=intermediate,
        tied=blocks.is_tied(config, section, False),
        rotary_tables=rotary_tables(section, latent, with_indexer=False),
        moe=moe,
        is_mla=True,
    )


LATENT_BYTES: Final = 584
"""One packed latent: 448 fp8, 64 bf16 rotated, 8 scales. Source: vllm/models/deepseek_v4/attention.py (0.32)."""
INDEX_BYTES: Final = 132
"""One indexer key: 128 fp8 and a float32 scale. Source: vllm/models/deepseek_v4/attention.py (0.32)."""
WINDOW_BLOCK: Final = 64
"""Source: vllm/v1/attention/backends/mla/sparse_swa.py:DeepseekV4SWACache (0.32)."""
SINKS: Final = 64
"""Attention sinks are padded to the heads of the kernel. Source: vllm/models/deepseek_v4/nvidia/flashmla.py (0.32)."""


def read_v4(config: ModelConfig) -> arch.Architecture:
    """DeepSeek-V4: a window of latents in every layer, compressed latents and an indexer in most, hyper-connections.

    Source: vllm/models/deepseek_v4/nvidia/model.py, attention.py, compressor.py, mtp.py (0.32).
    """
    section = config.language
    hidden = section.integer("hidden_size")
    num_heads, width = section.integer("num_attention_heads"), section.integer("head_dim")
    heads = blocks.Heads(hidden_size=hidden, num_heads=num_heads, num_kv_heads=1, head_dim=width)
    count = section.layers()
    ratios = section.integers("compress_ratios") or ()
    if len(ratios) < count or set(ratios) - {0, 1, *mla.COMPRESSOR_BLOCKS}:
        raise section.contradicting("compress_ratios", f"{len(ratios)} ratios for {count} layers")
    moe = read_moe(V4_EXPERTS, section)
    hashed = section.integer("num_hash_layers", 0, minimum=0)
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    # Float32 tables: a plain one for windows, a scaled one for compressed latents.
    positions, rotary = section.integer("max_position_embeddings"), section.integer("qk_rope_head_dim")
    rows = (positions, read_ropes(section)[0].table_positions(positions))
    last = arch.VocabEmbedding(
        name="head", num_embeddings=section.integer("vocab_size"), embedding_dim=hidden
    )
    built = blocks.decoder(
        config,
        heads=heads,
        layers=by_kind(
            ((ratio, index < hashed) for index, ratio in enumerate(ratios[:count])),
            lambda kind: v4_layer(section, heads, moe, kind[0], is_hashed=kind[1]),
        ),
        intermediate_size=moe.moe_intermediate_size,
        first=(blocks.embedding(section, "embed"),),
        last=(blocks.norm("norm", hidden), last),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=tuple(
            arch.RotaryTable(max_positions=count, rotary_dim=rotary, dtype="float32") for count in rows
        ),
        layer_prefix="layers",
        moe=moe,
        is_mla=True,
    )
    streams = section.integer("hc_mult")
    mix = float32("hc_head", streams * streams * hidden + streams + 1)
    body = v4_layer(section, heads, moe, 0, is_hashed=False)
    start: tuple[arch.Module, ...] = (
        *blocks.norms(hidden, "enorm", "hnorm", "shared_head.norm"),
        blocks.replicated("e_proj", hidden, hidden),
        blocks.replicated("h_proj", hidden, hidden),
        mix,
    )
    draft = replace(body, modules=(*start, *body.modules))
    topk = section.optional_integer("index_topk", minimum=1)
    return dataclasses.replace(
        built,
        draft_layers=(draft,) * drafts,
        draft_steps=drafts,
        spark=v4_spark(section, body, mix),
        every=(mix,),
        residual_streams=streams,
        token_choice=arch.TokenChoice(topk=topk) if topk else None,
    )


SPARK_LAYERS: Final = 3
"""Source: vllm/models/deepseek_v4/nvidia/dspark.py:DSparkDeepseekV4Model.num_dspark_layers (0.25.0, 0.33.0)."""


def v4_spark(section: Section, layer: arch.Layer, mix: arch.Parameter) -> arch.SparkDraft | None:
    """The DSpark stages under `mtp.` of a checkpoint, which have a window alone.

    A projection to the latents of the context of all of them is theirs since 0.32. The states that they see are kept
    until the last layer has run, and with them the streams that the latest of them is the mean of.

    Source: vllm/models/deepseek_v4/nvidia/dspark.py:DSparkDeepseekV4Model (0.25.0, 0.32.0, 0.33.0), model.py:
    DeepseekV4Model.forward (0.25.0, 0.33.0).
    """
    modules = spark_modules(section)
    if not modules:
        return None
    count = section.integer("n_mtp_layers", 0, minimum=0, maximum=64) or SPARK_LAYERS
    latents = blocks.replicated(
        "mtp.context_wkv_proj", section.integer("hidden_size"), count * section.integer("head_dim")
    )
    return arch.SparkDraft(
        layers=(layer,) * count,
        modules=(*modules, latents, mix),
        tokens=section.optional_integer("dspark_block_size", minimum=1),
        kept_elements=spark_states(section, section.integer("hc_mult")),
    )


def spark_states(section: Section, streams: int) -> int:
    """Elements of a token that are kept while the last layer runs: the states before it, and `streams` of the latest.

    Example:
        >>> spark_states(Section({"hidden_size": 8, "num_hidden_layers": 6, "dspark_target_layer_ids": [4, 5]}, ""), 4)
        40
    """
    last = section.layers() - 1
    earlier = [at for at in section.integers("dspark_target_layer_ids") or () if at < last]
    return section.integer("hidden_size") * (len(earlier) + streams) if earlier else 0


def spark_modules(section: Section) -> tuple[arch.Module, ...]:
    """Modules next to DSpark stages, whole on every rank; () where the config names no layers for them to see.

    A projection of the states that they see, norms, a bias of low rank by the token before, a head of confidence.

    Source: vllm/models/deepseek_v4/nvidia/dspark.py, deepseek_v41/nvidia/dspark.py:DSparkDeepseekV4Model (0.33.0).
    """
    seen = section.integers("dspark_target_layer_ids")
    if not seen:
        return ()
    hidden = section.integer("hidden_size")
    return (
        blocks.replicated("mtp.0.main_proj", len(seen) * hidden, hidden),
        *blocks.norms(hidden, "mtp.0.main_norm", "mtp.norm"),
        *sequential(section, rank_key="dspark_markov_rank", has_confidence=True),
    )


def v4_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, ratio: int, *, is_hashed: bool
) -> arch.Layer:
    """One layer: attention with its compressor and indexer, experts, hyper-connections that mix residual streams."""
    hidden, streams = heads.hidden_size, section.integer("hc_mult")
    mixes = (2 + streams) * streams
    modules: list[arch.Module] = [
        *v4_attention(section, heads),
        *v4_experts(section, hidden, moe, is_hashed=is_hashed),
        *blocks.norms(hidden, "attn_norm", "ffn_norm"),
        *(float32(name, mixes * streams * hidden + mixes + 3) for name in ("hc_attn", "hc_ffn")),
    ]
    window = LatentWindow(
        sliding_window=section.integer("sliding_window"),
        state_bytes=LATENT_BYTES,
        page_alignment=mla.PAGE_ALIGNMENT,
        block_size=WINDOW_BLOCK,
        width=heads.head_dim,
    )
    compressors = []
    if ratio > 1:
        compressors.append(mla.compressor("attn.compressor", hidden, heads.head_dim, ratio, LATENT_BYTES))
    if ratio == mla.OVERLAPPING_RATIO:
        width, count = section.integer("index_head_dim"), section.integer("index_n_heads")
        index = mla.compressor("attn.indexer.compressor", hidden, width, ratio, INDEX_BYTES, is_index=True)
        queries = blocks.replicated("attn.indexer.wq_b", section.integer("q_lora_rank"), width * count)
        weights = blocks.replicated("attn.indexer.weights_proj", hidden, count, quantizable=False)
        compressors.append(replace(index, modules=(queries, weights, *index.modules)))
    return arch.Layer(
        modules=(*modules, *(module for each in compressors for module in each.modules)),
        caches=(window, *(cache for each in compressors for cache in each.caches)),
    )


def v4_attention(section: Section, heads: blocks.Heads) -> tuple[arch.Module, ...]:
    """Latent projections, and an output projection in groups."""
    hidden, rank = heads.hidden_size, section.integer("q_lora_rank")
    groups, out_rank = section.integer("o_groups"), section.integer("o_lora_rank")
    width = heads.num_heads * heads.head_dim
    if width % groups:
        raise section.contradicting("o_groups", f"{width} is not divisible by {groups} groups")
    return (
        arch.Linear(
            name="attn.fused_wqa_wkv",
            in_features=hidden,
            outputs=(arch.Output(units=rank), arch.Output(units=heads.head_dim)),
            parts=("attn.wq_a", "attn.wkv"),
        ),
        blocks.norm("attn.q_norm", rank),
        blocks.norm("attn.kv_norm", heads.head_dim),
        mla.heads_column("attn.wq_b", rank, heads.num_heads, heads.head_dim),
        blocks.column("attn.wo_a", width // groups, groups * out_rank),
        blocks.row("attn.wo_b", groups * out_rank, hidden),
        float32("attn.attn_sink", SINKS),
    )


def v4_experts(
    section: Section, hidden: int, moe: arch.MixtureOfExperts, *, is_hashed: bool
) -> tuple[arch.Module, ...]:
    """Router and experts; the first layers choose experts by a table of token ids."""
    is_corrected = not is_hashed and section.string("topk_method", "") == "noaux_tc"
    modules = expert_modules(replace(V4_EXPERTS, correction_bias=is_corrected), section, hidden, moe)
    if not is_hashed:
        return modules
    size = section.integer("vocab_size") * moe.top_k
    table = arch.Parameter(name="ffn.gate.tid2eid", replicated=size, dtype="int32")
    return (*modules[:2], table, *modules[2:])


def float32(name: str, elements: int) -> arch.Parameter:
    """A tensor that every rank stores whole in float32."""
    return arch.Parameter(name=name, replicated=elements, dtype="float32")


READERS: Final = by_row(
    {
        **{name: partial(read, row=DECODERS[name]) for name in ("deepseek_v3", "axk1", "pangu_ultra_moe")},
        "sarvam_mla": read_sarvam,
        "deepseek_v4": read_v4,
    }
)
