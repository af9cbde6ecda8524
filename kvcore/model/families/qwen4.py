"""Qwen4-Exp: gated delta nets, attention to picked groups of tokens, residual streams, layers that look up n-grams."""

from __future__ import annotations

import dataclasses
from typing import Final

from kvcore.base.units import round_up
from kvcore.model import architecture as arch
from kvcore.model.caches import CacheState, PooledKeys, RecurrentState, TokenRing
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, by_row, feed_forward, read_decoder
from kvcore.model.families.qwen import LINEAR, read_delta_net
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts.encoder import under, with_encoders
from kvcore.model.parts.experts import ExpertTraits, read_moe
from kvcore.model.parts.mixers import MAX_CONV_TAPS, conv_rows, read_conv_kernel
from kvcore.model.parts.pattern import with_modules

EXPERTS: Final = DECODERS["qwen4_exp"].experts or ExpertTraits()
PICKING: Final = ("qwen_sparse_attention", "indexed_attention")
MIX_ROWS: Final = 16
"""Rows of a way down are padded to a multiple of this.

Source: vllm/models/qwen4_exp/nvidia/hyperconnection.py:GatedResidual (0.33)."""
KEY_BYTES: Final = 2
POSITIONS: Final = 12
"""Elements of 16 bits for the three int64 positions of a token; keys stand before them in multiples of 4.

Source: vllm/models/qwen4_exp/common/qsa_cache.py:QSAKeyStateCache (0.33)."""
POSITION_ELEMENTS: Final = 4


def read(config: ModelConfig) -> arch.Architecture:
    """Qwen4-Exp, alone or behind its image encoder. The tables of n-grams stay in the host's memory.

    Source: vllm/models/qwen4_exp/nvidia/model.py, qsa.py, indexer_qsa.py, hyperconnection.py, ple_layer.py, mtp.py,
    vllm/config/engram.py:EngramConfig.cpu_offload (0.33).
    """
    section = config.language
    heads, hidden, count = blocks.read_heads(section), section.integer("hidden_size"), section.layers()
    streams = section.integer("hc_count", minimum=2, maximum=64)
    net = read_delta_net(config, section)
    vision = config.root.optional_section("vision_config")
    kinds = section.words("layer_types", (LINEAR, *PICKING), count)
    if kinds is None:
        raise section.missing("layer_types")
    around = (*mixes(section, "attn_hyper_connection"), *mixes(section, "mlp_hyper_connection"))
    attends = with_modules(attending(section, heads, has_positions=vision is not None), *around)
    linear = arch.Layer(modules=(*net.modules("linear_attn"), *around), caches=(net.cache,))
    looked_up = lookup(section, hidden * streams, hidden)
    places = frozenset(section.integers("ple_layer_ids", minimum=1) or ())
    plain = {True: attends, False: linear}
    with_lookup = {
        attends_here: arch.Layer(
            modules=(*looked_up.modules, *layer.modules), caches=(*looked_up.caches, *layer.caches)
        )
        for attends_here, layer in plain.items()
    }
    mixers = tuple(
        (with_lookup if index in places else plain)[kind != LINEAR] for index, kind in enumerate(kinds, 1)
    )
    row = DECODERS["qwen4_exp"]
    moe = read_moe(EXPERTS, section)
    built = read_decoder(row, config, heads=heads, mixers=mixers, width=moe.moe_intermediate_size)
    mixer = mixes(section, "model.hyper_connection_mixer", combines=False)
    drafts = section.integer("mtp_num_hidden_layers", 0, minimum=0, maximum=16)
    body = feed_forward(row, section, hidden, moe.moe_intermediate_size, moe)
    built = dataclasses.replace(
        built,
        last=(*mixer, *(module for module in built.last if isinstance(module, arch.VocabEmbedding))),
        residual_streams=streams,
        draft_layers=(with_modules(attends, *body),) * drafts,
        draft_prefix="mtp.layers",
        draft_modules=draft_modules(section, hidden, streams) if drafts else (),
        draft_steps=drafts,
    )
    if vision is None:
        return built
    seen = under("visual", image_encoders.qwen3_vl(vision))
    return with_encoders(built, seen, "model.language_model.layers")


def attending(section: Section, heads: blocks.Heads, *, has_positions: bool) -> arch.Layer:
    """Attention with an output gate; where the config has an indexer, its projection is part of the queries', and it
    keeps a key a group and a ring of those whose group is not whole."""
    caches: tuple[CacheState, ...] = (blocks.cache_of(heads),)
    projections = blocks.attention(heads, query_parts=2)
    modules: tuple[arch.Module, ...] = (
        *projections,
        *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
    )
    count = section.optional_integer("indexer_n_heads", minimum=1)
    if count is None:
        return arch.Layer(modules=modules, caches=caches)
    width, group = section.integer("indexer_head_dim"), section.integer("indexer_compress_ratio")
    elements = round_up(width, POSITION_ELEMENTS) + POSITIONS if has_positions else width
    ring = TokenRing(tokens_per_group=group, row_bytes=elements * KEY_BYTES)
    keys = PooledKeys(tokens_per_state=group, key_bytes=width * KEY_BYTES)
    rows = (count + section.integer("indexer_kv_heads")) * width
    prefix = "self_attn.indexer"
    return arch.Layer(
        modules=(
            blocks.replicated(f"{prefix}.index_qk_proj", heads.hidden_size, rows),
            *modules,
            *blocks.norms(width, f"{prefix}.q_layernorm", f"{prefix}.k_layernorm"),
        ),
        caches=(ring, keys, *caches),
    )


def mixes(section: Section, prefix: str, *, combines: bool = True) -> tuple[arch.Module, ...]:
    """Low-rank modules that mix the residual streams into one input, and an output into them where it `combines`.

    They are whole on every rank.

    Source: vllm/models/qwen4_exp/nvidia/hyperconnection.py:GatedResidual (0.33).
    """
    streams, rank = section.integer("hc_count"), section.integer("hc_lowrank", 16)
    wide = streams * section.integer("hidden_size")
    rows = round_up(rank + streams, MIX_ROWS) if combines else rank
    return (
        blocks.norm(f"{prefix}.hc_norm", wide),
        blocks.replicated(f"{prefix}.input_mix_weight_down", wide, rows, quantizable=False),
        blocks.replicated(f"{prefix}.input_mix_weight_up", rank, wide, quantizable=False),
    )


def lookup(section: Section, wide: int, hidden: int) -> arch.Layer:
    """Modules of a layer with n-grams besides its table, whole on every rank.

    A projection, norms, and a convolution over every so many tokens, of which the last inputs are kept.

    Source: vllm/models/qwen4_exp/nvidia/ple_layer.py:Qwen4ExpPLELayer (0.33).
    """
    if not section.integers("ple_layer_ids", minimum=1):
        return arch.Layer(modules=())
    kernel = read_conv_kernel(section, "ple_conv_kernel_size")
    rows = (kernel - 1) * section.integer("ngram_size", minimum=2, maximum=MAX_CONV_TAPS)
    state = RecurrentState(kind="short_conv", heads=wide, shapes=(conv_rows(wide, rows + 1),), is_whole=True)
    return arch.Layer(
        modules=(
            blocks.replicated("ple.kv_proj", section.integer("ple_embed_dim"), wide + hidden),
            *blocks.norms(wide, "ple.norm_key", "ple.norm_query", "ple.norm_conv"),
            arch.Parameter(name="ple.conv1d", replicated=wide * kernel),
        ),
        caches=(state,),
    )


def draft_modules(section: Section, hidden: int, streams: int) -> tuple[arch.Module, ...]:
    """Modules that the prediction layers share."""
    return (
        blocks.column("mtp.fc_embedding", hidden, hidden),
        blocks.column("mtp.fc_hidden", hidden, hidden),
        blocks.norm("mtp.pre_fc_norm_embedding", hidden),
        blocks.norm("mtp.pre_fc_norm_hidden", hidden * streams),
        *mixes(section, "mtp.hyper_connection_mixer", combines=False),
    )


READERS: Final = by_row({"qwen4_exp": read})
