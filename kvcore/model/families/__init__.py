"""config.json -> Architecture: rows of decoders.toml and readers, in files by the name that people know a model by.

To add a family follow `docs/adding-a-model-family.md`. A module of this folder that has `READERS`, from what a config
calls itself (an entry of `architectures`, or a `model_type`) to the function that reads it, is found by itself. Two
modules that claim the same name are an error at import. A reader asks `config.root`, `config.language` and their
sections for keys, and raises for what it cannot read exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Final

from kvcore.errors import CatalogueError, ModelError, shorten
from kvcore.kept import kept
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import decoder, embedders
from kvcore.model.parts.blocks import Reader

_MODULES: Final = tuple(import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))

FAMILIES: Final = tuple(module for module in _MODULES if hasattr(module, "READERS"))

GENERATING_SUFFIXES: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
POOLING_SUFFIXES: Final = (
    "ForTextEncoding",
    "EmbeddingModel",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForRewardModeling",
    "ForRewardModel",
    "RewardModel",
    "Model",
)
"""Source: vllm/config/model.py:_SUFFIX_TO_DEFAULTS (0.32)."""


def collect_readers(families: tuple[ModuleType, ...]) -> Mapping[str, Reader]:
    """Every name that some family reads, with its reader."""
    readers: dict[str, Reader] = {}
    for family in families:
        own: Mapping[str, Reader] = family.READERS
        for name, reader in own.items():
            if name in readers:
                raise CatalogueError("duplicate-reader", field=family.__name__, name=name)
            readers[name] = reader
    return readers


SHOWN_KEYS: Final = 6

READERS: Final = collect_readers(FAMILIES)


@kept
def read_architecture(config: ModelConfig) -> Architecture:
    """The architecture that a config describes; the same object for the same config.

    The first of `architectures` that some family reads decides; `model_type` when none is named. What no family reads
    is taken for a plain decoder, and marked so, where its config has no key of anything else.

    Raises ModelError `unknown-architecture` when no family reads it, or what the reader raises.

    Example:
        >>> config = ModelConfig.from_mapping({
        ...     "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "vocab_size": 128,
        ...     "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256})
        >>> read_architecture(config).num_layers
        2
    """
    found = find_name(config)
    if found is None:
        return _read_unknown(config)
    name, spelling = found
    language_type = "" if config.language is config.root else config.language.model_type
    built = replace(READERS[spelling](config), read_as=spelling, language_type=language_type)
    is_bidirectional = config.language.get("is_causal") is False
    if is_bidirectional and embedders.BIDIRECTIONAL_CLASSES & {name, *generating_names(name)}:
        built = embedders.without_cache(built)
    is_adapted = name != spelling and name.endswith(embedders.CLASSIFYING_SUFFIXES)
    return embedders.with_classifier(built, config) if is_adapted else built


def find_name(config: ModelConfig) -> tuple[str, str] | None:
    """The name that decides, and as what it is read; None when no family reads any."""
    for name in config.architectures or (config.model_type,):
        for spelling in (name, *generating_names(name)):
            if spelling in READERS:
                return name, spelling
    return None


def _read_unknown(config: ModelConfig) -> Architecture:
    named = ", ".join(filter(None, (*config.architectures, config.model_type)))
    if not named:
        raise _unknown("(none named)", reason="the config has neither architectures nor model_type")
    if not decoder.is_named_like_a_decoder(config):
        raise _unknown(named, reason="no family of this project claims it")
    strange = decoder.strange_keys(config)
    if strange:
        keys = ", ".join(map(shorten, strange[:SHOWN_KEYS]))
        raise _unknown(
            named, reason=f"no family of this project claims it, and {keys} are not of a plain decoder"
        )
    return replace(decoder.read_unknown(config), read_as=config.architectures[0])


def _unknown(named: str, *, reason: str) -> ModelError:
    return ModelError("unknown-architecture", field="config.architectures", architecture=named, reason=reason)


def generating_names(name: str) -> tuple[str, ...]:
    """What the model that generates text is called, for the name of one that embeds or classifies.

    Source: vllm/model_executor/models/registry.py:_normalize_arch (0.32).

    Example:
        >>> generating_names("Qwen2ForSequenceClassification")
        ('Qwen2ForCausalLM', 'Qwen2ForConditionalGeneration', 'Qwen2LMHeadModel')
    """
    for suffix in POOLING_SUFFIXES:
        if name.endswith(suffix):
            return tuple(name.removesuffix(suffix) + generating for generating in GENERATING_SUFFIXES)
    return ()
