"""What a command reads and writes: files, standard input, a word to the person who waits, a reader that went away."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, Final

BROKEN_PIPE: Final = 141
"""The exit status of a program whose reader went away, as a shell has it."""


def opened_file(path: str) -> AbstractContextManager[BinaryIO]:
    """A file by its path, or standard input for `-`."""
    if path == "-" and sys.stdin.isatty():
        waiting("reading from the terminal; Ctrl-D ends it")
    return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")


def waiting(what: str) -> None:
    """Says on a terminal what a command waits for."""
    if sys.stderr.isatty():
        print(f"kvcore: {what} ...", file=sys.stderr, flush=True)


def without_reader() -> int:
    """Ends quietly where nobody reads any more: as `head` does it to a program before it."""
    with suppress(OSError, ValueError):  # no file behind it: nothing is left to write at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
