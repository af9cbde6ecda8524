"""A Streamlit server of our own on the loopback interface, for tests, soak runs and benchmarks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 180
"""Only a server that never comes up waits for this long: busy machines take their time."""
STOP_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server: its address, its process, and its output."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM, from /proc; 0 where there is none."""
        return _from_status(self.process.pid, "VmRSS:")

    def peak_resident_bytes(self) -> int:
        """The most that it ever was, from /proc; 0 where there is none."""
        return _from_status(self.process.pid, "VmHWM:")

    def cpu_seconds(self) -> float:
        """CPU time that the process has used, from /proc; 0.0 where there is none."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Ends the process as `kill -9` does: nothing is saved, nobody is notified."""
        self.process.kill()
        self.process.wait(timeout=STOP_SECONDS)


@contextmanager
def running_server(
    log: Path,
    *,
    script: str | Path = "app.py",
    port: int | None = None,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server for `script` on `port` or a free one, stopped afterwards; its output goes to `log`."""
    port = port or free_port()
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless=true",
               f"--server.port={port}", "--server.address=127.0.0.1"]  # fmt: skip
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
        )  # fmt: skip
    server = Server(address=f"http://127.0.0.1:{port}", process=process, log=log)
    try:
        wait_until_healthy(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until_healthy(server: Server) -> None:
    """Waits until the server answers; raises RuntimeError with its output where it never does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.address}/_stcore/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{server.log.read_text(errors='replace')[-2000:]}")


def _from_status(process: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)
