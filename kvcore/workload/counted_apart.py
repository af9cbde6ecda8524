"""A log counted by a stranger's tokenizer, in a process of its own that the kernel ends when it computes for too long.

A tokenizer.json has patterns that may backtrack for ever, and chains of steps that may take any memory: nothing in the
server waits for them. The log goes over a pipe, no part of it into a file, and what comes back are counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

import msgspec

from kvcore.errors import WorkloadError
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import MAX_LOG_BYTES
from kvcore.workload.tokenizer import MAX_TOKENIZER_BYTES

CPU_SECONDS: Final = 120
"""Of one log: a choice, far above what our tests take."""
WAIT_SECONDS: Final = 300.0
"""Of one log, where the machine is busy."""
MEMORY_BYTES: Final = 3 << 30
"""Of addresses: a choice."""
MAX_AT_ONCE: Final = 2
"""Logs of the whole server."""
MAX_ANSWER_BYTES: Final = 64 << 20
PIECE_BYTES: Final = 1 << 18
LOOK_SECONDS: Final = 0.2
_KEPT_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
_PLACES: Final = threading.BoundedSemaphore(MAX_AT_ONCE)

Look = Callable[[int], None]
"""Called again and again with how many bytes of the log the other process has taken; what it raises ends that."""


def counted_apart(
    tokenizer: bytes,
    files: Sequence[bytes],
    columns: tuple[tuple[str, str], ...] = (),
    look: Look = lambda taken: None,
    cpu_seconds: int = CPU_SECONDS,
) -> RequestLog:
    """Lengths of a log, whose texts a tokenizer.json counts.

    Raises WorkloadError as `read_request_logs`, and `tokenizer-unreadable`, `tokenizer-ended`, `tokenizer-busy`,
    `input-too-large`, `request-log-needs`.
    """
    if find_spec("tokenizers") is None:
        raise WorkloadError("request-log-needs", format="tokenizer.json", package="tokenizers")
    if len(tokenizer) > MAX_TOKENIZER_BYTES:
        raise WorkloadError("input-too-large", field="tokenizer", limit=f"{MAX_TOKENIZER_BYTES >> 20} MiB")
    if sum(map(len, files)) > MAX_LOG_BYTES:
        raise WorkloadError("request-log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
    head = {
        "tokenizer_bytes": len(tokenizer),
        "file_bytes": [len(file) for file in files],
        "columns": columns,
        "cpu_seconds": cpu_seconds,
        "memory_bytes": MEMORY_BYTES,
    }
    with _place():
        answer = _exchange((json.dumps(head).encode() + b"\n", tokenizer, *files), look, cpu_seconds)
    try:
        first, _, packed = answer.partition(b"\n")
        error = json.loads(first)
        log = None if error else msgspec.msgpack.decode(packed, type=RequestLog)
    except (ValueError, msgspec.MsgspecError):
        # It ended before its answer did: by a limit, or because the package did.
        raise WorkloadError("tokenizer-ended", field="tokenizer", limit=str(cpu_seconds)) from None
    if log is None:
        raise WorkloadError(error["code"], field=error["field"], **error["params"])
    return log


@contextmanager
def _place() -> Iterator[None]:
    if not _PLACES.acquire(blocking=False):
        raise WorkloadError("tokenizer-busy", field="tokenizer")
    try:
        yield
    finally:
        _PLACES.release()


def _exchange(parts: Sequence[bytes], look: Look, cpu_seconds: int) -> bytes:
    """What the other process answers to `parts`; as far as it came, where it ended before."""
    found: list[bytes] = []
    taken = [0]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcore.workload.counting"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=_environment(), start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    source, sink = process.stdout, process.stdin
    threads = (
        threading.Thread(target=lambda: found.append(source.read(MAX_ANSWER_BYTES)), daemon=True),
        threading.Thread(target=_write, args=(sink, parts, taken), daemon=True),
    )
    until = time.monotonic() + max(WAIT_SECONDS, cpu_seconds)
    try:
        for thread in threads:
            thread.start()
        while threads[0].is_alive() and time.monotonic() < until:
            look(taken[0])
            threads[0].join(LOOK_SECONDS)
    finally:
        process.kill()
        process.wait()
        for thread in threads:
            thread.join()
        source.close()
    return found[0] if found else b""


def _write(sink: IO[bytes], parts: Sequence[bytes], taken: list[int]) -> None:
    try:
        with sink:
            for number, part in enumerate(parts):
                view = memoryview(part)
                for at in range(0, len(part), PIECE_BYTES):
                    written = sink.write(view[at : at + PIECE_BYTES])
                    taken[0] += written if number > 1 else 0
    except OSError:  # the process has ended: what it answered says why, or that it did not
        return


def _environment() -> dict[str, str]:
    """No secret of the server, and where this package is."""
    root = str(Path(__file__).resolve().parents[2])
    known = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    others = os.environ.get("PYTHONPATH")
    path = root if not others else f"{root}{os.pathsep}{others}"
    return {**known, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
