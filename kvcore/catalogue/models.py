"""Models: the facts of a config.json that memory depends on, one TOML file per model, in our own schema.

id = "Qwen/Qwen3-32B"
source = "where the facts were read"
checked = 2026-11-21
total_size = 65524246528          # optional: bytes of the checkpoint's tensors
total_parameters = 32762123264    # optional
sentence_transformers = true      # optional: whether the repository ships modules.json
nulls = ["sliding_window"]        # optional: keys that the config states as null, which TOML cannot
[config]                          # keys of config.json that a reader may need
[hf_quant_config]                 # optional: the side file of ModelOpt checkpoints
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Final

from kvcore.catalogue.name_patterns import fold, unfold
from kvcore.errors import CatalogueError
from kvcore.model.config import ModelConfig

FOLDER: Final = Path(__file__).parent / "models"
ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIRED: Final = frozenset(("id", "source", "checked", "config"))
_QUANTIZATION: Final = frozenset(("quantization_config", "compression_config"))
_OPTIONAL: Final = frozenset(
    ("total_size", "total_parameters", "sentence_transformers", "nulls", "hf_quant_config")
)

IRRELEVANT: Final = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _name_or_path attention_dropout attn_pdrop auto_map
    bad_words_ids begin_suppress_tokens bos_token bos_token_id chat_template chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dropout early_stopping
    embd_pdrop embed_dropout encoder_no_repeat_ngram_size eos_token eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    generation_config gradient_checkpointing hidden_dropout hidden_dropout_prob id2label image_token_id
    image_token_index initializer_factor initializer_range label2id layer_norm_eps layer_norm_epsilon
    layernorm_epsilon length_penalty max_length min_length no_repeat_ngram_size norm_eps num_beam_groups
    num_beams output_attentions output_hidden_states output_router_logits output_scores pad_token
    pad_token_id prefix pretraining_tp problem_type pruned_heads remove_invalid_values repetition_penalty
    resid_pdrop return_dict return_dict_in_generate rms_norm_eps router_aux_loss_coef sep_token_id
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k_sampling top_p
    torchscript transformers_version typical_p unk_token_id use_bfloat16 use_cache video_token_id
    vision_end_token_id vision_start_token_id vision_token_id
    """.split()
)
"""Keys of config.json that no byte depends on: an entry leaves them out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Facts about a repository that its config.json does not state, where known."""

    total_size: int | None = None
    """Bytes of all safetensors files' tensors."""
    total_parameters: int | None = None
    sentence_transformers: bool | None = None
    """Whether it ships modules.json, by which the engine knows a Sentence Transformers model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry:
    """One model of the catalogue."""

    id: str
    config: ModelConfig
    checkpoint: Checkpoint
    source: str
    checked: str


@cache
def model_ids() -> tuple[str, ...]:
    """Ids of all bundled models, in alphabetical order; reads no file."""
    names = (path.stem.replace("__", "/", 1) for path in FOLDER.glob("*.toml"))
    return tuple(sorted(names, key=str.lower))


def load_models() -> tuple[ModelEntry, ...]:
    """All bundled models."""
    return tuple(find_model(model) for model in model_ids())


def find_model(model: str) -> ModelEntry:
    """The model with this id, whatever its case.

    Raises CatalogueError `unknown-model` with near matches.

    Example:
        >>> find_model("qwen/qwen3-32b").id
        'Qwen/Qwen3-32B'
    """
    known = bundled_model(model)
    if known is None:
        near = difflib.get_close_matches(model[:200], model_ids(), n=3, cutoff=0.5)
        raise CatalogueError(
            "unknown-model", field="model", value=model, near=", ".join(near) or "a bundled model"
        )
    return known


def bundled_model(model: str) -> ModelEntry | None:
    """The model with this id, whatever its case; None for any other name, without a search for near ones."""
    known = _by_lower_id().get(model.strip().lower())
    return None if known is None else _load(known)


@cache
def _by_lower_id() -> Mapping[str, str]:
    return {model.lower(): model for model in model_ids()}


@lru_cache(maxsize=512)
def _load(model: str) -> ModelEntry:
    name = entry_file_name(model)
    return read_entry(name, (FOLDER / name).read_text("utf-8"))


def entry_file_name(model: str) -> str:
    """The file of a model in the folder of models.

    Example:
        >>> entry_file_name("Qwen/Qwen3-32B")
        'Qwen__Qwen3-32B.toml'
    """
    return model.replace("/", "__", 1) + ".toml"


def read_entry(file_name: str, text: str) -> ModelEntry:
    """One entry, checked strictly: an unknown or missing key raises CatalogueError naming the file."""

    def refuse(reason: str) -> CatalogueError:
        return CatalogueError("invalid-catalogue-entry", field=file_name, reason=reason)

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise refuse(str(error)) from None
    if missing := _REQUIRED - table.keys():
        raise refuse(f"missing {', '.join(sorted(missing))}")
    if unknown := table.keys() - _REQUIRED - _OPTIONAL:
        raise refuse(f"unknown {', '.join(sorted(unknown))}")
    for name in ("id", "source"):
        if not isinstance(table[name], str) or not table[name].strip():
            raise refuse(f"{name} is a text")
    if ID.fullmatch(table["id"]) is None or entry_file_name(table["id"]) != file_name:
        raise refuse("the id is owner/name, and the file is named after it, with __ for /")
    if not isinstance(table["checked"], datetime.date):
        raise refuse("checked is a date")
    for name in ("total_size", "total_parameters"):
        value = table.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise refuse(f"{name} is a positive whole number")
    if not isinstance(table.get("sentence_transformers", True), bool):
        raise refuse("sentence_transformers is true or false")
    for name in ("config", "hf_quant_config"):
        if not isinstance(table.get(name, {}), dict):
            raise refuse(f"{name} is a table")
    try:
        config = _with_quantization(table["config"], unfold)
        hf_quant_config = unfold(table["hf_quant_config"]) if "hf_quant_config" in table else None
    except ValueError as error:
        raise refuse(str(error)) from None
    nulls = table.get("nulls", [])
    if not isinstance(nulls, list) or not all(isinstance(dotted, str) for dotted in nulls):
        raise refuse("nulls is a list of keys")
    for dotted in nulls:
        *parents, key = dotted.split(".")
        inner = config
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise refuse(f"nulls: {dotted} lies in no table")
        if inner.setdefault(key) is not None:
            raise refuse(f"nulls: {dotted} has a value")
    return ModelEntry(
        id=table["id"],
        config=ModelConfig.from_mapping(config, hf_quant_config),
        checkpoint=Checkpoint(
            total_size=table.get("total_size"),
            total_parameters=table.get("total_parameters"),
            sentence_transformers=table.get("sentence_transformers"),
        ),
        source=table["source"],
        checked=table["checked"].isoformat(),
    )


def _with_quantization(
    config: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """`config` with `change` made to its quantization, at whatever depth."""
    return {
        key: (change if key in _QUANTIZATION else partial(_with_quantization, change=change))(value)
        if isinstance(value, dict)
        else value
        for key, value in config.items()
    }


# -- writing, for tools/add_model.py ---------------------------------------------------------------------------


def entry_text(
    model: str, config: ModelConfig, checkpoint: Checkpoint, source: str, checked: datetime.date
) -> str:
    """The TOML of an entry, without the keys that no byte depends on."""
    facts = _relevant(config.raw)
    lines = [f"id = {_toml(model)}", f"source = {_toml(source)}", f"checked = {checked.isoformat()}"]
    if checkpoint.total_size:
        lines.append(f"total_size = {checkpoint.total_size}")
    if checkpoint.total_parameters:
        lines.append(f"total_parameters = {checkpoint.total_parameters}")
    if checkpoint.sentence_transformers:
        lines.append("sentence_transformers = true")
    if nulls := list(_nulls(facts)):
        lines.append(f"nulls = {_toml(nulls)}")
    lines += ["", "[config]", *_pairs(_with_quantization(facts, fold))]
    if config.hf_quant_config:
        lines += ["", "[hf_quant_config]", *_pairs(fold(config.hf_quant_config))]
    return "\n".join(lines) + "\n"


def _relevant(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _relevant(value) if isinstance(value, dict) else value
        for key, value in mapping.items()
        if key not in IRRELEVANT and not (isinstance(value, float) and not math.isfinite(value))
    }


def _nulls(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in mapping.items():
        if value is None and "." not in key:
            yield prefix + key
        elif isinstance(value, dict) and "." not in key:
            yield from _nulls(value, f"{prefix}{key}.")


def _pairs(mapping: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in mapping.items() if value is not None]


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isalnum() and plain.isascii() else json.dumps(key)


def _toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value if item is not None) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
