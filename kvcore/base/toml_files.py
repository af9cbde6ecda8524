"""The TOML files of the package, and what is kept of them as Python keeps its bytecode.

What a file says is stored in `__pycache__` next to it, as JSON behind the file's own text, the same for every Python.
It is taken from there as long as the text is the same to the letter, so it is never stale. The wheel brings it, as its
place may not be writable; where nothing is stored and nothing can be, a file is parsed each time.

    python -m kvcore.base.toml_files
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Final

_DATE: Final = "\0date"
"""The key of a date, which JSON has not; no key of a TOML file has that letter."""
_WRITTEN_DATE: Final = json.dumps(_DATE)


class FileText(str):
    """The text of a file that lies at `path`."""

    path: str


def file_text(package: str, file: str) -> FileText:
    """The text of a file of a package.

    Example:
        >>> parsed(file_text("kvcore.engines.vllm", "releases.toml"))["releases"][0]
        '0.6.6'
    """
    return text_at(os.path.join(next(iter(import_module(package).__path__)), file))


def text_at(path: str | Path) -> FileText:
    """The text of a file of this program, never of a stranger's: what it says is kept next to it."""
    with open(path, encoding="utf-8") as source:
        text = FileText(source.read())
    text.path = str(path)
    return text


def parsed(text: str) -> Mapping[str, Any]:
    """What a TOML text says. Raises tomllib.TOMLDecodeError, a ValueError."""
    place = _place(text.path) if isinstance(text, FileText) else None
    said = None if place is None else _kept(place, text)
    if said is not None:
        return said
    import tomllib  # only where nothing is kept: it takes as long as all that is

    said = tomllib.loads(text)
    if place is not None and not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, TypeError):
            _keep(place, text, json.dumps(said, default=lambda day: {_DATE: day.isoformat()}))
    return said


def _place(path: str) -> str | None:
    """Where a file's content is kept; None where Python keeps no bytecode."""
    with contextlib.suppress(NotImplementedError):
        name = os.path.basename(path).removesuffix("toml") + "kept"
        return os.path.join(os.path.dirname(cache_from_source(path)), name)
    return None


def _kept(place: str, text: str) -> Mapping[str, Any] | None:
    """What was kept of exactly this text."""
    kept, head = "", f"{len(text)}\n{text}"
    with contextlib.suppress(OSError, ValueError), open(place, encoding="utf-8", newline="") as source:
        kept = source.read()
    if not kept.startswith(head):
        return None
    from msgspec import DecodeError  # the package is built without it, where nothing is kept yet
    from msgspec.json import decode

    document = kept[len(head) :]
    with contextlib.suppress(ValueError, DecodeError):
        said: Mapping[str, Any] = (
            json.loads(document, object_hook=_dated) if _WRITTEN_DATE in document else decode(document)
        )
        return said
    return None


def _dated(found: dict[str, Any]) -> Any:
    return datetime.date.fromisoformat(found[_DATE]) if _DATE in found else found


def _keep(place: str, text: str, document: str) -> None:
    """Writes it whole or not at all: two programs may do so at once."""
    Path(place).parent.mkdir(exist_ok=True)
    own = f"{place}.{os.getpid()}"
    with open(own, "w", encoding="utf-8", newline="") as target:
        target.write(f"{len(text)}\n{text}{document}")
    os.replace(own, place)


if __name__ == "__main__":
    sys.dont_write_bytecode = False  # what the caller asks for, as of compileall
    for found in sorted(Path(__file__).parents[1].rglob("*.toml")):
        parsed(text_at(found))
