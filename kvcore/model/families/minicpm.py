"""MiniCPM, dense and with experts, and MiniCPM-V: SigLIP with a resampler in front of another decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.errors import ModelError, shorten
from kvcore.model.architecture import Architecture, Layer, MixtureOfExperts, Module, Parameter, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder as plain
from kvcore.model.families import sound, vision
from kvcore.model.parts.blocks import (
    attention,
    cache_of,
    decoder,
    gated_mlp,
    norm,
    norms,
    read_heads,
    replicated,
)


def read_text(config: ModelConfig) -> Architecture:
    """MiniCPM; its experts are plain tensors that no quantizer touches.

    Source: vllm/model_executor/models/minicpm.py (0.32).
    """
    section = config.language
    heads = read_heads(section, reads_head_dim=False)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    experts = section.optional_integer("num_experts", maximum=65_536) or 0
    moe = None
    feed_forward: tuple[Module, ...] = gated_mlp(hidden, intermediate)
    if experts:
        top_k = section.integer("num_experts_per_tok", maximum=experts)
        moe = MixtureOfExperts(num_experts=experts, top_k=top_k, moe_intermediate_size=intermediate)
        feed_forward = (
            replicated("mlp.gate", hidden, experts, quantizable=False),
            Parameter(name="mlp.ws", replicated=experts * 2 * hidden, sharded=intermediate),
            Parameter(name="mlp.w2s", replicated=experts * hidden, sharded=intermediate),
        )
    layer = Layer(
        modules=(
            *attention(heads),
            *feed_forward,
            *norms(hidden, "input_layernorm", "post_attention_layernorm"),
        ),
        caches=(cache_of(heads),),
    )
    return decoder(
        config,
        section,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate,
        moe=moe,
    )


LANGUAGE_OF_VERSION: Final[Mapping[str, str]] = {
    "2.5": "llama",
    "2.6": "qwen2",
    "4.0": "llama",
    "4.5": "qwen3",
}
"""Source: vllm/model_executor/models/minicpmv.py:_SUPPORT_VERSION (0.32)."""


def read_omni(config: ModelConfig) -> Architecture:
    """MiniCPM-o 2.6 and 4.5: MiniCPM-V with a replicated Whisper encoder and two linear layers.

    Source: vllm/model_executor/models/minicpmo.py (0.32).
    """
    built = read_vision(config)
    if not config.root.boolean("init_audio", True):
        return built
    section, text = config.root.section("audio_config", "whisper"), built.hidden_size
    width = section.integer("hidden_size")
    hearing = (
        *sound.whole_whisper(section, "apm"),
        replicated("audio_projection_layer.linear1", width, text, bias=True, quantizable=False),
        replicated("audio_projection_layer.linear2", text, text, bias=True, quantizable=False),
    )
    return replace(built, every=(*built.every, *hearing))


def read_vision(config: ModelConfig) -> Architecture:
    """MiniCPM-V from 2.5 on: Llama or Qwen behind SigLIP (in Idefics 2's variant) and a resampler.

    Raises ModelError `unknown-architecture` for the versions whose tower another library builds.

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
    tower = root.section("vision_config")
    layers = tower.layers() - (1 if root.boolean("drop_vision_last_layer", False) else 0)
    language = plain.SECTION_READERS[LANGUAGE_OF_VERSION[version]](config, root)
    queries, width, out = root.integer("query_num"), tower.integer("hidden_size"), language.hidden_size
    return replace(
        language,
        model_type=config.model_type,
        every=(
            *vision.siglip(tower, layers, "vpm"),
            *resampler(queries, width, out),
            *(() if layers == tower.layers() else (norm("vpm.post_layernorm", width, bias=True),)),
        ),
        vision=VisionEncoder(
            hidden_size=width,
            intermediate_size=tower.integer("intermediate_size"),
            max_tokens_per_item=queries * (max_slices(root) + 1),
            patches_per_token=max(
                1, (root.integer("image_size", 448) // tower.integer("patch_size")) ** 2 // queries
            ),
        ),
        is_multimodal=True,
        layer_prefix="llm.model.layers",
    )


def max_slices(root: Section) -> int:
    """Into how many slices a large image is cut."""
    section = root.optional_section("slice_config") or root
    return section.integer("max_slice_nums", 9, maximum=1024)


def resampler(queries: int, vision_width: int, width: int, prefix: str = "resampler") -> tuple[Module, ...]:
    """Queries, one attention layer and a projection; replicated.

    Source: vllm/model_executor/layers/resampler.py:BaseResampler (0.32).
    """
    return (
        Parameter(name=f"{prefix}.query", replicated=queries * width),
        replicated(f"{prefix}.kv_proj", vision_width, width),
        Parameter(name=f"{prefix}.attn.in_proj", replicated=3 * width * (width + 1)),
        Parameter(name=f"{prefix}.attn.out_proj", replicated=width * (width + 1)),
        *norms(width, f"{prefix}.ln_q", f"{prefix}.ln_kv", f"{prefix}.ln_post", bias=True),
        Parameter(name=f"{prefix}.proj", replicated=width * width),
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "MiniCPMForCausalLM": read_text,
    "minicpm": read_text,
    "MiniCPMV": read_vision,
    "MiniCPMO": read_omni,
    "minicpmo": read_omni,
}
