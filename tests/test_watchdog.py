"""A server that is stuck is ended; one that answers is left alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WATCHDOG = [sys.executable, "tools/watchdog.py"]
SERVER = """
import http.server, os, pathlib, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass

pathlib.Path(sys.argv[2]).write_text(str(os.getpid()))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""
"""Stands for the app: the watchdog knows nothing of it but its health address."""

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no notify sockets on this system")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def notified() -> Iterator[socket.socket]:
    """The socket of systemd's side; its path must be short."""
    with (
        tempfile.TemporaryDirectory(prefix="kv") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        listener.bind(f"{folder}/n")
        listener.settimeout(60)
        yield listener


def watched(notified: socket.socket, *options: str) -> tuple[subprocess.Popen[bytes], int]:
    """A watchdog over a server that answers, once it has said so; and the server's process id."""
    port = free_port()
    told = Path(notified.getsockname()).with_name("pid")
    health = ["--health", f"http://127.0.0.1:{port}/", "--interval=0.2", "--timeout=1"]
    process = subprocess.Popen(
        [*WATCHDOG, *health, *options, "--", sys.executable, "-c", SERVER, str(port), str(told)],
        cwd=ROOT, env={**os.environ, "NOTIFY_SOCKET": notified.getsockname()}, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert notified.recv(100) == b"READY=1"
    return process, int(told.read_text())


def test_a_server_that_is_stuck_is_killed_and_the_status_asks_for_a_new_one(notified: socket.socket) -> None:
    process, server = watched(notified, "--silences=2")
    assert notified.recv(100) == b"WATCHDOG=1"
    os.kill(server, signal.SIGSTOP)  # it exists, its port is open, it never answers
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"no answer" in said
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_one_silence_is_forgiven(notified: socket.socket) -> None:
    process, server = watched(notified, "--silences=1000")
    os.kill(server, signal.SIGSTOP)
    os.kill(server, signal.SIGCONT)
    assert notified.recv(100) == b"WATCHDOG=1"
    process.terminate()
    process.communicate(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_server_that_never_answers_is_given_up() -> None:
    health = ["--health", f"http://127.0.0.1:{free_port()}/", "--interval=0.1", "--start=0.5"]
    told = subprocess.run(
        [*WATCHDOG, *health, "--", sys.executable, "-c", "import time; time.sleep(600)"],
        cwd=ROOT, capture_output=True, timeout=60,
    )  # fmt: skip
    assert told.returncode == 1
    assert b"no answer" in told.stderr


def test_the_status_of_a_server_that_ends_is_passed_on() -> None:
    command = [*WATCHDOG, "--", sys.executable, "-c", "raise SystemExit(7)"]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 7
