"""Models: the facts of a config.json that memory depends on, one TOML file per model, in our own schema.

id = "Qwen/Qwen3-32B"
source = "where the facts were read"
checked = 2026-11-21
total_size = 65524246528          # optional: bytes of the checkpoint's tensors
total_parameters = 32762123264    # optional
sentence_transformers = true      # optional: whether the repository ships modules.json
rank = "stub"                     # optional: how good the source is (Rank); where it is not given, "values" if `source`
                                  # begins with "values of" or says "not the file itself", else "copy"
nulls = ["sliding_window"]        # optional: keys that the config states as null, which TOML cannot
[config]                          # keys of config.json that a reader may need
[hf_quant_config]                 # optional: the side file of ModelOpt checkpoints
"""

import datetime
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kvcore.base.toml_files import text_at
from kvcore.model.config import ModelConfig
from kvcore.tables import Record, Source, convert, read_toml, wrong

FOLDER: Final = Path(__file__).parent / "models"
_QUANTIZATION: Final = frozenset(("quantization_config", "compression_config"))
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")]
Stored = Annotated[int, Meta(ge=1, le=1 << 60)]


class Rank(StrEnum):
    """How good the source of an entry's config is, best first."""

    HUB = "hub"
    """The Hub's own file."""
    COPIES = "copies"
    """The same file, kept by two projects."""
    COPY = "copy"
    """The Hub's file, as one project keeps it."""
    VALUES = "values"
    """The config of another model of the family, with the values that another list states for this one."""
    STUB = "stub"
    """What another tool wrote for its own use, or made from a description: keys may be missing or simplified."""
    SHAPE = "shape"
    """The config of another model, of which this one is said to be a release."""
    FORMAT = "format-by-name"
    """The config of the base, stored as the name of the repository says."""


BY_NAME: Final = (Rank.SHAPE, Rank.FORMAT)
"""Ranks of models whose own config nobody has read: the Hub's file is better wherever it can be had."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Facts about a repository that config.json does not state, if known."""

    total_size: int | None = None
    """Bytes of all safetensors files' tensors."""
    total_parameters: int | None = None
    sentence_transformers: bool | None = None
    """Whether it ships modules.json, which marks a Sentence Transformers model for the engine."""


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One model of the catalogue."""

    id: str
    config: ModelConfig
    checkpoint: Checkpoint
    source: str
    checked: str
    rank: Rank = Rank.COPY
    base: str = ""
    """The model whose config it is, for a row of siblings.toml."""
    format: str = ""
    """The storage format that its name says, in a few words."""


@cache
def model_ids() -> tuple[str, ...]:
    """Ids of the bundled models that have a config of their own, in alphabetical order; reads no file."""
    names = (path.stem.replace("__", "/", 1) for path in FOLDER.glob("*.toml"))
    return tuple(sorted(names, key=str.lower))


def load_models() -> tuple[ModelEntry, ...]:
    """The bundled models that have a config of their own."""
    return tuple(_load(model) for model in model_ids())


def own_model(model: str) -> ModelEntry | None:
    """The bundled model with a config of its own that is called so in any case; None for any other name."""
    known = own_id(model)
    return None if known is None else _load(known)


def own_id(model: str) -> str | None:
    """The id, as it is spelt, of the bundled model with a config of its own that is called so in any case."""
    return _by_lower_id().get(model.strip().lower())


@cache
def _by_lower_id() -> Mapping[str, str]:
    return {model.lower(): model for model in model_ids()}


@lru_cache(maxsize=512)
def _load(model: str) -> ModelEntry:
    name = entry_file_name(model)
    return read_entry(name, text_at(FOLDER / name))


def entry_file_name(model: str) -> str:
    """The file of a model in the folder of models.

    Example:
        >>> entry_file_name("Qwen/Qwen3-32B")
        'Qwen__Qwen3-32B.toml'
    """
    return model.replace("/", "__", 1) + ".toml"


class EntryRow(Record, frozen=True, kw_only=True):
    """One file, in the form described at the top of this module."""

    id: Id
    source: Source
    checked: datetime.date
    config: Mapping[str, object]
    total_size: Stored | None = None
    total_parameters: Stored | None = None
    sentence_transformers: bool | None = None
    rank: Rank | None = None
    nulls: tuple[str, ...] = ()
    hf_quant_config: Mapping[str, object] | None = None

    def entry(self) -> ModelEntry:
        """The model, with patterns of names expanded and nulls restored. Raises ValueError."""
        config = with_quantization(self.config, unfold)
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
            rank=self.rank or _rank_of(self.source),
        )


def _rank_of(source: str) -> Rank:
    """The rank that a source states in its words."""
    is_composed = source.startswith("values of ") or "not the file itself" in source
    return Rank.VALUES if is_composed else Rank.COPY


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


def with_quantization(
    config: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """`config` with `change` applied to its quantization, at any depth."""
    return {
        key: (change if key in _QUANTIZATION else partial(with_quantization, change=change))(value)
        if isinstance(value, dict)
        else value
        for key, value in config.items()
    }


# -- long lists of module names in few lines -------------------------------------------------------------------

# Quantized checkpoints list thousands of modules. An entry keeps them as patterns that expand to exactly the same
# names, in an order of their own: `layers.<0-2,5>.mlp` stands for layers 0, 1, 2 and 5.

SLOT: Final = re.compile(r"<(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)>")
MAX_NAMES: Final = 100_000


def unfold(section: Mapping[str, Any]) -> dict[str, Any]:
    """`section` with every pattern expanded to its names.

    Example:
        >>> unfold({"ignore": ["layers.<0,2-3>.gate", "lm_head"]})
        {'ignore': ['layers.0.gate', 'layers.2.gate', 'layers.3.gate', 'lm_head']}
    """
    return {name: _unfold_value(value) for key, value in section.items() for name in names_of(key)}


def _unfold_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return unfold(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [name for item in value for name in names_of(item)]
    return value


def names_of(pattern: str) -> Iterator[str]:
    """The names that `pattern` expands to; a plain name is itself.

    Raises ValueError for more than MAX_NAMES.
    """
    pieces = SLOT.split(pattern)
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
