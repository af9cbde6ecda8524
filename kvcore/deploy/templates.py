"""Templates of files (`templates.yaml`): filled as data, written by a YAML writer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

_PLACE: Final = re.compile(r"<(\w+)>")
_NOTHING: Final = object()


@cache
def templates() -> Mapping[str, Any]:
    """All templates by name."""
    text = resources.files("kvcore.deploy").joinpath("templates.yaml").read_text("utf-8")
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


def filled(name: str, facts: Mapping[str, Any]) -> Any:
    """The template `name` with `facts` in its places; a part whose fact is None is left out.

    Raises KeyError for a place without a fact.

    Example:
        >>> facts = dict.fromkeys(("letter", "expression"), "A") | {"name": None}
        >>> filled("target", facts)["expr"], "legendFormat" in filled("target", facts)
        ('A', False)
    """
    return _filled(templates()[name], facts)


def _filled(part: Any, facts: Mapping[str, Any]) -> Any:
    if isinstance(part, str):
        return _text(part, facts)
    if isinstance(part, Mapping):
        values = {key: _filled(value, facts) for key, value in part.items()}
        found = {key: value for key, value in values.items() if value is not _NOTHING}
        return found if found or not part else _NOTHING
    if isinstance(part, list):
        found_items = ((one, _filled(one, facts)) for one in part)
        return [
            item
            for one, value in found_items
            if value is not _NOTHING
            # A list in place of an item of a list is spliced in.
            for item in (value if isinstance(one, str) and isinstance(value, list) else [value])
        ]
    return part


def _text(text: str, facts: Mapping[str, Any]) -> Any:
    values = {name: facts[name] for name in _PLACE.findall(text)}
    if None in values.values():
        return _NOTHING
    if (alone := _PLACE.fullmatch(text)) is not None:
        return values[alone[1]]
    written = {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()
    }
    return _PLACE.sub(lambda place: written[place[1]], text)


def yaml_text(document: Mapping[str, Any]) -> str:
    """The document as YAML in block style, keys in their order."""
    text: str = yaml.dump(dict(document), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _PlainDumper(yaml.SafeDumper):
    """Writes no anchors and aliases: a part that is used twice is written twice."""

    def ignore_aliases(self, _data: object) -> bool:
        return True
