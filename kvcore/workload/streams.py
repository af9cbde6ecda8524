"""Records over several lines: JSON objects, events of streamed answers, and vLLM's own request lines."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvcore.workload.layers import parsed_json, seconds_of
from kvcore.workload.opening import MAX_LINE_BYTES
from kvcore.workload.requests import Request

_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_BETWEEN: Final = (b"", b"[", b"]", b",")
"""Lines between the records of a list."""


class Records:
    """Each record with the number of its first line: lines as they are, and objects over several lines put together.

    Each object in a list over several lines is a record. An object that never closes is returned line by line.

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
        """Whether the next line continues a record."""
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
        """The lines of a record that never closed."""
        return ((self._start + at, one) for at, one in enumerate(self._part) if one)


def _change(text: bytes) -> int:
    """Brackets that a line opens minus those that it closes, outside of strings."""
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
        """Records that a line completes; None for a line that is no event."""
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


MAX_PENDING: Final = 100_000
"""Requests that wait for their second line; beyond that the oldest is counted as it is."""
HEAD_CHARACTERS: Final = 1024
"""Prefix of a line that tells its type; the prompt follows."""
PARAMETER_CHARACTERS: Final = 1 << 16
_RECEIVED: Final = re.compile(r"Received request (\S{1,200}): ")
_DETAILS: Final = re.compile(r"Request (\S{1,200}) details: ")
_GENERATED: Final = re.compile(
    r"Generated response (\S{1,200}?)(?: \(streaming (complete|delta)\))?(?: details)?: "
)
_MAX_TOKENS: Final = re.compile(r"\bmax_tokens=(\d{1,9})\b")
_FINISHED: Final = re.compile(r"Finish: obj=")
_META: Final = "'meta_info': {"
_META_COUNTS: Final = tuple(
    re.compile(rf"'{name}': (\d{{1,9}})\b") for name in ("prompt_tokens", "completion_tokens")
)
_MAX_NEW_TOKENS: Final = re.compile(r"'max_new_tokens': (\d{1,9})\b")
FEWEST_CUT: Final = 10
"""Fewest prompts with ids from which a common length is taken for a limit of the log."""
PREFIX_BYTES: Final = 512
"""Most bytes before the JSON of a line: a date, a stream, a pod."""
_PROMPT_IDS: Final = "prompt_token_ids: ["
_OUTPUT_IDS: Final = "output_token_ids: ["


def json_at(line: bytes) -> int:
    """Where the JSON of a line begins that a container or a collector put something before; -1 without one.

    Example:
        >>> json_at(b'2026-11-24T10:00:00.1Z stdout F {"usage": {}}'), json_at(b"INFO {x}"), json_at(b"one")
        (32, -1, -1)
    """
    return line.find(b'{"', 1, PREFIX_BYTES) if line.endswith(b"}") else -1


def json_within(line: bytes) -> bytes:
    """The JSON object in a line that has text before and behind it; empty without one.

    Example:
        >>> json_within(b'10:00 lb[1]: {"status":200} end'), json_within(b'{"status":200}'), json_within(b"one")
        (b'{"status":200}', b'', b'')
    """
    at, end = line.find(b'{"', 1, PREFIX_BYTES), line.rfind(b"}")
    return line[at : end + 1] if 0 < at < end < len(line) - 1 else b""


_COUNTED: Final = re.compile(
    rb"""(?i)(?:prompt|input|context|request)[_.]?tokens?\w{0,8}['"]?\s?[=:]\s?['"]?\d"""
)
_PAIR: Final = re.compile(
    r"""(?:^|[\s,{(\[])['"]?([A-Za-z][\w.-]{0,59})['"]?[=:]\s?"""
    r"""("[^"\\]{0,200}"|'[^'\\]{0,200}'|[^\s,;'"})\]]{1,60})"""
)
LONGEST_PAIRS: Final = 8192
"""Bytes of a line of pairs."""
_STAMP: Final = re.compile(
    r"(?:(?P<year>\d{4})-)?(?P<day>\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
STAMP_CHARACTERS: Final = 160
"""Beginning of a line that has its time."""
_SOME_YEAR: Final = "2000"
"""In place of the year that vLLM's lines do not have: times within a log are compared alone."""


def pairs_in(line: bytes) -> dict[str, str] | None:
    """The fields of a line of names and values, logfmt's or those of a dictionary of Python, with the time at its
    beginning; None for a line without a count of a prompt.

    Example:
        >>> pairs_in(b"ts=2026-01-01T00:00:00Z level=info prompt_tokens=100 completion_tokens=20")["prompt_tokens"]
        '100'
        >>> pairs_in(b"2026-01-01 10:00:00,1 - INFO - {'model': 'm', 'prompt_tokens': 100}")
        {'timestamp': '2026-01-01T10:00:00.1', 'model': 'm', 'prompt_tokens': '100'}
        >>> pairs_in(b"INFO loading weights") is None
        True
    """
    if len(line) > LONGEST_PAIRS or _COUNTED.search(line) is None:
        return None
    text = line.decode("utf-8", "replace")
    found: dict[str, str] = {}
    stamp = stamp_of(text)
    if stamp:
        found["timestamp"] = stamp
    for pair in _PAIR.finditer(text):
        found.setdefault(pair[1], pair[2].strip("\"'"))
    return found


def stamp_of(line: str) -> str:
    """The time at the beginning of a line, as ISO 8601; empty without one.

    Example:
        >>> stamp_of("INFO 11-24 10:00:00 [logger.py:39]"), stamp_of("none")
        ('2000-11-24T10:00:00', '')
    """
    found = _STAMP.search(line, 0, STAMP_CHARACTERS)
    if found is None:
        return ""
    part = f".{found['part']}" if found["part"] else ""
    return f"{found['year'] or _SOME_YEAR}-{found['day']}T{found['clock']}{part}{found['zone'] or ''}"


class EngineLines:
    """Requests from vLLM's own lines: `--enable-log-requests` and `--enable-log-outputs`; and from SGLang's
    `--log-requests`, which ends a request with its counts.

    They print token ids: the INFO line up to 0.11, later only the DEBUG line. A prompt is printed inside the line, so
    the fields behind it are searched from the end.

    `--max-log-len` cuts both lists of ids: many prompts of exactly the longest length look like it.

    Source: vllm/entrypoints/logger.py:RequestLogger (0.11.0, 0.19.0), vllm/entrypoints/serve/utils/request_logger.py
    (0.33.0); SGLang, python/sglang/srt/managers/tokenizer_manager.py: "Finish: obj=..., out=...".

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
        # In a plain dictionary finding the first entry passes over every deleted one.
        self._pending: OrderedDict[str, _Said] = OrderedDict()
        self._again: list[Request] = []
        self.without_length = 0
        """Requests without a length on any line."""
        self.spoke = False
        """Whether any line was about a request."""
        self._lists = self._longest = self._at_longest = self._finished = 0

    @property
    def cut_tokens(self) -> int:
        """The length that at least half of the prompts have exactly, and none is above; 0 where there is none."""
        return self._longest if self._lists >= FEWEST_CUT and 2 * self._at_longest >= self._lists else 0

    def take(self, line: str) -> bool:
        """Whether the line is about a request; its counts are merged until `rest`."""
        head = line[:HEAD_CHARACTERS]
        if (received := _RECEIVED.search(head)) is not None:
            tail = line[received.end() :]
            start = tail.rfind("SamplingParams(")
            wanted = _MAX_TOKENS.search(tail, start, start + PARAMETER_CHARACTERS) if start >= 0 else None
            asked = int(wanted[1]) if wanted else None
            self._merge(received[1], (_ids(tail, _PROMPT_IDS), None, asked, seconds_of(stamp_of(head))))
        elif (details := _DETAILS.search(head)) is not None:
            self._merge(details[1], (_ids(line, _PROMPT_IDS), None, None, seconds_of(stamp_of(head))))
        elif (finished := _FINISHED.search(head)) is not None:
            self._finished += 1
            self._merge(f"{_SGLANG}{self._finished}", (*_sglang(line[finished.end() :]), None))
        elif (generated := _GENERATED.search(head)) is None:
            return False
        elif generated[2] != "delta":
            self._merge(generated[1], (None, _ids(line, _OUTPUT_IDS), None, None))
        self.spoke = True
        return True

    def overflow(self) -> Iterator[Request]:
        """The oldest requests beyond MAX_PENDING, and those whose id came again."""
        again, self._again = self._again, []
        yield from again
        while len(self._pending) > MAX_PENDING:
            yield from self._finish(next(iter(self._pending)))

    def rest(self) -> Iterator[Request]:
        """The remaining requests, at the end of the log."""
        for request_id in list(self._pending):
            yield from self._finish(request_id)

    def _merge(self, request_id: str, found: _Said) -> None:
        says_more = found != _NOTHING and found[1] is None
        if says_more and self._pending.get(request_id, _NOTHING)[1] is not None:
            # It was answered: another request has its id, as after a restart of the server.
            self._again += self._finish(request_id)
        old = self._pending.get(request_id, _NOTHING)
        prompt, answer, wanted = (
            new if new is not None else past for new, past in zip(found[:3], old[:3], strict=True)
        )
        # It came with its first line.
        self._pending[request_id] = (prompt, answer, wanted, found[3] if old[3] is None else old[3])

    def _finish(self, request_id: str) -> Iterator[Request]:
        prompt, answer, wanted, seconds = self._pending.pop(request_id)
        if prompt and not request_id.startswith(_SGLANG):
            self._lists += 1
            self._at_longest = 0 if prompt > self._longest else self._at_longest
            self._longest = max(self._longest, prompt)
            self._at_longest += prompt == self._longest
        if not prompt:
            self.without_length += 1
            return
        yield Request(prompt_tokens=prompt, completion_tokens=answer, max_tokens=wanted, seconds=seconds)


_Said = tuple[int | None, int | None, int | None, float | None]
"""What lines say of a request: prompt, answer, max_tokens, when it came."""
_NOTHING: Final = (None, None, None, None)
_SGLANG: Final = "sglang "
"""Before the number of a request whose one line has all that is known of it."""


def _sglang(line: str) -> tuple[int | None, int | None, int | None]:
    """Prompt, answer and max_new_tokens of SGLang's line about a finished request, which has Python's dictionaries."""
    at = line.rfind(_META)
    part = line[at : at + PARAMETER_CHARACTERS] if at >= 0 else ""
    prompt, answer = (None if (found := one.search(part)) is None else int(found[1]) for one in _META_COUNTS)
    wanted = _MAX_NEW_TOKENS.search(line[:PARAMETER_CHARACTERS])
    return prompt, answer, None if wanted is None else int(wanted[1])


def _ids(text: str, name: str) -> int | None:
    """Number of ids in the last list of that name; None without one."""
    start = text.rfind(name)
    end = text.find("]", start)
    if start < 0 or end < 0:
        return None
    inside = text[start + len(name) : end].strip()
    return inside.count(",") + 1 if inside else 0
