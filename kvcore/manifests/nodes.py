"""YAML and JSON of strangers as plain trees with line numbers: bounded, and one document at a time.

Built from the parser's events, never constructed into objects: every scalar stays the text that was written, with its
line. An anchor is one shared node, so that aliases do not multiply; an alias inside its own anchor is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from kvcore.base.errors import ManifestError

MAX_NODES: Final = 200_000
"""Most nodes of one document."""
MAX_DEPTH: Final = 64

_LOADER: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_DOCUMENT: Final = re.compile(r"^(?:---(?=\s|$)|\.\.\.\s*$)", re.MULTILINE)
_OTHER_BREAKS: Final = str.maketrans({"\x85": " ", "\u2028": " ", "\u2029": " "})
_NOT_YAML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
_MERGE: Final = "<<"


class Text(str):
    """A scalar as written, with its line."""

    __slots__ = ("is_plain", "line")

    line: int
    is_plain: bool

    def __new__(cls, text: str, line: int = 0, *, is_plain: bool = False) -> Text:
        """The text of a line; `is_plain` without quotation marks."""
        made = super().__new__(cls, text)
        made.line = line
        made.is_plain = is_plain
        return made


class Map(dict[str, Any]):
    """A mapping, with the line at which it begins."""

    line: int = 0


class Row(list[Any]):
    """A sequence, with the line at which it begins."""

    line: int = 0


def line_of(node: object, default: int = 0) -> int:
    """The line of a node, or `default` for what has none."""
    found: int = getattr(node, "line", 0) or default
    return found


def documents(text: str, first: int = 1) -> Iterator[tuple[int, Map | Row | Text | ManifestError]]:
    """The documents of a text, each with its first line; in place of one that cannot be read, the error that says why.

    Example:
        >>> [(line, node) for line, node in documents("a: 1\\n---\\nb: [2, x]")]
        [(1, {'a': '1'}), (2, {'b': ['2', 'x']})]
    """
    text = text.translate(_OTHER_BREAKS)
    begin, line = 0, first
    cuts = [found.start() for found in _DOCUMENT.finditer(text)] + [len(text)]
    for cut in cuts:
        part = text[begin:cut]
        node = document(part, line)
        if node is not None:
            yield line, node
        line += part.count("\n")
        begin = cut


def document(text: str, first: int = 1) -> Map | Row | Text | ManifestError | None:
    """One document, or why it cannot be read; None where it is empty."""
    if _NOT_YAML.search(text):
        text = _NOT_YAML.sub(" ", text)
    try:
        return _tree(text, first)
    except yaml.MarkedYAMLError as error:
        at = first + (error.problem_mark.line if error.problem_mark is not None else 0)
        return ManifestError("manifest-not-yaml", line=at, said=str(error.problem or "it is no YAML"))
    except yaml.YAMLError as error:
        return ManifestError("manifest-not-yaml", line=first, said=str(error).partition("\n")[0])
    except ManifestError as error:
        return error


def _tree(text: str, first: int) -> Map | Row | Text | None:
    anchors: dict[str, Any] = {}
    open_anchors: set[str] = set()
    stack: list[tuple[Map | Row, str, list[Any]]] = []
    root: Map | Row | Text | None = None
    nodes = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = first + (event.start_mark.line if event.start_mark is not None else 0)
        if isinstance(event, yaml.ScalarEvent):
            made: Any = Text(event.value, line, is_plain=not event.style)
            if event.anchor:
                anchors[event.anchor] = made
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise ManifestError("manifest-cyclic", line=line, value=event.anchor)
            if event.anchor not in anchors:
                raise ManifestError("manifest-not-yaml", line=line, said=f"no anchor {event.anchor}")
            made = anchors[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(stack) >= MAX_DEPTH:
                raise ManifestError("manifest-too-deep", line=line, limit=MAX_DEPTH)
            holder: Map | Row = Map() if isinstance(event, yaml.MappingStartEvent) else Row()
            holder.line = line
            stack.append((holder, event.anchor or "", []))
            if event.anchor:
                open_anchors.add(event.anchor)
            nodes += 1
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            made, anchor, children = stack.pop()
            if anchor:
                open_anchors.discard(anchor)
                anchors[anchor] = made
            nodes += _filled(made, children)
        else:
            continue
        nodes += 1
        if nodes > MAX_NODES:
            raise ManifestError("manifest-too-many-values", line=line, limit=f"{MAX_NODES:,}")
        if stack:
            stack[-1][2].append(made)
        elif root is None:
            root = made
    return root


def _filled(holder: Map | Row, children: list[Any]) -> int:
    """Puts the children in, keys of merged mappings behind own ones; the number of entries that merging copied."""
    if isinstance(holder, Row):
        holder.extend(children)
        return 0
    own: dict[str, Any] = {}
    merged: list[Map] = []
    for key, value in zip(children[::2], children[1::2], strict=False):
        if isinstance(key, Text) and key == _MERGE:
            merged += [one for one in (value if isinstance(value, Row) else [value]) if isinstance(one, Map)]
        elif isinstance(key, Text):
            own[str(key)] = value
    copied = 0
    for one in reversed(merged):
        holder.update(one)
        copied += len(one)
    holder.update(own)
    return copied


def mapping(node: object) -> Map:
    """The node, where it is a mapping; else an empty one."""
    return node if isinstance(node, Map) else Map()


def rows(node: object) -> list[Any]:
    """The items of a sequence; else none."""
    return list(node) if isinstance(node, Row) else []


def text_of(node: object) -> str | None:
    """The text of a scalar that says something; None for others, for null and for an empty one."""
    if not isinstance(node, str) or not node.strip():
        return None
    if getattr(node, "is_plain", False) and node in ("null", "~", "Null", "NULL"):
        return None
    return node


def at(node: object, path: str) -> Any:
    """What stands at a path of keys with dots between them; None where it ends before.

    Example:
        >>> at(document("a: {b: {c: 1}}"), "a.b.c")
        '1'
    """
    for key in path.split("."):
        if not isinstance(node, Map):
            return None
        node = node.get(key)
    return node


def walk(node: object) -> Iterator[tuple[str, Any]]:
    """Every mapping and sequence under `node` once, each with the key that it stands under, from the top down."""
    waiting: list[tuple[str, Any]] = [("", node)]
    seen: set[int] = set()
    while waiting:
        key, one = waiting.pop()
        if id(one) in seen or not isinstance(one, Map | Row):
            continue
        seen.add(id(one))
        yield key, one
        children = one.items() if isinstance(one, Map) else ((key, child) for child in one)
        waiting.extend(reversed([(name, child) for name, child in children]))


def owners_of(document: Map, node: Map) -> list[Map]:
    """The mappings between a document and a node in it, the nearest first."""
    found: list[Map] = []
    waiting: list[tuple[object, list[Map]]] = [(document, [])]
    seen: set[int] = set()
    while waiting:
        one, path = waiting.pop()
        if one is node:
            found = path
            break
        if id(one) in seen or len(path) > 24:
            continue
        seen.add(id(one))
        if isinstance(one, Map):
            waiting += [(value, [one, *path]) for value in one.values()]
        elif isinstance(one, Row):
            waiting += [(value, path) for value in one]
    return found


def plain(node: object, budget: int = 4096) -> Any:
    """A node as JSON has it: numbers, switches and null of plain scalars; what is beyond `budget` nodes is left out."""
    left = [budget]

    def convert(one: object, depth: int) -> Any:
        left[0] -= 1
        if left[0] < 0 or depth > MAX_DEPTH:
            return None
        if isinstance(one, Map):
            return {key: convert(value, depth + 1) for key, value in one.items()}
        if isinstance(one, Row):
            return [convert(value, depth + 1) for value in one]
        return scalar(one)

    return convert(node, 0)


_INTEGER: Final = re.compile(r"[-+]?\d{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(?:\d{1,18}\.\d{0,18}|\.\d{1,18}|\d{1,18})(?:[eE][-+]?\d{1,3})?")
_WORDS: Final = {"true": True, "false": False, "null": None, "~": None, "": None}


def scalar(node: object) -> Any:
    """The value of a scalar: of a plain one as YAML reads it, else the text."""
    if not isinstance(node, Text):
        return node
    if not node.is_plain:
        return str(node)
    if node.lower() in _WORDS:
        return _WORDS[node.lower()]
    if _INTEGER.fullmatch(node):
        return int(node)
    return float(node) if _FLOAT.fullmatch(node) else str(node)
