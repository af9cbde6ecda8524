"""Gemma 4 unified: patches and samples go into the decoder through one projection each, without a tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import vision
from kvcore.model.families.gemma import read_gemma4
from kvcore.model.parts.blocks import column, norm, norms, replicated

MAX_TOKENS: Final = 280
"""Of an image. Source: vllm/model_executor/models/gemma4_mm.py (0.32), the default of `max_soft_tokens`."""


def read(config: ModelConfig) -> Architecture:
    """Gemma 4 unified (12B).

    Source: vllm/model_executor/models/gemma4_unified.py (0.32).
    """
    root, text = config.root, config.language.integer("hidden_size")
    section = root.section("vision_config", "gemma4_unified_vision")
    modules = [*patch_embedder(section, text)]
    hearing = root.optional_section("audio_config", "gemma4_unified_audio")
    if hearing is not None:
        width = hearing.integer("audio_embed_dim", hearing.optional_integer("hidden_size"))
        modules.append(replicated("embed_audio.embedding_projection", width, text))
    width = section.integer("mm_embed_dim")
    return replace(
        read_gemma4(config, tuple(modules)),
        vision=VisionEncoder(
            hidden_size=width, intermediate_size=width, max_tokens_per_item=MAX_TOKENS, patches_per_token=1
        ),
        is_multimodal=True,
    )


def patch_embedder(section: Section, text: int) -> tuple[Module, ...]:
    """Norms, a layer from pixels to features, a table of rows and columns, and the projection.

    Source: vllm/model_executor/models/gemma4_unified.py:Gemma4UnifiedVisionEmbedder (0.32).
    """
    prefix, width = "vision_embedder", section.integer("mm_embed_dim")
    side = section.integer("patch_size", maximum=4096) * section.integer("pooling_kernel_size", maximum=64)
    pixels = 3 * side**2
    return (
        norm(f"{prefix}.patch_ln1", pixels, bias=True),
        column(f"{prefix}.patch_dense", pixels, width, bias=True),
        *norms(width, f"{prefix}.patch_ln2", f"{prefix}.pos_norm", bias=True),
        vision.table(f"{prefix}.pos_embedding", 2 * section.integer("mm_posemb_size"), width),
        replicated("embed_vision.embedding_projection", width, text),
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Gemma4UnifiedForConditionalGeneration": read,
    "gemma4_unified": read,
}
