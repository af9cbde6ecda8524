"""kvcore check: files that people deploy, judged; in the format that is asked for."""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvcore.base.errors import ScenarioError, shorten

if TYPE_CHECKING:
    from kvcore.preflight.upgrade import Upgraded

FORMATS: Final = ("text", "json", "patch", "sarif", "github", "junit", "markdown")
MAX_TARGET: Final = 1_000_000
_COMPOSE: Final = re.compile(r"compose[^/]{0,60}\.ya?ml$", re.IGNORECASE)
"""Names of Compose files."""
ENDING: Final = (
    "exit status: 0 every engine starts; 1 one does not, or serves fewer requests than --target; 2 something cannot be "
    "read, or no engine is in the files; 3 it cannot be known: a variable, the card or the model is open. Variables "
    "come from the files and the .env beside a Compose file, never from the environment of this command."
)
"""What stands below the options in the help."""


def target(text: str) -> int:
    """Requests at once. Raises ArgumentTypeError."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_TARGET:
        raise argparse.ArgumentTypeError(f"a whole number of requests at once, at most {MAX_TARGET:,}")
    return int(text)


ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "files": {"nargs": "*", "default": ("-",), "metavar": "FILE", "help":
              "manifests, Compose files, values, scripts that belong together; folders, *.yaml; - is standard input"},
    "--accelerator": {"metavar": "CARD", "help": "the card, in place of what the files say of it"},
    "--target": {"type": target, "metavar": "REQUESTS",
                 "help": "requests of full length at once, over all replicas; fewer exit 1 as a failed start does"},
    "--tight": {"choices": ("starts", "does-not-start", "cannot-be-known"), "default": "starts",
                "help": "what a start counts as that may fail within the error of the plan; starts unless it is given"},
    "--from": {"dest": "before", "metavar": "RELEASE", "help": "with --to: the release that the files run now"},
    "--to": {"dest": "after", "metavar": "RELEASE",
             "help": "a later release: judges the files on it, and says what it changes and why"},
    "--format": {"choices": FORMATS, "help":
                 "a table; JSON; patches for git apply; SARIF 2.1.0; GitHub's annotations; JUnit; a comment"},
    "--allow-empty": {"action": "store_true", "help": "exit 0, not 2, where no engine is in the files"},
    "--json": {"action": "store_true", "help": "the same as --format json"},
}  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Prints the outcomes; the exit status that a pipeline acts on."""
    from kvcore.contract.deployed import Tight, check_files, check_lines, check_result, reported
    from kvcore.manifests.files import Source

    sources = [Source(name, _content(name)) for name in _names(arguments.files)]
    found = check_files(sources, arguments.accelerator, Tight(arguments.tight), arguments.target)
    upgrades: tuple[Upgraded, ...] = ()
    if arguments.after is not None:
        from kvcore.preflight.upgrade import upgraded

        found, upgrades = upgraded(found, arguments.before, arguments.after)
    elif arguments.before is not None:
        raise ScenarioError("missing-field", field="--to")
    rows = reported(found)
    kind = arguments.format or ("json" if arguments.json else "text")
    if kind == "json":
        print(json.dumps(check_result(found, rows, upgrades), ensure_ascii=False))
    elif kind == "text":
        print("\n".join((*check_lines(found, rows, colours=_colours()), *_changes(upgrades, arguments))))
        patched = [one.patch.file for one in rows if one.patch is not None]
        if patched:
            folder = os.sep if any(map(os.path.isabs, patched)) else os.getcwd()
            shown = "".join(letter if letter.isprintable() else "?" for letter in folder)
            print(
                f"To take the patches over: the same command with --format patch | git apply (or patch -p1), in {shown}"
            )
    elif kind == "patch":
        sys.stdout.write("".join(one.patch.diff for one in rows if one.patch is not None))
    else:
        from kvcore.contract import reviews

        if kind == "github":
            print("\n".join((*reviews.github_lines(found, rows), *check_lines(found, rows))))
        else:
            writers = {"sarif": reviews.sarif, "junit": reviews.junit, "markdown": reviews.comment}
            print(writers[kind](found, rows))
    is_empty = not found.checked and not found.read.problems
    return 0 if arguments.allow_empty and is_empty else found.status


def _changes(upgrades: Iterable[Upgraded], arguments: argparse.Namespace) -> Iterator[str]:
    """What another release changes, workload by workload."""
    for one in upgrades:
        own = one.after.workload
        before = arguments.before or own.release or "as it is"
        name = shorten(own.name or own.model or "?", 60)
        yield ""
        verdicts = f"{one.before.outcome.value} -> {one.after.outcome.value}"
        yield f"{name}: {shorten(before, 40)} -> {shorten(arguments.after, 40)}: {verdicts}"
        if one.difference is not None:
            from kvcore.cli.people import difference_lines, own_words

            yield from difference_lines(one.difference, (before, arguments.after), own_words())


def _names(given: Iterable[str]) -> Iterator[str]:
    """The files that are meant, each once: folders and patterns with * in the order of their names."""
    from kvcore.manifests.files import MAX_FILES, files_under

    seen: set[str] = set()
    for text in given:
        paths = [text]
        if glob.has_magic(text) and not Path(text).exists():
            paths = sorted(islice(glob.iglob(text, recursive=True), MAX_FILES))
        for path in paths:
            for name in map(_from_here, _with_variables(path, files_under(path))):
                if name not in seen:
                    seen.add(name)
                    yield name


def _with_variables(path: str, names: Iterable[str]) -> Iterator[str]:
    """Files with the `.env` beside a Compose file that is named alone, from which Compose fills in variables.

    Source: Compose's documentation, "Set, use, and manage variables": `.env` of the project directory.
    """
    yield from names
    beside = Path(path).parent / ".env"
    if _COMPOSE.search(Path(path).name) and Path(path).is_file() and beside.is_file():
        yield str(beside)


def _from_here(name: str) -> str:
    """A file from the present folder on where it lies below it, else by its whole path: patches take no other."""
    if name == "-" or not (os.path.isabs(name) or ".." in Path(name).parts):
        return name
    whole, here = os.path.abspath(name), os.path.join(os.getcwd(), "")
    return whole.removeprefix(here) or name


def _content(name: str) -> bytes:
    """A file up to one byte beyond the largest that is read. Raises OSError."""
    from kvcore.manifests.files import MAX_BYTES

    if name == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with Path(name).open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _colours() -> bool:
    """Whether standard output is a terminal that takes colours (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
