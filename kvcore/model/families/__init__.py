"""config.json -> Architecture: rows of decoders.toml and embedders.toml, and functions that read more.

A model is found by the name that people know it by, in a row or in the name of its function.

To add a family follow `docs/adding-a-model-family.md`. A module with `READERS`, from what a config calls itself (an
entry of `architectures`, or a `model_type`) to the function that reads it, is found by itself. Two modules that claim
the same name are an error. All of them are imported only for a model that is no row of decoders.toml; most are one. A
reader asks `config.root`, `config.language` and their sections for keys, and raises for what it cannot read exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from kvcore.base.errors import CatalogueError, ModelError, notice, shorten
from kvcore.base.kept import kept
from kvcore.base.words import NONE_NAMED
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import decoder
from kvcore.model.parts.blocks import Reader

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
    """The readers of several families together. Raises CatalogueError `duplicate-reader` for a name of two."""
    readers: dict[str, Reader] = {}
    for family in families:
        own: Mapping[str, Reader] = family.READERS
        for name, reader in own.items():
            if name in readers:
                raise CatalogueError("duplicate-reader", field=family.__name__, name=name)
            readers[name] = reader
    return readers


@cache
def readers() -> Mapping[str, Reader]:
    """Every name that some family reads, with its reader.

    Modules are found by their files, not listed: a forgotten line would leave a family unread without a word.
    """
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return collect_readers(tuple(module for module in modules if hasattr(module, "READERS")))


def reader_of(name: str) -> Reader | None:
    """The reader of models with this name; None where no family has one."""
    rows: Mapping[str, Any] = decoder.READERS
    found: Reader | None = rows.get(name)
    return found or readers().get(name)


if TYPE_CHECKING:
    READERS: Mapping[str, Reader]
    """Every name that some family reads; `readers` makes it."""
else:

    def __getattr__(name: str) -> Any:
        if name == "READERS":
            return readers()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


CLASSIFYING_SUFFIXES: Final = ("ForSequenceClassification", "ForTokenClassification")
"""Source: vllm/config/model.py:_SUFFIX_TO_DEFAULTS (0.32)."""

BIDIRECTIONAL_CLASSES: Final = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
"""Classes that read `is_causal`. Source: vllm/model_executor/models/llama.py, qwen2.py, qwen3.py (0.11.0, 0.32.0)."""

SHOWN_KEYS: Final = 6


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
    name, spelling, read = found
    language_type = "" if config.language is config.root else config.language.model_type
    built = replace(read(config), read_as=spelling, language_type=language_type)
    is_bidirectional = config.language.get("is_causal") is False
    is_bidirectional = is_bidirectional and bool(BIDIRECTIONAL_CLASSES & {name, *generating_names(name)})
    is_adapted = name != spelling and name.endswith(CLASSIFYING_SUFFIXES)
    if not is_bidirectional and not is_adapted:
        return built
    from kvcore.model.families import embedders

    built = embedders.without_cache(built) if is_bidirectional else built
    return embedders.with_classifier(built, config) if is_adapted else built


def find_name(config: ModelConfig) -> tuple[str, str, Reader] | None:
    """The name that decides, the name it is read as, and its reader; None when no family reads any."""
    for name in config.architectures or (config.model_type,):
        for spelling in (name, *generating_names(name)):
            if (reader := reader_of(spelling)) is not None:
                return name, spelling, reader
    return None


def is_planned(config: ModelConfig) -> bool:
    """Whether `read_architecture` gives one."""
    try:
        read_architecture(config)
    except ModelError:
        return False
    return True


SUFFIX: Final = "ForCausalLM"
DRAFTS: Final = ("eagle", "medusa", "mtp", "speculator", "draft", "dflash")
"""Words in the names of models that only draft tokens for another."""

PLAIN_KEYS: Final = frozenset(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size"
    " max_position_embeddings rope_theta rope_scaling rope_parameters partial_rotary_factor rms_norm_eps norm_eps"
    " layer_norm_eps layer_norm_epsilon tie_word_embeddings attention_bias mlp_bias hidden_act sliding_window"
    " use_sliding_window max_window_layers layer_types quantization_config".split()
)
"""Keys of a plain decoder: each is read, or changes no tensor."""

HARMLESS_KEYS: Final = frozenset(
    "architectures model_type auto_map torch_dtype dtype transformers_version _name_or_path bos_token_id eos_token_id"
    " pad_token_id unk_token_id use_cache initializer_range attention_dropout residual_dropout hidden_dropout"
    " resid_pdrop attn_pdrop embd_pdrop pretraining_tp is_causal id2label label2id task_specific_params"
    " output_attentions output_hidden_states return_dict tokenizer_class use_flash_attn _attn_implementation"
    " _attn_implementation_autoset attn_implementation is_decoder is_encoder_decoder add_cross_attention"
    " chunk_size_feed_forward finetuning_task name_or_path problem_type unsloth_version unsloth_fixed".split()
)

WINDOWS: Final = frozenset({"full_attention", "sliding_attention"})

GATED: Final = frozenset({"silu", "swish", "swiglu"})
"""Activations of a gated feed-forward part. With others it may be plain."""


def strange_keys(config: ModelConfig) -> tuple[str, ...]:
    """Parts of a config that no plain decoder has: keys, an activation that may be no gate, other kinds of layers.

    Example:
        >>> config = {"architectures": ["NewForCausalLM"], "hidden_act": "silu", "num_experts": 8}
        >>> strange_keys(ModelConfig.from_mapping(config))
        ('num_experts',)
    """
    root = config.root
    given = {key for key, value in config.raw.items() if value is not None and value is not False}
    strange = sorted(given - PLAIN_KEYS - HARMLESS_KEYS)
    if root.string("hidden_act", "silu") not in GATED:
        strange.append("hidden_act")
    if not WINDOWS.issuperset(root.strings("layer_types") or ()):
        strange.append("layer_types")
    return tuple(strange)


def is_named_like_a_decoder(config: ModelConfig) -> bool:
    """Whether the class's name is that of a model that generates text by itself."""
    name = config.architectures[0] if config.architectures else ""
    return name.endswith(SUFFIX) and not any(draft in name.lower() for draft in DRAFTS)


def _read_unknown(config: ModelConfig) -> Architecture:
    named = ", ".join(filter(None, (*config.architectures, config.model_type)))
    if config.headers is not None and not config.root.boolean("is_encoder_decoder", False):
        from kvcore.model.families import headers

        return replace(headers.read_with_headers(config, config.headers), read_as=named)
    if not named:
        raise _unknown(NONE_NAMED, reason="the config has neither architectures nor model_type")
    if not is_named_like_a_decoder(config):
        raise _unknown(named, reason="no family of this project claims it")
    strange = strange_keys(config)
    if strange:
        keys = ", ".join(map(shorten, strange[:SHOWN_KEYS]))
        raise _unknown(
            named, reason=f"no family of this project claims it, and {keys} are not of a plain decoder"
        )
    plain = decoder.read_decoder(decoder.DECODERS["llama"], config)
    assumed = notice("architecture-assumed", "config.architectures", architecture=config.architectures[0])
    return replace(plain, is_assumed=True, read_as=config.architectures[0], notices=(assumed,))


def _unknown(named: str, *, reason: str) -> ModelError:
    return ModelError("unknown-architecture", field="config.architectures", architecture=named, reason=reason)


def generating_names(name: str) -> tuple[str, ...]:
    """Names of the generating model, for a model that embeds or classifies.

    Source: vllm/model_executor/models/registry.py:_normalize_arch (0.32).

    Example:
        >>> generating_names("Qwen2ForSequenceClassification")
        ('Qwen2ForCausalLM', 'Qwen2ForConditionalGeneration', 'Qwen2LMHeadModel')
    """
    for suffix in POOLING_SUFFIXES:
        if name.endswith(suffix):
            return tuple(name.removesuffix(suffix) + generating for generating in GENERATING_SUFFIXES)
    return ()
