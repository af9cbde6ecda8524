"""MiniCPM-V and MiniCPM-o: SigLIP with a resampler or mergers, another decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.errors import ModelError, shorten
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder as plain
from kvcore.model.families import qwen
from kvcore.model.parts import blocks, vision
from kvcore.model.parts.encoder import read_encoder

LANGUAGE_OF_VERSION: Final[Mapping[str, str]] = {
    "2.5": "llama",
    "2.6": "qwen2",
    "4.0": "llama",
    "4.5": "qwen3",
}
"""Source: vllm/model_executor/models/minicpmv.py:_SUPPORT_VERSION (0.32)."""


def read_omni(config: ModelConfig) -> arch.Architecture:
    """MiniCPM-o 2.6 and 4.5: MiniCPM-V with a replicated Whisper encoder and two linear layers.

    Source: vllm/model_executor/models/minicpmo.py (0.32).
    """
    built = read_vision(config)
    if not config.root.boolean("init_audio", True):
        return built
    section, text = config.root.section("audio_config", "whisper"), built.hidden_size
    width = section.integer("hidden_size")
    names = ("linear1", "linear2")
    encoder = (
        *read_encoder("whole_whisper", section, "apm").modules,
        *vision.whole_pair("audio_projection_layer", width, text, text, names),
    )
    return replace(built, every=(*built.every, *encoder))


def read_vision(config: ModelConfig) -> arch.Architecture:
    """MiniCPM-V from 2.5 on: Llama or Qwen behind SigLIP (in Idefics 2's variant) and a resampler.

    Raises ModelError `unknown-architecture` for the versions whose encoder another library builds.

    Source: vllm/model_executor/models/minicpmv.py:MiniCPMV2_6, layers/resampler.py (0.32).
    """
    root = config.root
    version = str(root.get("version") or "2.0")
    if version not in LANGUAGE_OF_VERSION:
        raise ModelError(
            "unknown-architecture",
            field="config.version",
            architecture="MiniCPMV",
            reason=f"only {', '.join(LANGUAGE_OF_VERSION)} are read, not {shorten(version, 20)}",
        )
    section = root.section("vision_config")
    layers = section.layers() - (1 if root.boolean("drop_vision_last_layer", False) else 0)
    language = plain.SECTION_READERS[LANGUAGE_OF_VERSION[version]](config, root)
    queries, width, out = root.integer("query_num"), section.integer("hidden_size"), language.hidden_size
    patches = (root.integer("image_size", 448) // section.integer("patch_size")) ** 2
    modules = (
        *read_encoder("siglip", section, "vpm", layers=layers).modules,
        *resampler(queries, width, out),
        *(() if layers == section.layers() else (blocks.norm("vpm.post_layernorm", width, bias=True),)),
    )
    tokens = queries * (max_slices(root) + 1)
    limits = vision.input_limits(section, tokens, max(1, patches // queries))
    return vision.with_images(language, modules, limits, "llm.model.layers")


def max_slices(root: Section) -> int:
    """Into how many slices a large image is cut."""
    section = root.optional_section("slice_config") or root
    return section.integer("max_slice_nums", 9, maximum=1024)


def resampler(
    queries: int, vision_width: int, width: int, prefix: str = "resampler"
) -> tuple[arch.Module, ...]:
    """Queries, one attention layer and a projection; replicated.

    Source: vllm/model_executor/layers/resampler.py:BaseResampler (0.32).
    """
    return (
        arch.Parameter(name=f"{prefix}.query", replicated=queries * width),
        blocks.replicated(f"{prefix}.kv_proj", vision_width, width),
        arch.Parameter(name=f"{prefix}.attn.in_proj", replicated=3 * width * (width + 1)),
        arch.Parameter(name=f"{prefix}.attn.out_proj", replicated=width * (width + 1)),
        *blocks.norms(width, f"{prefix}.ln_q", f"{prefix}.ln_kv", f"{prefix}.ln_post", bias=True),
        arch.Parameter(name=f"{prefix}.proj", replicated=width * width),
    )


WINDOW: Final = 2
"""Patches along a side that a merger takes together.

Source: vllm/model_executor/models/minicpmv4_6.py:MiniCPMV4_6ViTWindowAttentionMerger (0.32)."""

MAX_SLICES: Final = 9
"""Source: vllm/model_executor/models/minicpmv4_6.py, the default of `max_slice_nums` (0.32)."""


def read_4_6(config: ModelConfig) -> arch.Architecture:
    """MiniCPM-V 4.6.

    Source: vllm/model_executor/models/minicpmv4_6.py (0.32).
    """
    root, built = config.root, qwen.read_text(config)
    section = root.section("vision_config", "minicpmv4_6_vision")
    width, merged = section.integer("hidden_size"), section.integer("hidden_size") * WINDOW**2
    layers = section.layers() - (1 if root.boolean("drop_vision_last_layer", False) else 0)
    times = root.integer("merger_times", 1, maximum=16)
    modules = [
        *read_encoder("siglip", section, "vpm", layers=layers).modules,
        *middle_merger(section, width, merged),
    ]
    if layers != section.layers():
        modules.append(blocks.norm("vpm.post_layernorm", width, bias=True))
    for index in range(times):
        out = built.hidden_size if index == times - 1 else width
        modules += merger(f"merger.mlp.{index}", merged, merged, out)
    side = root.integer("image_size", 448) // section.integer("patch_size")
    tokens = (side // WINDOW**2) ** 2 * (MAX_SLICES + 1)
    return vision.with_images(built, modules, vision.input_limits(section, tokens, WINDOW**4))


def middle_merger(section: Section, width: int, merged: int) -> tuple[arch.Module, ...]:
    """Attention over windows of patches, and an MLP that takes four to one."""
    heads, prefix = vision.square_heads(section, width), "vit_merger.self_attn"
    inner = section.integer("intermediate_size") * WINDOW**2
    return (
        blocks.qkv(heads, f"{prefix}.qkv_proj", bias=True),
        blocks.row(f"{prefix}.out_proj", width, width, bias=True),
        blocks.norm("vit_merger.layer_norm1", width, bias=True),
        *merger("vit_merger", merged, inner, width),
    )


def merger(prefix: str, merged: int, inner: int, out: int) -> tuple[arch.Module, ...]:
    """A norm and two replicated layers."""
    return (
        blocks.norm(f"{prefix}.pre_norm", merged, bias=True),
        *vision.whole_pair(prefix, merged, inner, out),
    )


READERS: Final = blocks.named(
    (read_vision, "MiniCPMV"),
    (read_4_6, "MiniCPMV4_6ForConditionalGeneration", "minicpmv4_6"),
    (read_omni, "MiniCPMO", "minicpmo"),
)
