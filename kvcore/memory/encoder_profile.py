"""Which encoders of a multimodal model are loaded at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from packaging.version import Version

from kvcore.engine.vllm.versions import switches_of
from kvcore.kept import kept
from kvcore.model.architecture import Architecture
from kvcore.scenario import Scenario

VIDEO_FAMILIES: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3", "glm4v", "internvl", "llava_onevision", "gemma4")
"""Model types that take videos as well as images. Source: vllm/model_executor/models (0.32.0)."""

AUDIO_PARTS: Final = (
    "audio_tower.",
    "audio_encoder.",
    "encoder.",
    "embed_audio.",
    "apm.",
    "audio_projection_layer.",
    "embed_tokens_extend.",
)
"""Source: vllm/model_executor/models/gemma4_mm.py, qwen2_5_omni_thinker.py, minicpmo.py,
phi4mm.py, midashenglm.py, granite_speech.py (0.32.0)."""


def takes_images_or_video(architecture: Architecture, scenario: Scenario) -> bool:
    """Whether `--limit-mm-per-prompt` and `--language-model-only` leave the vision encoder something to do.

    A kind that is not named is not limited, so a model that takes videos keeps its encoder when only images are
    ruled out.
    """
    if scenario.language_model_only:
        return False
    limits = scenario.limit_mm_per_prompt
    if limits is None or limits.get("image", 1) != 0:
        return True
    takes_video = architecture.model_type.startswith(VIDEO_FAMILIES)
    return takes_video and limits.get("video", 1) != 0


def takes_audio(scenario: Scenario) -> bool:
    """Whether the two flags leave an audio encoder something to do."""
    limits = scenario.limit_mm_per_prompt or {}
    return not scenario.language_model_only and limits.get("audio", 1) != 0


def loaded_architecture(architecture: Architecture, scenario: Scenario, version: Version) -> Architecture:
    """The architecture without the encoders and projectors that the engine does not load."""
    if not architecture.is_multimodal or not switches_of(version).skips_encoders:
        return architecture
    sees, hears = takes_images_or_video(architecture, scenario), takes_audio(scenario)
    return architecture if sees and hears else with_encoders(architecture, sees, hears)


@kept
def with_encoders(architecture: Architecture, sees: bool, hears: bool) -> Architecture:
    """The language model with one encoder or none; the same object for the same architecture.

    A model that only hears has a projector for audio, whatever it is called.
    """
    also_sees = architecture.vision is not None or not any(
        m.name.startswith(AUDIO_PARTS) for m in architecture.every
    )
    kept = (
        m for m in architecture.every if (sees if also_sees and not m.name.startswith(AUDIO_PARTS) else hears)
    )
    return replace(architecture, every=tuple(kept))
