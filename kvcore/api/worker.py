"""python -m kvcore.api.worker: answers questions on its pipes one after another, each within a limit of CPU time.

Questions and answers are frames: two lengths, a head as JSON, and bytes.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from kvcore.api.operations import Asked, answered

LENGTHS: Final = struct.Struct(">II")
"""Bytes of the head and of what follows it."""

try:
    from signal import ITIMER_PROF, setitimer
except ImportError:  # Windows has no such timer: only the server's limit of waiting applies

    def _limit_cpu(seconds: float) -> None:
        """Sets nothing."""

else:

    def _limit_cpu(seconds: float) -> None:
        """Has the kernel end this process after so many seconds of computing; 0 is no limit."""
        setitimer(ITIMER_PROF, seconds)


def frame(head: Mapping[str, Any], body: bytes) -> bytes:
    """A frame as bytes.

    Example:
        >>> import io
        >>> read_frame(io.BytesIO(frame({"a": 1}, b"bytes")))
        ({'a': 1}, b'bytes')
    """
    packed = json.dumps(head).encode()
    return LENGTHS.pack(len(packed), len(body)) + packed + body


def read_frame(source: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Head and body of the next frame; None at the end."""
    lengths = source.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head, body = LENGTHS.unpack(lengths)
    return json.loads(source.read(head)), source.read(body)


def main() -> None:
    """Answers until standard input ends, which it does with the server."""
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets into an answer
    while (read := read_frame(questions)) is not None:
        head, body = read
        _limit_cpu(head.pop("cpu_seconds"))
        started = time.process_time()
        found = answered(Asked(body=body, **head))
        _limit_cpu(0)
        facts = {"status": found.status, "media": found.media, "seconds": time.process_time() - started}
        try:
            answers.write(frame(facts, found.body))
            answers.flush()
        except BrokenPipeError:
            # The server is gone: nobody waits for the answer, and what is still buffered may not be written at exit.
            os._exit(0)


if __name__ == "__main__":
    main()
