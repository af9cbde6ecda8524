"""python -m kvcore.api.worker: answers one question after the other on its pipes, each under a limit of CPU time."""

from __future__ import annotations

import os

from kvcore.api.frames import frame, read_frame
from kvcore.api.operations import Asked, answered

try:
    from signal import ITIMER_PROF, setitimer
except ImportError:  # Windows has none: there the server's limit of waiting is the only one

    def _limit_cpu(seconds: float) -> None:
        """Nothing to set."""

else:

    def _limit_cpu(seconds: float) -> None:
        """The kernel ends this process when it has computed for so long; 0 is no limit."""
        setitimer(ITIMER_PROF, seconds)


def main() -> None:
    """Until standard input ends, which it does with the server."""
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not print into an answer
    while (read := read_frame(questions)) is not None:
        head, body = read
        _limit_cpu(head.pop("cpu_seconds"))
        found = answered(Asked(body=body, **head))
        _limit_cpu(0)
        answers.write(frame({"status": found.status, "media": found.media}, found.body))
        answers.flush()


if __name__ == "__main__":
    main()
