"""Which of the engine's classes runs the language part of a model: `model_classes.toml`, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kvcore.memory.tables import load

FILE: Final = "model_classes.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelClasses:
    """model_classes.toml."""

    source: str
    language: Mapping[str, str]
    """Class by the model_type of a language part."""


@lru_cache(maxsize=1)
def model_classes() -> ModelClasses:
    """model_classes.toml; raises CatalogueError for an unknown or missing key."""
    return ModelClasses(**load(FILE, ModelClasses))


def language_class(model_type: str) -> str:
    """The class for a language part of that model_type; "" for one without an entry.

    Example:
        >>> language_class("qwen3_vl_moe_text"), language_class("resnet")
        ('Qwen3MoeForCausalLM', '')
    """
    return model_classes().language.get(model_type, "")
