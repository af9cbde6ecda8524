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
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

from kvcore.errors import CatalogueError
from kvcore.model.config import ModelConfig
from kvcore.versioned import Bounds, Pattern, Source, TableFile, convert, read_toml, wrong

FOLDER: Final = Path(__file__).parent / "models"
_QUANTIZATION: Final = frozenset(("quantization_config", "compression_config"))
Id = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "owner/name")]
Stored = Annotated[int, Bounds(1, 1 << 60)]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnusedKeys:
    """unused_keys.toml."""

    keys: frozenset[str]


UNUSED_KEYS: Final = TableFile("kvcore.catalogue", "unused_keys.toml", UnusedKeys)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRow:
    """One file, as the head of this module says."""

    id: Id
    source: Source
    checked: datetime.date
    config: Mapping[str, object]
    total_size: Stored | None = None
    total_parameters: Stored | None = None
    sentence_transformers: bool | None = None
    nulls: tuple[str, ...] = ()
    hf_quant_config: Mapping[str, object] | None = None

    def entry(self) -> ModelEntry:
        """The model, with its names written out and its nulls put back. Raises ValueError."""
        config = _with_quantization(self.config, unfold)
        for dotted in self.nulls:
            *parents, key = dotted.split(".")
            inner = config
            for parent in parents:
                inner = inner.setdefault(parent, {})
                if not isinstance(inner, dict):
                    raise ValueError(f"nulls: {dotted} lies in no table")
            if inner.setdefault(key) is not None:
                raise ValueError(f"nulls: {dotted} has a value")
        hf_quant_config = None if self.hf_quant_config is None else unfold(self.hf_quant_config)
        return ModelEntry(
            id=self.id,
            config=ModelConfig.from_mapping(config, hf_quant_config),
            checkpoint=Checkpoint(
                total_size=self.total_size,
                total_parameters=self.total_parameters,
                sentence_transformers=self.sentence_transformers,
            ),
            source=self.source,
            checked=self.checked.isoformat(),
        )


def read_entry(file_name: str, text: str) -> ModelEntry:
    """One entry, checked strictly. Raises TableError `invalid-catalogue-entry` naming the file."""
    table = read_toml(text, file_name)
    try:
        row: EntryRow = convert(table, EntryRow, "")
        if entry_file_name(row.id) != file_name:
            raise ValueError("the file is named after the id, with __ for /")
        return row.entry()
    except ValueError as error:
        raise wrong(file_name, str(error)) from None


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
        if key not in UNUSED_KEYS.load().keys and not (isinstance(value, float) and not math.isfinite(value))
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
    if isinstance(value, dict):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value if item is not None) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


# -- long lists of module names in few lines -------------------------------------------------------------------

# Quantized checkpoints list thousands of modules. An entry keeps them as patterns that expand to exactly the same
# names, in an order of their own: `layers.<0-2,5>.mlp` stands for layers 0, 1, 2 and 5.

_NUMBER: Final = re.compile(r"(?<=\.)(?:0|[1-9]\d*)(?=\.|$)")
_SLOT: Final = re.compile(r"<(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)>")
MIN_NAMES: Final = 8
"""Shorter lists stay as they are."""
MAX_NAMES: Final = 100_000

Numbers = tuple[int, ...]


def fold(section: Mapping[str, Any]) -> dict[str, Any]:
    """`section` with its long lists and tables of names as patterns.

    Example:
        >>> fold({"ignore": [f"layers.{index}.gate" for index in range(8)]})
        {'ignore': ['layers.<0-7>.gate']}
    """
    return {key: _fold_value(value) for key, value in section.items()}


def unfold(section: Mapping[str, Any]) -> dict[str, Any]:
    """`section` with every pattern as the names that it stands for.

    Example:
        >>> unfold({"ignore": ["layers.<0,2-3>.gate", "lm_head"]})
        {'ignore': ['layers.0.gate', 'layers.2.gate', 'layers.3.gate', 'lm_head']}
    """
    return {name: _unfold_value(value) for key, value in section.items() for name in names_of(key)}


def _fold_value(value: Any) -> Any:
    if isinstance(value, list) and _can_fold(value):
        return list(patterns_of(value))
    if not isinstance(value, Mapping):
        return value
    if not _can_fold(list(value)):
        return fold(value)
    groups: dict[str, list[str]] = {}
    for name, inner in value.items():
        groups.setdefault(json.dumps(inner, sort_keys=True), []).append(name)
    return {
        pattern: _fold_value(value[names[0]]) for names in groups.values() for pattern in patterns_of(names)
    }


def _unfold_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return unfold(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [name for item in value for name in names_of(item)]
    return value


def _can_fold(names: Sequence[Any]) -> bool:
    return (
        len(names) >= MIN_NAMES
        and all(isinstance(name, str) and _SLOT.search(name) is None for name in names)
        and len(set(names)) == len(names)
    )


def patterns_of(names: Iterable[str]) -> Iterator[str]:
    """The fewest patterns found for `names`, which are all different."""
    by_template: dict[str, list[Numbers]] = {}
    for name in names:
        numbers = tuple(int(number) for number in _NUMBER.findall(name))
        by_template.setdefault(_NUMBER.sub("<>", name), []).append(numbers)
    for template, all_numbers in by_template.items():
        parts = template.split("<>")
        for slots in _blocks(all_numbers):
            yield "".join(itertools.chain(*zip(parts, (*slots, ""), strict=True)))


def _blocks(all_numbers: Sequence[Numbers]) -> Iterator[tuple[str, ...]]:
    if not all_numbers[0]:
        yield ()
        return
    rests: dict[int, set[Numbers]] = {}
    for first, *rest in all_numbers:
        rests.setdefault(first, set()).add(tuple(rest))
    firsts: dict[frozenset[Numbers], list[int]] = {}
    for first, rest_set in rests.items():
        firsts.setdefault(frozenset(rest_set), []).append(first)
    for shared, alike in firsts.items():
        for block in _blocks(sorted(shared)):
            yield (_slot(sorted(alike)), *block)


def _slot(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return "<" + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + ">"


def names_of(pattern: str) -> Iterator[str]:
    """The names that `pattern` stands for; itself where it is a plain name.

    Raises ValueError for more than MAX_NAMES.
    """
    pieces = _SLOT.split(pattern)
    choices = [_numbers(slot) for slot in pieces[1::2]]
    count = 1
    for numbers in choices:
        count *= len(numbers)
    if count > MAX_NAMES:
        raise ValueError(f"{pattern} stands for {count} names")
    for chosen in itertools.product(*choices):
        yield pieces[0] + "".join(
            f"{number}{text}" for number, text in zip(chosen, pieces[2::2], strict=True)
        )


def _numbers(slot: str) -> Sequence[int]:
    numbers: list[int] = []
    for run in slot.split(","):
        first, _, last = run.partition("-")
        if int(last or first) - int(first) >= MAX_NAMES:
            raise ValueError(f"<{slot}> is too long")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
