"""An untrusted text -> its lines: decoded, without colours, one slice after the other.

A single call into C keeps the interpreter from every other visitor until it returns. So no such call is ever given
more than a slice and one line of the text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Final

from kvcore.errors import LogError

MAX_LOG_BYTES: Final = 50 << 20
MAX_LINE_CHARACTERS: Final = 1 << 20
"""Of one line; the rest of a longer one is not looked at."""
MAX_JSON_LINE_CHARACTERS: Final = 1 << 16
SLICE: Final = 1 << 18
"""Bytes or characters that are decoded and cleaned at once."""
BINARY_SHARE: Final = 0.02
"""Share of control and replacement characters above which the input is no text."""
BINARY_SAMPLE: Final = 1 << 20
FEWEST_STRANGE: Final = 8

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_COLOURS: Final = re.compile(r"\[[0-9;]{1,16}m")
"""What is left of a colour where its escape character got lost."""
_COMPOSE_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,80} {0,20}\| ")
_NOT_TEXT: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_JSON_KEYS: Final = ("message", "log", "msg", "MESSAGE", "text", "line")
_ENTITIES: Final = (
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", '"'),
    ("&#34;", '"'),
    ("&#39;", "'"),
    ("&#x27;", "'"),
    ("&nbsp;", " "),
    ("&amp;", "&"),
)
"""What a web page writes for the characters of a log; the ampersand last, or it would make others."""
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


def line_blocks(given: str | bytes) -> Iterator[list[str]]:
    """The lines of a text, in lists of as many as a slice has; of a line at most one character more than is read.

    Raises LogError: `log-too-large` above 50 MiB, `log-not-text` for binary data.

    Example:
        >>> list(line_blocks("a\\r\\nb\\x1b[32mc"))
        [['a'], ['bc']]
    """
    if len(given) > MAX_LOG_BYTES:
        raise LogError("log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
    _check_text(given)
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


def _check_text(given: str | bytes) -> None:
    sample = given[:BINARY_SAMPLE]
    text = sample if isinstance(sample, str) else "".join(_pieces(sample))
    strange = sum(1 for _ in _NOT_TEXT.finditer(text))
    if strange >= FEWEST_STRANGE and strange > BINARY_SHARE * len(text):
        raise LogError("log-not-text")


def _pieces(given: str | bytes) -> Iterator[str]:
    """A text in slices; a Windows shell writes UTF-16 with a byte order mark."""
    if isinstance(given, str):
        yield from (given[at : at + SLICE] for at in range(0, len(given), SLICE))
        return
    is_utf16 = given[:2] in (b"\xff\xfe", b"\xfe\xff")
    decoder = codecs.getincrementaldecoder("utf-16" if is_utf16 else "utf-8-sig")("replace")
    for at in range(0, len(given), SLICE):
        yield decoder.decode(given[at : at + SLICE])
    yield decoder.decode(b"", final=True)


def _plain(text: str) -> str:
    """Without colours, and with the quotation marks and dashes that a shell knows."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "[" in text:
        text = _COLOURS.sub("", text)
    return text.translate(_CHARACTERS).replace("\\_", "_")


def message_of(line: str) -> str:
    """The engine's part of a line: out of its JSON wrapper, without chat quoting and the container's name."""
    text = line.strip()
    if text[:1] == "{" and text[-1:] == "}" and len(text) <= MAX_JSON_LINE_CHARACTERS:
        text = _from_json(text)
    if text[:1] in ">|*`":
        text = text.lstrip("> |*`")
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
