"""Compose files, Kubernetes manifests and the engine's own YAML configs, pasted in place of a log.

The text is untrusted: it is parsed into nodes that keep their lines, never constructed into objects, within a size,
a number of nodes and a depth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from kvcore.evidence.log.containers import Container, container, split_words, variables

MAX_CHARACTERS: Final = 1 << 16
MAX_NODES: Final = 1 << 14
MAX_VALUE_NODES: Final = 512
"""Of one value: a list of capture sizes is the longest."""
MAX_VALUE_DEPTH: Final = 3
_KEYS: Final = ("services:", "apiVersion:", "containers:", "image:", "command:", "args:", "model:")
_ARGUMENTS: Final = ("entrypoint", "command", "args")
_ENVIRONMENTS: Final = ("environment", "env")
_OTHER_BREAKS: Final = str.maketrans({"\x85": " ", "\u2028": " ", "\u2029": " "})

Fields = Mapping[str, yaml.Node]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One start in a YAML text: a container, or the fields of a config; and the lines that it was read from."""

    lines: tuple[int, ...]
    """Counted from zero, ascending."""
    container: Container | None = None
    fields: tuple[tuple[str, str], ...] = ()


def find_manifests(lines: tuple[str, ...]) -> tuple[Manifest, ...]:
    """Every start in the lines of a YAML text; empty for any other text.

    Example:
        >>> find_manifests(("model: Qwen/Qwen3-8B", "max-model-len: 8192"))[0].fields
        (('model', 'Qwen/Qwen3-8B'), ('max-model-len', '8192'))
    """
    if len(lines) > MAX_CHARACTERS or sum(len(line) + 1 for line in lines) > MAX_CHARACTERS + 1:
        return ()
    if not any(line.lstrip(" -").startswith(_KEYS) for line in lines):
        return ()
    return tuple(_manifests("\n".join(lines).translate(_OTHER_BREAKS)))


def _manifests(text: str) -> Iterator[Manifest]:
    try:
        for document in yaml.compose_all(text, Loader=yaml.BaseLoader):
            yield from _starts(document)
    except (yaml.YAMLError, RecursionError):
        return


def _starts(document: yaml.Node | None) -> Iterator[Manifest]:
    """The config that a document is, or the containers anywhere in it."""
    if document is None:
        return
    top = _fields(document)
    if isinstance(top.get("model"), yaml.ScalarNode) and not any(name in top for name in _ARGUMENTS):
        values = tuple((name, _value(node)) for name, node in top.items())
        yield Manifest(lines=_lines(*top.values()), fields=tuple(pair for pair in values if pair[1]))
        return
    waiting, seen = [document], {id(document)}
    while waiting:
        node = waiting.pop()
        fields = _fields(node)
        found = _container(fields)
        if found is not None:
            parts = ("image", *_ARGUMENTS, *_ENVIRONMENTS)
            yield Manifest(lines=_lines(*(fields[name] for name in parts if name in fields)), container=found)
        for child in reversed(_children(node)):
            if id(child) not in seen and len(seen) < MAX_NODES:
                seen.add(id(child))
                waiting.append(child)


def _fields(node: yaml.Node) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _container(fields: Fields) -> Container | None:
    words = [word for name in _ARGUMENTS if name in fields for word in _words(fields[name])]
    image = _scalar(fields.get("image"))
    if not words and "vllm" not in image:
        return None
    env: dict[str, str] = {}
    for name in _ENVIRONMENTS:
        if name in fields:
            env |= variables(_assignments(fields[name]))
    # Compose and the kubelet both read $$ as a dollar sign.
    return container(image, [word.replace("$$", "$") for word in words], env)


def _words(node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.ScalarNode):
        return split_words(node.value)
    return [_scalar(child) for child in _children(node)]


def _assignments(node: yaml.Node) -> Iterator[str]:
    """`NAME=value` of a mapping, a list of such texts, or a list of names and values."""
    if isinstance(node, yaml.MappingNode):
        for name, value in _fields(node).items():
            yield f"{name}={_scalar(value)}"
        return
    for child in _children(node):
        inner = _fields(child)
        yield f"{_scalar(inner['name'])}={_scalar(inner.get('value'))}" if "name" in inner else _scalar(child)


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _value(node: yaml.Node) -> str:
    """A value as a command would spell it: a word, or JSON."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    budget = iter(range(MAX_VALUE_NODES))
    value = _plain(node, MAX_VALUE_DEPTH, budget)
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return json.dumps(value)


def _plain(node: yaml.Node, depth: int, budget: Iterator[int]) -> object:
    """A node as plain data; nothing below a depth, or beyond the budget."""
    if next(budget, None) is None or depth < 0:
        return None
    if isinstance(node, yaml.MappingNode):
        return {name: _plain(value, depth - 1, budget) for name, value in _fields(node).items()}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child, depth - 1, budget) for child in _children(node)]
    text = _scalar(node)
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 18 else text


def _lines(*nodes: yaml.Node) -> tuple[int, ...]:
    return tuple(sorted({node.start_mark.line for node in nodes}))
