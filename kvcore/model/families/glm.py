"""GLM-5.3-Flash: KDA with sparse latent attention, whose indexer picks pools of tokens; hyper-connections."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import CacheState, PooledKeys, RecurrentState, TokenRing
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    DraftTraits,
    by_row,
    feed_forward,
    read_decoder,
    with_drafts,
)
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts.encoder import Encoder, under, with_encoders
from kvcore.model.parts.experts import ExpertTraits, optional_moe
from kvcore.model.parts.latent import Latent, absorbed, as_heads, indexer, latent_attention, read_latent
from kvcore.model.parts.mixers import kda_layer, read_conv_kernel, wide_column
from kvcore.model.parts.pattern import with_modules
from kvcore.model.rope import read_ropes

EXPERTS: Final = DECODERS["glm5_next"].experts or ExpertTraits()
LINEAR: Final = "linear_attention"
KEY_SCALE: Final = 128
"""Elements of an indexer's key with one float32 scale.

Source: vllm/models/glm5next/common/attention.py:Indexer.quant_block_size (0.33)."""

PAGE_KEYS: Final = 32
"""Keys in a page of DeepGEMM's kernel; 64 on capability 12.0.

Source: vllm/v1/attention/backends/mla/indexer.py:Glm5NextIndexerBackend (0.33)."""


def read_5_next(config: ModelConfig) -> arch.Architecture:
    """GLM-5.3-Flash, alone or behind its image encoder.

    Source: vllm/models/glm5next/common/model.py, attention.py, kda.py, mtp.py, multimodal.py (0.33).
    """
    section = config.language
    latent, hidden = read_latent(section), section.integer("hidden_size")
    moe = optional_moe(EXPERTS, section)
    row = DECODERS["glm5_next"]
    is_corrected = section.string("topk_method", "noaux_tc") == "noaux_tc"
    row = replace(row, experts=replace(EXPERTS, correction_bias=is_corrected) if moe else None)
    count = section.layers()
    kinds = section.words("layer_types", LAYER_TYPES, count) or (LAYER_TYPES[-1],) * count
    sparse = section.words("mlp_layer_types", ("dense", "sparse"), count) or ("sparse",) * count
    mixes = connections(section, hidden)
    sparse_attention = attending(section, latent)
    mixers = {
        kind: with_modules(linear_attention(section, hidden) if kind == LINEAR else sparse_attention, *mixes)
        for kind in dict.fromkeys(kinds)
    }
    built = dataclasses.replace(
        read_decoder(
            row,
            config,
            heads=as_heads(latent),
            mixers=tuple(mixers[kind] for kind in kinds),
            sparse=tuple(bool(moe) and kind == "sparse" for kind in sparse),
            width=section.integer("intermediate_size"),
            rotary_tables=rotary_tables(section, latent),
        ),
        is_mla=True,
        token_choice=token_choice(section),
        residual_streams=section.integer("hc_mult") if mixes else 1,
    )
    body = feed_forward(
        row, section, hidden, built.intermediate_size, moe if sparse[-1] == "sparse" else None
    )
    draft = with_modules(sparse_attention, *body, *blocks.norms(hidden, *blocks.TWO_NORMS))
    built = with_drafts(built, section, DraftTraits(), draft)
    vision = config.root.optional_section("vision_config")
    if vision is None:
        return built
    return with_encoders(built, image_encoder(vision, section), "model.language_model.layers")


def image_encoder(vision: Section, text: Section) -> Encoder:
    """GLM-OCR's with biases, a merger of its own width, and positions up to the text's.

    Source: vllm/models/glm5next/common/multimodal.py:Glm5NextVisionTransformer (0.33).
    """
    seen = image_encoders.glm_ocr(vision, vision.integer("projection_intermediate_size"), bias=True)
    table = replace(seen.tables[0], max_positions=text.integer("max_position_embeddings"), is_plain=False)
    return under("visual", replace(seen, tables=(table,)))


LAYER_TYPES: Final = (LINEAR, "full_attention", "indexed_attention")
"""Source: transformers/models/glm5_next/configuration_glm5_next.py (5.20)."""


def linear_attention(section: Section, hidden: int) -> arch.Layer:
    """KDA, all of it in 16 bits; each rank stores the ways down to the decay and the output gate whole.

    Source: vllm/models/glm5next/common/kda.py:Glm5NextLinearAttention (0.33).
    """
    prefix = "self_attn"
    heads = section.integer("linear_num_heads")
    width = section.integer("linear_head_dim")
    each, down = arch.Output(units=heads, width=width), arch.Output(units=1, width=width, replicable=True)
    names = tuple(f"{prefix}.{name}_proj" for name in ("q", "k", "v", "b", "f_a", "g_a"))
    outputs = (each, each, each, arch.Output(units=heads), down, down)
    start = (wide_column(f"{prefix}.in_proj_qkvbfg_a", hidden, outputs, names),)
    gates = tuple(wide_column(f"{prefix}.{name}_b_proj", width, (each,)) for name in "fg")
    kernel = read_conv_kernel(section, "linear_conv_kernel_dim")
    layer = unquantized(kda_layer(prefix, hidden, (heads, width), kernel, start, gates))
    exporting = (
        replace(state, exported_head_size=width) if isinstance(state, RecurrentState) else state
        for state in layer.caches
    )
    return replace(layer, caches=tuple(exporting))


def attending(section: Section, latent: Latent) -> arch.Layer:
    """Latent attention in 16 bits, with the indexer that picks pools of tokens where the config has one."""
    caches: tuple[CacheState, ...] = (latent.cache,)
    modules: tuple[arch.Module, ...] = latent_attention(latent)
    if section.optional_integer("index_topk", minimum=1) is not None:
        pool, width = section.integer("index_kpool", minimum=2), section.integer("index_head_dim")
        key_bytes = width + width // KEY_SCALE * 4
        keys = PooledKeys(tokens_per_state=pool, key_bytes=key_bytes, page_keys=PAGE_KEYS)
        ring = TokenRing(tokens_per_group=pool, row_bytes=2 * width * 2, in_powers=True)
        caches = (keys, ring, latent.cache)
        prefix = "self_attn.indexer.index_kpool_compress"
        modules += (
            arch.Parameter(name=f"{prefix}_ape", replicated=pool * width, dtype="float32"),
            arch.Parameter(name=f"{prefix}_gate", replicated=width * latent.hidden_size),
            *indexer(section, latent),
        )
    layer = arch.Layer(modules=modules, caches=caches, loading=(absorbed(latent),))
    return unquantized(layer)


def unquantized(layer: arch.Layer) -> arch.Layer:
    """The layer, whose linear layers no quantizer touches."""
    modules = (
        replace(module, quantizable=False) if isinstance(module, arch.Linear) else module
        for module in layer.modules
    )
    return replace(layer, modules=tuple(modules))


def connections(section: Section, hidden: int) -> tuple[arch.Module, ...]:
    """Float32 hyper-connections around attention and experts; () without."""
    if not section.boolean("mhc", False):
        return ()
    streams = section.integer("hc_mult")
    mixes = (2 + streams) * streams
    elements = mixes * streams * hidden + mixes + 3
    return tuple(
        arch.Parameter(name=name, replicated=elements, dtype="float32") for name in ("hc_attn", "hc_ffn")
    )


def token_choice(section: Section) -> arch.TokenChoice | None:
    """How many tokens the indexer picks."""
    topk = section.optional_integer("index_topk", minimum=1)
    return arch.TokenChoice(topk=topk) if topk else None


def rotary_tables(section: Section, latent: Latent) -> tuple[arch.RotaryTable, ...]:
    """One of latent attention unless it has no positions, and one of the indexer."""
    if not latent.qk_rope_head_dim:
        return ()
    table = read_ropes(section)[0].table(latent.qk_rope_head_dim, section.integer("max_position_embeddings"))
    attends = () if section.boolean("mla_use_nope", False) else (table,)
    return (*attends, *((table,) if section.has("index_topk") else ()))


READERS: Final = by_row({"glm5_next": read_5_next})
