"""Reads the size of a checkpoint from its index while that arrives."""

from __future__ import annotations

import json
import re
from typing import Final

KEY: Final = b"metadata"
MAX_BYTES: Final = 1 << 16
"""Largest metadata object of an index, and largest string."""
MAX_SPACES: Final = 64
MAX_OBJECTS: Final = 10_000
"""Most objects in an index: it has two, and those within its metadata."""
_TOKEN: Final = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"(\s{0,%d}:)?|["{}\[\]]' % MAX_SPACES, re.DOTALL)

_TEXTS: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
"""Everything without a bracket: all names of the weights at once."""


class IndexReader:
    """Reads an index piece by piece until its `metadata` is complete.

    Example:
        >>> reader = IndexReader()
        >>> reader.feed(b'{"weight_map": {}, "metadata": {"total_'), reader.feed(b'size": 12}, "x": [')
        (False, True)
        >>> reader.total_size
        12
    """

    def __init__(self) -> None:
        self.total_size: int | None = None
        self._left = b""
        """A token that has begun and not ended."""
        self._depth = 0
        self._objects = 0
        self._follows_key = False
        self._metadata: bytes | None = None

    def feed(self, piece: bytes) -> bool:
        """Adds the next piece. True if no more is needed: the size is known, or cannot be."""
        text = self._left + piece
        begun, position = 0, 0
        while token := self._next(text, position):
            is_last = len(text) - token.end() <= MAX_SPACES and not text[token.end() :].strip()
            if token[0] == b'"' or (is_last and token[1] is not None and token[2] is None):
                # A string without an end, or perhaps a key whose colon is still to come.
                position = token.start()
                break
            position = token.end()
            if token[0] in b"{[":
                if self._follows_key:
                    self._metadata, begun = b"", token.start()
                self._depth += 1
                self._objects += 1
            elif token[0] in b"}]":
                self._depth -= 1
                if self._metadata is not None and self._depth == 1:
                    self._read(self._metadata + text[begun : token.end()])
                    return True
                if self._depth <= 0 or self._objects > MAX_OBJECTS:
                    return True
            self._follows_key = self._depth == 1 and token[1] == KEY and token[2] is not None
        else:
            position = len(text)
        if self._metadata is not None:
            self._metadata += text[begun:position]
        self._left = text[position:]
        return max(len(self._left), len(self._metadata or b"")) > MAX_BYTES or self._objects > MAX_OBJECTS

    def _next(self, text: bytes, position: int) -> re.Match[bytes] | None:
        if self._depth > 1 and self._metadata is None:
            skipped = _TEXTS.match(text, position)
            position = skipped.end() if skipped else position
        return _TOKEN.search(text, position)

    def _read(self, metadata: bytes) -> None:
        try:
            read = json.loads(metadata)
        except (ValueError, RecursionError):
            return
        size = read.get("total_size") if isinstance(read, dict) else None
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            self.total_size = size
