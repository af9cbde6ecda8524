"""The API under too many questions: the queue of clients, slow answers, allowances."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.types import Message
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvcore import catalogue
from kvcore.api.limits import CLIENTS, Settings
from kvcore.api.operations import Asked
from kvcore.api.pool import Pool
from kvcore.api.quotas import Allowances, client_of
from kvcore.api.routes import Api
from kvcore.base.errors import KvPlannerError, ScenarioError
from tests.api_server import ANSWER_SECONDS, GOOD, running_api

CLIENTS_AT_ONCE: Final = 20
PLANS_EACH: Final = 3
LARGEST_SWEEP: Final = {"accelerators": ["H100-80GB", "L40S-48GB", "A100-80GB", "H200-141GB"]}


def test_requests_are_read_by_a_parser_that_chunks_of_a_byte_do_not_slow_down() -> None:
    assert issubclass(AutoHTTPProtocol, HttpToolsProtocol)


def test_twenty_clients_are_answered_while_the_server_stays_alive(tmp_path: Path) -> None:
    """A long sweep goes on meanwhile; the health check answers before everybody has an answer, every time."""

    async def everybody(address: str) -> tuple[list[int], int]:
        async with httpx2.AsyncClient(base_url=address, timeout=ANSWER_SECONDS) as client:

            async def plans(number: int) -> list[int]:
                sent = [{**GOOD, "id": number, "max_num_seqs": 1 + number + row} for row in range(PLANS_EACH)]
                found = [await client.post("/api/plan", json=row) for row in sent]
                assert {one.json()["id"] for one in found} == {number}
                return [one.status_code for one in found]

            working = asyncio.gather(
                client.post("/api/sweep", json=LARGEST_SWEEP), *(plans(n) for n in range(CLIENTS_AT_ONCE))
            )
            alive = 0
            while not working.done():
                assert (await client.get("/api/healthz")).json()["status"] == "ok"
                alive += 1
            sweep, *statuses = await working
            assert sweep.status_code == 200
            return [status for own in statuses for status in own], alive

    with running_api(tmp_path / "log") as address:
        statuses, alive = asyncio.run(everybody(address))
    assert statuses == [200] * CLIENTS_AT_ONCE * PLANS_EACH
    assert alive >= CLIENTS_AT_ONCE


def test_an_answer_that_computes_for_too_long_is_ended_and_the_next_one_comes() -> None:
    async def asked() -> tuple[str, int]:
        pool = Pool(Settings(workers=1, cpu_seconds=0.2))
        with pytest.raises(ScenarioError) as refused:
            await pool.answered(Asked(operation="sweep", body=json.dumps(LARGEST_SWEEP).encode()))
        next_one = await pool.answered(Asked(operation="plan", body=b"{}"))
        await pool.close()
        return refused.value.code, next_one.status

    assert asyncio.run(asked()) == ("answer-too-slow", 422)
    assert len(catalogue.model_ids()) * 4 * 4 < 16_384, "the sweep is one that is answered at all"


def test_the_answer_to_an_abandoned_question_is_dropped() -> None:
    async def asked() -> bytes:
        pool = Pool(Settings(workers=1))
        given_up = asyncio.create_task(
            pool.answered(Asked(operation="plan", body=json.dumps({**GOOD, "id": "given up"}).encode()))
        )
        while not pool.waiting:
            await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        found = await pool.answered(Asked(operation="plan", body=b'{"id": "next"}'))
        await pool.close()
        return found.body

    assert json.loads(asyncio.run(asked()))["id"] == "next"


def test_a_full_queue_refuses_questions() -> None:
    pool = Pool(Settings(longest_line=0))
    with pytest.raises(ScenarioError, match="as many requests as it takes"):
        asyncio.run(pool.answered(Asked(operation="plan")))


async def ask(app: Starlette, path: str, address: str) -> tuple[int, dict[bytes, bytes]]:
    """The status and headers of a GET from an address."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": b"kind=none", "headers": [],
        "client": (address, 1), "root_path": "", "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


def test_a_client_has_an_allowance_and_a_network_of_ipv6_is_one_client() -> None:
    async def statuses(addresses: list[str]) -> list[int]:
        api = Api(Settings(rate=0.01, burst=10))
        app = Starlette(routes=api.routes())
        found = [await ask(app, "/api/catalogue", address) for address in addresses]
        assert all((status == 429) == (b"retry-after" in headers) for status, headers in found)
        healthy = await ask(app, "/api/healthz", addresses[0])
        assert healthy[0] == 200
        await api.pool.close()
        return [status for status, _ in found]

    spent = ["192.0.2.1"] * 10
    assert asyncio.run(statuses([*spent, "192.0.2.1", "192.0.2.2"])) == [*[422] * 10, 429, 422]
    network = [f"2001:db8::{number:x}" for number in range(1, 11)]
    assert asyncio.run(statuses([*network, "2001:db8::ff", "2001:db8:0:1::1"])) == [*[422] * 10, 429, 422]


def test_clients_of_ipv4_are_apart_on_a_socket_for_both() -> None:
    hosts = ["::ffff:192.0.2.1", "::ffff:192.0.2.2", "64:ff9b::192.0.2.3", "64:ff9b::192.0.2.4", "192.0.2.1"]
    assert [client_of(host) for host in hosts] == [f"192.0.2.{end}" for end in (1, 2, 3, 4, 1)]
    assert client_of("fe80::1%eth0") == client_of("fe80::2") == "fe80::/64"
    assert client_of("64:ff9b:1::1") == "64:ff9b:1::/64"
    assert client_of("unix") == "unix"


def test_addresses_are_forgotten_before_they_fill_the_memory() -> None:
    allowances = Allowances(rate=1, burst=1, clock=lambda: 0.0)
    for number in range(CLIENTS + 5):
        assert allowances.wait_seconds(str(number), 1) == 0
    assert allowances.wait_seconds(str(CLIENTS), 1) == 1
    assert allowances.wait_seconds("0", 1) == 0


@pytest.mark.parametrize("value", ["nan", "0", "-1", "many", "inf"])
def test_an_invalid_setting_is_refused_by_name(value: str) -> None:
    with pytest.raises(KvPlannerError) as refused:
        Settings.of({"KVPLANNER_API_RATE": value})
    assert refused.value.field == "KVPLANNER_API_RATE"


def test_a_host_can_turn_it_off() -> None:
    assert Api(Settings.of({"KVPLANNER_API": "off"})).routes() == []
