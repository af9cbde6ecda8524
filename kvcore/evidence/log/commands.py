"""Commands in a log that start a server, and files pasted in place of one; values are not checked here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct, field

from kvcore.base.errors import Notice, notice, shorten
from kvcore.engines.registry import is_planned, server_commands
from kvcore.evidence.log.cleaned import MAX_JSON_LINE_CHARACTERS, LogText, Steps, message_of
from kvcore.manifests.arguments import Given, is_secret
from kvcore.manifests.build import PLANNED_VARIABLES, Facts, built
from kvcore.manifests.files import Source, kind_of, read_files
from kvcore.manifests.machines import card_named
from kvcore.manifests.models import best_name
from kvcore.manifests.programs import RUNS, Launch, Scripts, script_launches
from kvcore.manifests.shell_words import words_of
from kvcore.manifests.unknowns import has_mark, shown
from kvcore.manifests.values import MAX_VALUE_CHARACTERS
from kvcore.manifests.workload import Workload

MAX_COMMANDS: Final = 32
"""Most commands of one start that are read."""
MAX_COMMAND_LINES: Final = 128
MAX_CHARACTERS: Final = 1 << 16
"""Longest text that is read as a file; longer ones are logs."""
SHOWN_VALUE_CHARACTERS: Final = 60

_PROGRAMS: Final = server_commands()
_SETTINGS: Final = ("export ", "Environment=")
_MARKS: Final = (" run", "serve", "entrypoints", *_SETTINGS)
"""A line without any of these is skipped."""
_ENGINE_NAMES: Final = ("vllm", "--model")
"""A command without any of these starts no engine."""
_LOGGED: Final = ("INFO0", "INFO1", "WARNING0", "WARNING1", "ERROR0", "ERROR1", "non-defaultargs", "args:Namespace(",
                  "KVcachememory", "Initializinga")  # fmt: skip
"""Texts of an engine's own lines: with any of them a text is a log and no script."""
_SCRIPTS: Final = ("shell", "slurm", "env", "make")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w{0,60})=([\w.:,;=-]{1,120})")
_NONE: Final[Mapping[str, str]] = {}


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
        hides = self.value in ("True", "False") or is_secret(self.name.rstrip("0123456789"))
        return shorten(self.word if hides else f"{self.word} {self.value}", SHOWN_VALUE_CHARACTERS)


class Command(Struct, frozen=True, kw_only=True):
    """A command, or a file that starts an engine."""

    kind: str
    """`command`, or `manifest` for a file of another kind."""
    offsets: tuple[int, ...]
    """Offsets of its lines in the log; never empty."""
    flags: tuple[CommandFlag, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    """The release that the container's image names."""
    card: str | None = None
    """The card that a file names."""
    notices: tuple[Notice, ...] = ()


def find_commands(log: LogText, start: int, end: int) -> Iterator[Command]:
    """The commands between two offsets that start a server, at most MAX_COMMANDS.

    A text without an engine's own lines is read as a file that somebody deploys: of several workloads the first that
    can be planned.
    """
    found = _of_file(log) if start == 0 else None
    if found is not None:
        yield found
    else:
        yield from islice(_shell_commands(log, start, end), MAX_COMMANDS)


def _of_file(log: LogText) -> Command | None:
    size = sum(len(line) + 1 for line in islice(log.lines, MAX_CHARACTERS))
    if size > MAX_CHARACTERS or len(log.lines) > MAX_CHARACTERS or any(map(log.has, _LOGGED)):
        return None
    text = "\n".join(log.lines)
    if not log.steps.take(len(text)):
        return None
    kind = kind_of("-", text)
    found = [one for one in read_files([Source("-", text)]).workloads if is_planned(one.engine)]
    if kind == "shell":
        found = [one for one in found if one.is_whole]
    return _of_workload(log, found, kind) if found else None


def _of_workload(log: LogText, found: list[Workload], kind: str) -> Command:
    one = found[0]
    lines = {one.place.line, *(given.line for given in one.arguments if given.line)}
    offsets = tuple(log.starts[min(max(line, 1), len(log.starts)) - 1] for line in sorted(lines))
    flags = [_flag(given) for given in one.arguments if given.name not in ("model", "model_tag")]
    model = best_name(one)
    if model is not None:
        flags.insert(0, CommandFlag(name="model", value=model, word="serve"))
    card = card_named(one.card)[0] if one.card is not None else None
    above: dict[str, str] = {}
    for line in log.lines[: one.place.line] if one.kind == "config" else ():
        above |= _exported(line, log.steps)
    several = (notice("log-several-workloads", workloads=len(found), name=one.name or model or "?"),)
    return Command(
        kind="command" if kind in _SCRIPTS else "manifest",
        offsets=offsets,
        flags=tuple(flags),
        env=above | _planned(one),
        version=one.release,
        card=None if card is None else card.name,
        notices=several if len(found) > 1 else (),
    )


def _flag(given: Given) -> CommandFlag:
    value = shown(given.value)
    if given.word.startswith("-O") and given.name == "optimization_level":
        return CommandFlag(name=given.word.lstrip("-"), value="True", word=given.word)
    if len(given.items) > 1 and not has_mark(value):
        value = ",".join(given.items) if all(item.isdigit() for item in given.items) else given.items[0]
    return CommandFlag(
        name=given.option or given.name.replace(".", "_"),
        value="".join(value.split()).strip("'`"),
        word=given.word,
    )


def _exported(line: str, steps: Steps) -> dict[str, str]:
    """Variables that a line of a shell, a comment or a unit sets for the commands below it."""
    setting = line[:MAX_VALUE_CHARACTERS].lstrip("#$ ")
    for opening in _SETTINGS:
        if setting.startswith(opening) and any(name in setting for name in PLANNED_VARIABLES):
            return _assigned(words_of(setting[len(opening) :])) if steps.take(len(setting)) else {}
    return {}


def _assigned(words: list[str]) -> dict[str, str]:
    """The variables that a plan uses among `NAME=value`."""
    found = (match for word in words if (match := _ASSIGNED.fullmatch(word)) is not None)
    return {match[1]: match[2] for match in found if match[1] in PLANNED_VARIABLES}


def _shell_commands(log: LogText, start: int, end: int) -> Iterator[Command]:
    behind = 0
    exported: dict[str, str] = {}
    for index in range(log.line_index(start), log.line_index(max(start, end - 1)) + 1):
        given = log.lines[index]
        if not any(mark in given for mark in _MARKS):
            continue
        exported |= _exported(given, log.steps)
        runs = " run" in given and any(name in given for name in RUNS)
        if index < behind or not (runs or "serve" in given or "entrypoints" in given):
            continue
        line = message_of(given)
        begin = next(
            (at for at in (line.find(name) for name in (RUNS if runs else _PROGRAMS)) if at >= 0), -1
        )
        if begin < 0 or not (" --" in line or line.rstrip().endswith("\\")):
            continue
        text, count = _whole_command(log, index, line[begin:])
        behind = index + count if runs else behind
        if not any(name in text for name in _ENGINE_NAMES):
            continue
        if not log.steps.take(len(text)):
            return
        above = line[max(0, begin - MAX_VALUE_CHARACTERS) : begin]
        before = {**exported, **_assigned(above.split())}
        found = next((one for one in _launches(text) if one.engine), None)
        if found is not None:
            yield _of_launch((log.starts[index],), found, before)


def _launches(text: str) -> list[Launch]:
    if text.startswith(("-m ", *(name for name in _PROGRAMS if "." in name))):
        text = f"python3 -m {text.removeprefix('-m ')}"
    return script_launches(text, _NONE, Scripts())


def _of_launch(offsets: tuple[int, ...], found: Launch, before: Mapping[str, str]) -> Command:
    one = built(found, Facts(), Scripts())
    if not isinstance(one, Workload):
        return Command(kind="command", offsets=offsets, flags=())
    flags = [_flag(given) for given in one.arguments if given.name not in ("model", "model_tag")]
    model = best_name(one)
    if model is not None:
        flags.insert(0, CommandFlag(name="model", value=model, word="serve"))
    env = _planned(one)
    return Command(
        kind="command", offsets=offsets, flags=tuple(flags), env={**before, **env}, version=one.release
    )


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


def _planned(one: Workload) -> dict[str, str]:
    """The variables of a workload that a plan uses."""
    return {name: value for name, value in one.environment.items() if name in PLANNED_VARIABLES}
