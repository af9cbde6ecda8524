"""MiniCPM-V 4.6: SigLIP with a merger in its middle and one behind it, in front of Qwen3.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import delta_net, vision
from kvcore.model.parts.blocks import norm, norms, replicated

WINDOW: Final = 2
"""Patches along a side that a merger takes together.

Source: vllm/model_executor/models/minicpmv4_6.py:MiniCPMV4_6ViTWindowAttentionMerger (0.32)."""

MAX_SLICES: Final = 9
"""Source: vllm/model_executor/models/minicpmv4_6.py, the default of `max_slice_nums` (0.32)."""


def read(config: ModelConfig) -> Architecture:
    """MiniCPM-V 4.6.

    Source: vllm/model_executor/models/minicpmv4_6.py (0.32).
    """
    root, built = config.root, delta_net.read_text(config)
    section = root.section("vision_config", "minicpmv4_6_vision")
    width, merged = section.integer("hidden_size"), section.integer("hidden_size") * WINDOW**2
    layers = section.layers() - (1 if root.boolean("drop_vision_last_layer", False) else 0)
    times = root.integer("merger_times", 1, maximum=16)
    modules = [*vision.siglip(section, layers, "vpm"), *middle_merger(section, width, merged)]
    if layers != section.layers():
        modules.append(norm("vpm.post_layernorm", width, bias=True))
    for index in range(times):
        out = built.hidden_size if index == times - 1 else width
        modules += linears(f"merger.mlp.{index}", merged, merged, out)
    side = root.integer("image_size", 448) // section.integer("patch_size")
    return replace(
        built,
        every=tuple(modules),
        vision=VisionEncoder(
            hidden_size=width,
            intermediate_size=section.integer("intermediate_size"),
            max_tokens_per_item=(side // WINDOW**2) ** 2 * (MAX_SLICES + 1),
            patches_per_token=WINDOW**4,
        ),
        is_multimodal=True,
    )


def middle_merger(section: Section, width: int, merged: int) -> tuple[Module, ...]:
    """Attention over windows of patches, and an MLP that takes four to one."""
    heads = vision.square_heads(section, width, section.integer("num_attention_heads"))
    inner = section.integer("intermediate_size") * WINDOW**2
    return (
        *vision.encoder_attention(heads, "vit_merger.self_attn", fused="qkv_proj", out="out_proj", bias=True),
        *norms(width, "vit_merger.layer_norm1", bias=True),
        *linears("vit_merger", merged, inner, width),
    )


def linears(prefix: str, merged: int, inner: int, out: int) -> tuple[Module, ...]:
    """A norm and two replicated layers."""
    return (
        norm(f"{prefix}.pre_norm", merged, bias=True),
        replicated(f"{prefix}.linear_1", merged, inner, bias=True, quantizable=False),
        replicated(f"{prefix}.linear_2", inner, out, bias=True, quantizable=False),
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "MiniCPMV4_6ForConditionalGeneration": read,
    "minicpmv4_6": read,
}
