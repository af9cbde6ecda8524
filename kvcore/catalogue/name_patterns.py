"""Long lists of module names in few lines: `layers.<0-2,5>.mlp` stands for layers 0, 1, 2 and 5.

Quantized checkpoints list thousands of modules. An entry of the catalogue keeps them as patterns that expand to
exactly the same names, in an order of their own.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

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
