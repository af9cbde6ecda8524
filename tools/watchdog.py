"""Runs the app and stops it when it no longer answers, so that its supervisor (Docker, systemd, ...) restarts it.

    python tools/watchdog.py -- python -m streamlit run app.py --server.port=8501

A process that is stuck still exists: a restart policy alone leaves it there, and Docker marks it unhealthy and does no
more. The health endpoint is asked from outside the process; after some silence in a row the process is killed and this
program ends with status 1. With a notify socket (systemd, Type=notify) every answer is passed on, so that WatchdogSec=
watches this program too. Only the standard library: it is copied into the image.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

STOP_SECONDS = 20
STUCK = 1


def main(argv: Sequence[str] | None = None) -> int:
    """The status of the app where it ends by itself, 1 where it had to be killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--health", default="http://127.0.0.1:8501/_stcore/health", help="asked every interval"
    )
    parser.add_argument("--interval", type=float, default=10, help="seconds between two questions")
    parser.add_argument("--timeout", type=float, default=10, help="seconds that an answer may take")
    parser.add_argument("--silences", type=int, default=3, help="in a row, until the app is killed")
    parser.add_argument("--start", type=float, default=120, help="seconds until the first answer")
    parser.add_argument("command", nargs="+", help="after --, the app")
    given = parser.parse_args(argv)
    app = subprocess.Popen(given.command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: app.terminate())
    # HTTP_PROXY is for the way out, never for the loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    started, answered, silences = time.monotonic(), False, 0
    while True:
        try:
            return app.wait(given.interval if answered else min(given.interval, 1))
        except subprocess.TimeoutExpired:
            pass
        if _answers(opener, given.health, given.timeout):
            _notify("WATCHDOG=1" if answered else "READY=1")
            answered, silences = True, 0
        elif answered:
            silences += 1
        if silences >= given.silences or (not answered and time.monotonic() - started > given.start):
            print(f"watchdog: no answer from {given.health}: killed", file=sys.stderr, flush=True)
            app.kill()
            app.wait(STOP_SECONDS)
            return STUCK


def _answers(opener: urllib.request.OpenerDirector, address: str, timeout: float) -> bool:
    try:
        with opener.open(address, timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _notify(state: str) -> None:
    """Source: sd_notify(3)."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)


if __name__ == "__main__":
    sys.exit(main())
