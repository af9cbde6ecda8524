"""How the server and a worker talk over pipes: a frame is two lengths, a head as JSON, and bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

LENGTHS: Final = struct.Struct(">II")


def frame(head: Mapping[str, Any], body: bytes) -> bytes:
    """A frame as it is written.

    Example:
        >>> import io
        >>> read_frame(io.BytesIO(frame({"a": 1}, b"bytes")))
        ({'a': 1}, b'bytes')
    """
    packed = json.dumps(head).encode()
    return LENGTHS.pack(len(packed), len(body)) + packed + body


def read_frame(source: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; None at the end."""
    lengths = source.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head, body = LENGTHS.unpack(lengths)
    return json.loads(source.read(head)), source.read(body)
