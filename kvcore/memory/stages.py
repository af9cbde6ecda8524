"""Modules of a pipeline stage in addition to its layers: the ends of the model, by class and release, and encoders."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from packaging.version import Version

from kvcore.base.kept import kept
from kvcore.engine.protocol import Engine, Resolved
from kvcore.engine.records import End
from kvcore.model.architecture import Architecture, Module, VocabEmbedding
from kvcore.scenario import Parallel, Scenario

NOTHING: Final[frozenset[End]] = frozenset()
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


def on_every_stage(
    engine: Engine, architecture: Architecture, parallel: Parallel, version: Version
) -> frozenset[End]:
    """The ends that every pipeline stage stores a copy of; nothing without pipeline parallelism.

    Raises EngineRefusalError `pipeline-unsupported` for a class that is not cut into stages.
    """
    if parallel.pipeline_parallel_size == 1:
        return NOTHING
    return engine.ends_on_every_stage(architecture, version)


def stores(
    end: End, architecture: Architecture, parallel: Parallel, stage: int, everywhere: frozenset[End] = NOTHING
) -> bool:
    """Whether a pipeline stage stores an end of the model. `everywhere`: what every stage does, of `on_every_stage`.

    Otherwise the first stage stores what stands before the layers and the last what stands behind them; where lm_head
    is the embedding, the last stage stores that too.

    Source: vllm/model_executor/models/llama.py:LlamaModel (0.8.5 to 0.33.0), transformers/base.py:pipeline_parallel
    (0.32.0).
    """
    is_last = stage == parallel.pipeline_parallel_size - 1
    is_own = stage == 0 or (is_last and architecture.tied_embeddings) if end is End.EMBEDDING else is_last
    return is_own or end in everywhere


def stage_modules(
    architecture: Architecture, parallel: Parallel, stage: int, everywhere: frozenset[End] = NOTHING
) -> tuple[Module, ...]:
    """Modules of a pipeline stage besides its layers: encoders, and its ends of the model."""
    stored = {end for end in End if stores(end, architecture, parallel, stage, everywhere)}
    before = architecture.first if End.EMBEDDING in stored else ()
    heads = [isinstance(module, VocabEmbedding) for module in architecture.last]
    ends = (End.HEAD if is_head else End.NORM for is_head in heads)
    behind = (module for module, end in zip(architecture.last, ends, strict=True) if end in stored)
    return (*architecture.every, *before, *behind)


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
    """Whether `--limit-mm-per-prompt` and `--language-model-only` leave an encoder of audio something to do."""
    return not scenario.language_model_only and (scenario.limit_mm_per_prompt or {}).get("audio", 1) != 0


def loaded_architecture(architecture: Architecture, scenario: Scenario, resolved: Resolved) -> Architecture:
    """The architecture without the encoders and projectors that the engine does not load."""
    if not architecture.is_multimodal or not resolved.switches.skips_encoders:
        return architecture
    hears, sees = takes_audio(scenario), takes_images_or_video(architecture, scenario)
    return architecture if sees and hears else with_encoders(architecture, sees, hears)


@kept
def with_encoders(architecture: Architecture, sees: bool, hears: bool) -> Architecture:
    """The language model with one encoder or none; the same object for the same architecture.

    A model that only hears has a projector for audio, whatever it is called.
    """
    of_audio = [module.name.startswith(AUDIO_PARTS) for module in architecture.every]
    also_sees = architecture.vision is not None or not any(of_audio)
    kept = (
        module
        for module, is_audio in zip(architecture.every, of_audio, strict=True)
        if (sees if also_sees and not is_audio else hears)
    )
    return replace(architecture, every=tuple(kept))
