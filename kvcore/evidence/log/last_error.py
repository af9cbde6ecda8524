"""The last error of Python in a start that no known error explains: the line that a person would look for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kvcore.evidence.log.cleaned import WINDOW, LogText
from kvcore.evidence.log.lines import message_of

LINES_BACK: Final = 4000
"""Lines above the end of a failed start that are looked at; every rank prints a traceback."""
LINE_CHARACTERS: Final = 600
"""Of one line; the name of an error stands at its beginning, behind the process and the place."""
LINE_STEPS: Final = 8
GIVING_UP: Final = (
    "Enginecoreinitializationfailed",
    "Engineprocessfailedtostart",
    "WorkerProcinitializationfailed",
    "EngineCorefailedtostart",
    "WorkerProcfailedtostart",
)
"""Source: vllm/v1/engine/core.py, vllm/v1/executor/multiproc_executor.py (0.11.0, 0.33.0)."""

_ERROR: Final = re.compile(r"(?:^|[\])]:? )([A-Za-z_][\w.]{0,120}(?:Error|Exception)): {0,4}\S")
_WENT_ON: Final = re.compile(r"INFO\d\d-\d\d")
WENT_ON_CHARACTERS: Final = len("INFO01-01")
_TRACEBACK: Final = "Traceback(mostrecentcalllast)"
_VALIDATION: Final = "ValidationError"


def last_error(log: LogText, start: int, end: int) -> int | None:
    """Index of the line with the last error before the engine gave up, between two offsets of a log.

    Without a line that says so, the last error behind a traceback that nothing follows. None where there is neither.

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> log = clean_log("ImportError: libcudart.so.12\\nRuntimeError: Engine core initialization failed.")
        >>> last_error(log, 0, len(log.text))
        0
    """
    given_up = max((log.rfind(text, start, end) for text in GIVING_UP), default=-1)
    stop = given_up if given_up >= 0 else end - 1
    for index in _errors_upwards(log, start, stop):
        if given_up >= 0:
            return index
        offset = log.starts[index]
        is_raised = log.rfind(_TRACEBACK, start, offset) >= 0
        return index if is_raised and not _went_on(log, offset + 1, end) else None
    return None


def _went_on(log: LogText, start: int, end: int) -> bool:
    windows = range(start, end, WINDOW)
    return any(
        _WENT_ON.search(log.text, at, min(end, at + WINDOW + WENT_ON_CHARACTERS)) is not None
        for at in windows
    )


def _errors_upwards(log: LogText, start: int, stop: int) -> Iterator[int]:
    if stop < start:
        return
    last, first = log.line_index(stop), log.line_index(start)
    for index in range(last, max(first, last - LINES_BACK) - 1, -1):
        if not log.steps.take(LINE_STEPS):
            return
        message = message_of(log.lines[index][:LINE_CHARACTERS])
        found = _ERROR.search(message)
        if found is None or any(text in "".join(message.split()) for text in GIVING_UP):
            continue
        says_it_below = found[1].endswith(_VALIDATION) and index + 1 < len(log.lines)
        yield index + 1 if says_it_below and log.starts[index + 1] < len(log.text) else index
