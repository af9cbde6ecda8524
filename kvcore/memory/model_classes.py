"""Which of the engine's classes runs the language part of a model: `model_classes.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvcore.engine.vllm.architectures import ModelClass
from kvcore.versioned import Reviewed, Source, TableFile


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelClasses(Reviewed):
    """model_classes.toml."""

    source: Source
    language: Mapping[str, ModelClass]
    """Class by the model_type of a language part."""


MODEL_CLASSES: Final = TableFile("kvcore.memory", "model_classes.toml", ModelClasses)


def language_class(model_type: str) -> str:
    """The class for a language part of that model_type; "" for one without an entry.

    Example:
        >>> language_class("qwen3_vl_moe_text"), language_class("resnet")
        ('Qwen3MoeForCausalLM', '')
    """
    return MODEL_CLASSES.load().language.get(model_type, "")
