"""Untrusted log text, cleaned so that line formats are found in it by plain substring searches.

All white space is removed: a line that a terminal, a mail or a chat broke anywhere reads like the line that the engine
wrote, and patterns need no white space. Offsets lead back to the line as pasted.

A call into C blocks all other visitors until it returns. So each call gets at most a slice and one line of the text.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct, field

from kvcore.base.errors import LogError, shorten

MAX_LOG_BYTES: Final = 50 << 20
MAX_LOG_LINES: Final = 1_000_000
MAX_LINE_CHARACTERS: Final = 1 << 20
"""Longest line; the rest of a longer one is not read."""
MAX_JSON_LINE_CHARACTERS: Final = 1 << 16
SLICE: Final = 1 << 18
"""Bytes or characters decoded and cleaned in one call."""
BINARY_SHARE: Final = 0.02
"""Share of control and replacement characters above which input is binary."""
BINARY_SAMPLE: Final = 1 << 20
FEWEST_STRANGE: Final = 8
MAX_STEPS: Final = 1_000_000
"""Steps of one log beyond one pass over its characters. A step is about a microsecond; a start of 64 ranks takes
some 60,000."""
SHOWN_LINE_CHARACTERS: Final = 400
WINDOW: Final = 1 << 20
"""Characters of one call of a search, so that other threads get their turn."""
BACKWARD_WINDOW: Final = 1 << 14
"""The same for a search from the end, whose time is at worst the product of both lengths."""
PROCESS_LOOK_BACK: Final = 4096
"""Characters of one line searched backwards for the process that wrote a message."""
PROCESS_NAME_CHARACTERS: Final = 80
LINE_BEGINNING_CHARACTERS: Final = 256
CONTINUED_LINES: Final = 16
"""Most lines that one message of the engine may be broken into."""

_PROCESS: Final = re.compile(
    r"\(([A-Za-z][A-Za-z0-9_]{0,60}?)(?:rank=(\d{1,5}))?pid=(\d{1,10})(?:,ip=[0-9a-fA-F.:]{1,45})?\)"
)
_LEVEL: Final = re.compile(r"(?:INFO|WARNING|ERROR|DEBUG)\d\d-\d\d")
_BEGINNING: Final = re.compile(rf"{_LEVEL.pattern}|\[\w{{1,60}}\.py:\d{{1,6}}\]")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_COLOURS: Final = re.compile(r"\[[0-9;]{1,16}m")
"""Colours whose escape character got lost."""
_COMPOSE_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,80} {0,20}\| ")
_PREFIXES: Final = (
    re.compile(r"\d{1,7}(?:\.\d{1,6})?s {1,8}\d{1,9} {1,8}"),
    re.compile(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?: (?:stdout|stderr) [FP])? "
    ),
    re.compile(r"\[[a-z0-9][a-z0-9.-]{0,80}/[a-z0-9][a-z0-9./-]{0,200}\] "),
    re.compile(r"[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d [\w.-]{1,64} [\w@.-]{1,64}(?:\[\d{1,8}\])?: "),
)
"""What stands before a line: seconds and a number (Kaggle), a date (docker logs -t, containerd, jobs of a CI), pod and
container (kubectl logs --prefix), date, host and unit (journalctl)."""
_NOT_TEXT: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_JSON_KEYS: Final = ("message", "log", "msg", "MESSAGE", "text", "line")
_ENTITIES: Final = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#34;", '"'), ("&#39;", "'"), ("&#x27;", "'"),
                    ("&nbsp;", " "), ("&amp;", "&"))  # fmt: skip
"""Characters of a log as HTML writes them; the ampersand last, so that it makes no others."""
_CHARACTERS: Final = str.maketrans(
    "\u2018\u2019\u201b\u201c\u201d\u2212", "'''\"\"-", "\u200b\u200c\u200d\u2060\ufeff"
)
"""Typographic quotation marks and dashes, and characters without a width."""


@dataclass(slots=True)
class Steps:
    """The remaining steps of a log.

    Example:
        >>> steps = Steps(left=10)
        >>> steps.take(8), steps.take(8), steps.are_spent
        (True, False, True)
    """

    left: int = MAX_STEPS

    def take(self, steps: int) -> bool:
        """Takes steps; False where too few are left, and from then on."""
        self.left = self.left - steps if steps <= self.left else -1
        return self.left >= 0

    @property
    def are_spent(self) -> bool:
        """Whether something was skipped."""
        return self.left < 0


class Process(Struct, frozen=True, kw_only=True):
    """The process that wrote a line: `Worker_TP1`, `VllmWorker 1`, `EngineCore_DP0`; empty where not named."""

    name: str = ""
    pid: str = ""


class LogText(Struct, frozen=True, kw_only=True):
    """The log without white space, and its lines as pasted."""

    text: str
    starts: Sequence[int]
    """Offset in `text` at which each line begins."""
    lines: tuple[str, ...]
    cut_lines: int
    """Lines longer than MAX_LINE_CHARACTERS."""
    steps: Steps = field(default_factory=Steps)
    """Remaining steps, taken by whatever reads more than each character once."""

    def find(self, words: str, start: int = 0, end: int | None = None) -> int:
        """Offset of the first `words` between two offsets, -1 for none; as `str.find`, in windows."""
        stop = len(self.text) if end is None else min(end, len(self.text))
        if stop - start <= WINDOW:
            return self.text.find(words, start, stop)
        for at in range(start, stop, WINDOW):
            found = self.text.find(words, at, min(stop, at + WINDOW + len(words) - 1))
            if found >= 0:
                return found
        return -1

    def occurrences(self, words: str, start: int = 0, end: int | None = None) -> Iterator[int]:
        """Offsets of `words` between two offsets, in order, none within another."""
        at = self.find(words, start, end)
        while at >= 0:
            yield at
            at = self.find(words, at + len(words), end)

    def rfind(self, words: str, start: int, end: int) -> int:
        """Offset of the last `words` between two offsets, -1 for none."""
        stop = min(end, len(self.text))
        while stop - start >= len(words):
            begin = max(start, stop - BACKWARD_WINDOW)
            if self.text.find(words, begin, stop) >= 0:
                return self.text.rfind(words, begin, stop)
            if begin == start:
                break
            stop = begin + len(words) - 1
        return -1

    def has(self, words: str, start: int = 0, end: int | None = None) -> bool:
        """Whether `words` stand between two offsets."""
        return self.find(words, start, end) >= 0

    def line_index(self, offset: int) -> int:
        """Index of the line that the character at `offset` came from."""
        return max(0, bisect_right(self.starts, offset) - 1)

    def line_number(self, offset: int) -> int:
        """Number of that line, counted from one."""
        return self.line_index(offset) + 1

    def line_end(self, offset: int) -> int:
        """Offset behind the last character of that line."""
        following = self.line_index(offset) + 1
        return self.starts[following] if following < len(self.starts) else len(self.text)

    def line(self, offset: int) -> str:
        """The line as pasted, shortened and printable."""
        line = self.lines[self.line_index(offset)]
        head = line[: 4 * SHOWN_LINE_CHARACTERS].lstrip()
        return shorten(
            head.rstrip() if len(line) <= 4 * SHOWN_LINE_CHARACTERS else head, SHOWN_LINE_CHARACTERS
        )

    def process(self, offset: int) -> Process:
        """The process named last before `offset` on its line.

        A line without a beginning of its own continues the line above and has its process. Of lines that were joined,
        the process before the last beginning counts.
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

    Raises LogError `log-too-large` above 50 MiB or a million lines, `log-not-text` for binary data.

    Example:
        >>> log = clean_log("engine-1  | Available KV cache\\nmemory: 52.80 GiB")
        >>> log.text, log.line_number(log.text.index("memory"))
        ('AvailableKVcachememory:52.80GiB', 2)
    """
    lines: list[str] = []
    starts = array("L")
    blocks: list[str] = []
    length = cut = 0
    for block in line_blocks(given):
        parts: list[str] = []
        for line in block:
            starts.append(length)
            if len(line) > MAX_LINE_CHARACTERS:
                line = line[:MAX_LINE_CHARACTERS]
                cut += 1
            lines.append(line)
            squeezed = "".join(message_of(line).split())
            parts.append(squeezed)
            length += len(squeezed)
        if len(lines) > MAX_LOG_LINES + 1:
            raise LogError("log-too-large", limit=f"{MAX_LOG_LINES:,} lines")
        blocks.append("".join(parts))
    return LogText(text="".join(blocks), starts=starts, lines=tuple(lines), cut_lines=cut)


def line_blocks(given: str | bytes) -> Iterator[list[str]]:
    """The lines of a text, a list for each slice; lines are cut one character above the longest that is read.

    Raises LogError: `log-too-large` above 50 MiB, `log-not-text` for binary data.

    Example:
        >>> list(line_blocks("a\\r\\nb\\x1b[32mc"))
        [['a'], ['bc']]
    """
    if len(given) > MAX_LOG_BYTES:
        raise LogError("log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
    sample = given[:BINARY_SAMPLE]
    text = sample if isinstance(sample, str) else "".join(_pieces(sample))
    strange = sum(1 for _ in _NOT_TEXT.finditer(text))
    if strange >= FEWEST_STRANGE and strange > BINARY_SHARE * len(text):
        raise LogError("log-not-text")
    rest = ""
    for piece in _pieces(given):
        text = rest + piece
        held = "\r" if text.endswith("\r") else ""
        if "\r" in text:
            text = text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n")
        whole, newline, rest = text.rpartition("\n")
        if newline:
            yield _plain(whole).split("\n")
        rest = rest[: MAX_LINE_CHARACTERS + 1] + held
    yield _plain(rest.replace("\r", "\n")).split("\n")


def _pieces(given: str | bytes) -> Iterator[str]:
    """A text in slices. UTF-16 needs a byte order mark, as a Windows shell writes it."""
    if isinstance(given, str):
        yield from (given[at : at + SLICE] for at in range(0, len(given), SLICE))
        return
    is_utf16 = given[:2] in (b"\xff\xfe", b"\xfe\xff")
    decoder = codecs.getincrementaldecoder("utf-16" if is_utf16 else "utf-8-sig")("replace")
    for at in range(0, len(given), SLICE):
        yield decoder.decode(given[at : at + SLICE])
    yield decoder.decode(b"", final=True)


def _plain(text: str) -> str:
    """A text without colours, and with the quotation marks and dashes of a shell."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "[" in text:
        text = _COLOURS.sub("", text)
    return text.translate(_CHARACTERS).replace("\\_", "_")


def message_of(line: str) -> str:
    """The engine's part of a line, without a JSON wrapper, chat quoting and the prefix of a notebook or container.

    Example:
        >>> message_of("295.4s 290 INFO 06-04"), message_of("2026-06-04T05:33:46.1Z stderr F (Worker pid=1) INFO")
        ('INFO 06-04', '(Worker pid=1) INFO')
    """
    text = line.strip()
    if text[:1] == "{" and text[-1:] == "}" and len(text) <= MAX_JSON_LINE_CHARACTERS:
        text = _from_json(text)
    if text[:1] in ">|*`":
        text = text.lstrip("> |*`")
    if text[:1].isdigit() or text[:1] == "[" or text[3:4] == " ":
        for pattern in _PREFIXES:
            prefix = pattern.match(text)
            text = text if prefix is None else text[prefix.end() :]
    if "| " in text:
        prefix = _COMPOSE_PREFIX.match(text)
        if prefix is not None:
            text = text[prefix.end() :]
    if "&" in text:
        for entity, character in _ENTITIES:
            text = text.replace(entity, character)
    return text


def _from_json(text: str) -> str:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(record, dict):
        for key in _JSON_KEYS:
            value = record.get(key)
            if isinstance(value, str):
                return _plain(value)
    return text
