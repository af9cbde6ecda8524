"""Records that are not one to a line: JSON over several lines, and the events of a streamed answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvcore.workload.opening import MAX_LINE_BYTES

_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_BETWEEN: Final = (b"", b"[", b"]", b",")
"""Lines around the records of a list."""


def records_of_lines(lines: Iterator[bytes], first: int) -> Iterator[tuple[int, bytes]]:
    """Each record with the number of its first line: lines as they are, and objects over several lines put together.

    Of a list over several lines each object is a record. What never closes is given line by line, as it stands.

    Example:
        >>> list(records_of_lines(iter([b"[\\n", b"{\\n", b'"a": 1},\\n', b'{"a": 2}\\n', b"]\\n", b"x\\n"]), 1))
        [(2, b'{"a": 1}'), (4, b'{"a": 2}'), (6, b'x')]
    """
    part: list[bytes] = []
    start = depth = size = 0
    for number, line in enumerate(lines, start=first):
        text = line.strip()
        if not part and text != b"{":
            if text not in _BETWEEN:
                yield number, text.rstrip(b",") if text.endswith(b"},") else text
            continue
        start = start if part else number
        part.append(text)
        depth, size = depth + _change(text), size + len(text)
        if depth <= 0 or size > MAX_LINE_BYTES:
            yield start, b"".join(part).rstrip(b",")
            part, depth, size = [], 0, 0
    yield from ((start + at, one) for at, one in enumerate(part) if one)


def _change(text: bytes) -> int:
    """How many brackets a line opens more than it closes; texts apart."""
    bare = _TEXT.sub(b"", text)
    return bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")


class Streams:
    """Events of streamed answers, as `data:` lines: OpenAI's last chunk has the usage, Anthropic's first and last.

    Example:
        >>> streams = Streams()
        >>> streams.take(b'data: {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}')
        []
        >>> streams.take(b'data: {"type": "message_delta", "usage": {"output_tokens": 5}}')
        [{'usage': {'input_tokens': 9, 'output_tokens': 5}}]
    """

    def __init__(self) -> None:
        self.spoke = False
        """Whether any line was an event."""
        self._started: Mapping[str, Any] = {}

    def take(self, line: bytes) -> list[dict[str, Any]] | None:
        """The records that a line completes; None for a line that is no event."""
        name, colon, data = line.partition(b":")
        if not colon or name not in (b"data", b"event", b"id", b"retry"):
            return None
        self.spoke = True
        text = data.decode("utf-8", "replace")
        try:
            event = json.loads(text) if name == b"data" and data.lstrip()[:1] == b"{" else None
        except (ValueError, RecursionError):
            return []
        if not isinstance(event, dict):
            return []
        is_last = isinstance(event.get("usageMetadata"), dict) and '"finishReason"' in text
        usage, inner = event.get("usage"), event.get("response", event.get("message"))
        if (
            event.get("type") == "message_start"
            and isinstance(inner, dict)
            and isinstance(inner.get("usage"), dict)
        ):
            self._started = inner["usage"]
        elif event.get("type") == "message_delta" and isinstance(usage, dict):
            return [{"usage": {**self._started, **usage}}]
        elif is_last or any(
            isinstance(one, dict) and isinstance(one.get("usage"), dict) for one in (event, inner)
        ):
            return [event]
        return []
