"""`python -m kvcore api` as a process of its own on the loopback interface."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2

from tools.server import free_port

ROOT: Final = Path(__file__).resolve().parents[1]
GENEROUS: Final = {
    "KVPLANNER_API_RATE": "10000", "KVPLANNER_API_BURST": "100000", "KVPLANNER_API_AT_ONCE": "64",
    "KVPLANNER_API_WAIT_SECONDS": "600",
}  # fmt: skip
ANSWER_SECONDS: Final = 300
"""Seconds to wait for an answer on a busy machine."""
GOOD: Final = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 8192}


@contextmanager
def running_api(log: Path, environment: Mapping[str, str] = GENEROUS) -> Iterator[str]:
    """The address of a server that answers; what it writes goes to `log`."""
    port = free_port()
    command = [sys.executable, "-m", "kvcore", "api", "--port", str(port)]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_until_it_answers(address: str, process: subprocess.Popen[bytes]) -> None:
    """Asks for its health until it comes."""
    transport = httpx2.HTTPTransport(retries=0)
    with httpx2.Client(transport=transport, timeout=ANSWER_SECONDS) as client:
        while True:
            assert process.poll() is None, "the server ended"
            try:
                assert client.get(f"{address}/api/healthz").status_code == 200
            except httpx2.TransportError:
                try:
                    process.wait(timeout=0.1)
                except subprocess.TimeoutExpired:
                    continue
            else:
                return


def client_of(address: str) -> httpx2.Client:
    """A client that waits as long as a busy machine takes."""
    return httpx2.Client(base_url=address, timeout=ANSWER_SECONDS)


def post(client: httpx2.Client, path: str, body: Any) -> httpx2.Response:
    """A body as JSON; bytes and texts go as they are, and say that they are JSON."""
    if isinstance(body, bytes | str):
        return client.post(path, content=body, headers={"Content-Type": "application/json"})
    return client.post(path, json=body)
