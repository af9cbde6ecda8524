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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import ScenarioError, invalid, shorten

DTYPE_BITS: Final[Mapping[str, int]] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element. Source: the safetensors format, tensor.rs:Dtype.bitsize (0.6)."""

FIELD: Final = "headers"
METADATA: Final = "__metadata__"
INDEX_KEY: Final = "weight_map"
FILE_SUFFIX: Final = ".safetensors"
MAX_TENSORS: Final = 1 << 19
"""Tensors of all names together; a model of 10^12 parameters has 140,000 to 210,000."""
MAX_CHARACTERS: Final = 32 << 20
"""Characters of the headers of all files."""
MAX_ENTRIES: Final = 1 << 18
"""Names, each of one tensor or of many."""
MAX_ROWS: Final = 2048
MAX_NAME: Final = 400
MAX_AXES: Final = 8
MAX_AXIS: Final = 1 << 40
MAX_ENTRY_CHARACTERS: Final = 2000
"""Characters of one tensor's entry in a file, its name apart."""
STEPS_OF_ALL: Final = 1 << 16
STEPS_OF_ENTRY: Final = 16
"""Names one by one take three for each number in them: this bounds ranges that cut each other into pieces."""
_NUMBER: Final = re.compile(r"(?<![^.])(?:[0-9]{1,5}|\{[^{}]*\})(?![^.])")
_RANGES: Final = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
_PLACE: Final = "{}"
"""Stands in the name of a kind for its numbers."""
ANY: Final = "*"
"""Stands in a row's name for numbers behind the first."""
_STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
_NAME: Final = re.compile(rf"[\s,]*+({_STRING})\s*+:\s*+\{{", re.DOTALL)
"""The next name and the bracket that opens its entry."""
_ENTRY: Final = re.compile(rf'(?:[^"{{}}]++|{_STRING})*+\}}', re.DOTALL)
"""Up to the bracket that closes it; entries of tensors have no brackets inside."""
_DECODER: Final = json.JSONDecoder()
_CLOSED: Final = re.compile(r"\s*+\}")

Spans = tuple[tuple[int, int], ...]
"""Whole numbers as first and last of each run, ascending."""


class Tensors(Struct, frozen=True, kw_only=True):
    """Tensors of one dtype and shape that are called alike."""

    prefix: str
    """The name before its first number; "" without one."""
    name: str
    """The name after that number, with `*` for further ones; the whole name without one."""
    layers: Spans
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
        """Bytes of one of them."""
        return -(-self.elements * DTYPE_BITS[self.dtype] // 8)

    @property
    def bytes_of_all(self) -> int:
        """Bytes of all of them."""
        return self.bytes * self.each * max(self.num_layers, 1)

    @property
    def num_layers(self) -> int:
        """How many first numbers there are."""
        return _count(self.layers)

    @property
    def last_layer(self) -> int:
        """The highest of them, -1 without one."""
        return self.layers[-1][1] if self.layers else -1

    def layers_below(self, count: int) -> Iterator[int]:
        """The first numbers that are less than `count`."""
        return (layer for low, high in self.layers for layer in range(low, min(high + 1, count)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Headers:
    """The tensors of a checkpoint. Equal when their canonical JSON is."""

    text: str
    rows: tuple[Tensors, ...] = field(compare=False, repr=False)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors, as the files store them."""
        return sum(row.bytes_of_all for row in self.rows)

    @property
    def raw(self) -> dict[str, Any]:
        """The headers as JSON, a row for tensors that are alike."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed


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
    reader = HeadersReader(name)
    reader.add(raw)
    return reader.headers()


class HeadersReader:
    """Takes the headers of files one after another, and keeps of them only which tensors there are.

    Example:
        >>> reader = HeadersReader()
        >>> reader.feed('{"__metadata__": {"format": "pt"}, "a.0.w": {"dtype": "U8", "shape": [4]}}')
        >>> reader.feed('{"a.1.w": {"dtype": "U8", "shape": [4]}}')
        >>> reader.headers().text
        '{"a.{0-1}.w":{"dtype":"U8","shape":[4]}}'
    """

    def __init__(self, name: str = FIELD) -> None:
        self._name = name
        self._characters = self._entries = 0
        self._kinds: dict[_Kind, list[_Box]] = {}
        self._spans: dict[str, Spans] = {}

    def feed(self, text: str) -> None:
        """Takes the header of a file, or an object of headers under their files' names, without parsing it as a whole.

        Raises ScenarioError `invalid-json`, `invalid-value` or `input-too-large`.
        """
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise ScenarioError("input-too-large", field=self._name, limit=f"{MAX_CHARACTERS >> 20} MiB")
        if f'"{INDEX_KEY}"' in text:
            raise self._index()
        if text.count('"dtype"') > MAX_ENTRIES:
            raise self._too_many_names("tensors one by one")
        begun, depth = text.find("{") + 1, 1
        if text[:begun].strip() != "{":
            raise _unread(self._name, reason="one JSON object is expected")
        while True:
            while depth and (closed := _CLOSED.match(text, begun)):
                begun, depth = closed.end(), depth - 1
            if not depth:
                break
            named = _NAME.match(text, begun)
            if named is None:
                raise _unread(self._name, reason=f"a tensor's name is expected at character {begun:,}")
            key = self._parsed(named[1]) if "\\" in named[1] else named[1][1:-1]
            begun = named.end()
            if depth == 1 and key.endswith(FILE_SUFFIX):
                depth = 2
                continue
            entry = _ENTRY.match(text, begun)
            if entry is None:
                raise _unread(
                    self._name, reason=f"a tensor's dtype and shape are expected at character {begun:,}"
                )
            if key != METADATA:
                if entry.end() - begun > MAX_ENTRY_CHARACTERS:
                    raise self._bad_entry(key)
                self._entry(key, self._parsed(text, begun - 1))
            begun = entry.end()
        if text[begun:].strip():
            raise _unread(self._name, reason=f"nothing more is expected at character {begun:,}")

    def add(self, raw: Mapping[str, Any]) -> None:
        """Takes what was parsed already. Raises ScenarioError `invalid-value` or `input-too-large`."""
        if INDEX_KEY in raw:
            raise self._index()
        for key, entry in raw.items():
            if key.endswith(FILE_SUFFIX) and isinstance(entry, Mapping) and "dtype" not in entry:
                for own, value in entry.items():
                    self._entry(own, value)
            else:
                self._entry(key, entry)

    def headers(self) -> Headers:
        """The headers taken so far, in their one spelling."""
        written: dict[str, Any] = {}
        rows: list[tuple[str, Tensors]] = []
        tensors, steps = 0, _Steps(STEPS_OF_ALL + STEPS_OF_ENTRY * self._entries)
        for (pattern, dtype, shape), boxes in self._kinds.items():
            tree = _merged(boxes, steps)
            if steps.left < 0:
                raise invalid(self._name, shorten(pattern), "its ranges cut each other into too many pieces")
            for spans in self._rows(pattern, tree):
                key = _named(pattern, spans)
                written[key] = {"dtype": dtype, "shape": list(shape)}
                rows.append((key, _row(pattern, spans, dtype, shape)))
                tensors += math.prod(map(_count, spans))
                if len(written) > MAX_ROWS:
                    raise self._too_many_kinds(key)
                if tensors > MAX_TENSORS:
                    raise invalid(self._name, shorten(key), f"expected at most {MAX_TENSORS:,} tensors")
        if not written:
            raise invalid(self._name, "nothing", "expected tensors with dtype and shape")
        text = json.dumps(written, sort_keys=True, separators=(",", ":"))
        return Headers(text=text, rows=tuple(row for _, row in sorted(rows, key=lambda row: row[0])))

    def _entry(self, key: str, entry: object) -> None:
        if key == METADATA:
            return
        if not isinstance(entry, Mapping) or len(key) > MAX_NAME or not key.isprintable():
            raise self._bad_entry(key)
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise self._too_many_names(key)
        dtype, shape = entry.get("dtype"), entry.get("shape")
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise invalid(
                f"{self._name}.{key[:80]}.dtype", shorten(dtype), f"expected one of {', '.join(DTYPE_BITS)}"
            )
        axes = shape if isinstance(shape, list) and len(shape) <= MAX_AXES else [-1]
        if not all(type(size) is int and 0 <= size <= MAX_AXIS for size in axes):
            raise invalid(
                f"{self._name}.{key[:80]}.shape", shorten(shape), "expected a list of at most 8 sizes"
            )
        if not all(axes):
            return
        pattern = _NUMBER.sub(_PLACE, key)
        if "{" in key or "}" in key:
            self._check_braces(key, pattern)
        box = tuple([self._spans.get(step) or self._read(step, key) for step in _NUMBER.findall(key)])
        kind = (pattern, dtype, tuple(axes))
        boxes = self._kinds.get(kind)
        if boxes is None:
            boxes = self._kinds[kind] = []
            if len(self._kinds) > MAX_ROWS:
                raise self._too_many_kinds(key)
        boxes.append(box)

    def _check_braces(self, key: str, pattern: str) -> None:
        rest = pattern.replace(_PLACE, "")
        if "{" in rest or "}" in rest:
            raise self._bad_braces(key)

    def _read(self, step: str, key: str) -> Spans:
        """The numbers in one step of a name."""
        written = step.strip("{}")
        if _RANGES.fullmatch(written) is None:
            raise self._bad_braces(key)
        pairs = [span.partition("-") for span in written.split(",")]
        spans = [(int(low), int(high or low)) for low, _, high in pairs]
        if any(low > high for low, high in spans):
            raise self._bad_braces(key)
        self._spans[step] = joined = _joined(spans)
        return joined

    def _rows(self, pattern: str, tree: _Tree) -> Iterator[tuple[Spans, ...]]:
        """The tensors of one kind in as few names as possible, each short enough to be read again."""
        for spans in _paths(tree):
            todo = [spans]
            while todo:
                one = todo.pop()
                if len(_named(pattern, one)) <= MAX_NAME:
                    yield one
                    continue
                longest = max(range(len(one)), key=lambda place: len(one[place]))
                half = len(one[longest]) // 2
                if not half:
                    raise self._bad_entry(_named(pattern, one))
                todo += (
                    (*one[:longest], part, *one[longest + 1 :])
                    for part in (one[longest][half:], one[longest][:half])
                )

    def _parsed(self, text: str, begun: int = 0) -> Any:
        try:
            return _DECODER.raw_decode(text, begun)[0]
        except ValueError as error:
            raise _unread(self._name, reason=str(error)) from None

    def _bad_entry(self, key: str) -> ScenarioError:
        return invalid(self._name, shorten(key), "expected a tensor's name with its dtype and shape")

    def _bad_braces(self, key: str) -> ScenarioError:
        return invalid(self._name, shorten(key), "expected whole numbers and ranges of them in braces")

    def _index(self) -> ScenarioError:
        return invalid(
            self._name,
            "an index",
            "an index names tensors without their shapes; the files' headers have them",
        )

    def _too_many_names(self, key: str) -> ScenarioError:
        return invalid(
            self._name,
            shorten(key),
            f"expected at most {MAX_ENTRIES:,} names; numbers in them may be ranges in braces",
        )

    def _too_many_kinds(self, key: str) -> ScenarioError:
        return invalid(self._name, shorten(key), f"expected at most {MAX_ROWS:,} kinds of tensors")


_Kind = tuple[str, str, tuple[int, ...]]
_Box = tuple[Spans, ...]
"""The numbers of one name, place by place: it names each of them with each."""
_Tree = tuple[tuple[Spans, "_Tree"], ...]
"""Numbers at the first place, with the tree that is the same behind all of them; () behind the last place."""


def _unread(field: str, *, reason: str) -> ScenarioError:
    return ScenarioError("invalid-json", field=field, reason=reason)


class _Steps:
    """Steps that are left for merging."""

    def __init__(self, left: int) -> None:
        self.left = left


def _merged(boxes: list[_Box], steps: _Steps) -> _Tree:
    """All that `boxes` name, each once: the same tree, however they are cut. Whatever it is where `steps` end."""
    steps.left -= len(boxes)
    if not boxes[0] or steps.left < 0:
        return ()
    alike: dict[Spans, list[_Box]] = {}
    if len(boxes[0]) == 1:
        return ((_joined([span for spans, *_ in boxes for span in spans], steps), ()),)
    for first, *rest in boxes:
        alike.setdefault(first, []).append(tuple(rest))
    groups = list(alike.values())
    if len(groups) == 1:
        return ((boxes[0][0], _merged(groups[0], steps)),)
    found: dict[_Tree, list[tuple[int, int]]] = {}
    kept: dict[tuple[int, ...], _Tree] = {}
    for span, active in _pieces(list(alike), steps):
        if active not in kept:
            kept[active] = _merged([box for group in active for box in groups[group]], steps)
        found.setdefault(kept[active], []).append(span)
    trees = ((_joined(spans), rest) for rest, spans in found.items())
    return tuple(sorted(trees))


def _pieces(groups: list[Spans], steps: _Steps) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """Runs of numbers between the ends of any span, with the groups that have them."""
    ends: dict[int, list[int]] = {}
    for group, spans in enumerate(groups):
        steps.left -= len(spans)
        for low, high in spans:
            ends.setdefault(low, []).append(group)
            ends.setdefault(high + 1, []).append(group)
    active: set[int] = set()
    places = sorted(ends)
    for begun, end in pairwise(places):
        active ^= set(ends[begun])
        steps.left -= len(active)
        if steps.left < 0:
            return
        if active:
            yield (begun, end - 1), tuple(sorted(active))


def _joined(spans: list[tuple[int, int]], steps: _Steps | None = None) -> Spans:
    """Runs that touch or overlap as one."""
    if steps is not None:
        steps.left -= len(spans)
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + 1:
            if high > found[-1][1]:
                found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return tuple(found)


def _paths(tree: _Tree) -> Iterator[tuple[Spans, ...]]:
    if not tree:
        yield ()
    for spans, rest in tree:
        yield from ((spans, *behind) for behind in _paths(rest))


def _count(spans: Spans) -> int:
    return sum(high - low + 1 for low, high in spans)


def _named(pattern: str, spans: tuple[Spans, ...]) -> str:
    words = pattern.split(_PLACE)
    return words[0] + "".join(f"{_written(one)}{word}" for one, word in zip(spans, words[1:], strict=True))


def _written(spans: Spans) -> str:
    """Numbers as ranges, in braces.

    Example:
        >>> _written(((0, 2), (5, 5)))
        '{0-2,5}'
    """
    return "{" + ",".join(f"{low}-{high}" if high > low else str(low) for low, high in spans) + "}"


def _row(pattern: str, spans: tuple[Spans, ...], dtype: str, shape: tuple[int, ...]) -> Tensors:
    prefix, _, name = pattern.partition(_PLACE) if spans else ("", "", pattern)
    return Tensors(
        prefix=prefix.rstrip("."),
        name=name.lstrip(".").replace(_PLACE, ANY),
        layers=spans[0] if spans else (),
        each=math.prod(map(_count, spans[1:])),
        dtype=dtype,
        shape=shape,
    )
