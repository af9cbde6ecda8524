"""python -m kvcore.workload.counting: counts one log under limits that the kernel enforces (counted_apart.py).

A head as a line of JSON comes in, then the tokenizer, where there is one, and the files; a line of JSON and the counts
go out, never a text.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress
from typing import Any, BinaryIO, Final

import msgspec

from kvcore.base.errors import KvPlannerError
from kvcore.workload.records import read_logs_here
from kvcore.workload.requests import Reading
from kvcore.workload.tokenizer import counter_of

OUT_OF_MEMORY: Final = 77
"""The status of a process that ends for it by itself."""
FIRST_TO_END: Final = 1000
"""The most that /proc/self/oom_score_adj takes: proc(5)."""
MAPPED_BYTES: Final = 384 << 20
"""Of files and of addresses that are kept free: a choice, above what Arrow takes of them."""


def limit_this_process(cpu_seconds: int, memory_bytes: int) -> None:
    """From here on: so much computing and memory, behind all others, and no core file with what it read.

    Where the machine or the container is out of memory all the same, this process is what the kernel ends.
    """
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(str(FIRST_TO_END))
    try:
        import resource
    except ImportError:  # Windows has none: there the server's limit of waiting is the only one
        return
    with suppress(OSError):  # systemd's filter of calls may forbid it, which is no reason to count nothing
        os.nice(10)
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_seconds),
        # What it writes to is what takes memory; addresses alone are of files too, 250 MiB for Arrow's libraries.
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_AS, memory_bytes + MAPPED_BYTES),
    ):
        known = resource.getrlimit(what)[1]
        wanted = most if known == resource.RLIM_INFINITY else min(most, known)
        resource.setrlimit(what, (wanted, wanted))


def answer(head: dict[str, Any], source: BinaryIO) -> bytes:
    """What goes out for what comes in."""
    try:
        size = head["tokenizer_bytes"]
        counter = None if size is None else counter_of(source.read(size).decode("utf-8", "replace"))
        files = [io.BytesIO(source.read(size)) for size in head["file_bytes"]]
        columns = tuple((field, name) for field, name in head["columns"])
        limits = {name: head[name] for name in ("max_bytes", "max_requests")}
        log = read_logs_here(files, reading=Reading(counter=counter, columns=columns, **limits))
    except KvPlannerError as error:
        said = {name: str(text) for name, text in error.params.items()}
        return json.dumps({"code": error.code, "field": error.field, "params": said}).encode() + b"\n"
    return b"{}\n" + msgspec.msgpack.encode(log)


def main() -> None:
    """One log, and the end."""
    out = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints may have a text in it. What it says as it dies, counted_apart.py looks at and keeps not.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    head = json.loads(sys.stdin.buffer.readline())
    limit_this_process(head["cpu_seconds"], head["memory_bytes"])
    # At once: who asked ends this process as soon as its pipe closes, and would find that status in place of its own.
    try:
        out.write(answer(head, sys.stdin.buffer))
        out.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:  # a panic is no Exception
        os._exit(1)


if __name__ == "__main__":
    main()
