"""A replica of 2 GiB while three clients put files without end: alive, below its limit, and still there for a visitor.

Needs a memory cgroup that this user may make (root, cgroup v1 or v2); `--minutes 10` is the whole run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.fairness import ENVIRONMENT, QUERY, SLIDER, VISITOR, p95
from tools.replica import REPLICA_BYTES, TEMPORARY_BYTES
from tools.server import ROOT, Server, free_port, wait_until_healthy
from tools.soak.visitor import Visitor

GROUPS: Final = Path("/sys/fs/cgroup")
NAMES: Final = {  # version 1, version 2
    "limit": ("memory.limit_in_bytes", "memory.max"),
    "peak": ("memory.max_usage_in_bytes", "memory.peak"),
}
ATTACKERS: Final = 3
TURN_SECONDS: Final = 1.0


class Group:
    """A memory cgroup of its own."""

    def __init__(self, limit: int) -> None:
        self._version = 0 if (GROUPS / "memory").is_dir() else 1
        self.path = GROUPS / ("memory" if not self._version else "") / f"kv-planner-{os.getpid()}"
        self.path.mkdir()
        self._file("limit").write_text(str(limit))

    def _file(self, what: str) -> Path:
        return self.path / NAMES[what][self._version]

    def peak(self) -> int:
        """Most bytes that its processes, and their files in memory, ever took."""
        return int(self._file("peak").read_text())


async def attackers(address: str) -> list[Process]:
    """Three who put files, each with a name of its own."""
    command = ("nice", "-n", "10", sys.executable, "-m", "benchmarks.fairness", "--address", address)
    return [
        await asyncio.create_subprocess_exec(
            *command, "--attack", name, "--client", f"203.0.113.{number}", stdout=PIPE, cwd=ROOT
        )
        for number, name in enumerate(("uploads", "uploads", "uploads", "aborted uploads")[: ATTACKERS + 1])
    ]


async def watched(server: Server, group: Group, seconds: float) -> int:
    """Prints what a visitor had meanwhile; 1 where the server ended or a visit failed."""
    beside = await attackers(server.address)
    taken: list[float] = []
    answers: Counter[str] = Counter()
    until = time.monotonic() + seconds
    async with Visitor(server.address, client=VISITOR) as visitor:
        await visitor.visit(QUERY)
        while time.monotonic() < until and server.process.poll() is None:
            started = time.perf_counter()
            await visitor.set(SLIDER, 0.6 + len(taken) % 20 / 100)
            taken.append(time.perf_counter() - started)
            await asyncio.sleep(TURN_SECONDS)
        failed = bool(visitor.errors) or server.process.poll() is not None
    for one in beside:
        one.terminate()
        said, _ = await one.communicate()
        answers.update(json.loads(said.decode().strip().rpartition("\n")[2] or "{}"))
    print(f"memory: {seconds / 60:g} minutes, {ATTACKERS} clients that put files without end")
    print(f"  peak of the replica   {group.peak() >> 20} of {REPLICA_BYTES >> 20} MiB")
    print(f"  a visitor's slider    p95 {p95(taken) * 1000:.0f} ms of {len(taken)}")
    print(f"  answers               {', '.join(f'{n} × {code}' for code, n in answers.most_common(6))}")
    return int(failed or group.peak() >= REPLICA_BYTES)


def main() -> int:
    """Exit status 1 where the server did not stand it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    group = Group(REPLICA_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        temporary, port = Path(folder) / "tmp", free_port()
        temporary.mkdir()
        size = f"size={TEMPORARY_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(temporary)], check=True)
        started = f'echo $$ > {group.path}/cgroup.procs && exec "$@"'
        command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
        log = Path(folder) / "server.log"
        try:
            with log.open("wb") as out:
                process = subprocess.Popen(
                    ["sh", "-c", started, "sh", *command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                    env={**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(temporary), **ENVIRONMENT},
                )  # fmt: skip
            server = Server(address=f"http://127.0.0.1:{port}", process=process, log=log)
            try:
                wait_until_healthy(server)
                status = asyncio.run(watched(server, group, options.minutes * 60))
            finally:
                process.terminate()
                process.wait()
            print(f"  log of the server     {log.stat().st_size} bytes")
        finally:
            subprocess.run(["umount", str(temporary)], check=True)
            group.path.rmdir()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
