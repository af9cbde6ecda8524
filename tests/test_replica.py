"""The memory that docs/hosting.md counts for a replica, measured: where a part takes more, the sum is wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kvcore.api.limits import Settings
from kvcore.api.operations import JSON, Asked
from kvcore.api.pool import LARGE_BODY_BYTES, Pool
from kvcore.evidence.log.reader import LARGE_LOG_BYTES
from pages.ui.fair import limits
from tests.test_api_limits import LARGEST_SWEEP
from tools.replica import MIB, READING_BYTES, SERVER_BYTES, WORKER_BYTES
from tools.server import running_server
from tools.soak.visitor import Visitor

LOG = Path(__file__).parent / "data" / "logs" / "v1_0.10.2_h100.log"
LINE = b'{"timestamp": 1, "usage": {"prompt_tokens": 1000, "completion_tokens": 200}, "request_id": "%d"}\n'
QUERY = "model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2"
PATIENT = {"wait_seconds": 600.0, "answer_seconds": 600.0, "cpu_seconds": 600.0}

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc on this machine")


def largest(beginning: bytes, size: int) -> bytes:
    return (beginning * (size // len(beginning) + 1))[:size]


BODIES = {
    "sweep": (json.dumps(LARGEST_SWEEP).encode(), WORKER_BYTES),
    "workload": (b"".join(LINE % number for number in range(480_000))[: 49 * MIB], WORKER_BYTES),
    "log": (largest(LOG.read_bytes(), 49 * MIB), WORKER_BYTES + READING_BYTES),
}


@pytest.mark.parametrize("operation", BODIES)
def test_a_worker_takes_what_is_counted_for_it(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, most = BODIES[operation]
    peaks: list[int] = []
    replaced = Pool._replace

    def peak(process: int) -> int:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

    async def replace(self: Pool, worker: asyncio.subprocess.Process) -> None:
        peaks.append(peak(worker.pid))
        await replaced(self, worker)

    monkeypatch.setattr(Pool, "_replace", replace)

    async def run() -> int:
        pool = Pool(Settings(**PATIENT))
        found = await pool.answered(
            Asked(operation=operation, body=body, media="text/plain" if operation == "log" else JSON)
        )
        peaks.extend(peak(worker.pid) for worker in pool._idle)
        await pool.close()
        return found.status

    assert asyncio.run(run()) == 200
    assert max(peaks) <= most
    # What takes more than a worker's part does so alone in a replica, and does not stay.
    assert most == WORKER_BYTES or len(body) > max(LARGE_LOG_BYTES, LARGE_BODY_BYTES)


def test_the_server_takes_what_is_counted_for_it_with_a_class_and_full_of_uploads(tmp_path: Path) -> None:
    async def run(address: str) -> None:
        visitors = [Visitor(address, client=f"198.51.100.{number % 2}") for number in range(20)]
        for number, visitor in enumerate(visitors):
            await visitor.visit(QUERY, page=("", "explore", "workload", "check")[number % 4])
        assert server.peak_resident_bytes() <= SERVER_BYTES
        statuses = []
        for visitor in visitors:
            (place,) = await visitor.places(1)
            answer = await visitor.put(place.upload_url, "log", b"x" * (limits.FILE_BYTES - 1000))
            statuses.append(answer.status_code)
        assert statuses.count(204) == limits.KEPT_BYTES // limits.FILE_BYTES
        assert statuses.count(429) == len(visitors) - statuses.count(204)
        for visitor in visitors:
            await visitor.leave()

    with running_server(tmp_path / "server.log", environment={"KVPLANNER_PROXIES": "1"}) as server:
        asyncio.run(run(server.address))
        # One file more while it is read from /tmp.
        assert server.peak_resident_bytes() <= SERVER_BYTES + limits.KEPT_BYTES + limits.FILE_BYTES
