"""Untrusted log text, cleaned so that every line format can be found in it by a plain substring search.

All white space is taken out. A line that a terminal, a mail or a chat broke at any place then reads the same as
the line that the engine wrote, and a format needs no white space in its pattern. Offsets lead back to the line as
pasted.
"""

from __future__ import annotations

import html
import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from kvcore.errors import LogError, shorten

MAX_LOG_BYTES: Final = 50 << 20
MAX_LOG_LINES: Final = 2_000_000
MAX_LINE_CHARACTERS: Final = 1 << 20
"""Of one line; the rest of a longer one is not looked at."""
MAX_JSON_LINE_CHARACTERS: Final = 1 << 16
SHOWN_LINE_CHARACTERS: Final = 400
BINARY_SHARE: Final = 0.02
"""Share of control and replacement characters above which the input is no text."""
BINARY_SAMPLE: Final = 1 << 20

_COLOURS: Final = re.compile(r"\x1b?\[[0-9;]{1,16}m|\x1b\[[0-9;?]{0,16}[A-Za-z]")
_COMPOSE_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,80} {0,20}\| ")
_NOT_TEXT: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_JSON_KEYS: Final = ("message", "log", "msg", "MESSAGE", "text", "line")
_CHARACTERS: Final = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201b": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2212": "-",
        "\u200b": None,
        "\u200c": None,
        "\u200d": None,
        "\u2060": None,
        "\ufeff": None,
    }
)
_PROCESS: Final = re.compile(
    r"\(([A-Za-z][A-Za-z0-9_]{0,60}?)(?:rank=(\d{1,5}))?pid=(\d{1,10})(?:,ip=[0-9a-fA-F.:]{1,45})?\)"
)
_BEGINNING: Final = re.compile(r"(?:INFO|WARNING|ERROR|DEBUG)\d\d-\d\d|\[\w{1,60}\.py:\d{1,6}\]")
_LEVEL: Final = re.compile(r"(?:INFO|WARNING|ERROR|DEBUG)\d\d-\d\d")
PROCESS_LOOK_BACK: Final = 4096
"""Characters of one line searched backwards for the process that wrote a message."""
PROCESS_NAME_CHARACTERS: Final = 80
LINE_BEGINNING_CHARACTERS: Final = 256
CONTINUED_LINES: Final = 16
"""Lines that one message of the engine may be broken into."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """Who wrote a line: `Worker_TP1`, `VllmWorker 1`, `EngineCore_DP0`; empty where the line does not say."""

    name: str = ""
    pid: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogText:
    """The log without white space, and the lines as they were given."""

    text: str
    starts: tuple[int, ...]
    """Offset in `text` at which each line begins."""
    lines: tuple[str, ...]
    cut_lines: int
    """Lines longer than MAX_LINE_CHARACTERS."""

    def line_index(self, offset: int) -> int:
        """Index of the line that the character at `offset` came from."""
        return max(0, bisect_right(self.starts, offset) - 1)

    def line_number(self, offset: int) -> int:
        """The same, counted from one as editors do."""
        return self.line_index(offset) + 1

    def line_start(self, offset: int) -> int:
        """Offset of the first character of that line."""
        return self.starts[self.line_index(offset)] if self.starts else 0

    def line_end(self, offset: int) -> int:
        """Offset behind the last character of that line."""
        following = self.line_index(offset) + 1
        return self.starts[following] if following < len(self.starts) else len(self.text)

    def line(self, offset: int) -> str:
        """The line as pasted, shortened and printable."""
        return shorten(self.lines[self.line_index(offset)].strip(), SHOWN_LINE_CHARACTERS)

    def process(self, offset: int) -> Process:
        """The process named last before `offset` on its line.

        A line without a beginning of its own goes on from the one above, and so has that one's process. Of lines that
        were joined, the process before the last beginning counts.
        """
        index = self.line_index(offset)
        for line in range(index, max(-1, index - CONTINUED_LINES), -1):
            start = self.starts[line]
            stop = offset if line == index else self.starts[line + 1]
            found = self.text.rfind("pid=", max(start, stop - PROCESS_LOOK_BACK), stop)
            if found >= 0:
                opening = self.text.rfind("(", max(start, found - PROCESS_NAME_CHARACTERS), found)
                match = _PROCESS.match(self.text, opening) if opening >= 0 else None
                if match is not None and len(_LEVEL.findall(self.text, found, stop)) <= 1:
                    rank = f" {match[2]}" if match[2] is not None else ""
                    return Process(name=match[1] + rank, pid=match[3])
            if _BEGINNING.search(self.text, start, min(stop, start + LINE_BEGINNING_CHARACTERS)):
                break
        return Process()


def clean_log(given: str | bytes) -> LogText:
    """The log without white space, colours, quoting and container prefixes.

    Raises LogError `log-too-large` above 50 MiB or two million lines, `log-not-text` for binary data.

    Example:
        >>> log = clean_log("engine-1  | Available KV cache\\nmemory: 52.80 GiB")
        >>> log.text, log.line_number(log.text.index("memory"))
        ('AvailableKVcachememory:52.80GiB', 2)
    """
    if len(given) > MAX_LOG_BYTES:
        raise LogError("log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
    text = given if isinstance(given, str) else _decoded(given)
    sample = text[:BINARY_SAMPLE]
    strange = len(_NOT_TEXT.findall(sample))
    if strange >= 8 and strange > BINARY_SHARE * len(sample):
        raise LogError("log-not-text")
    if text.count("\n") + text.count("\r") > MAX_LOG_LINES:
        raise LogError("log-too-large", limit=f"{MAX_LOG_LINES:,} lines")
    text = _COLOURS.sub("", text).translate(_CHARACTERS).replace("\\_", "_")
    lines = tuple(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    starts: list[int] = []
    parts: list[str] = []
    length = cut = 0
    for line in lines:
        starts.append(length)
        if len(line) > MAX_LINE_CHARACTERS:
            line = line[:MAX_LINE_CHARACTERS]
            cut += 1
        squeezed = "".join(message_of(line).split())
        parts.append(squeezed)
        length += len(squeezed)
    return LogText(text="".join(parts), starts=tuple(starts), lines=lines, cut_lines=cut)


def _decoded(data: bytes) -> str:
    """Text of an uploaded file; a Windows shell writes UTF-16 with a byte order mark."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def message_of(line: str) -> str:
    """The engine's part of a line: out of its JSON wrapper, without chat quoting and the container's name."""
    text = line.strip()
    if text[:1] == "{" and text[-1:] == "}" and len(text) <= MAX_JSON_LINE_CHARACTERS:
        text = _from_json(text)
    if text[:1] in ">|*`":
        text = text.lstrip("> |*`")
    prefix = _COMPOSE_PREFIX.match(text)
    if prefix is not None:
        text = text[prefix.end() :]
    return html.unescape(text) if "&" in text else text


def _from_json(text: str) -> str:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(record, dict):
        for key in _JSON_KEYS:
            value = record.get(key)
            if isinstance(value, str):
                return _COLOURS.sub("", value).translate(_CHARACTERS)
    return text
