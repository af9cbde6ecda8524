"""MiniMax: M2, Text-01 and M1 with linear attention, M3 with attention that picks blocks and an encoder in front."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import BlockIndexer
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    DraftTraits,
    by_row,
    experts_of,
    read_decoder,
    with_drafts,
    with_everywhere,
)
from kvcore.model.families.mixtures import norms_of_all_heads
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.experts import expert_modules, read_moe
from kvcore.model.parts.mixers import linear_state
from kvcore.model.parts.pattern import by_kind, crossed, marked, with_modules

Pieces = tuple[arch.Module, ...]


def read_minimax_m2(config: ModelConfig) -> arch.Architecture:
    """MiniMax-M2: norms over all heads of queries and keys, float32 router with a routing bias.

    Source: vllm/model_executor/models/minimax_m2.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    attends = blocks.attention(heads, qkv_bias=section.boolean("attention_bias", False))
    mixer = arch.Layer(modules=(*attends, *norms_of_all_heads(heads)), caches=(blocks.cache_of(heads),))
    built = read_decoder(
        DECODERS["minimax_m2"],
        config,
        heads=heads,
        mixers=(mixer,) * section.layers(),
        rotary_tables=(minimax_table(section, heads),),
    )
    if not section.boolean("use_routing_bias", False) or built.moe is None:
        return built
    name, experts = "block_sparse_moe.e_score_correction_bias", built.moe.num_experts
    return with_everywhere(built, arch.Parameter(name=name, replicated=experts, dtype="float32"))


def minimax_table(section: Section, heads: blocks.Heads) -> arch.RotaryTable:
    """The table of the rotated part of each head."""
    return arch.RotaryTable(
        max_positions=section.integer("max_position_embeddings"),
        rotary_dim=section.integer("rotary_dim", heads.head_dim),
    )


def read_minimax_01(config: ModelConfig) -> arch.Architecture:
    """MiniMax-Text-01 and M1: linear attention, full attention where `attn_type_list` is 1.

    Source: vllm/model_executor/models/minimax_text_01.py (0.19).
    """
    section = config.language
    heads = blocks.read_heads(section)
    moe, count = read_moe(experts_of("minimax"), section), section.layers()
    full, shared = text_01_kinds(section, count), shared_widths(section, count)
    mixers = {
        True: arch.Layer(modules=blocks.attention(heads), caches=(blocks.cache_of(heads),)),
        False: linear_attention(heads),
    }
    built = read_decoder(
        DECODERS["minimax"],
        config,
        heads=heads,
        mixers=tuple(mixers[each] for each in full),
        sparse=(moe.num_experts > 1,) * count,
        rotary_tables=(minimax_table(section, heads),),
    )
    more = {width: shared_mlp(heads.hidden_size, width) for width in shared}
    kinds = zip(map(id, built.layers), shared, strict=True)
    return dataclasses.replace(
        built,
        layers=crossed(kinds, {id(layer): layer for layer in built.layers}, more),
        moe=replace(moe, shared_intermediate_size=max(shared)),
    )


def linear_attention(heads: blocks.Heads) -> arch.Layer:
    """Linear attention of one layer, with its output gate and norm."""
    hidden, inner = heads.hidden_size, heads.attended
    modules = (
        blocks.column("self_attn.qkv_proj", hidden, 3 * inner),
        blocks.column("self_attn.output_gate", hidden, inner),
        blocks.row("self_attn.out_proj", inner, hidden),
        arch.Parameter(name="self_attn.norm", sharded=inner),
    )
    return arch.Layer(modules=modules, caches=(linear_state(heads.num_heads, heads.head_dim),))


def shared_mlp(hidden: int, width: int) -> Pieces:
    """The MLP next to the experts, and its coefficient; () without one."""
    coefficient = blocks.replicated("coefficient", hidden, 1, quantizable=False, dtype="float32")
    return (*blocks.gated_mlp(hidden, width, "shared_mlp"), coefficient) if width else ()


def text_01_kinds(section: Section, count: int) -> tuple[bool, ...]:
    """Layers with full attention."""
    written = section.integers("attn_type_list") or section.integers("decoder_attention_types")
    if written is None:
        kinds = section.words("layer_types", ("full_attention", "linear_attention")) or ()
        written = tuple(int(kind == "full_attention") for kind in kinds)
    if len(written) < count:
        raise section.contradicting("attn_type_list", f"{len(written)} attention types for {count} layers")
    return tuple(kind == 1 for kind in written[:count])


def shared_widths(section: Section, count: int) -> tuple[int, ...]:
    """The width of each layer's shared MLP, 0 for none."""
    if isinstance(section.get("shared_intermediate_size"), list | tuple):
        widths = section.integers("shared_intermediate_size") or ()
        return tuple(widths[index] if index < len(widths) else 0 for index in range(count))
    return (section.integer("shared_intermediate_size", 0, minimum=0),) * count


BIASED: Final = ("minimax_m3_text", "minimax_m3_vl_text")
"""Config classes whose routing has a bias unless set otherwise.

Source: vllm/transformers_utils/configs/minimax_m3.py:MiniMaxM3TextConfig (0.32).
"""


M3_DRAFTS: Final = DraftTraits(
    is_quantized=True,
    norms=("enorm", "hnorm", "final_layernorm"),
    count_key="num_mtp_modules",
    usual_count=1,
    prefix="model.mtp.layers",
)
"""Source: vllm/models/minimax_m3/nvidia/mtp.py:MiniMaxM3MultiTokenPredictorLayer, vllm/config/speculative.py (0.33)."""


def read_minimax_m3(config: ModelConfig) -> arch.Architecture:
    """MiniMax-M3: attention that picks whole blocks, an encoder of images and video in front.

    Source: vllm/models/minimax_m3/nvidia/model.py (0.32).
    """
    section, traits = config.language, DECODERS["minimax_m3"]
    heads, count = blocks.read_heads(section), section.layers()
    biased = section.boolean("use_routing_bias", section.model_type in BIASED)
    traits = replace(traits, experts=replace(experts_of("minimax_m3"), correction_bias=biased))
    indexer = section.optional_section("sparse_attention_config")
    indexed = marked(indexer, "sparse_attention_freq", count) if indexer else (False,) * count
    built = read_decoder(
        traits,
        config,
        heads=heads,
        mixers=by_kind(indexed, lambda is_indexed: m3_layer(heads, indexer if is_indexed else None)),
        sparse=marked(section, "moe_layer_freq", count, default=True),
        width=section.integer("dense_intermediate_size"),
    )
    if indexer:
        experts = replace(experts_of("minimax_m3"), correction_bias=biased)
        body = expert_modules(experts, section, heads.hidden_size, read_moe(experts, section))
        built = with_drafts(built, section, M3_DRAFTS, with_modules(m3_layer(heads, indexer), *body))
    if config.root.optional_section("vision_config") is None:
        return built
    return enc.with_encoders(built, m3_vision(config.root, heads.hidden_size), "language_model.model.layers")


M3_BLOCK: Final = replace(enc.CLIP, up="mlp.fc1", down="mlp.fc2")
M3_IMAGE_TOKENS: Final = 576
"""Of the largest image, 672 × 672 pixels; M3_PAIR_TOKENS of a pair of the largest frames, 602,112 pixels.

Source: vllm/transformers_utils/processors/minimax_m3.py:MiniMaxM3VLImageProcessor.max_pixels,
vllm/models/minimax_m3/common/mm_preprocess.py:_MAX_FRAMES_PER_VIDEO (0.25.0, 0.33.0).
"""
M3_PAIR_TOKENS: Final = 768
M3_FRAMES: Final = 500


def m3_vision(root: Section, text: int) -> enc.Encoder:
    """The encoder of images and video, CLIP without a table of positions, and the two MLPs from patches to tokens.

    The last norm is not built. The layers are in the checkpoint's dtype, patches in float32 there.

    Source: vllm/models/minimax_m3/common/vision_tower.py (0.25.0, 0.33.0).
    """
    section = root.section("vision_config")
    squares = section.section("img_token_compression_config")
    merge, time = (enc.read_merge(squares, f"{name}_size", 2) for name in ("spatial_merge", "temporal_patch"))
    own, patch = enc.read_sizes(section), section.integer("patch_size", maximum=enc.MAX_PATCH)
    channels = enc.read_channels(section)
    inner = root.optional_integer("projector_hidden_size") or text

    def projector(name: str, inputs: int) -> enc.Modules:
        return enc.column(f"{name}.linear_1", inputs, inner), enc.row(f"{name}.linear_2", inner, text)

    tower = (
        enc.convolution("embeddings.patch_embedding", channels, own.width, time, patch, patch, bias=False),
        enc.norm("pre_layrnorm", own.width),
        *enc.repeated("encoder.layers", own.layers, enc.block(own, M3_BLOCK)),
    )
    modules = (
        *enc.behind("vision_tower.vision_model", tower),
        *projector("multi_modal_projector", own.width),
        *projector("patch_merge_mlp", text * merge**2),
    )
    return enc.seeing(
        modules,
        own,
        M3_IMAGE_TOKENS,
        merge**2,
        values_per_patch=channels * time * patch**2,
        unit=patch * merge,
        draws_video=True,
        pair_tokens=M3_PAIR_TOKENS,
        most_frames=M3_FRAMES,
    )


def m3_layer(heads: blocks.Heads, indexer: Section | None) -> arch.Layer:
    """Attention of one layer, with its indexer where it has one: as many heads of queries as keys have, one of keys.

    Source: vllm/model_executor/layers/linear.py:MinimaxM3QKVParallelLinearWithIndexer (0.32).
    """
    fused, out = blocks.attention(heads)
    names, cache = ("self_attn.q_norm", "self_attn.k_norm"), blocks.cache_of(heads)
    more = blocks.norms(heads.hidden_size, *blocks.TWO_NORMS)
    if indexer is None:
        return arch.Layer(modules=(fused, out, *blocks.norms(heads.head_dim, *names), *more), caches=(cache,))
    width = indexer.integer("sparse_index_dim")
    queries, keys = (
        arch.Output(units=units, width=width, replicable=True) for units in (heads.num_kv_heads, 1)
    )
    parts = (*fused.parts, "self_attn.index_q_proj", "self_attn.index_k_proj")
    fused = replace(fused, outputs=(*fused.outputs, queries, keys), parts=parts)
    own = blocks.norms(heads.head_dim, *names, "self_attn.index_q_norm", "self_attn.index_k_norm")
    return arch.Layer(modules=(fused, out, *own, *more), caches=(cache, BlockIndexer(index_head_dim=width)))


READERS: Final = by_row(
    {"minimax_m2": read_minimax_m2, "minimax": read_minimax_01, "minimax_m3": read_minimax_m3}
)
