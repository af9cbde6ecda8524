"""The script to take away: run as a program, against a server and a driver's tool that are made up here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvcore.deploy.first_requests import memory_check
from kvcore.deploy.memory_check import TOOLS, growth_mib, used_mib

ASCEND = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 7     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     14                  | 0000:9D:00.0  | 0           0    / 0          3416 / 65536         |
| 1     15                  | 0000:83:00.0  | 0           0    / 0          31877/ 65536         |
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 0       0                 | 632268        | python3.1                | 27301                   |
"""


class Completions(BaseHTTPRequestHandler):
    """Answers what fits into 100 words."""

    asked: list[dict[str, object]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, **body})
        self.send_response(200 if len(body["prompt"].split()) <= 100 else 400)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Not on the test's output."""


@pytest.fixture
def server() -> Iterator[str]:
    Completions.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def machine(folder: Path, tool: str, said: str) -> dict[str, str]:
    """The environment of a machine that has this tool and no other; `said` is shell that prints."""
    program = folder / tool
    program.write_text(f"#!/bin/sh\n{said}\n", encoding="utf-8")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}


def ran(folder: Path, environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    """The script as a person has it: one file, no kvcore, another folder."""
    script = folder / "memory_check.py"
    script.write_text(memory_check(), encoding="utf-8")
    command = [sys.executable, "-I", str(script), *argv]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def growing(step: int) -> str:
    """A tool whose second card has `step` MiB more at each look."""
    return f'n=$(cat seen 2>/dev/null || echo 0); n=$((n+{step})); echo $n > seen; printf "71000\\n%d\\n" $((70000+n))'


@pytest.mark.parametrize(("step", "code", "word"), [(0, 0, "steady"), (100, 1, "grows")])
def test_a_leak_is_memory_that_grows(tmp_path: Path, step: int, code: int, word: str) -> None:
    environment = machine(tmp_path, "nvidia-smi", growing(step))
    done = ran(tmp_path, environment, "leak", "--seconds", "0.5", "--every", "0.05")
    assert (done.returncode, done.stderr) == (code, "")
    assert f"{word} (limit 256 MiB" in done.stdout
    assert "card 0: 71000 -> 71000 MiB, last third +0 MiB" in done.stdout


def test_a_profile_sends_a_short_and_a_long_request(tmp_path: Path, server: str) -> None:
    environment = machine(tmp_path, "nvidia-smi", growing(10))
    done = ran(
        tmp_path, environment, "profile", "--url", server, "--model", "a/model", "--prompt-tokens", "90",
        "--every", "0.02",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first == "before 71000 MiB 70010 MiB"
    assert [line.split(",")[0] for line in lines[:2]] == ["short prompt", "long prompt"]
    assert "71000 MiB (+0)" in lines[1]
    assert [len(str(asked["prompt"]).split()) for asked in Completions.asked] == [8, 90]
    assert Completions.asked[0]["model"] == "a/model"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--prompt-tokens", "101"), "the server answers 400"),
        (("--url", "http://127.0.0.1:9"), "no server at http://127.0.0.1:9"),
    ],
)
def test_a_request_that_is_refused_is_said(
    tmp_path: Path, server: str, argv: tuple[str, ...], said: str
) -> None:
    environment = machine(tmp_path, "nvidia-smi", "echo 1")
    done = ran(tmp_path, environment, "profile", "--url", server, "--model", "m", *argv)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_without_a_tool_is_said(tmp_path: Path) -> None:
    done = ran(tmp_path, {"PATH": str(tmp_path)}, "leak", "--seconds", "1")
    assert (done.returncode, done.stderr) == (2, "none of nvidia-smi, rocm-smi, npu-smi is on this machine\n")


def test_a_silent_tool_is_reported(tmp_path: Path) -> None:
    environment = machine(tmp_path, "rocm-smi", "echo 'no device' >&2")
    done = ran(tmp_path, environment, "leak", "--seconds", "1", "--tool", "rocm-smi")
    assert (done.returncode, done.stderr) == (2, "rocm-smi shows no memory: no device\n")


def test_chips_are_read_and_their_processes_are_not() -> None:
    assert used_mib("npu-smi", ASCEND) == [3416, 31877]


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_is_no_card(tool: str) -> None:
    assert used_mib(tool, "") == used_mib(tool, "Failed to initialize NVML\n") == []


def test_a_wave_is_no_growth() -> None:
    assert growth_mib([10, 90] * 30) == 0
    assert growth_mib([100]) == 0
