"""Gemma 3n and Gemma 4 unified.

Gemma 3n has residual streams and low-rank residuals next to attention; its encoders are named as not counted. In
Gemma 4 unified (12B) patches and samples go into the decoder through one projection each, without an encoder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.gemma import (
    FOUR_NORMS,
    SLIDING,
    layer_kinds,
    per_layer_inputs,
    query_or_qkv,
    read_gemma4,
)
from kvcore.model.parts import blocks, vision

GEMMA3N_PATTERN: Final = 5


def read_gemma3n(config: ModelConfig) -> arch.Architecture:
    """Gemma 3n: four residual streams (AltUp), low-rank residuals (Laurel), per-layer inputs, shared caches.

    Source: vllm/model_executor/models/gemma3n.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    kinds = layer_kinds(section, GEMMA3N_PATTERN)
    shared_from = len(kinds) - section.integer("num_kv_shared_layers", 0, minimum=0)
    widths = section.get("intermediate_size")
    sizes = section.integers("intermediate_size") if isinstance(widths, list | tuple) else None
    window = section.integer("sliding_window")
    layers: dict[tuple[str, bool, int], arch.Layer] = {}
    order = []
    for index, kind in enumerate(kinds):
        size = sizes[index] if sizes and index < len(sizes) else section.integer("intermediate_size")
        key = (kind, index >= shared_from, size)
        if key not in layers:
            caches = () if key[1] else (blocks.cache_of(heads, window if kind == SLIDING else None),)
            layers[key] = arch.Layer(
                modules=gemma3n_modules(section, heads, size, is_shared=key[1]), caches=caches
            )
        order.append(layers[key])
    hidden, streams = heads.hidden_size, section.integer("altup_num_inputs")
    inputs = section.integer("hidden_size_per_layer_input")
    merges = [
        blocks.column(f"model.altup_{side}.{index}", hidden, hidden)
        for side in ("projections", "unembed_projections")
        for index in range(1, streams)
    ]
    return replace(
        blocks.decoder(
            config,
            heads=heads,
            layers=tuple(order),
            intermediate_size=max(sizes) if sizes else section.integer("intermediate_size"),
            first=(
                blocks.embedding(section),
                *per_layer_inputs(section, hidden, inputs, len(kinds)),
                *merges,
            ),
            tied=True,
            layer_prefix="model.language_model.layers",
            is_multimodal=config.root.optional_section("vision_config") is not None,
        ),
        uncounted=encoders(config),
    )


def gemma3n_modules(
    section: Section, heads: blocks.Heads, intermediate_size: int, *, is_shared: bool
) -> tuple[arch.Module, ...]:
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
        blocks.replicated("per_layer_input_gate", hidden, inputs),
        blocks.replicated("per_layer_projection", inputs, hidden),
        blocks.norm("post_per_layer_input_norm", hidden),
    )


def encoders(config: ModelConfig) -> tuple[str, ...]:
    """The encoders of a multimodal checkpoint that this reader does not count."""
    written = (("vision_config", "vision tower"), ("audio_config", "audio tower"))
    return tuple(name for key, name in written if config.root.optional_section(key) is not None)


GEMMA4_MAX_TOKENS: Final = 280
"""Of an image. Source: vllm/model_executor/models/gemma4_mm.py (0.32), the default of `max_soft_tokens`."""


def read_gemma4_unified(config: ModelConfig) -> arch.Architecture:
    """Gemma 4 unified (12B).

    Source: vllm/model_executor/models/gemma4_unified.py (0.32).
    """
    root, text = config.root, config.language.integer("hidden_size")
    section = root.section("vision_config", "gemma4_unified_vision")
    modules = [*patch_embedder(section, text)]
    audio = root.optional_section("audio_config", "gemma4_unified_audio")
    if audio is not None:
        width = audio.integer("audio_embed_dim", audio.optional_integer("hidden_size"))
        modules.append(blocks.replicated("embed_audio.embedding_projection", width, text))
    width = section.integer("mm_embed_dim")
    limits = arch.VisionEncoder(
        hidden_size=width, intermediate_size=width, max_tokens_per_item=GEMMA4_MAX_TOKENS
    )
    return vision.with_images(read_gemma4(config, tuple(modules)), modules, limits)


def patch_embedder(section: Section, text: int) -> tuple[arch.Module, ...]:
    """Norms, a layer from pixels to features, a table of rows and columns, and the projection.

    Source: vllm/model_executor/models/gemma4_unified.py:Gemma4UnifiedVisionEmbedder (0.32).
    """
    prefix, width = "vision_embedder", section.integer("mm_embed_dim")
    side = section.integer("patch_size", maximum=4096) * section.integer("pooling_kernel_size", maximum=64)
    pixels = 3 * side**2
    return (
        blocks.norm(f"{prefix}.patch_ln1", pixels, bias=True),
        blocks.column(f"{prefix}.patch_dense", pixels, width, bias=True),
        *blocks.norms(width, f"{prefix}.patch_ln2", f"{prefix}.pos_norm", bias=True),
        vision.table(f"{prefix}.pos_embedding", 2 * section.integer("mm_posemb_size"), width),
        blocks.replicated("embed_vision.embedding_projection", width, text),
    )


READERS: Final = blocks.named(
    (read_gemma3n, "Gemma3nForConditionalGeneration", "Gemma3nForCausalLM", "gemma3n", "gemma3n_text"),
    (read_gemma4_unified, "Gemma4UnifiedForConditionalGeneration", "gemma4_unified"),
)
