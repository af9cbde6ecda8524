"""Headers of safetensors files: the dtype and shape of every tensor of a checkpoint, without a weight.

Tensors that differ in nothing but the numbers of their names are one row: the same part of several layers, of all
experts. So a checkpoint of 90,000 tensors is some forty rows, in a request and in a link:

    {"model.layers.{3-60}.mlp.experts.{0-255}.up_proj.weight": {"dtype": "BF16", "shape": [2048, 7168]}}

Source: the safetensors format, README.md, "Format" (0.6).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, product
from typing import Any, Final

from msgspec import Struct

from kvcore.errors import invalid, shorten

DTYPE_BITS: Final[Mapping[str, int]] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element. Source: the safetensors format, tensor.rs:Dtype.bitsize (0.6)."""

FIELD: Final = "headers"
METADATA: Final = "__metadata__"
FILE_SUFFIX: Final = ".safetensors"
MAX_TENSORS: Final = 1 << 19
"""Of one row's layers times its other numbers, and of all names together; a model of 10^12 parameters has 140,000."""
MAX_ROWS: Final = 2048
MAX_NAME: Final = 400
MAX_AXES: Final = 8
MAX_AXIS: Final = 1 << 40
_NUMBERS: Final = re.compile(r"\{(\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*)\}")
_NUMBER: Final = re.compile(r"\d{1,5}")
_STEPS: Final = re.compile(r"(?:\{[^{}]*\}|[^.{}])+")
ANY: Final = "*"
"""Stands in a row's name for numbers behind the first."""


class Tensors(Struct, frozen=True, kw_only=True):
    """Tensors of one dtype and shape that are called alike."""

    prefix: str
    """Of the name, before its first number; "" without one."""
    name: str
    """What follows that number, with `*` for further ones; the whole name without one."""
    layers: tuple[int, ...]
    """The first numbers; none without."""
    each: int
    """How many of one layer."""
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Stored elements of one of them."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of one of them."""
        return -(-self.elements * DTYPE_BITS[self.dtype] // 8)

    @property
    def bytes_of_all(self) -> int:
        """Of all of them."""
        return self.bytes * self.each * max(len(self.layers), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Headers:
    """The tensors of a checkpoint. Equal when their canonical JSON is."""

    text: str
    rows: tuple[Tensors, ...] = field(compare=False, repr=False)

    @property
    def stored_bytes(self) -> int:
        """Of all tensors, as the files store them."""
        return sum(row.bytes_of_all for row in self.rows)

    @property
    def raw(self) -> dict[str, Any]:
        """The same as JSON, a row for tensors that are alike."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed


_Kind = tuple[tuple[str, ...], str, tuple[int, ...]]
_Numbers = frozenset[tuple[int, ...]]


def read_headers(raw: Mapping[str, Any], name: str = FIELD) -> Headers:
    """Headers as safetensors files have them, those of several files one after another or under the files' names, or as
    `Headers.text` writes them.

    Raises ScenarioError `invalid-value` or `input-too-large`, which name the field.

    Example:
        >>> weight = {"dtype": "BF16", "shape": [64, 64], "data_offsets": [0, 8192]}
        >>> headers = read_headers({f"model.layers.{layer}.self_attn.q_proj.weight": weight for layer in range(3)})
        >>> headers.text
        '{"model.layers.{0-2}.self_attn.q_proj.weight":{"dtype":"BF16","shape":[64,64]}}'
        >>> read_headers(headers.raw) == headers, headers.stored_bytes
        (True, 24576)
    """
    if "weight_map" in raw:
        raise invalid(
            name, "an index", "an index names tensors without their shapes; the files' headers have them"
        )
    found: dict[_Kind, dict[int, _Numbers]] = {}
    for key, dtype, shape in _tensors(raw, name):
        _add(found, key, dtype, shape, name)
    written: dict[str, Any] = {}
    for (steps, dtype, shape), layers in found.items():
        for key in _names(steps, layers):
            written[key] = {"dtype": dtype, "shape": list(shape)}
            if len(written) > MAX_ROWS:
                raise invalid(name, shorten(key), f"expected at most {MAX_ROWS:,} kinds of tensors")
    if not written:
        raise invalid(name, "nothing", "expected tensors with dtype and shape")
    text = json.dumps(written, sort_keys=True, separators=(",", ":"))
    rows = (_row(key, entry) for key, entry in sorted(written.items()))
    return Headers(text=text, rows=tuple(rows))


def _tensors(raw: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for key, entry in raw.items():
        if key == METADATA:
            continue
        if not isinstance(entry, Mapping) or len(key) > MAX_NAME or not key.isprintable():
            raise invalid(name, shorten(key), "expected a tensor's name with its dtype and shape")
        if key.endswith(FILE_SUFFIX) and "dtype" not in entry:
            yield from _tensors(
                {own: value for own, value in entry.items() if not own.endswith(FILE_SUFFIX)}, name
            )
            continue
        dtype, shape = entry.get("dtype"), entry.get("shape")
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise invalid(
                f"{name}.{key[:80]}.dtype", shorten(dtype), f"expected one of {', '.join(DTYPE_BITS)}"
            )
        axes = shape if isinstance(shape, list) and len(shape) <= MAX_AXES else [-1]
        if not all(type(size) is int and 0 <= size <= MAX_AXIS for size in axes):
            raise invalid(f"{name}.{key[:80]}.shape", shorten(shape), "expected a list of at most 8 sizes")
        if math.prod(axes):
            yield key, dtype, tuple(axes)


def _add(
    found: dict[_Kind, dict[int, _Numbers]], key: str, dtype: str, shape: tuple[int, ...], name: str
) -> None:
    """Puts a name's numbers to those of its kind; -1 is the layer of a name without numbers."""
    steps = _STEPS.findall(key)
    numbers = [values for step in steps if (values := _numbers(step, key, name)) is not None]
    kind = tuple(step if _values(step) is None else ANY for step in steps)
    if math.prod(map(len, numbers)) > MAX_TENSORS:
        raise invalid(name, shorten(key), f"expected at most {MAX_TENSORS:,} tensors")
    inner = frozenset(product(*numbers[1:]))
    layers = found.setdefault((kind, dtype, shape), {})
    for layer in numbers[0] if numbers else (-1,):
        layers[layer] = layers[layer] | inner if layer in layers else inner


def _numbers(step: str, key: str, name: str) -> tuple[int, ...] | None:
    """The numbers that one step of a name stands for, None for a word."""
    written = _values(step)
    if written is None:
        if "{" in step:
            raise invalid(name, shorten(key), "expected whole numbers and ranges of them in braces")
        return None
    spans = [span.partition("-") for span in written.split(",")]
    ranges = [range(int(low), int(high or low) + 1) for low, _, high in spans]
    return tuple(sorted({value for each in ranges for value in each}))


def _values(step: str) -> str | None:
    if _NUMBER.fullmatch(step):
        return step
    braces = _NUMBERS.fullmatch(step)
    return None if braces is None else braces[1]


def _names(steps: tuple[str, ...], layers: Mapping[int, _Numbers]) -> Iterator[str]:
    """Names in braces for the tensors of one kind, a name for all layers with the same further numbers."""
    alike: dict[_Numbers, list[int]] = {}
    for layer, inner in layers.items():
        alike.setdefault(inner, []).append(layer)
    for inner, numbers in alike.items():
        columns = [tuple(sorted(set(column))) for column in zip(*inner, strict=True)]
        is_product = math.prod(map(len, columns)) == len(inner)
        for rest in [columns] if is_product else [[(value,) for value in one] for one in sorted(inner)]:
            values = iter((sorted(numbers), *rest))
            yield ".".join(_spans(next(values)) if step == ANY else step for step in steps)


def _spans(values: Iterable[int]) -> str:
    """Numbers as ranges, in braces.

    Example:
        >>> _spans((0, 1, 2, 5))
        '{0-2,5}'
    """
    spans = []
    for _, run in groupby(enumerate(values), lambda pair: pair[1] - pair[0]):
        numbers = [value for _, value in run]
        spans.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return "{" + ",".join(spans) + "}"


def _row(key: str, entry: Mapping[str, Any]) -> Tensors:
    steps = _STEPS.findall(key)
    places = [place for place, step in enumerate(steps) if _values(step) is not None]
    first = places[0] if places else -1
    numbers = [_numbers(steps[place], key, FIELD) or () for place in places]
    behind = [ANY if place in places else step for place, step in enumerate(steps)][first + 1 :]
    return Tensors(
        prefix=".".join(steps[: max(first, 0)]),
        name=".".join(behind),
        layers=numbers[0] if numbers else (),
        each=math.prod(map(len, numbers[1:])),
        dtype=entry["dtype"],
        shape=tuple(entry["shape"]),
    )
