"""One place on a whole server for what takes much memory: its pages and the workers of its API share it.

A server makes a file and names it in the environment of its processes, where one at a time holds a lock on it.
Elsewhere, on a command line, nothing waits.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

VARIABLE: Final = "KVPLANNER_PLACE"
LOOK_SECONDS: Final = 0.1
_here: Final = threading.Lock()
"""A lock on a file is of a process: among its threads this one decides."""

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows has no such lock: there the place is that of one process

    def _locked(file: IO[bytes]) -> bool:
        return not file.closed

else:

    def _locked(file: IO[bytes]) -> bool:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return False
        return True


def share_place() -> None:
    """Makes the place of a server, for this process and those that it starts."""
    if VARIABLE not in os.environ:
        handle, path = tempfile.mkstemp(prefix="kv-planner-place-")
        os.close(handle)
        os.environ[VARIABLE] = path
        atexit.register(Path(path).unlink, missing_ok=True)


@contextmanager
def place(seconds: float) -> Iterator[bool]:
    """Holds the server's place; False where it was not free within so many seconds. True where there is no server.

    Example:
        >>> with place(0) as is_mine:
        ...     is_mine
        True
    """
    path = os.environ.get(VARIABLE)
    if path is None:
        yield True
        return
    until = time.monotonic() + seconds
    if not _here.acquire(timeout=seconds):
        yield False
        return
    try:
        with open(path, "ab") as file:
            while not (is_mine := _locked(file)) and time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
            yield is_mine
    finally:
        _here.release()
