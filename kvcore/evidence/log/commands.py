"""Commands and container files in a log that start a server, with their flags; values are not checked here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Final

from msgspec import Struct, field

from kvcore.base.errors import shorten
from kvcore.evidence.log.cleaned import MAX_JSON_LINE_CHARACTERS, LogText, Steps, message_of
from kvcore.evidence.log.containers import (
    PROGRAMS,
    RUNNERS,
    VARIABLES,
    Container,
    Manifest,
    docker_container,
    find_manifests,
    split_words,
    variables,
)
from kvcore.manifests.values import LISTS, MAX_VALUE_CHARACTERS

MAX_COMMANDS: Final = 32
"""Most commands of one start that are read."""
MAX_COMMAND_LINES: Final = 128
SHOWN_VALUE_CHARACTERS: Final = 60

_DASHES: Final = "-\u2013\u2014"
_NEGATIVE: Final = re.compile(r"-\d{1,40}(?:\.\d{1,40})?")
_BARE: Final = re.compile(
    r"(?:[$#] )?vllm serve (?:/?[^\s/]{1,200}/\S{1,400}(?: {1,9}-|$)|\S{1,400} {1,9}-\w)"
)
"""A line with only a command and no long flag; prose about a command continues in words."""
_SECRETS: Final = ("key", "token", "password")
_SETTINGS: Final = ("export ", "Environment=")
_MARKS: Final = (" run", "serve", "entrypoints", *_SETTINGS)
"""A line without any of these is skipped."""
_ENGINE_NAMES: Final = ("vllm", "--model")
"""A command without any of these starts no engine."""


class CommandFlag(Struct, frozen=True, kw_only=True):
    """One flag of a command: its name as the engine's own fields spell it, its value, and the word as typed."""

    name: str
    value: str
    word: str

    @property
    def shown(self) -> str:
        """Flag and value as typed, shortened; a secret without its value.

        Example:
            >>> CommandFlag(name="swap_space", value="16", word="--swap-space").shown
            '--swap-space 16'
        """
        hides = self.value in ("True", "False") or any(part in self.name for part in _SECRETS)
        return shorten(self.word if hides else f"{self.word} {self.value}", SHOWN_VALUE_CHARACTERS)


class Command(Struct, frozen=True, kw_only=True):
    """A command, or a file that starts a container."""

    kind: str
    """`command`, or `manifest` for YAML."""
    offsets: tuple[int, ...]
    """Offsets of its lines in the log; never empty."""
    flags: tuple[CommandFlag, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    """The release that the container's image names."""


def find_commands(log: LogText, start: int, end: int) -> Iterator[Command]:
    """The commands between two offsets that start a server, at most MAX_COMMANDS.

    A text that is YAML as a whole is read as Compose, Kubernetes, or the engine's own config.
    """
    manifests = find_manifests(log.lines) if start == 0 else ()
    if manifests:
        yield from (_of_manifest(log, manifest) for manifest in manifests[:MAX_COMMANDS])
    else:
        yield from islice(_shell_commands(log, start, end), MAX_COMMANDS)


def _exported(line: str, steps: Steps) -> dict[str, str]:
    """Variables that a line of a shell, a comment or a unit sets for the commands below it."""
    setting = line[:MAX_VALUE_CHARACTERS].lstrip("#$ ")
    for opening in _SETTINGS:
        if setting.startswith(opening) and any(name in setting for name in VARIABLES):
            return variables(split_words(setting[len(opening) :])) if steps.take(len(setting)) else {}
    return {}


def _of_manifest(log: LogText, manifest: Manifest) -> Command:
    offsets = tuple(log.starts[min(line, len(log.starts) - 1)] for line in manifest.lines)
    if manifest.container is not None:
        return _of_container("manifest", offsets, manifest.container, {})
    above: dict[str, str] = {}
    for line in log.lines[: manifest.lines[0]]:
        above |= _exported(line, log.steps)
    flags = tuple(_config_flag(*pair) for pair in manifest.fields)
    return Command(kind="manifest", offsets=offsets, flags=flags, env=above)


def _of_container(kind: str, offsets: tuple[int, ...], held: Container, above: Mapping[str, str]) -> Command:
    flags, env = tuple(command_flags(held.words)), {**above, **held.env}
    return Command(kind=kind, offsets=offsets, flags=flags, env=env, version=held.version)


def _config_flag(key: str, value: str) -> CommandFlag:
    name = key.replace("-", "_")
    if name.startswith("no_") and value == "true":
        name, value = name.removeprefix("no_"), "False"
    return CommandFlag(name=name, value="".join(value.split()), word=f"--{key}")


def _shell_commands(log: LogText, start: int, end: int) -> Iterator[Command]:
    behind = 0
    exported: dict[str, str] = {}
    for index in range(log.line_index(start), log.line_index(max(start, end - 1)) + 1):
        given = log.lines[index]
        if not any(mark in given for mark in _MARKS):
            continue
        exported |= _exported(given, log.steps)
        runs = " run" in given and any(name in given for name in RUNNERS)
        if index < behind or not (runs or "serve" in given or "entrypoints" in given):
            continue
        line = message_of(given)
        names = RUNNERS if runs else PROGRAMS
        begin = next((at for at in (line.find(name) for name in names) if at >= 0), -1)
        is_whole = " --" in line or line.rstrip().endswith("\\") or _BARE.match(line.strip()) is not None
        if begin < 0 or not is_whole:
            continue
        text, count = _whole_command(log, index, line[begin:])
        behind = index + count if runs else behind
        if not any(name in text for name in _ENGINE_NAMES):
            continue
        if not log.steps.take(len(text)):
            return
        words = split_words(text)
        above = line[max(0, begin - MAX_VALUE_CHARACTERS) : begin]
        before = {**exported, **variables(above.split())}
        offsets = (log.starts[index],)
        if not runs:
            yield Command(kind="command", offsets=offsets, flags=tuple(command_flags(words)), env=before)
            continue
        held = docker_container(words[words.index("run") + 1 :]) if "run" in words else None
        if held is not None:
            yield _of_container("command", offsets, held, before)


def _whole_command(log: LogText, index: int, first: str) -> tuple[str, int]:
    """A command with its continuation lines, each cut to a bounded length; and the number of its lines."""
    parts: list[str] = []
    line = first
    while True:
        part = line[:MAX_VALUE_CHARACTERS].rstrip()
        parts.append(part.rstrip("\\"))
        index += 1
        if not part.endswith("\\") or len(parts) == MAX_COMMAND_LINES or index == len(log.lines):
            return " ".join(parts), len(parts)
        line = message_of(log.lines[index][:MAX_JSON_LINE_CHARACTERS])


def command_flags(words: Sequence[str]) -> Iterator[CommandFlag]:
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
            value = ",".join(takewhile(str.isdigit, islice(words, at + 1, None)))
        if not value and following and (following[0] not in _DASHES or _NEGATIVE.fullmatch(following)):
            value = following
        if not value:
            off = name.startswith("no_")
            name, value = name.removeprefix("no_"), "False" if off else "True"
        yield CommandFlag(name=name, value="".join(value.split()).strip("'`"), word=typed)
