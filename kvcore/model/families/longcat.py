"""Projections of low rank in layers unlike DeepSeek's: LongCat-Flash, MiniCPM3, Mistral 4, Hunyuan 4, Step 3."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import CacheState, SparseIndexer
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    DraftTraits,
    by_row,
    experts_of,
    read_decoder,
    with_drafts,
)
from kvcore.model.families.deepseek import rotary_tables, which_layers_index
from kvcore.model.families.windows import step_sparse_layers
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.experts import MAX_EXPERTS, expert_modules, read_moe, routed_experts
from kvcore.model.parts.latent import (
    Latent,
    absorbed,
    as_heads,
    heads_column,
    indexer,
    latent_attention,
    read_latent,
)
from kvcore.model.parts.pattern import by_kind, sparse_but_the_first
from kvcore.model.rope import read_ropes

Pieces = tuple[arch.Module, ...]


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
    experts = experts_of("longcat_flash")
    # The class has a default for the key of its own alone, and a file may give the usual one before it.
    if section.has("moe_intermediate_size"):
        experts = replace(experts, intermediate_key="moe_intermediate_size")
    moe = read_moe(experts, section)
    zero = section.integer("zero_expert_num", 0, minimum=0, maximum=MAX_EXPERTS)
    routed = moe.num_experts + zero
    modules: list[arch.Module] = [
        blocks.replicated("mlp.router.classifier", hidden, routed, quantizable=False, dtype="float32"),
        arch.Parameter(name="mlp.router.e_score_correction_bias", replicated=routed, dtype="float32"),
        routed_experts(experts, hidden, moe),
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
    return dataclasses.replace(
        built, is_mla=True, draft_layers=(draft,), draft_prefix="model.mtp.layers", draft_steps=1
    )


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
    tables: Pieces = (
        arch.VocabEmbedding(
            name="model.ngram_embeddings.oe_embedder", num_embeddings=rows, embedding_dim=width
        ),
        arch.Parameter(
            name="model.ngram_embeddings.oe_projection", replicated=embedders * width * built.hidden_size
        ),
    )
    return dataclasses.replace(built, first=(*built.first, *tables))


def read_minicpm3(config: ModelConfig) -> arch.Architecture:
    """MiniCPM3: latent projections, but an ordinary cache of every head's keys and values, values padded.

    Values are as wide as a head of the hidden size.

    Source: vllm/model_executor/models/minicpm3.py (0.32).
    """
    section = config.language
    section.integer("q_lora_rank")
    latent = read_latent(section, v_head_dim=1)
    latent = replace(latent, v_head_dim=latent.hidden_size // latent.num_heads)
    heads = whole_heads(latent)
    mixer = arch.Layer(modules=low_rank_attention(latent), caches=(blocks.cache_of(heads),))
    positions = section.integer("max_position_embeddings")
    return read_decoder(
        DECODERS["minicpm3"],
        config,
        heads=heads,
        mixers=(mixer,) * section.layers(),
        rotary_tables=tuple(rope.table(latent.qk_rope_head_dim, positions) for rope in read_ropes(section)),
    )


def low_rank_attention(latent: Latent, *, bias: bool = False) -> Pieces:
    """The projections, the two ways down not fused; they are whole on every rank."""
    hidden, rank, heads = latent.hidden_size, latent.q_lora_rank, latent.num_heads
    down, up = latent.kv_lora_rank + latent.qk_rope_head_dim, latent.qk_nope_head_dim + latent.v_head_dim
    queries: Pieces = (heads_column("self_attn.q_proj", hidden, heads, latent.qk_head_dim),)
    if rank:
        queries = (
            blocks.replicated("self_attn.q_a_proj", hidden, rank, bias=bias),
            blocks.norm("self_attn.q_a_layernorm", rank),
            heads_column("self_attn.q_b_proj", rank, heads, latent.qk_head_dim),
        )
    return (
        *queries,
        blocks.replicated("self_attn.kv_a_proj_with_mqa", hidden, down, bias=bias),
        blocks.norm("self_attn.kv_a_layernorm", latent.kv_lora_rank),
        heads_column("self_attn.kv_b_proj", latent.kv_lora_rank, heads, up),
        blocks.row("self_attn.o_proj", heads * latent.v_head_dim, hidden, bias=bias),
    )


def whole_heads(latent: Latent) -> blocks.Heads:
    """The heads as a cache sees them that the latent vector is expanded for, position part included."""
    return blocks.Heads(
        hidden_size=latent.hidden_size,
        num_heads=latent.num_heads,
        num_kv_heads=latent.num_heads,
        head_dim=latent.qk_head_dim,
    )


def read_mistral4(config: ModelConfig, section: Section | None = None) -> arch.Architecture:
    """Mistral Small 4: low-rank projections, whole keys and values in the cache, experts.

    The engine runs it through its Transformers backend, which expands the latent vector before the cache.

    Source: vllm/model_executor/models/transformers (0.32) over transformers' Mistral4 (5.19).
    """
    section = section or config.language
    latent = read_latent(section)
    heads = replace(whole_heads(latent), value_dim=latent.v_head_dim)
    modules = low_rank_attention(latent, bias=section.boolean("attention_bias", False))
    mixer = arch.Layer(modules=modules, caches=(blocks.cache_of(heads),))
    positions = section.integer("max_position_embeddings")
    return read_decoder(
        DECODERS["mistral4"],
        config,
        section,
        heads=heads,
        mixers=(mixer,) * section.layers(),
        width=section.integer("intermediate_size"),
        rotary_tables=(read_ropes(section)[0].table(latent.qk_rope_head_dim, positions),),
    )


SPARSE_KINDS: Final = ("sparse_attention", "sparse", "indexed_attention", "deepseek_sparse_attention")
"""Layer types with sparse attention. Source: vllm/models/hy_v4/nvidia/attention.py:_SPARSE_LAYER_TYPES (0.32)."""


def read_hunyuan4(config: ModelConfig) -> arch.Architecture:
    """Hunyuan 4.

    Source: vllm/models/hy_v4/nvidia/model.py, attention.py, hc.py, moe.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    moe = read_moe(experts_of("hy_v4"), section)
    count, hidden = section.layers(), latent.hidden_size
    kinds = tuple(zip(which_layers_have_indexers(section, count), sparse_but_the_first(section), strict=True))
    intermediate = section.integer("intermediate_size")
    bodies = {
        True: expert_modules(experts_of("hy_v4"), section, hidden, moe),
        False: blocks.gated_mlp(hidden, intermediate),
    }
    tied = blocks.is_tied(config, section, False)
    positions = section.integer("max_position_embeddings")
    built = blocks.decoder(
        config,
        heads=as_heads(latent),
        layers=by_kind(
            kinds, lambda kind: hunyuan4_layer(section, latent, bodies[kind[1]], is_indexed=kind[0])
        ),
        intermediate_size=intermediate,
        last=(
            blocks.norm("model.norm", hidden),
            *stream_mix(section, hidden, "model.hc_head", outputs=1, scales=1),
            *(() if tied else (blocks.head(section),)),
        ),
        tied=tied,
        rotary_tables=(read_ropes(section)[0].table(latent.qk_rope_head_dim, positions),),
        moe=moe,
        is_mla=True,
    )
    built = dataclasses.replace(built, token_choice=hunyuan4_choice(section, count))
    last = section.words("layer_types", ("full_attention", *SPARSE_KINDS), count) or ("",)
    draft = hunyuan4_layer(section, latent, bodies[True], is_indexed=last[-1] in SPARSE_KINDS, is_draft=True)
    return with_drafts(built, section, DraftTraits(norms=("enorm", "hnorm", "final_layernorm")), draft)


def hunyuan4_choice(section: Section, count: int) -> arch.TokenChoice | None:
    """The choice of its indexers; every layer of sparse attention keeps a copy for the whole batch.

    Source: vllm/models/hy_v4/nvidia/model.py, attention.py:HYV4MLAAttention (0.32), which gives no group builder.
    """
    kinds = section.words("layer_types", ("full_attention", *SPARSE_KINDS), count)
    topk = section.optional_integer("index_topk", minimum=1)
    if kinds is None or topk is None:
        return None
    sparse = tuple(kind in SPARSE_KINDS for kind in kinds)
    return arch.TokenChoice(topk=topk, groups=sparse, is_of_decodes=False)


def which_layers_have_indexers(section: Section, count: int) -> tuple[bool, ...]:
    """Layers that choose their own tokens: of those with sparse attention, the ones that share no other's choice.

    Source: vllm/transformers_utils/configs/hy_v4.py:HYV4Config (0.32).
    """
    kinds = section.words("layer_types", ("full_attention", *SPARSE_KINDS), count)
    if kinds is None:
        return (False,) * count
    own = tuple(index == 0 or (index - 1) % 4 == 0 for index in range(count))
    if section.has("indexer_types"):
        own = which_layers_index(section, count)
    return tuple(each and kind in SPARSE_KINDS for each, kind in zip(own, kinds, strict=False))


def hunyuan4_layer(
    section: Section, latent: Latent, body: Pieces, *, is_indexed: bool, is_draft: bool = False
) -> arch.Layer:
    """One layer; drafts mix no residual streams.

    Source: vllm/models/hy_v4/nvidia/mtp.py:HYV4MultiTokenPredictorLayer (0.32, 0.33).
    """
    hidden = latent.hidden_size
    modules: list[arch.Module] = [
        *latent_attention(latent),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
        *body,
    ]
    caches: list[CacheState] = [latent.cache]
    if is_indexed:
        modules += indexer(section, latent)
        caches.insert(0, SparseIndexer(index_head_dim=section.integer("index_head_dim")))
    if section.boolean("gated_mla", True):
        is_per_head = section.string("gating_type", "elementwise") == "headwise"
        width = 1 if is_per_head else latent.v_head_dim
        modules.append(heads_column("self_attn.linear_gate", hidden, latent.num_heads, width))
    if section.boolean("learnable_sink", True):
        sink = arch.Parameter(
            name="self_attn.learnable_sink_param", sharded=latent.num_heads, dtype="float32"
        )
        modules.append(sink)
    for name in () if is_draft else ("hc_attn_layer", "hc_mlp_layer"):
        modules += stream_mix(section, hidden, f"{name}.hc_pre", outputs=2, scales=2)
    return arch.Layer(modules=tuple(modules), caches=tuple(caches), loading=(absorbed(latent),))


def stream_mix(
    section: Section, hidden: int, prefix: str, *, outputs: int, scales: int
) -> tuple[arch.Parameter, ...]:
    """Weights that mix the residual streams: `outputs` numbers a stream, in float32; () without streams."""
    if not section.boolean("enable_ihc", True):
        return ()
    streams = section.integer("hc_mult", maximum=1024)
    numbers = streams * hidden * outputs * streams + outputs * streams + scales
    return (arch.Parameter(name=prefix, replicated=numbers, dtype="float32"),)


def read_step3(config: ModelConfig) -> arch.Architecture:
    """Step 3, with its encoder where the config has one.

    Source: vllm/model_executor/models/step3_text.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "num_attention_groups")
    if heads.num_kv_heads != 1:
        raise section.invalid("num_attention_groups", heads.num_kv_heads, "expected 1")
    moe = read_moe(experts_of("step3_text"), section)
    layers = {is_sparse: step3_layer(section, heads, moe, is_sparse=is_sparse) for is_sparse in (False, True)}
    positions = section.optional_integer("max_position_embedding", minimum=1) or section.integer(
        "max_position_embeddings"
    )
    encoder = config.root.optional_section("vision_config", "step3_vision_encoder")
    built = blocks.decoder(
        config,
        heads=heads,
        layers=tuple(layers[each] for each in step_sparse_layers(section, section.layers())),
        intermediate_size=section.integer("intermediate_size"),
        last=(blocks.norm("model.norm", heads.hidden_size), replace(blocks.head(section), quantizable=False)),
        tied=False,
        rotary_tables=tuple(rope.table(heads.head_dim, positions) for rope in read_ropes(section)),
        moe=moe,
    )
    if encoder is None:
        return built
    biased = config.root.boolean("projector_bias", True)
    return enc.with_encoders(built, step3_images(encoder, heads.hidden_size, bias=biased))


def step3_images(section: Section, text: int, *, bias: bool) -> enc.Encoder:
    """CLIP with two convolutions that each take a square of patches to one, and a linear layer.

    The largest image is a whole one and six tiles of it:
    vllm/transformers_utils/processors/step3_vl.py:ImagePatcher (0.32).

    Source: vllm/model_executor/models/step3_vl.py:Step3VisionTransformer, Step3VLForConditionalGeneration (0.32).
    """
    own, (patch, side) = enc.read_sizes(section), enc.read_patches(section)
    width, out = own.width, section.integer("output_hidden_size")
    modules = (
        enc.tensor("vision_model.embeddings.class_embedding", width),
        enc.convolution(
            "vision_model.embeddings.patch_embedding", enc.read_channels(section), width, patch, patch
        ),
        enc.tensor("vision_model.embeddings.position_embedding", side**2 + 1, width),
        *enc.repeated("vision_model.transformer.layers", own.layers, enc.block(own, enc.CLIP)),
        enc.convolution("vit_downsampler", width, out, 2, 2),
        enc.convolution("vit_downsampler2", out, 2 * out, 3, 3),
        enc.whole("vit_large_projector", 2 * out, text, bias=bias),
    )
    return enc.seeing(modules, own, ((side + 3) // 4) ** 2 * (6 + 1), 16)


def step3_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, *, is_sparse: bool
) -> arch.Layer:
    """One layer; keys, values and the narrow queries are whole on every rank."""
    hidden, all_heads = heads.hidden_size, heads.num_heads * heads.head_dim
    narrow = section.integer("share_q_dim", heads.head_dim)
    modules: list[arch.Module] = [
        blocks.replicated("self_attn.qkv_proj", hidden, narrow + 2 * heads.head_dim),
        blocks.norm("self_attn.inter_norm", narrow),
        blocks.column("self_attn.wq", narrow, all_heads),
        blocks.row("self_attn.o_proj", all_heads, hidden),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    ]
    if is_sparse:
        routed = replace(moe, shared_intermediate_size=0)
        modules += expert_modules(experts_of("step3_text"), section, hidden, routed)
        modules += blocks.gated_mlp(hidden, moe.shared_intermediate_size, "share_expert")
    else:
        modules += blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    return arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),))


READERS: Final = by_row(
    {
        "longcat_flash": read_longcat,
        "LongcatFlashNgramForCausalLM": read_longcat_ngram,
        "minicpm3": read_minicpm3,
        "mistral4": read_mistral4,
        "hy_v4": read_hunyuan4,
        "step3_text": read_step3,
    }
)
