"""Request logs are read here: in this process, or in one of their own that the kernel ends at a limit.

A stranger's tokenizer.json has patterns that may backtrack for ever, and chains of steps that may take any memory; a
Parquet file of some hundred bytes unpacks to gigabytes before anything of it can be counted. So that nothing in the
server waits for them, `python -m kvcore.workload.logs` counts such a log under limits of time and memory. The log goes
over a pipe and into no file: a head as a line of JSON, the tokenizer if there is one, and the files. What comes back is
a line of JSON and the counts, never a text.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.place import place
from kvcore.workload.layers import READING
from kvcore.workload.meter import Progress
from kvcore.workload.opening import is_parquet
from kvcore.workload.records import RequestLog, read_logs_here
from kvcore.workload.requests import MAX_LOG_BYTES, Reading
from kvcore.workload.texts import MAX_TOKENIZER_BYTES, counter_of

OUT_OF_MEMORY: Final = 77
"""Exit status of a process that ran out of memory and ended by itself."""
FIRST_TO_END: Final = 1000
"""The largest value of /proc/self/oom_score_adj: the kernel ends this process first. Source: proc(5)."""
MAPPED_BYTES: Final = 384 << 20
"""Address space for libraries and reserves, on top of the memory limit: a choice, more than Arrow takes."""
CPU_SECONDS: Final = 120
"""CPU time for one log: a choice, far above what the tests take."""
WAIT_SECONDS: Final = 300.0
"""Wall time for one log on a busy machine."""
MEMORY_BYTES: Final = 768 << 20
"""Memory for a tokenizer and one text. The largest vocabularies take 360 to 500 MiB (250,000 words; BPE, Unigram), a
text about 150 bytes a byte: 2 MB of it fit."""
PARQUET_CPU_SECONDS: Final = 60
"""CPU time for logs with a Parquet file: a million rows take half of it."""
PARQUET_MEMORY_BYTES: Final = 512 << 20
"""Memory for logs with a Parquet file: 50 MiB of any kind take less."""
PLACE_SECONDS: Final = 60.0
"""How long a log with a Parquet file waits for its turn. One that is counted by a tokenizer does not wait: the one
before it may take minutes."""
MAX_ANSWER_BYTES: Final = 64 << 20
PIECE_BYTES: Final = 1 << 18
LOOK_SECONDS: Final = 0.2
LAST_WORDS_BYTES: Final = 4096
_LIMITS: Final = (
    OUT_OF_MEMORY,
    *(-getattr(signal, name) for name in ("SIGKILL", "SIGXCPU") if hasattr(signal, name)),
)
"""Exit statuses of a process that the kernel ended at a limit, or for which Python got no memory."""
_NO_MEMORY: Final = re.compile(rb"memory allocation of \d+ bytes failed|std::bad_alloc")
"""Last words of Rust and C++ before they abort without memory; they abort for other faults as well."""
_KEPT_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
_SPARING: Final = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    # Arrow's own allocator and glibc's arenas reserve gigabytes of addresses that they may never use.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}

Look = Callable[[int], None]
"""Called again and again with the bytes of the log that the other process has read; an exception ends that process."""


class End(Struct, frozen=True, kw_only=True):
    """How the other process ended."""

    answer: bytes
    """Its output, complete or not."""
    by_limit: bool
    """Whether a limit of time or memory ended it."""


def read_request_log(
    lines: Iterable[bytes], progress: Progress | None = None, reading: Reading = READING
) -> RequestLog:
    """Lengths of all usable records of one file. Raises as `read_request_logs`.

    Example:
        >>> log = read_request_log([b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}', b'oops'])
        >>> log.traffic.requests, log.traffic.taken.longest_tokens, log.unusable_lines
        (1, 980, (2,))
    """
    return read_request_logs([lines], progress, reading)


def read_request_logs(
    files: Iterable[Iterable[bytes]], progress: Progress | None = None, reading: Reading = READING
) -> RequestLog:
    """Lengths of all usable records of several files, each in a format of its own.

    Files under a limit of bytes are a visitor's: if one of them is Parquet, they are read in a process of their own.

    Raises WorkloadError `request-log-too-large`, `request-log-too-long`, `request-log-not-text`; without any usable
    request `request-log-columns`, `request-log-no-length`, `request-log-absurd` or `request-log-empty`; with Parquet
    `parquet-ended` and `parquet-busy`.
    """
    if reading.max_bytes is None or reading.counter is not None:
        return read_logs_here(files, progress, reading)
    given = [*files]
    if not any(map(is_parquet, given)):
        return read_logs_here(given, progress, reading)
    contents = [_content(source, reading.max_bytes) for source in given]
    return read_apart(contents, reading, progress or (lambda taken: None))


def _content(source: Iterable[bytes], most_bytes: int) -> bytes:
    if hasattr(source, "read"):
        return bytes(source.read(most_bytes + 1))
    return b"".join(source)


def counted_apart(
    tokenizer: bytes,
    files: Sequence[bytes],
    columns: tuple[tuple[str, str], ...] = (),
    look: Look = lambda taken: None,
    cpu_seconds: int = CPU_SECONDS,
    *,
    only: tuple[tuple[str, str], ...] = (),
    since: float | None = None,
    until: float | None = None,
) -> RequestLog:
    """Lengths of a log whose texts are counted by a tokenizer.json, in a process of its own.

    Raises WorkloadError as `read_request_logs`, and `tokenizer-unreadable`, `tokenizer-failed`, `tokenizer-ended`,
    `tokenizer-busy`, `input-too-large`, `request-log-needs`.
    """
    if find_spec("tokenizers") is None:
        raise WorkloadError("request-log-needs", format="tokenizer.json", package="tokenizers")
    if len(tokenizer) > MAX_TOKENIZER_BYTES:
        raise WorkloadError("input-too-large", field="tokenizer", limit=f"{MAX_TOKENIZER_BYTES >> 20} MiB")
    if sum(map(len, files)) > MAX_LOG_BYTES:
        raise WorkloadError("request-log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
    reading = Reading(columns=columns, only=only, since=since, until=until, max_bytes=MAX_LOG_BYTES)
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
    """Lengths of logs with a stranger's Parquet file among them, in a process of their own.

    Raises WorkloadError as `read_request_logs`; `request-log-damaged` if the package aborted.
    """
    if reading.max_bytes is not None and sum(map(len, files)) > reading.max_bytes:
        raise WorkloadError("request-log-too-large", limit=f"{reading.max_bytes >> 20} MiB")
    with _place("parquet-busy", "", PLACE_SECONDS):
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
    """Parts to send over the pipe: a head that describes them, the tokenizer, the files."""
    head = {
        "tokenizer_bytes": None if tokenizer is None else len(tokenizer),
        "file_bytes": [len(file) for file in files],
        "columns": reading.columns,
        "max_bytes": reading.max_bytes,
        "max_requests": reading.max_requests,
        "only": reading.only,
        "since": reading.since,
        "until": reading.until,
        "cpu_seconds": cpu_seconds,
        "memory_bytes": memory_bytes,
    }
    return json.dumps(head).encode() + b"\n", tokenizer or b"", *files


def _log_of(answer: bytes) -> RequestLog | None:
    """The log in an answer; None if the answer is incomplete. Raises the WorkloadError in it."""
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
def _place(code: str = "tokenizer-busy", field: str = "tokenizer", seconds: float = 0.0) -> Iterator[None]:
    """The server's one place for what takes much memory (docs/hosting.md has the sum). Raises WorkloadError `code`."""
    with place(seconds) as is_mine:
        if not is_mine:
            raise WorkloadError(code, field=field)
        yield


def _exchange(parts: Sequence[bytes], look: Look, cpu_seconds: int) -> End:
    """Starts the other process, sends `parts` and waits for its end."""
    found: list[bytes] = []
    last_words = bytearray()
    taken = [0]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcore.workload.logs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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
    # A process that ended by itself keeps its status; killed above is one that closed its pipe, or was late.
    by_limit = is_late or process.returncode in _LIMITS or _NO_MEMORY.search(last_words) is not None
    return End(answer=found[0] if found else b"", by_limit=by_limit)


def _listen(errors: IO[bytes], last_words: bytearray) -> None:
    """Collects the last bytes of stderr. They may have a visitor's text in them and are only searched, never shown."""
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
    except OSError:  # the process has ended: its answer or its status says why
        return


def _environment() -> dict[str, str]:
    """The path of this package, and no secret of the server."""
    root = str(Path(__file__).resolve().parents[2])
    known = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    others = os.environ.get("PYTHONPATH")
    path = root if not others else f"{root}{os.pathsep}{others}"
    return {**known, "PYTHONPATH": path, **_SPARING}


def limit_this_process(cpu_seconds: int, memory_bytes: int) -> None:
    """Limits CPU time and memory, lowers the priority, and forbids a core file with what was read.

    If the machine or the container still runs out of memory, the kernel ends this process first.
    """
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(str(FIRST_TO_END))
    try:
        import resource
    except ImportError:  # Windows has none: there only the server's waiting time is limited
        return
    with suppress(OSError):  # systemd's system call filter may forbid it
        os.nice(10)
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_seconds),
        # Written memory counts; the address space also has mapped files, 250 MiB for Arrow's libraries.
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_AS, memory_bytes + MAPPED_BYTES),
    ):
        known = resource.getrlimit(what)[1]
        wanted = most if known == resource.RLIM_INFINITY else min(most, known)
        resource.setrlimit(what, (wanted, wanted))


def answer(head: dict[str, Any], source: BinaryIO) -> bytes:
    """Counts one log; returns the counts, or the coded error."""
    try:
        size = head["tokenizer_bytes"]
        counter = None if size is None else counter_of(source.read(size).decode("utf-8", "replace"))
        files = [io.BytesIO(source.read(size)) for size in head["file_bytes"]]
        pairs: dict[str, Any] = {key: tuple(map(tuple, head[key])) for key in ("columns", "only")}
        limits = {name: head[name] for name in ("max_bytes", "max_requests", "since", "until")}
        log = read_logs_here(files, reading=Reading(counter=counter, **pairs, **limits))
    except KvPlannerError as error:
        said = {name: str(text) for name, text in error.params.items()}
        return json.dumps({"code": error.code, "field": error.field, "params": said}).encode() + b"\n"
    return b"{}\n" + msgspec.msgpack.encode(log)


def main() -> None:
    """Counts the log on stdin, writes the answer to stdout, and ends."""
    out = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints may have a visitor's text in it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    head = json.loads(sys.stdin.buffer.readline())
    limit_this_process(head["cpu_seconds"], head["memory_bytes"])
    # With _exit, at once: when the pipe closes the server kills this process, which would replace its status.
    try:
        out.write(answer(head, sys.stdin.buffer))
        out.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:  # a panic is no Exception
        os._exit(1)


if __name__ == "__main__":
    main()
