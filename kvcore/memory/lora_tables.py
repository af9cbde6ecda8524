"""Which modules get LoRA adapter slots, by model class and version: `lora.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from packaging.version import Version

from kvcore.engine.vllm.architectures import ModelClass
from kvcore.kept import kept
from kvcore.memory.model_classes import language_class
from kvcore.model.config import ModelConfig
from kvcore.versioned import Bounds, Count, OneOf, ReleaseRange, Reviewed, Source, TableFile

AdaptedModule = Annotated[str, OneOf(("embed_tokens", "lm_head", "qkv_proj", "gate_up_proj"))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits(ReleaseRange):
    """What changed between versions."""

    source: Source
    vocabulary_limit: Count
    extra_vocabulary: Count
    """Rows that adapters could add to the vocabulary."""
    vocabulary_multiple: Annotated[int, Bounds(1, 1 << 16)]
    """What the vocabulary of lm_head's slots is rounded up to."""
    adapts_experts: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRow(ReleaseRange):
    """Modules of some classes."""

    modules: frozenset[AdaptedModule]
    architectures: frozenset[ModelClass]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassList:
    """Some classes."""

    architectures: frozenset[ModelClass]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraTables(Reviewed):
    """lora.toml."""

    source: Source
    limits: tuple[Limits, ...]
    vocabulary: tuple[ClassRow, ...]
    """Whose embedding or lm_head is adapted."""
    unsupported: ClassList
    one_slice: tuple[ClassRow, ...]
    fused_expert_gates: ClassList


LORA: Final = TableFile("kvcore.memory", "lora.toml", LoraTables)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptable:
    """What one version does with one model class."""

    limits: Limits
    is_supported: bool
    embedding: bool
    head: bool
    one_slice: frozenset[str]
    """Fused projections that are one module to an adapter, as they are one in the checkpoint."""
    fused_expert_gates: bool
    """Gate and up projection of the experts are one module to an adapter."""


@kept
def adaptable(config: ModelConfig, version: Version) -> Adaptable:
    """What adapters may adapt in a model.

    Source: vllm/lora/utils.py:get_supported_lora_modules (0.11.0, 0.32.0).
    """
    tables = LORA.load()
    own = frozenset(config.architectures)
    language = language_class(config.language.model_type)
    names = own if config.language is config.root or not language else own | {language}
    modules = modules_of(tables.vocabulary, names, version)
    return Adaptable(
        limits=next(row for row in tables.limits if row.covers(version)),
        is_supported=not own & tables.unsupported.architectures,
        embedding="embed_tokens" in modules,
        head="lm_head" in modules,
        one_slice=modules_of(tables.one_slice, names, version),
        fused_expert_gates=bool(own & tables.fused_expert_gates.architectures),
    )


def modules_of(rows: tuple[ClassRow, ...], names: frozenset[str], version: Version) -> frozenset[str]:
    """The modules that the rows name for any of these classes in this version."""
    matching = (row for row in rows if row.covers(version) and names & row.architectures)
    return frozenset(module for row in matching for module in row.modules)
