"""Shares of one client: its allowance for tools, and its places in the queue."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from kvcore.api.limits import COSTS, Settings
from tests.api_in_process import ANSWER, Server, parts

ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "plan": {}, "sweep": {}, "read_log": {"log": "x"}, "workload": {"log": "x"}, "catalogue": {},
}  # fmt: skip
OPERATIONS: Final = {"read_log": "log"}


def call(name: str) -> bytes:
    """The message that calls a tool."""
    params = {"name": name, "arguments": ARGUMENTS[name]}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_tool_costs_as_much_as_its_address(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = COSTS[OPERATIONS.get(name, name)]

    async def run() -> None:
        server = Server(monkeypatch, rate=1e-9, burst=2 * cost + 1)
        for _ in range(2):
            status, _, said = await server.post("/mcp", parts([call(name)]))
            assert (status, said["result"]["isError"]) == (200, False)
        status, _, said = await server.post("/mcp", parts([call(name)]))
        if cost > 1:
            assert said["result"]["structuredContent"]["code"] == "too-many-requests"
            status, _, said = await server.post("/mcp", parts([call(name)]))
        else:
            assert status == 200
            status, _, said = await server.post("/mcp", parts([call(name)]))
        assert (status, said["code"]) == (429, "too-many-requests")
        assert len(server.asked) == (2 if cost > 1 else 3)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/api/sweep", "/mcp"])
def test_a_client_has_a_part_of_the_line(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = Settings().at_once

    async def asked(server: Server, client: str) -> str:
        body = call("sweep") if path == "/mcp" else b"{}"
        _, _, said = await server.post(path, parts([body]), client)
        found = said["result"]["structuredContent"] if "result" in said else said
        return found.get("code", "ok")

    async def run() -> None:
        server = Server(monkeypatch)
        server.may_answer.clear()
        clients = ["192.0.2.1"] * most + ["192.0.2.2"]
        waiting = [asyncio.create_task(asked(server, client)) for client in clients]
        while len(server.asked) < len(waiting):
            await asyncio.sleep(0)
        assert await asked(server, "192.0.2.1") == "too-many-at-once"
        server.may_answer.set()
        assert await asyncio.gather(*waiting) == ["ok"] * len(waiting)
        assert server.api.line.taken == 0

    asyncio.run(run())


def test_one_client_does_not_fill_the_line() -> None:
    assert 2 * Settings().at_once < Settings().longest_line
    assert Settings.of({"KVPLANNER_API_AT_ONCE": "32"}).at_once == 32


def test_an_answer_goes_to_an_agent_as_the_worker_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        _, _, said = await Server(monkeypatch).post("/mcp", parts([call("sweep")]))
        (content,) = said["result"]["content"]
        assert content["text"] == ANSWER.decode()
        assert said["result"]["structuredContent"] == json.loads(ANSWER)

    asyncio.run(run())
