"""The TOML files of the package, and their content as JSON: tomllib takes twenty times as long.

The JSON lies in `__pycache__` next to the file, together with the text that it was made of, and counts only for exactly
that text: it is never stale. The wheel brings it, as its place may not be writable; where there is none and none can be
written, a file is parsed each time.

    python -m kvcore.base.toml_files [FOLDER]

writes it for every TOML file of a folder, or of the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any


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
    """The text of a file of this program, never of a stranger's: its content is kept next to it."""
    with open(path, encoding="utf-8") as source:
        text = FileText(source.read())
    text.path = str(path)
    return text


def parsed(text: str) -> Mapping[str, Any]:
    """The content of a TOML text; a date is a text. Raises tomllib.TOMLDecodeError, a ValueError."""
    place = _place(text.path) if isinstance(text, FileText) else None
    kept = None if place is None else _kept(place, text)
    if kept is not None:
        return kept
    document = _json_of(text)
    if place is not None and not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            _keep(place, text, document)
    content: Mapping[str, Any] = json.loads(document)
    return content


def _json_of(text: str) -> str:
    import tomllib  # not needed where the JSON is there

    return json.dumps(tomllib.loads(text), default=str)


def _place(path: str) -> str | None:
    """Path of a file's JSON; None where Python keeps no bytecode."""
    with contextlib.suppress(NotImplementedError):
        name = os.path.basename(path).removesuffix("toml") + "kept"
        return os.path.join(os.path.dirname(cache_from_source(path)), name)
    return None


def _kept(place: str, text: str) -> Mapping[str, Any] | None:
    """The content that was kept of exactly this text."""
    from msgspec import MsgspecError  # an isolated build has no msgspec, and keeps without reading
    from msgspec.json import decode

    with contextlib.suppress(OSError, ValueError, MsgspecError), open(place, "rb") as source:
        made_of, content = decode(source.read(), type=tuple[str, dict[str, Any]])
        return content if made_of == text else None
    return None


def _keep(place: str, text: str, document: str) -> None:
    """Writes it whole or not at all: two programs may do so at once."""
    Path(place).parent.mkdir(exist_ok=True)
    own = f"{place}.{os.getpid()}"
    with open(own, "w", encoding="utf-8", newline="") as target:
        target.write(f"[{json.dumps(text)}, {document}]")
    os.replace(own, place)


def keep_all(folder: str | Path) -> None:
    """Writes the JSON of every TOML file below `folder`; msgspec is not needed."""
    for path in sorted(Path(folder).rglob("*.toml")):
        place = _place(str(path))
        if place is not None:
            text = text_at(path)
            _keep(place, text, _json_of(text))


if __name__ == "__main__":
    keep_all(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[1])
