"""Macros of llama-swap, filled in where its models name them.

Source: mostlygeek/llama-swap, docs/configuration.md (macros, `${PORT}`, `${MODEL_ID}`).
"""

from __future__ import annotations

import re
from typing import Any, Final

from kvcore.manifests.nodes import Map, Row, Text, mapping, rows

MAX_DEPTH: Final = 8
MAX_TEXT: Final = 1 << 16
MAX_VALUES: Final = 20_000
FIRST_PORT: Final = "5800"
"""The port of the first model, where `startPort` says nothing else."""

_MACRO: Final = re.compile(r"\$\{([A-Za-z0-9_-]{1,64})\}")


def unfolded(document: Map) -> Map:
    """The document with its macros filled in, and without them.

    Example:
        >>> from kvcore.manifests.nodes import document as parsed
        >>> text = "macros: {run: 'vllm serve ${name}', name: a/b}\\nmodels: {x: {cmd: '${run} --port ${PORT}'}}"
        >>> unfolded(parsed(text))["models"]["x"]["cmd"]
        'vllm serve a/b --port 5800'
    """
    macros = _named(document.get("macros")) | {"PORT": str(document.get("startPort") or FIRST_PORT)}
    made = Map({key: value for key, value in document.items() if key not in ("macros", "models")})
    made.line = document.line
    left = [MAX_VALUES]
    models = Map()
    models.line = getattr(document["models"], "line", 0)
    for name, model in mapping(document.get("models")).items():
        own = macros | _named(mapping(model).get("macros")) | {"MODEL_ID": name}
        models[name] = _filled(model, own, left)
    made["models"] = models
    return made


def _named(node: object) -> dict[str, str]:
    """Macros by name, of a mapping or of a list of mappings."""
    parts = [node] if isinstance(node, Map) else [one for one in rows(node) if isinstance(one, Map)]
    return {key: str(value) for part in parts for key, value in part.items() if isinstance(value, str)}


def _filled(node: Any, macros: dict[str, str], left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        return node
    if isinstance(node, Map):
        made = Map({key: _filled(value, macros, left) for key, value in node.items()})
        made.line = node.line
        return made
    if isinstance(node, Row):
        row = Row(_filled(value, macros, left) for value in node)
        row.line = node.line
        return row
    if isinstance(node, Text) and "${" in node:
        return Text(_text(str(node), macros, 0), node.line, is_plain=node.is_plain)
    return node


def _text(text: str, macros: dict[str, str], depth: int) -> str:
    if "${" not in text or depth > MAX_DEPTH:
        return text

    def value(found: re.Match[str]) -> str:
        held = macros.get(found[1])
        return found[0] if held is None else _text(held, macros, depth + 1).strip()

    return _MACRO.sub(value, text)[:MAX_TEXT]
