"""Logs that a stranger cannot fill: each kind of line so often, and no stack for what a browser sent wrongly."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LOGGERS: Final = ("streamlit", "uvicorn", "kvcore")
KINDS: Final = 256
"""Kinds of lines that are remembered; a kind is the text in the program, without what is put into it."""
BURST: Final = 10
SECONDS: Final = 60.0
"""Of one kind so many lines, then one in this time."""
LONGEST: Final = 2000
"""Characters of a line, its stack included."""
_WITHOUT_STACK: Final = (
    "Error deserializing back message", "Error processing back message", "Uncaught app execution"
)  # fmt: skip
"""Told by a browser's fault, or told already with its place (kvcore/base/errors.py:defect)."""


class Quiet(logging.Filter):
    """Lets a kind of line through only so often; the next one says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        now = self._clock()
        kind = (record.name, str(record.msg)[:80])
        left, then, dropped = self._kinds.get(kind, (float(BURST), now, 0))
        left = min(float(BURST), left + (now - then) / SECONDS)
        if len(self._kinds) >= KINDS and kind not in self._kinds:
            self._kinds.pop(next(iter(self._kinds)))
        if left < 1:
            self._kinds[kind] = (left, now, dropped + 1)
            return False
        self._kinds[kind] = (left - 1, now, 0)
        said = record.getMessage()
        if record.exc_info and said.startswith(_WITHOUT_STACK):
            record.exc_info = record.exc_text = None
        if dropped or len(said) > LONGEST:
            record.msg, record.args = (
                f"{said[:LONGEST]}{f' ({dropped} like it left out)' if dropped else ''}",
                (),
            )
        return True


def install() -> None:
    """Puts the filter before every handler of the server's loggers, now and of those made later."""
    quiet = Quiet()
    make = logging.Logger.handle

    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        if not self.name.startswith(LOGGERS) or quiet.filter(record):
            make(self, record)

    logging.Logger.handle = handle  # type: ignore[method-assign]
