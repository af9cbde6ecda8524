"""The commands in a log that start a server: their flags word by word, without a judgement of the values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from kvcore.errors import shorten
from kvcore.evidence.log_fields import MAX_VALUE_CHARACTERS
from kvcore.evidence.log_graphs import LISTS
from kvcore.evidence.log_text import LogText, message_of

MAX_COMMANDS: Final = 32
"""Commands of one start that are read."""
MAX_COMMAND_LINES: Final = 128
SHOWN_VALUE_CHARACTERS: Final = 60

_PROGRAMS: Final = ("vllm serve", "vllm-mindspore serve", "vllm.entrypoints", "vllm_mindspore.entrypoints")
_DASHES: Final = "-\u2013\u2014"
_NEGATIVE: Final = re.compile(r"-\d{1,40}(?:\.\d{1,40})?")
_SECRETS: Final = ("key", "token", "password")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandFlag:
    """One flag of a command: its name as the engine's own fields spell it, its value, and the word as typed."""

    name: str
    value: str
    word: str

    @property
    def shown(self) -> str:
        """Flag and value as a person typed them, shortened; a secret without its value.

        Example:
            >>> CommandFlag(name="swap_space", value="16", word="--swap-space").shown
            '--swap-space 16'
        """
        hides = self.value in ("True", "False") or any(part in self.name for part in _SECRETS)
        return shorten(self.word if hides else f"{self.word} {self.value}", SHOWN_VALUE_CHARACTERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command, and the offset of its first line in the log."""

    offset: int
    flags: tuple[CommandFlag, ...]


def find_commands(log: LogText, start: int, end: int) -> Iterator[Command]:
    """Every shell command between two offsets that starts a server, at most MAX_COMMANDS."""
    found = 0
    for index in range(log.line_index(start), log.line_index(max(start, end - 1)) + 1):
        if "serve" not in log.lines[index] and "entrypoints" not in log.lines[index]:
            continue
        line = message_of(log.lines[index])
        begin = next((at for at in (line.find(name) for name in _PROGRAMS) if at >= 0), -1)
        if begin < 0 or (" --" not in line and not line.rstrip().endswith("\\")):
            continue
        words = _words(tuple(map(message_of, log.lines[index : index + MAX_COMMAND_LINES])), begin)
        yield Command(offset=log.starts[index], flags=tuple(command_flags(words)))
        found += 1
        if found >= MAX_COMMANDS:
            return


def _words(lines: tuple[str, ...], begin: int) -> list[str]:
    """Shell words of a command and of the lines that it goes on in."""
    parts: list[str] = []
    for number, line in enumerate(lines):
        part = (
            line[begin : begin + MAX_VALUE_CHARACTERS] if number == 0 else line[:MAX_VALUE_CHARACTERS]
        ).rstrip()
        parts.append(part.rstrip("\\"))
        if not part.endswith("\\"):
            break
    command = " ".join(parts)
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def command_flags(words: list[str]) -> Iterator[CommandFlag]:
    """The flags of a command, the model behind `serve` among them."""
    if "serve" in words[:3]:
        behind = words.index("serve") + 1
        if behind < len(words) and not words[behind].startswith("-"):
            yield CommandFlag(name="model", value=words[behind].strip("'\"`"), word="serve")
    for at, word in enumerate(words):
        if word[:1] not in _DASHES or len(word) < 2 or _NEGATIVE.fullmatch(word):
            continue
        typed, _, value = word.partition("=")
        name = typed.lstrip(_DASHES).replace("-", "_").replace(".", "_")
        following = words[at + 1] if at + 1 < len(words) else ""
        if not value and name in LISTS:
            value = ",".join(takewhile(str.isdigit, words[at + 1 :]))
        if not value and following and (following[0] not in _DASHES or _NEGATIVE.fullmatch(following)):
            value = following
        if not value:
            off = name.startswith("no_")
            name, value = name.removeprefix("no_"), "False" if off else "True"
        yield CommandFlag(name=name, value="".join(value.split()).strip("'`"), word=typed)
