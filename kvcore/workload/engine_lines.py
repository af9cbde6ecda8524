"""vLLM's own request lines, put together: `--enable-log-requests` and `--enable-log-outputs`.

They print token ids: the INFO line up to 0.11, later only the DEBUG line. A prompt is printed inside the line, so the
fields behind it are looked for from the end.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from kvcore.workload.requests import Request

MAX_PENDING: Final = 100_000
"""Requests whose second line has not come yet; beyond that the oldest is counted as it is."""
HEAD_CHARACTERS: Final = 1024
"""Of a line, within which it says what it is; behind them stands the prompt."""
PARAMETER_CHARACTERS: Final = 1 << 16
_RECEIVED: Final = re.compile(r"Received request (\S{1,200}): ")
_DETAILS: Final = re.compile(r"Request (\S{1,200}) details: ")
_GENERATED: Final = re.compile(r"Generated response (\S{1,200}?)(?: \(streaming (complete|delta)\))?: ")
_MAX_TOKENS: Final = re.compile(r"\bmax_tokens=(\d{1,9})\b")
_PROMPT_IDS: Final = "prompt_token_ids: ["
_OUTPUT_IDS: Final = "output_token_ids: ["


class EngineLines:
    """Requests put together from the lines that speak of them.

    Source: vllm/entrypoints/logger.py:RequestLogger (0.11.0, 0.19.0), vllm/entrypoints/serve/utils/request_logger.py
    (0.33.0).

    Example:
        >>> lines = EngineLines()
        >>> lines.take("Received request a: prompt: 'x', params: SamplingParams(max_tokens=64), "
        ...            "prompt_token_ids: [1, 2]")
        True
        >>> lines.take("Generated response a: output: 'y', output_token_ids: [7], finish_reason: stop")
        True
        >>> [request[:3] for request in lines.rest()]
        [(2, 1, 64)]
    """

    def __init__(self) -> None:
        # A plain dictionary looks at every place that was emptied before it finds its first entry.
        self._pending: OrderedDict[str, tuple[int | None, int | None, int | None]] = OrderedDict()
        self.without_length = 0
        """Requests that were named and never given a length."""
        self.spoke = False
        """Whether any line spoke of a request."""

    def take(self, line: str) -> bool:
        """Whether the line speaks of a request; what it says is kept until `rest`."""
        head = line[:HEAD_CHARACTERS]
        if (received := _RECEIVED.search(head)) is not None:
            tail = line[received.end() :]
            start = tail.rfind("SamplingParams(")
            wanted = _MAX_TOKENS.search(tail, start, start + PARAMETER_CHARACTERS) if start >= 0 else None
            self._merge(received[1], (_ids(tail, _PROMPT_IDS), None, int(wanted[1]) if wanted else None))
        elif (details := _DETAILS.search(head)) is not None:
            self._merge(details[1], (_ids(line, _PROMPT_IDS), None, None))
        elif (generated := _GENERATED.search(head)) is None:
            return False
        elif generated[2] != "delta":
            self._merge(generated[1], (None, _ids(line, _OUTPUT_IDS), None))
        self.spoke = True
        return True

    def overflow(self) -> Iterator[Request]:
        """The oldest requests, once more are pending than are kept."""
        while len(self._pending) > MAX_PENDING:
            yield from self._finish(next(iter(self._pending)))

    def rest(self) -> Iterator[Request]:
        """All that are left, at the end of the log."""
        for request_id in list(self._pending):
            yield from self._finish(request_id)

    def _merge(self, request_id: str, found: tuple[int | None, int | None, int | None]) -> None:
        old = self._pending.get(request_id, (None, None, None))
        prompt, answer, wanted = (
            new if new is not None else past for new, past in zip(found, old, strict=True)
        )
        self._pending[request_id] = (prompt, answer, wanted)

    def _finish(self, request_id: str) -> Iterator[Request]:
        prompt, answer, wanted = self._pending.pop(request_id)
        if not prompt:
            self.without_length += 1
            return
        yield Request(prompt_tokens=prompt, completion_tokens=answer, max_tokens=wanted)


def _ids(text: str, name: str) -> int | None:
    """How many ids stand in the last list of that name; None without one."""
    start = text.rfind(name)
    end = text.find("]", start)
    if start < 0 or end < 0:
        return None
    inside = text[start + len(name) : end].strip()
    return inside.count(",") + 1 if inside else 0
