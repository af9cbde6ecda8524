"""Gemma 2, 3, 3n and 4: windows with full attention, four norms a layer, layers that share another's cache.

Gemma 3n has residual streams and low-rank residuals next to attention; its encoders are named as not counted. In
Gemma 4 unified (12B) patches and samples go into the decoder through one projection each, without an encoder.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, attention, by_row, experts_of, read_decoder
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.experts import optional_moe, routed_experts
from kvcore.model.parts.image_encoders import read_siglip
from kvcore.model.parts.pattern import by_kind
from kvcore.model.rope import read_ropes

Pieces = tuple[arch.Module, ...]

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"

FOUR_NORMS: Final = DECODERS["gemma2"].layer_norms

PERIODS: Final = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma4": 6}
"""Every so many layers one is full. Source: transformers 5.19, Gemma3TextConfig and those of the others."""


def layer_kinds(section: Section, family: str) -> tuple[str, ...]:
    """sliding_attention or full_attention, layer by layer: `layer_types`, or every `sliding_window_pattern`th full."""
    count = section.layers()
    kinds = section.words("layer_types", (SLIDING, FULL), count)
    if kinds is None:
        every = section.optional_integer("sliding_window_pattern", minimum=1) or PERIODS[family]
        return tuple(FULL if (index + 1) % every == 0 else SLIDING for index in range(count))
    return kinds


def window_of(section: Section, kind: str) -> int | None:
    """The window of a kind of layers."""
    return section.integer("sliding_window") if kind == SLIDING else None


def kinds_with_shared(section: Section, family: str) -> tuple[tuple[str, bool], ...]:
    """The kind of each layer, and whether it shares the cache of another."""
    kinds = layer_kinds(section, family)
    first = len(kinds) - section.integer("num_kv_shared_layers", 0, minimum=0)
    return tuple((kind, index >= first) for index, kind in enumerate(kinds))


def read_sliding(family: str, config: ModelConfig) -> arch.Architecture:
    """The decoder of Gemma 2 or 3: layers all alike but for their window."""
    section, traits = config.language, DECODERS[family]
    heads = blocks.read_heads(section)
    modules = attention(traits, section, heads)
    section.integer("sliding_window")
    mixers = by_kind(
        layer_kinds(section, family),
        lambda kind: arch.Layer(modules=modules, caches=(blocks.cache_of(heads, window_of(section, kind)),)),
    )
    return read_decoder(traits, config, heads=heads, mixers=mixers)


def read_gemma2(config: ModelConfig) -> arch.Architecture:
    """Gemma 2: every other layer slides.

    Source: vllm/model_executor/models/gemma2.py (0.32).
    """
    return read_sliding("gemma2", config)


def read_gemma3(config: ModelConfig) -> arch.Architecture:
    """Gemma 3, with its SigLIP encoder where the checkpoint has one.

    Source: vllm/model_executor/models/gemma3.py, gemma3_mm.py (0.32).
    """
    built = read_sliding("gemma3", config)
    built = dataclasses.replace(built, rotary_tables=gemma3_rotary(config.language, built.head_dim))
    vision = config.root.optional_section("vision_config", "siglip_vision_model")
    if vision is None:
        return built
    tokens = config.root.integer("mm_tokens_per_image", 256)
    return enc.with_encoders(
        built, gemma3_images(vision, built.hidden_size, tokens), "language_model.model.layers"
    )


def gemma3_images(section: Section, text: int, tokens: int) -> enc.Encoder:
    """SigLIP and the projector. One image is always `tokens` tokens.

    Source: vllm/model_executor/models/gemma3_mm.py:Gemma3MultiModalProjector (0.32).
    """
    seen, projector = read_siglip(section, "vision_tower.vision_model"), "multi_modal_projector"
    modules = (
        *seen.modules,
        enc.tensor(f"{projector}.mm_input_projection_weight", seen.own.width, text),
        enc.tensor(f"{projector}.mm_soft_emb_norm", seen.own.width),
    )
    return enc.seeing(modules, seen.own, tokens, max(1, seen.side**2 // tokens))


def gemma4_images(section: Section, text: int) -> enc.Encoder:
    """Gemma 4's encoder of images, whole on every rank, with its projection.

    Source: transformers 5.19, models/gemma4/modeling_gemma4.py:Gemma4VisionModel;
    vllm/model_executor/models/gemma4_mm.py (0.32).
    """
    own = enc.read_sizes(section, head=section.integer("head_dim"))
    width, heads, kv_heads = own.width, own.heads, section.integer("num_key_value_heads", own.heads)
    size = 2 * width * own.head * (heads + kv_heads) + 3 * width * own.inner + 4 * width + 2 * own.head
    pixels = section.integer("num_channels", 3) * section.integer("patch_size") ** 2
    modules = (
        enc.tensor(
            "vision_tower.patch_embedder", pixels + 2 * section.integer("position_embedding_size"), width
        ),
        *enc.repeated("vision_tower.encoder.layers", own.layers, (enc.tensor("", size),)),
        blocks.replicated("embed_vision.embedding_projection", width, text),
    )
    tokens, pooled = section.integer("default_output_length", 280), section.integer("pooling_kernel_size", 3)
    return enc.seeing(modules, own, tokens, pooled**2)


def gemma4_audio(section: Section, text: int) -> enc.Modules:
    """A Conformer, whole on every rank, with its projection.

    A layer is attention with relative positions, two MLPs of four times the width, and a light convolution.

    Source: transformers 5.19, models/gemma4/modeling_gemma4.py:Gemma4AudioModel;
    vllm/model_executor/models/gemma4_mm.py (0.32).
    """
    width, heads = section.integer("hidden_size"), section.integer("num_attention_heads")
    first, further = enc.pair(section, "subsampling_conv_channels")
    kernel, projected = section.integer("conv_kernel_size"), section.integer("output_proj_dims")
    size = (5 + 2 * 8 + 3) * width**2 + (kernel + 2 * 2 + 2 + 3) * width + width // heads
    start = "audio_tower.subsample_conv_projection"
    return (
        enc.tensor(start, (9 + 1) * first + (9 * first + 1) * further),
        enc.tensor(f"{start}.input_proj_linear", first // 4 * further, width),
        *enc.repeated("audio_tower.layers", section.layers(), (enc.tensor("", size),)),
        enc.tensor("audio_tower.output_proj", width + 1, projected),
        blocks.replicated("embed_audio.embedding_projection", projected, text),
    )


def gemma3_rotary(section: Section, width: int) -> tuple[arch.RotaryTable, ...]:
    """The table of full layers with its scaling, and the plain one of sliding layers.

    Source: vllm/model_executor/models/gemma3.py:Gemma3Attention (0.32).
    """
    positions = section.integer("max_position_embeddings")
    written = [rope.table(width, positions) for rope in read_ropes(section)]
    local = arch.RotaryTable(max_positions=positions, rotary_dim=width)
    return (*written, local) if len(written) == 1 else tuple(written)


def read_gemma4(config: ModelConfig, embedders: Pieces = ()) -> arch.Architecture:
    """Gemma 4: wide heads on full layers, experts with the MLP, per-layer inputs, shared caches.

    `embedders` take the place of encoders.

    Source: vllm/model_executor/models/gemma4.py (0.32).
    """
    section = config.language
    kinds = kinds_with_shared(section, "gemma4")
    local = blocks.read_heads(section)
    full = gemma4_full_heads(section, local)
    layers = by_kind(
        kinds,
        lambda kind: gemma4_layer(section, local if kind[0] == SLIDING else full, kind[0], is_shared=kind[1]),
    )
    inputs = section.integer("hidden_size_per_layer_input", 0, minimum=0)
    extra = per_layer_inputs(section, local.hidden_size, inputs, len(kinds)) if inputs else ()
    positions = section.integer("max_position_embeddings")
    vision, audio = (config.root.optional_section(f"{name}_config") for name in ("vision", "audio"))
    encoders, limits = embedders, None
    if vision is not None and not embedders:
        image = gemma4_images(vision, local.hidden_size)
        encoders, limits = image.modules, image.vision
    if audio is not None and not embedders:
        encoders += gemma4_audio(audio, local.hidden_size)
    return blocks.decoder(
        config,
        heads=local,
        layers=layers,
        intermediate_size=section.integer("intermediate_size"),
        first=(blocks.embedding(section), *extra),
        every=encoders,
        tied=True,
        rotary_tables=tuple(
            arch.RotaryTable(max_positions=positions, rotary_dim=heads.head_dim) for heads in (local, full)
        ),
        layer_prefix="model.language_model.layers",
        moe=optional_moe(experts_of("gemma4"), section),
        vision=limits,
        is_multimodal=vision is not None,
    )


def gemma4_full_heads(section: Section, local: blocks.Heads) -> blocks.Heads:
    """The heads of full attention layers."""
    return replace(
        local,
        head_dim=section.optional_integer("global_head_dim", minimum=1)
        or listed_head_dim(section)
        or local.head_dim,
        num_kv_heads=section.optional_integer("num_global_key_value_heads", minimum=1) or local.num_kv_heads,
    )


def listed_head_dim(section: Section) -> int | None:
    """The head_dim that `per_layer_config` gives to single layers: the full ones."""
    listed = section.optional_section("per_layer_config")
    sizes = {listed.section(name).optional_integer("head_dim") for name in listed.raw} if listed else set()
    if len(sizes) > 1:
        raise section.contradicting("per_layer_config", "full layers differ in head_dim")
    return sizes.pop() if sizes else None


def gemma4_layer(section: Section, heads: blocks.Heads, kind: str, *, is_shared: bool) -> arch.Layer:
    """One layer; one that shares another's cache has a query projection alone, and may have a double MLP."""
    hidden, traits = heads.hidden_size, experts_of("gemma4")
    wide = 2 if is_shared and section.boolean("use_double_wide_mlp", False) else 1
    modules: list[arch.Module] = [
        *query_or_qkv(section, heads, is_shared=is_shared),
        *blocks.gated_mlp(hidden, section.integer("intermediate_size") * wide),
        *blocks.norms(hidden, *FOUR_NORMS),
    ]
    moe = optional_moe(traits, section)
    if moe is not None:
        before, after = "pre_feedforward_layernorm_2", "post_feedforward_layernorm"
        modules += [
            arch.Parameter(name="router.scale", replicated=hidden + moe.num_experts),
            blocks.replicated("router.proj", hidden, moe.num_experts, quantizable=False),
            routed_experts(traits, hidden, moe),
            *blocks.norms(hidden, f"{after}_1", f"{after}_2", before),
        ]
    inputs = section.integer("hidden_size_per_layer_input", 0, minimum=0)
    if inputs:
        modules += input_of_layer(hidden, inputs)
    cache = blocks.cache_of(heads, window_of(section, kind))
    return arch.Layer(modules=tuple(modules), caches=() if is_shared else (cache,))


def input_of_layer(hidden: int, inputs: int) -> Pieces:
    """How a layer takes up its own slice of the second embedding."""
    return (
        blocks.replicated("per_layer_input_gate", hidden, inputs),
        blocks.replicated("per_layer_projection", inputs, hidden),
        blocks.norm("post_per_layer_input_norm", hidden),
    )


def query_or_qkv(section: Section, heads: blocks.Heads, *, is_shared: bool) -> Pieces:
    """Projections and norms of an attention layer that may share another's keys and values."""
    bias = section.boolean("attention_bias", False)
    if not is_shared:
        return (
            *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
            *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        )
    return (
        blocks.column("self_attn.q_proj", heads.hidden_size, heads.attended, bias=bias),
        blocks.row("self_attn.o_proj", heads.attended, heads.hidden_size, bias=bias),
        blocks.norm("self_attn.q_norm", heads.head_dim),
    )


def per_layer_inputs(section: Section, hidden_size: int, width: int, layers: int) -> Pieces:
    """The second embedding, a slice of it for each layer, and its projection."""
    return (
        arch.VocabEmbedding(
            name="model.embed_tokens_per_layer",
            num_embeddings=section.integer("vocab_size_per_layer_input", section.integer("vocab_size")),
            embedding_dim=width * layers,
        ),
        blocks.column("model.per_layer_model_projection", hidden_size, width * layers),
        blocks.norm("model.per_layer_projection_norm", width),
    )


def read_gemma3n(config: ModelConfig) -> arch.Architecture:
    """Gemma 3n: four residual streams (AltUp), low-rank residuals (Laurel), per-layer inputs, shared caches.

    Source: vllm/model_executor/models/gemma3n.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    kinds = kinds_with_shared(section, "gemma3n")
    widths = mlp_widths(section, len(kinds))
    section.integer("sliding_window")
    layers = by_kind(
        zip(kinds, widths, strict=True),
        lambda kind: arch.Layer(
            modules=gemma3n_modules(section, heads, kind[1], is_shared=kind[0][1]),
            caches=() if kind[0][1] else (blocks.cache_of(heads, window_of(section, kind[0][0])),),
        ),
    )
    hidden, streams = heads.hidden_size, section.integer("altup_num_inputs")
    inputs = section.integer("hidden_size_per_layer_input")
    merges = (
        blocks.column(f"model.altup_{side}.{index}", hidden, hidden)
        for side in ("projections", "unembed_projections")
        for index in range(1, streams)
    )
    encoders = (("vision_config", "vision tower"), ("audio_config", "audio tower"))
    return blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=max(widths),
        first=(blocks.embedding(section), *per_layer_inputs(section, hidden, inputs, len(kinds)), *merges),
        tied=True,
        layer_prefix="model.language_model.layers",
        is_multimodal=config.root.optional_section("vision_config") is not None,
        uncounted=tuple(name for key, name in encoders if config.root.optional_section(key) is not None),
    )


def mlp_widths(section: Section, count: int) -> tuple[int, ...]:
    """The width of each layer's MLP: `intermediate_size` lists them or gives one for all."""
    if not isinstance(section.get("intermediate_size"), list | tuple):
        return (section.integer("intermediate_size"),) * count
    listed = section.integers("intermediate_size") or ()
    if len(listed) < count:
        raise section.invalid("intermediate_size", list(listed), "expected an integer")
    return listed


def gemma3n_modules(
    section: Section, heads: blocks.Heads, intermediate_size: int, *, is_shared: bool
) -> Pieces:
    """The modules of one Gemma 3n layer."""
    hidden, streams = heads.hidden_size, section.integer("altup_num_inputs")
    inputs, rank = section.integer("hidden_size_per_layer_input"), section.integer("laurel_rank")
    return (
        *query_or_qkv(section, heads, is_shared=is_shared),
        *blocks.gated_mlp(hidden, intermediate_size),
        *blocks.norms(hidden, *FOUR_NORMS),
        blocks.replicated("altup.correction_coefs", streams, streams),
        blocks.replicated("altup.prediction_coefs", streams, streams**2),
        blocks.replicated("altup.modality_router", hidden, streams),
        blocks.norm("altup.router_norm", hidden),
        arch.Parameter(name="altup.correct_output_scale", replicated=hidden, dtype="float32"),
        blocks.column("laurel.linear_left", hidden, rank),
        blocks.row("laurel.linear_right", rank, hidden),
        blocks.norm("laurel.post_laurel_norm", hidden),
        *input_of_layer(hidden, inputs),
    )


def read_gemma4_unified(config: ModelConfig) -> arch.Architecture:
    """Gemma 4 unified (12B).

    In place of an encoder it has norms, a layer from pixels to features, a table of rows and columns, and the
    projection. An image is 280 tokens: the default of `max_soft_tokens` in gemma4_mm.py (0.32).

    Source: vllm/model_executor/models/gemma4_unified.py:Gemma4UnifiedVisionEmbedder (0.32).
    """
    root, text = config.root, config.language.integer("hidden_size")
    section = root.section("vision_config", "gemma4_unified_vision")
    width, pooled = section.integer("mm_embed_dim"), section.integer("pooling_kernel_size", maximum=64)
    pixels = 3 * (section.integer("patch_size", maximum=enc.MAX_PATCH) * pooled) ** 2
    modules: list[arch.Module] = [
        blocks.norm("vision_embedder.patch_ln1", pixels, bias=True),
        blocks.column("vision_embedder.patch_dense", pixels, width, bias=True),
        *blocks.norms(width, "vision_embedder.patch_ln2", "vision_embedder.pos_norm", bias=True),
        enc.tensor("vision_embedder.pos_embedding", 2 * section.integer("mm_posemb_size"), width),
        blocks.replicated("embed_vision.embedding_projection", width, text),
    ]
    audio = root.optional_section("audio_config", "gemma4_unified_audio")
    if audio is not None:
        heard = audio.integer("audio_embed_dim", audio.optional_integer("hidden_size"))
        modules.append(blocks.replicated("embed_audio.embedding_projection", heard, text))
    limits = arch.VisionEncoder(hidden_size=width, intermediate_size=width, max_tokens_per_item=280)
    return enc.with_encoders(
        read_gemma4(config, tuple(modules)), enc.Encoder(modules=tuple(modules), vision=limits)
    )


READERS: Final = by_row(
    {
        "gemma2": read_gemma2,
        "gemma3": read_gemma3,
        "gemma3n": read_gemma3n,
        "gemma4": read_gemma4,
        "gemma4_unified": read_gemma4_unified,
    }
)
