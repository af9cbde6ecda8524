"""Which modules get LoRA adapter slots, by model class and version: `lora.toml`, read strictly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from packaging.version import Version

from kvcore.errors import CatalogueError
from kvcore.kept import kept
from kvcore.memory.model_classes import language_class
from kvcore.memory.tables import NEVER, OLDEST, load, read_row
from kvcore.model.config import ModelConfig

FILE: Final = "lora.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What changed between versions."""

    source: str
    since: Version
    vocabulary_limit: int
    extra_vocabulary: int
    """Rows that adapters could add to the vocabulary."""
    vocabulary_multiple: int
    """What the vocabulary of lm_head's slots is rounded up to."""
    adapts_experts: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRow:
    """Modules of some classes."""

    modules: frozenset[str]
    architectures: frozenset[str]
    since: Version = OLDEST
    below: Version = NEVER


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraTables:
    """lora.toml."""

    source: str
    limits: tuple[Limits, ...]
    vocabulary: tuple[ClassRow, ...]
    """Whose embedding or lm_head is adapted."""
    unsupported: frozenset[str]
    one_slice: tuple[ClassRow, ...]
    fused_expert_gates: frozenset[str]


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
    tables = lora_tables()
    own = frozenset(config.architectures)
    language = language_class(config.language.model_type)
    names = own if config.language is config.root or not language else own | {language}
    modules = modules_of(tables.vocabulary, names, version)
    return Adaptable(
        limits=max((row for row in tables.limits if row.since <= version), key=lambda row: row.since),
        is_supported=not own & tables.unsupported,
        embedding="embed_tokens" in modules,
        head="lm_head" in modules,
        one_slice=modules_of(tables.one_slice, names, version),
        fused_expert_gates=bool(own & tables.fused_expert_gates),
    )


def modules_of(rows: tuple[ClassRow, ...], names: frozenset[str], version: Version) -> frozenset[str]:
    """The modules that the rows name for any of these classes in this version."""
    matching = (row for row in rows if row.since <= version < row.below and names & row.architectures)
    return frozenset(module for row in matching for module in row.modules)


@lru_cache(maxsize=1)
def lora_tables() -> LoraTables:
    """lora.toml; raises CatalogueError for an unknown or missing key."""
    raw = load(FILE, LoraTables)
    return LoraTables(
        source=raw["source"],
        limits=tuple(read_row(Limits, row, f"{FILE} limits") for row in raw["limits"]),
        vocabulary=tuple(class_row(row) for row in raw["vocabulary"]),
        unsupported=names_of(raw["unsupported"], "unsupported"),
        one_slice=tuple(class_row(row) for row in raw["one_slice"]),
        fused_expert_gates=names_of(raw["fused_expert_gates"], "fused_expert_gates"),
    )


def class_row(raw: Mapping[str, Any]) -> ClassRow:
    """One row of [[vocabulary]] or [[one_slice]]."""
    row = read_row(ClassRow, raw, FILE)
    return dataclasses.replace(
        row, modules=frozenset(row.modules), architectures=frozenset(row.architectures)
    )


def names_of(raw: Mapping[str, Any], where: str) -> frozenset[str]:
    """A table that holds `architectures` and nothing else."""
    if set(raw) != {"architectures"}:
        raise CatalogueError(
            "invalid-catalogue-entry", field=f"{FILE} {where}", reason=", ".join(sorted(raw))
        )
    return frozenset(raw["architectures"])
