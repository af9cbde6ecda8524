"""Changes to JSON where a reader looks: another value, a key less, a key of another config, a list grown or cut.

A byte changed at random mostly breaks the JSON, and no reader behind the parser is reached.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

NUMBERS: Final = (
    0, -1, 1, 2, 3, 5, 7, 64, 127, 128, 4096, 4097, 65536, 2**31 - 1, 2**31, 2**40, 2**40 + 1, 2**53 + 1, 2**63, 10**30,
    10**399, 0.0, -0.0, 0.5, -1.5, 1e-9, 1e30, 1e308, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
OTHERS: Final = (
    None, True, False, "", " ", "a", "0", "auto", "\ud800", "\x00", "{0}", "{value}", "中文", "a" * 300, [], {}, [[]],
    [None], [0], [-1], [{}], {"a": {}}, {"0": 0}, [1, "a"],
)  # fmt: skip
WORDS: Final = (
    "full_attention", "sliding_attention", "linear_attention", "chunked_attention", "mamba", "attention", "moe", "M-*E",
    "fp8", "awq", "gptq", "compressed-tensors", "modelopt", "torchao", "bitsandbytes", "float16", "float64", "yarn",
    "longrope", "mrope", "default", "linear", "dynamic",
)  # fmt: skip

BYTES: Final = (
    b"\n", b'"', b"'", b"{", b"}", b"\\\n", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"--", b"=", b",", b": ",
)  # fmt: skip

Path = tuple[Any, ...]


def mutated_json(data: bytes, chance: random.Random, vocabulary: Sequence[tuple[str, Any]]) -> bytes:
    """`data` with one to four changes; `vocabulary` are keys and values of other documents."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return chance.choice(vocabulary)[0].encode()
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        document = _changed(document, chance, vocabulary)
    return json.dumps(document).encode()


def mutated_lines(
    data: bytes, chance: random.Random, vocabulary: Sequence[tuple[str, Any]], others: Sequence[bytes]
) -> bytes:
    """Text of lines: one that is JSON changed as such every other time, else as any text."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    if not lines[at].startswith(b"{") or chance.random() < 0.5:
        return mutated_text(data, chance, others)
    lines[at] = mutated_json(lines[at], chance, vocabulary)
    return b"\n".join(lines)


def _changed(document: Any, chance: random.Random, vocabulary: Sequence[tuple[str, Any]]) -> Any:
    paths = list(_paths(document))
    path = chance.choice(paths)
    if not path:
        if isinstance(document, dict) and chance.random() < 0.98:
            key, value = chance.choice(vocabulary)
            return {**document, key: copy.deepcopy(value)}
        return _value(document, chance, vocabulary)
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    kind = chance.random()
    if kind < 0.12:
        del parent[path[-1]]
    elif kind < 0.22 and isinstance(parent, dict):
        key, value = chance.choice(vocabulary)
        parent[key] = copy.deepcopy(value)
    elif kind < 0.27 and isinstance(parent, list):
        parent.extend(parent * chance.choice((1, 3)))
        del parent[5000:]
    else:
        parent[path[-1]] = _value(parent[path[-1]], chance, vocabulary)
    return document


def _value(value: Any, chance: random.Random, vocabulary: Sequence[tuple[str, Any]]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
        return chance.choice(
            (value + 1, value - 1, value * 2, value // 2, value * 3, -value, value * 1000, value // 8)
        )
    if isinstance(value, str) and chance.random() < 0.4:
        return chance.choice(WORDS)
    if isinstance(value, list | tuple) and value and chance.random() < 0.4:
        return value[: chance.randrange(len(value))]
    pick = chance.random()
    if pick < 0.5:
        return chance.choice(NUMBERS)
    if pick < 0.8:
        return copy.deepcopy(chance.choice(OTHERS))
    return copy.deepcopy(chance.choice(vocabulary)[1]) if pick < 0.95 else [value]


def _paths(document: Any, at: Path = ()) -> Any:
    """Every place, but only a few of a long list: its elements are alike."""
    yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _paths(value, (*at, key))
    elif isinstance(document, list):
        for index in (*range(min(3, len(document))), *range(max(3, len(document) - 1), len(document))):
            yield from _paths(document[index], (*at, index))


def vocabulary_of(documents: Sequence[Any]) -> list[tuple[str, Any]]:
    """Every key of `documents` with each different value that it has there."""
    found: dict[str, tuple[str, Any]] = {}
    for document in documents:
        for key, value in _pairs(document):
            found.setdefault(f"{key}={value!r}"[:200], (key, value))
    return list(found.values())


def _pairs(document: Any) -> Any:
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from _pairs(value)
    elif isinstance(document, list):
        for value in document[:8]:
            yield from _pairs(value)


def mutated_link(data: bytes, chance: random.Random, vocabulary: Sequence[tuple[str, Any]]) -> bytes:
    """A query string with another value, name or parameter."""
    params = dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True))
    for _ in range(chance.choice((1, 1, 2, 4))):
        key, value = chance.choice(vocabulary)
        name = chance.choice([*params, key]) if params else key
        if chance.random() < 0.15:
            params.pop(name, None)
            continue
        words = (
            value,
            params.get(name, ""),
            chance.choice(NUMBERS),
            chance.choice(OTHERS),
            chance.choice(WORDS),
        )
        made = chance.choice(words)
        if isinstance(made, str) and made[:15].lstrip("-").isdigit() and chance.random() < 0.7:
            made = _value(int(made[:15]), chance, vocabulary)
        params[name] = str(made).lower() if isinstance(made, bool) else str(made)
    return urlencode(params, errors="replace").encode()


def mutated_text(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Text with pieces cut, doubled, taken from another, or figures changed."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not data:
            return chance.choice(others)
        start = chance.randrange(len(data))
        end = min(len(data), start + chance.choice((1, 2, 8, 40, 400)))
        pick = chance.random()
        if pick < 0.2:
            put = b""
        elif pick < 0.35:
            put = data[start:end] * 2
        elif pick < 0.6:
            other = chance.choice(others)
            at = chance.randrange(max(1, len(other)))
            put = other[at : at + chance.choice((8, 40, 400))]
        elif pick < 0.85:
            digits = [index for index, byte in enumerate(data) if 48 <= byte < 58]
            if digits:
                start = chance.choice(digits)
                end = start + 1
                while end < len(data) and 48 <= data[end] < 58:
                    end += 1
            put = str(chance.choice((*NUMBERS, "x4", "1.2.3", "1e9", "٣"))).encode()
        else:
            put = chance.choice(BYTES)
        data = data[:start] + put + data[end:]
    return data
