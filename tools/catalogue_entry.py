"""The text of a catalogue entry, as kvcore/catalogue/models.py reads it: its writer, for tools/add_model.py."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kvcore.catalogue.models import SLOT, Checkpoint, with_quantization
from kvcore.model.config import ModelConfig

UNUSED_KEYS = frozenset(
    tomllib.loads(Path(__file__).with_name("unused_keys.toml").read_text("utf-8"))["keys"]
)
"""Keys of config.json that no byte depends on: an entry leaves them out."""
MIN_NAMES = 8
"""Shorter lists stay as they are."""
_NUMBER = re.compile(r"(?<=\.)(?:0|[1-9]\d*)(?=\.|$)")
Numbers: TypeAlias = tuple[int, ...]


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
    lines += ["", "[config]", *_pairs(with_quantization(facts, fold))]
    if config.hf_quant_config:
        lines += ["", "[hf_quant_config]", *_pairs(fold(config.hf_quant_config))]
    return "\n".join(lines) + "\n"


def _relevant(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _relevant(value) if isinstance(value, dict) else value
        for key, value in mapping.items()
        if key not in UNUSED_KEYS and not (isinstance(value, float) and not math.isfinite(value))
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


def fold(section: Mapping[str, Any]) -> dict[str, Any]:
    """`section` with its long lists and tables of names as patterns.

    Example:
        >>> fold({"ignore": [f"layers.{index}.gate" for index in range(8)]})
        {'ignore': ['layers.<0-7>.gate']}
    """
    return {key: _fold_value(value) for key, value in section.items()}


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


def _can_fold(names: Sequence[Any]) -> bool:
    return (
        len(names) >= MIN_NAMES
        and all(isinstance(name, str) and SLOT.search(name) is None for name in names)
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
