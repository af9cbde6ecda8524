"""A log counted in a process of its own, which the kernel ends when it computes for too long or takes too much memory.

A stranger's tokenizer.json has patterns that may backtrack for ever, and chains of steps that may take any memory; a
Parquet file of some hundred bytes unpacks to gigabytes before anything of it can be counted. Nothing in the server
waits for them. The log goes over a pipe, no part of it into a file, and what comes back are counts.
"""

from __future__ import annotations

import json
import os
import re
import signal
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
from msgspec import Struct

from kvcore.base.errors import WorkloadError
from kvcore.workload.counting import OUT_OF_MEMORY
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import MAX_LOG_BYTES, Reading
from kvcore.workload.tokenizer import MAX_TOKENIZER_BYTES

CPU_SECONDS: Final = 120
"""Of one log: a choice, far above what our tests take."""
WAIT_SECONDS: Final = 300.0
"""Of one log, where the machine is busy."""
MEMORY_BYTES: Final = 768 << 20
"""Of a tokenizer and one text at a time. The largest vocabularies take 360 to 500 MiB (250,000 words; BPE, Unigram), a
text some 150 bytes a byte more: 2 MB of it fit."""
PARQUET_CPU_SECONDS: Final = 60
"""Of logs with a Parquet file among them: a million rows take half of it."""
PARQUET_MEMORY_BYTES: Final = 512 << 20
"""50 MiB of any kind take less."""
MAX_AT_ONCE: Final = 1
"""Logs of the whole server that are counted by a tokenizer; as many more with a Parquet file. All of them, the server
and what answers its API fit into the memory of a replica (docs/hosting.md)."""
PLACE_SECONDS: Final = 60.0
"""How long a log with a Parquet file, which is read within some seconds, waits for its turn."""
MAX_ANSWER_BYTES: Final = 64 << 20
PIECE_BYTES: Final = 1 << 18
LOOK_SECONDS: Final = 0.2
LAST_WORDS_BYTES: Final = 4096
_LIMITS: Final = (
    OUT_OF_MEMORY,
    *(-getattr(signal, name) for name in ("SIGKILL", "SIGXCPU") if hasattr(signal, name)),
)
"""Statuses of a process that the kernel ended for its time or memory, and of one that Python got no memory for."""
_NO_MEMORY: Final = re.compile(rb"memory allocation of \d+ bytes failed|std::bad_alloc")
"""What Rust and C++ say before they abort for want of it, as they do for other faults."""
_KEPT_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
_PLACES: Final = threading.BoundedSemaphore(MAX_AT_ONCE)
_PARQUET_PLACES: Final = threading.BoundedSemaphore(MAX_AT_ONCE)

_SPARING: Final = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    # Arrow's own allocator and glibc's arenas reserve gigabytes of addresses that they may never use.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}

Look = Callable[[int], None]
"""Called again and again with how many bytes of the log the other process has taken; what it raises ends that."""


class End(Struct, frozen=True, kw_only=True):
    """How the other process ended."""

    answer: bytes
    """As far as it came."""
    by_limit: bool
    """Whether time or memory ended it: the kernel, or itself where it was refused memory."""


def counted_apart(
    tokenizer: bytes,
    files: Sequence[bytes],
    columns: tuple[tuple[str, str], ...] = (),
    look: Look = lambda taken: None,
    cpu_seconds: int = CPU_SECONDS,
) -> RequestLog:
    """Lengths of a log, whose texts a tokenizer.json counts.

    Raises WorkloadError as `read_request_logs`, and `tokenizer-unreadable`, `tokenizer-failed`, `tokenizer-ended`,
    `tokenizer-busy`, `input-too-large`, `request-log-needs`.
    """
    if find_spec("tokenizers") is None:
        raise WorkloadError("request-log-needs", format="tokenizer.json", package="tokenizers")
    if len(tokenizer) > MAX_TOKENIZER_BYTES:
        raise WorkloadError("input-too-large", field="tokenizer", limit=f"{MAX_TOKENIZER_BYTES >> 20} MiB")
    if sum(map(len, files)) > MAX_LOG_BYTES:
        raise WorkloadError("request-log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
    reading = Reading(columns=columns, max_bytes=MAX_LOG_BYTES)
    with _place():
        parts = _parts(files, reading, cpu_seconds, MEMORY_BYTES, tokenizer)
        end = _exchange(parts, look, cpu_seconds)
    log = _log_of(end.answer)
    if log is None and end.by_limit:
        raise WorkloadError("tokenizer-ended", field="tokenizer", limit=str(cpu_seconds))
    if log is None:
        raise WorkloadError("tokenizer-failed", field="tokenizer")
    return log


def read_apart(files: Sequence[bytes], reading: Reading, look: Look = lambda taken: None) -> RequestLog:
    """Lengths of logs that have a stranger's Parquet file among them.

    Raises WorkloadError as `read_request_logs`, `parquet-ended` and `parquet-busy`; `request-log-damaged` where the
    package broke off on it.
    """
    if reading.max_bytes is not None and sum(map(len, files)) > reading.max_bytes:
        raise WorkloadError("request-log-too-large", limit=f"{reading.max_bytes >> 20} MiB")
    with _place(_PARQUET_PLACES, "parquet-busy", PLACE_SECONDS):
        parts = _parts(files, reading, PARQUET_CPU_SECONDS, PARQUET_MEMORY_BYTES)
        end = _exchange(parts, look, PARQUET_CPU_SECONDS)
    log = _log_of(end.answer)
    if log is None and end.by_limit:
        raise WorkloadError("parquet-ended", limit=str(PARQUET_CPU_SECONDS))
    if log is None:
        raise WorkloadError("request-log-damaged", reason="its reader broke off")
    return log


def _parts(
    files: Sequence[bytes],
    reading: Reading,
    cpu_seconds: int,
    memory_bytes: int,
    tokenizer: bytes | None = None,
) -> tuple[bytes, ...]:
    """What goes over the pipe: a line that says what follows, the tokenizer, the files."""
    head = {
        "tokenizer_bytes": None if tokenizer is None else len(tokenizer),
        "file_bytes": [len(file) for file in files],
        "columns": reading.columns,
        "max_bytes": reading.max_bytes,
        "max_requests": reading.max_requests,
        "cpu_seconds": cpu_seconds,
        "memory_bytes": memory_bytes,
    }
    return json.dumps(head).encode() + b"\n", tokenizer or b"", *files


def _log_of(answer: bytes) -> RequestLog | None:
    """What the other process says; None where that is not whole."""
    try:
        first, _, packed = answer.partition(b"\n")
        error = json.loads(first)
        log = None if error else msgspec.msgpack.decode(packed, type=RequestLog)
    except (ValueError, msgspec.MsgspecError):
        return None
    if log is None:
        raise WorkloadError(error["code"], field=error["field"], **error["params"])
    return log


@contextmanager
def _place(
    places: threading.BoundedSemaphore = _PLACES, code: str = "tokenizer-busy", seconds: float = 0.0
) -> Iterator[None]:
    if not places.acquire(timeout=seconds):
        raise WorkloadError(code, field="tokenizer" if places is _PLACES else "")
    try:
        yield
    finally:
        places.release()


def _exchange(parts: Sequence[bytes], look: Look, cpu_seconds: int) -> End:
    """What the other process answers to `parts`."""
    found: list[bytes] = []
    last_words = bytearray()
    taken = [0]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcore.workload.counting"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=_environment(), start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    source, sink, errors = process.stdout, process.stdin, process.stderr
    threads = (
        threading.Thread(target=lambda: found.append(source.read(MAX_ANSWER_BYTES)), daemon=True),
        threading.Thread(target=_write, args=(sink, parts, taken), daemon=True),
        threading.Thread(target=_listen, args=(errors, last_words), daemon=True),
    )
    until = time.monotonic() + max(WAIT_SECONDS, cpu_seconds)
    try:
        for thread in threads:
            thread.start()
        while threads[0].is_alive() and time.monotonic() < until:
            look(taken[0])
            threads[0].join(LOOK_SECONDS)
        is_late = threads[0].is_alive()
    finally:
        process.kill()
        process.wait()
        for thread in threads:
            thread.join()
        source.close()
        errors.close()
    # A process that ended by itself keeps its status: killed above is what had closed its pipe, or was late.
    by_limit = is_late or process.returncode in _LIMITS or _NO_MEMORY.search(last_words) is not None
    return End(answer=found[0] if found else b"", by_limit=by_limit)


def _listen(errors: IO[bytes], last_words: bytearray) -> None:
    """The end of what the other process says as it dies. It may have a text in it: it is searched and nothing else."""
    while piece := os.read(errors.fileno(), LAST_WORDS_BYTES):
        last_words += piece
        del last_words[:-LAST_WORDS_BYTES]


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
    return {**known, "PYTHONPATH": path, **_SPARING}
