"""Qwen2.5-Omni: the thinker alone, which hears and sees; the engine does not load the talker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Module, Parameter
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import sound, vision
from kvcore.model.families.multimodal import with_tower
from kvcore.model.parts.blocks import norm, replicated


def read(config: ModelConfig) -> Architecture:
    """Qwen2.5-Omni's thinker: an audio encoder, Qwen2.5-VL's tower and Qwen2.

    Source: vllm/model_executor/models/qwen2_5_omni_thinker.py (0.32).
    """
    thinker = config.root.optional_section("thinker_config") or config.root
    tower = vision.qwen2_5_tower(thinker.section("vision_config", "qwen2_5_vl/vision_config"))
    hearing = audio_encoder(thinker.section("audio_config"))
    architecture = with_tower(config, replace(tower, modules=(*tower.modules, *hearing)))
    return replace(architecture, layer_prefix="thinker.model.layers")


def audio_encoder(section: Section) -> tuple[Module, ...]:
    """Two convolutions, replicated transformer blocks, a projection; keys have no bias.

    Source: transformers/models/qwen2_5_omni/modeling_qwen2_5_omni.py:Qwen2_5OmniAudioEncoder (5.19).
    """
    width, mel = section.integer("d_model"), section.integer("num_mel_bins", 128)
    out = section.integer("output_dim")
    prefix = "audio_tower"
    modules: list[Module] = [
        vision.convolution(f"{prefix}.conv1", mel, width, (3,), bias=True),
        vision.convolution(f"{prefix}.conv2", width, width, (3,), bias=True),
        Parameter(name=f"{prefix}.audio_bos_eos_token", replicated=2 * out),
        norm(f"{prefix}.ln_post", width, bias=True),
        replicated(f"{prefix}.proj", width, out, bias=True, quantizable=False),
    ]
    for index in range(section.layers("encoder_layers")):
        modules += sound.encoder_block(width, section.integer("encoder_ffn_dim"), f"{prefix}.layers.{index}")
    return tuple(modules)


def read_qwen3(config: ModelConfig) -> Architecture:
    """Qwen3-Omni's thinker: an encoder of sound, Qwen3-VL's tower and Qwen3's mixture of experts.

    Source: vllm/model_executor/models/qwen3_omni_moe_thinker.py (0.32).
    """
    thinker = config.root.optional_section("thinker_config") or config.root
    tower = vision.qwen3_tower(thinker.section("vision_config", "qwen3_omni_moe_vision_encoder"))
    hearing, table = sound.qwen3_encoder(thinker.section("audio_config", "qwen3_omni_moe_audio_encoder"))
    tower = replace(tower, modules=(*tower.modules, *hearing), tables=(*tower.tables, table))
    return replace(with_tower(config, tower), layer_prefix="thinker.model.layers")


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Qwen3OmniMoeForConditionalGeneration": read_qwen3,
    "qwen3_omni_moe": read_qwen3,
    "Qwen2_5OmniForConditionalGeneration": read,
    "Qwen2_5OmniModel": read,
    "qwen2_5_omni": read,
    "qwen2_5_omni_thinker": read,
}
