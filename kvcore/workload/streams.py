"""Records that are not one to a line: JSON over several lines, and the events of a streamed answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvcore.workload.fields import parsed_json
from kvcore.workload.opening import MAX_LINE_BYTES

_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_BETWEEN: Final = (b"", b"[", b"]", b",")
"""Lines around the records of a list."""


class Records:
    """Each record with the number of its first line: lines as they are, and objects over several lines put together.

    Of a list over several lines each object is a record. What never closes is given line by line, as it stands.

    Example:
        >>> records = Records()
        >>> lines = (b"[\\n", b"{\\n", b'"a": 1},\\n', b'{"a": 2}\\n', b"]\\n", b"x\\n")
        >>> [one for at, line in enumerate(lines, start=1) for one in records.take(at, line)]
        [(2, b'{"a": 1}'), (4, b'{"a": 2}'), (6, b'x')]
    """

    def __init__(self) -> None:
        self._part: list[bytes] = []
        self._start = self._depth = self._size = 0

    @property
    def is_open(self) -> bool:
        """Whether the next line belongs to a record that has begun."""
        return bool(self._part)

    def take(self, number: int, line: bytes) -> Sequence[tuple[int, bytes]]:
        """The record that a line completes."""
        text, part = line.strip(), self._part
        if not part and text != b"{":
            whole = text.rstrip(b",") if text.endswith(b"},") else text
            return () if text in _BETWEEN else ((number, whole),)
        if not part:
            self._start, self._depth, self._size = number, 0, 0
        part.append(text)
        self._depth, self._size = self._depth + _change(text), self._size + len(text)
        if self._depth > 0 and self._size <= MAX_LINE_BYTES:
            return ()
        self._part = []
        return ((self._start, b"".join(part).rstrip(b",")),)

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """The lines of what never closed."""
        return ((self._start + at, one) for at, one in enumerate(self._part) if one)


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
            event = parsed_json(text) if name == b"data" and data.lstrip()[:1] == b"{" else None
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
