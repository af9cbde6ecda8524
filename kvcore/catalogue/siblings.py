"""Siblings: checkpoints of a bundled model in another storage format, a row each, made of its config and the format
that the repository's name says. Nobody has read their own config: their entries say so (`Rank`), and the Hub's wins.

    [source.recipes]                   # where the name was found
    text = "github.com/vllm-project/recipes models/"
    checked = 2026-11-26

    [format.fp8-rows]                  # how the makers of a name store it
    says = "fp8, a scale a row"
    source = "where the list of modules left alone was read"
    quantization_config = {...}        # lists of names as patterns, as in models/

    [[siblings]]                       # of the same format and source
    format = "fp8-rows"                # of a table above, or as that bundled model is; "none": in the model's dtype;
                                       # not given: as the base is
    source = "recipes"
    changes = {max_position_embeddings = 262144}      # optional: keys that differ from the base's, dotted
    [siblings.of]
    "RedHatAI/Qwen3-8B-FP8-dynamic" = "Qwen/Qwen3-8B"
"""

import datetime
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from kvcore.catalogue.models import Checkpoint, Id, ModelEntry, Rank, model_ids, own_model, unfold
from kvcore.model.config import LANGUAGE_SECTIONS, ModelConfig
from kvcore.tables import Record, Source, TableFile

QUANTIZATION: Final = ("quantization_config", "compression_config")
NONE: Final = "none"
"""The format of a sibling in the model's own dtype."""


class Origin(Record, frozen=True, kw_only=True):
    """A place that names siblings."""

    text: Source
    checked: datetime.date


class FormatRow(Record, frozen=True, kw_only=True):
    """A storage format as its makers write it."""

    says: Source
    source: Source
    quantization_config: Mapping[str, object]


class Group(Record, frozen=True, kw_only=True):
    """Siblings of one format and source, each with its base."""

    source: str
    of: Mapping[Id, Id]
    format: str = ""
    changes: Mapping[str, object] = {}


class Siblings(Record, frozen=True, kw_only=True):
    """siblings.toml."""

    source: Mapping[str, Origin]
    format: Mapping[str, FormatRow]
    siblings: tuple[Group, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for group in self.siblings:
            if group.source not in self.source:
                raise ValueError(f"no source is named {group.source}")
            if group.format not in ("", NONE, *self.format) and "/" not in group.format:
                raise ValueError(f"no format is named {group.format}")
            for name in map(str.lower, group.of):
                if name in seen:
                    raise ValueError(f"{name} is named twice")
                seen.add(name)


SIBLINGS: Final = TableFile("kvcore.catalogue", "siblings.toml", Siblings)


class _Row(NamedTuple):
    id: str
    base: str
    group: Group


@cache
def known_ids() -> tuple[str, ...]:
    """Ids of all bundled models, with those of siblings.toml, in alphabetical order."""
    return tuple(sorted({*model_ids(), *sibling_ids()}, key=str.lower))


def bundled_model(model: str) -> ModelEntry | None:
    """The model with this id in any case; None for any other name, without a search for near ones."""
    own = own_model(model)
    if own is not None:
        return own
    return sibling(model.strip().lower()) if "/" in model else None


@cache
def _rows() -> Mapping[str, _Row]:
    return {
        name.lower(): _Row(name, base, group)
        for group in SIBLINGS.load().siblings
        for name, base in group.of.items()
    }


def sibling_ids() -> tuple[str, ...]:
    """Ids of the siblings that have no config of their own by now, in the order of the file."""
    own = {model.lower() for model in model_ids()}
    return tuple(row.id for lower, row in _rows().items() if lower not in own)


_FORMAT_WORDS: Final = re.compile(
    r"(?:[-_.](?:awq|gptq|marlin|nvfp4|mxfp4|fp4|fp8|int4|int8|bnb|[48]bit|w4a16|w4a4|w8a8|w8a16|quantized|dynamic|block|g\d+))+"
)
"""What a name adds to that of a model for a storage format alone."""
_SHAPE: Final = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "num_experts", "n_routed_experts", "num_local_experts", "moe_intermediate_size",
)  # fmt: skip
"""Keys of a config.json in which a model and its checkpoints are alike."""


def checkpoints(model: str) -> tuple[str, ...]:
    """Bundled models that are `model` in another storage format: of its publisher first, then with a config of their
    own, then by name.

    The same model by its row in siblings.toml, or by a name that adds only a format to that of a model of one shape.

    Example:
        >>> checkpoints("Qwen/Qwen3-32B")[:2]
        ('Qwen/Qwen3-32B-AWQ', 'Qwen/Qwen3-32B-FP8')
    """
    base = own_model(model)
    return () if base is None else _checkpoints(base.id)


@cache
def _checkpoints(model: str) -> tuple[str, ...]:
    base = own_model(model)
    if base is None:
        return ()
    owner, _, name = base.id.lower().partition("/")
    named = (other for other in model_ids() if _only_adds_a_format(name, other.lower().partition("/")[2]))
    own = [entry for entry in map(own_model, named) if entry is not None and _shape(entry) == _shape(base)]
    own.sort(key=lambda entry: entry.id.lower().partition("/")[0] != owner)
    lower = base.id.lower()
    stored = [
        row for row in _rows().values() if row.base.lower() == lower and row.group.format not in ("", NONE)
    ]
    return tuple(dict.fromkeys((*(entry.id for entry in own), *(row.id for row in stored))))


def _only_adds_a_format(name: str, other: str) -> bool:
    return other.startswith(name) and _FORMAT_WORDS.fullmatch(other[len(name) :]) is not None


def _shape(entry: ModelEntry) -> tuple[object, ...]:
    return tuple(entry.config.language.raw.get(key) for key in _SHAPE)


def sibling(lower_id: str) -> ModelEntry | None:
    """The sibling with that id, given in lower case; None for any other.

    Example:
        >>> entry = sibling("redhatai/qwen3-8b-fp8-dynamic")
        >>> entry.base, entry.rank.value
        ('Qwen/Qwen3-8B', 'format-by-name')
    """
    row = _rows().get(lower_id)
    return None if row is None else _entry(row.id)


@lru_cache(maxsize=512)
def _entry(model: str) -> ModelEntry | None:
    row = _rows()[model.lower()]
    base = bundled_model(row.base)
    if base is None:
        return None
    table, group = SIBLINGS.load(), row.group
    written, side_file, says = _storage(group.format)
    raw: dict[str, Any] = dict(base.config.raw)
    hf_quant_config = base.config.hf_quant_config
    if written is not None or side_file is not None:
        raw = _without_quantization(raw)
        hf_quant_config = side_file
        if written is not None:
            raw["quantization_config"] = written
    elif group.format == NONE:
        raw, hf_quant_config = _without_quantization(raw), None
    for dotted, value in group.changes.items():
        raw = _changed(raw, dotted.split("."), value)
    origin = table.source[group.source]
    is_stored_so = bool(group.format) and group.format != NONE
    how = f"stored as its name says: {says}" if is_stored_so else "as the same model's release"
    return ModelEntry(
        id=row.id,
        config=ModelConfig.from_mapping(raw, hf_quant_config),
        checkpoint=Checkpoint(),
        source=f"config of {base.id}, {how}; named in {origin.text}",
        checked=origin.checked.isoformat(),
        rank=Rank.FORMAT if is_stored_so else Rank.SHAPE,
        base=base.id,
        format=says,
    )


def _storage(name: str) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None, str]:
    """`quantization_config`, side file and words of a format: of the table, or of the bundled model of that name."""
    if "/" not in name:
        row = SIBLINGS.load().format.get(name)
        return (None, None, "") if row is None else (unfold(row.quantization_config), None, row.says)
    like = bundled_model(name)
    if like is None:
        raise ValueError(f"siblings.toml: no model is named {name}")
    language = like.config.language.raw
    written = next(
        (
            found
            for section in (like.config.raw, language)
            for key in QUANTIZATION
            if (found := section.get(key))
        ),
        None,
    )
    return written, like.config.hf_quant_config, f"as {like.id}"


def _without_quantization(section: Mapping[str, Any]) -> dict[str, Any]:
    """`section` without what it says of its quantization, in the language model's part too."""
    return {
        key: _without_quantization(value) if key in LANGUAGE_SECTIONS and isinstance(value, dict) else value
        for key, value in section.items()
        if key not in QUANTIZATION
    }


def _changed(section: Mapping[str, Any], path: list[str], value: object) -> dict[str, Any]:
    key, *rest = path
    inner = section.get(key)
    return {
        **section,
        key: _changed(inner if isinstance(inner, dict) else {}, rest, value) if rest else value,
    }
