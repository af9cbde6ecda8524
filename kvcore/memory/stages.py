"""What a pipeline stage stores in addition to its layers, by model class and release."""

from __future__ import annotations

from typing import Final

from packaging.version import Version

from kvcore.engine.vllm.classes import CLASSES, End, language_class
from kvcore.errors import EngineRefusalError
from kvcore.model.architecture import Architecture, Module, VocabEmbedding
from kvcore.scenario import Parallel

NOTHING: Final[frozenset[End]] = frozenset()


def on_every_stage(architecture: Architecture, parallel: Parallel, version: Version) -> frozenset[End]:
    """The ends that every pipeline stage stores a copy of; nothing without pipeline parallelism.

    Raises EngineRefusalError `pipeline-unsupported` for a class that is not cut into stages.

    Source: the classes of vllm/model_executor/models, the rows' own; vllm/config/model.py:
    ModelConfig.verify_with_parallel_config (0.11.0, 0.32.0).
    """
    if parallel.pipeline_parallel_size == 1:
        return NOTHING
    language = language_class(architecture.language_type or architecture.read_as)
    return ends_of_class(architecture.read_as, language, version)


def ends_of_class(own: str, language: str, version: Version) -> frozenset[End]:
    """The ends that the classes `own` and `language` build on every stage.

    Raises EngineRefusalError `pipeline-unsupported` for a class that is not cut into stages.

    Example:
        >>> sorted(ends_of_class("Qwen3NextForCausalLM", "", Version("0.32.0")))
        [<End.EMBEDDING: 'embedding'>, <End.HEAD: 'head'>]
    """
    tables = CLASSES.load().stages
    if any(own in row.architectures and row.covers(version) for row in tables.unsupported):
        raise EngineRefusalError("pipeline-unsupported", field="pipeline_parallel_size", value=own)
    rows = (row for row in tables.every_stage if row.covers(version))
    return NOTHING.union(*(row.modules for row in rows if {own, language} & row.architectures))


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
    """What a pipeline stage has besides its layers: encoders, and its ends of the model."""
    stored = {end for end in End if stores(end, architecture, parallel, stage, everywhere)}
    before = architecture.first if End.EMBEDDING in stored else ()
    behind = (module for module in architecture.last if end_of(module) in stored)
    return (*architecture.every, *before, *behind)


def end_of(module: Module) -> End:
    """Which end a module behind the layers belongs to."""
    return End.HEAD if isinstance(module, VocabEmbedding) else End.NORM
