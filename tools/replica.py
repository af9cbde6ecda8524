"""python -m tools.replica: the memory and the disk of one replica, from the limits in the code; --write into the docs.

Everything at its limit at the same time has to fit: where it does not, the kernel ends a process, on Kubernetes all.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from kvcore.api.limits import ALL_BODY_BYTES, Settings
from kvcore.workload.logs import MEMORY_BYTES, PARQUET_MEMORY_BYTES
from pages.ui.fair import limits

MIB: Final = 1 << 20
REPLICA_BYTES: Final = 2048 * MIB
SERVER_BYTES: Final = 400 * MIB
"""The pages' server without what visitors keep in it. Measured 2026-11-26: 179 MiB with one page, 206 MiB with 150 open
ones of four kinds; `make soak` has its growth, and tests/test_replica.py that it stays below."""
WORKER_BYTES: Final = 100 * MIB
"""A worker of the API. Measured: 83 MiB after the largest sweep and the largest log of requests. What takes more, a
start-up log of more than 4 MiB, takes the one place instead, and a worker that had it is replaced."""
READING_BYTES: Final = 300 * MIB
"""What a start-up log of 50 MiB takes to read. Measured: 240 MiB."""
TEMPORARY_BYTES: Final = 128 * MIB
"""Size of /tmp, which is memory: uploads that arrive, and room for what the interpreter needs."""
MARKS: Final = ("<!-- replica: python -m tools.replica --write -->", "<!-- /replica -->")


class Row(NamedTuple):
    """A part of a replica's memory at its limit."""

    what: str
    size: int
    where: str


def rows() -> list[Row]:
    """All parts."""
    heavy = max(MEMORY_BYTES, PARQUET_MEMORY_BYTES, READING_BYTES)
    workers = Settings().workers
    return [
        Row("pages' server, 400 open pages", SERVER_BYTES, "measured"),
        Row("uploads that are kept, texts in fields", limits.KEPT_BYTES, "`pages/ui/fair/limits.py`"),
        Row("large messages that arrive", limits.PENDING_BYTES, "`pages/ui/fair/limits.py`"),
        Row("`/tmp`: uploads that arrive", TEMPORARY_BYTES, "`tmpfs`, `emptyDir`"),
        Row("bodies of requests to the API", ALL_BODY_BYTES, "`kvcore/api/limits.py`"),
        Row(f"{workers} workers of the API", workers * WORKER_BYTES, "measured"),
        Row(
            "one place for a tokenizer, a Parquet file or a large start-up log",
            heavy,
            "`kvcore/base/place.py`",
        ),
    ]


def table() -> str:
    """The table of the docs."""
    found = rows()
    lines = ["| of a replica's memory | MiB | where |", "|---|---|---|"]
    lines += [f"| {row.what} | {row.size // MIB:,} | {row.where} |" for row in found]
    total = sum(row.size for row in found)
    lines.append(
        f"| **everything at its limit at once** | **{total // MIB:,}** of {REPLICA_BYTES // MIB:,} | |"
    )
    return "\n".join(lines)


def written(text: str) -> str:
    """A document with the table between its marks."""
    begin, end = map(re.escape, MARKS)
    return re.sub(f"{begin}.*{end}", f"{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}", text, flags=re.DOTALL)


def main() -> int:
    """Prints the table, or writes it."""
    path = Path(__file__).resolve().parents[1] / "docs" / "hosting.md"
    if "--write" in sys.argv[1:]:
        path.write_text(written(path.read_text("utf-8")), "utf-8")
    else:
        print(table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
