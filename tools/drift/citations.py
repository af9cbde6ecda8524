"""Places of an engine's source that tables cite, compared with a newer release."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from tools.drift.source import Source

NAME: Final = r"(?![\w./*-]+\.py\b)[A-Za-z_][\w.]*"
CITED: Final = re.compile(rf"(?P<path>[\w./*-]+\.py)\b(?::(?P<names>{NAME}(?:(?:, | and ){NAME})*))?")
"""`vllm/config/cache.py:CacheDType`, `a.py, b.py` or `a.py:one and two`."""


class Change(StrEnum):
    SAME = "same"
    CHANGED = "changed"
    MOVED = "moved"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True, slots=True)
class Citation:
    """A place of the engine's source that a table names."""

    path: str
    name: str = ""
    """Function, class or table in it; empty cites the file."""

    def __str__(self) -> str:
        return self.path + (f":{self.name}" if self.name else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSources:
    """A table file: the release that it was last compared with, and the places that it cites."""

    file: str
    reviewed: Version
    citations: tuple[Citation, ...]


def cited(text: str) -> Iterator[Citation]:
    """The places that a `source` names; a bare file name lies in the folder of the one before it."""
    folder = ""
    for match in CITED.finditer(text):
        path = match["path"].lstrip("./")
        path = path if "/" in path else f"{folder}{path}"
        folder = path.rpartition("/")[0] + "/" if "/" in path else ""
        names = re.split(r", | and ", match["names"] or "")
        yield from (Citation(path=path, name=name) for name in names)


def tables_of(package: Path) -> tuple[TableSources, ...]:
    """Every table file under `package` with a `reviewed` release."""
    found = []
    for path in sorted(package.rglob("*.toml")):
        raw = tomllib.loads(path.read_text("utf-8"))
        if "reviewed" in raw:
            citations = dict.fromkeys(one for text in _sources(raw) for one in cited(text))
            found.append(
                TableSources(
                    file=str(path.relative_to(package)),
                    reviewed=Version(raw["reviewed"]),
                    citations=tuple(citations),
                )
            )
    return tuple(found)


def _sources(value: Any) -> Iterator[str]:
    parts: Iterable[tuple[Any, Any]] = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, part in parts:
        if key == "source" and isinstance(part, str):
            yield part
        else:
            yield from _sources(part)


def changes(
    citations: Iterable[Citation], before: Source, after: Source
) -> Mapping[Citation, tuple[Change, str]]:
    """The change of each cited place in `before` or `after`, and its new place; other places are of other projects."""
    found = {}
    for citation in citations:
        for path in _paths(citation.path, before, after):
            place = Citation(path=path, name=citation.name)
            if (change := _change(place, before, after)) is not None:
                found[place] = change
    return found


def _paths(path: str, before: Source, after: Source) -> tuple[str, ...]:
    for spelled in (path, f"vllm/{path}"):
        if files := tuple(dict.fromkeys((*before.find(spelled), *after.find(spelled)))):
            return files
    return ()


def _change(place: Citation, before: Source, after: Source) -> tuple[Change, str] | None:
    old, new = (_part(source, place) for source in (before, after))
    if old is None and new is None:
        return None
    if old == new:
        return Change.SAME, ""
    if new is not None:
        return Change.CHANGED, ""
    holders = [path for path in _holders(after, place.name) if path != place.path] if place.name else []
    moved = [path for path in holders if _part(after, Citation(path=path, name=place.name)) == old]
    if moved:
        return Change.MOVED, moved[0]
    return Change.GONE, ", ".join(holders[:2])


@lru_cache(maxsize=512)
def _holders(source: Source, name: str) -> tuple[str, ...]:
    return source.holders(name)


def _part(source: Source, place: Citation) -> str | None:
    """The code of a place; a bare method name is looked for in every class of the file."""
    bodies = source.bodies(place.path)
    if place.name in bodies:
        return bodies[place.name]
    last = place.name.rsplit(".", 1)[-1]
    inside = [body for name, body in bodies.items() if name.rsplit(".", 1)[-1] == last]
    return "\n".join(inside) or None
