"""Bodies that are slow, silent, large or in crumbs: what they take from others, on /api and on /mcp alike."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest
from starlette.types import Message

from kvcore.api.bodies import CRUMB_BYTES, MAX_CRUMBS
from kvcore.api.limits import ALL_BODY_BYTES, CLIENT_BODY_BYTES, MIB
from tests.api_in_process import Server, parts

PATHS: Final = ("/api/plan", "/mcp")
PING: Final = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


class Silence:
    """A body that never ends."""

    def __init__(self) -> None:
        self.heard = asyncio.Semaphore(0)

    async def __call__(self) -> Message:
        self.heard.release()
        await asyncio.Event().wait()
        raise AssertionError


async def ended(tasks: list[asyncio.Task[Any]]) -> None:
    """After all of them were given up."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize("path", ["/api/log", "/mcp"])
def test_silent_bodies_reserve_no_memory_whatever_they_declare(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        server, silence = Server(monkeypatch), Silence()
        silent = [
            asyncio.create_task(
                server.post(path, parts([], silence), f"192.0.2.{n}", content_length=str(8 * MIB))
            )
            for n in range(100)
        ]
        for _ in silent:
            await silence.heard.acquire()
        assert server.api.bodies.shares.taken == 0
        status, _, _ = await server.post("/api/log", parts([b"x" * (50 * MIB)]), "198.51.100.1")
        assert status == 200
        await ended(silent)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/api/plan", "/mcp"])
def test_bodies_that_arrive_take_room_until_they_are_answered_or_given_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client has a part of it, and all together no more than there is."""

    async def run() -> None:
        server, silence = Server(monkeypatch), Silence()
        piece = b"x" * (MIB * 4)

        def held(client: str) -> asyncio.Task[Any]:
            return asyncio.create_task(server.post("/api/log", parts([piece] * 12, silence), client))

        waiting = [held("192.0.2.1"), held("192.0.2.1"), held("192.0.2.2")]
        for _ in waiting:
            await silence.heard.acquire()
        taken = server.api.bodies.shares.taken
        assert taken == 36 * len(piece) <= ALL_BODY_BYTES
        own, headers, said = await server.post(path, parts([piece, piece]), "192.0.2.1")
        assert (own, said["code"]) == (429, "too-many-at-once")
        assert b"retry-after" in headers
        assert 25 * len(piece) <= CLIENT_BODY_BYTES
        waiting.append(asyncio.create_task(server.post(path, parts([piece[:-9]], silence), "192.0.2.2")))
        waiting.append(asyncio.create_task(server.post(path, parts([piece[:-9]], silence), "192.0.2.2")))
        waiting.append(asyncio.create_task(server.post("/api/log", parts([piece] * 2, silence), "192.0.2.3")))
        for _ in waiting[3:]:
            await silence.heard.acquire()
        others, _, said = await server.post(path, parts([b"x" * 99]), "192.0.2.4")
        assert (others, said["code"]) == (503, "api-busy")
        await ended(waiting)
        assert server.api.bodies.shares.taken == 0

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_does_not_arrive_in_time_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = Server(monkeypatch, body_seconds=0.01)
        status, headers, said = await server.post(path, parts([b"{"], Silence()))
        assert (status, said["code"]) == (408, "body-too-slow")
        assert headers[b"connection"] == b"close"

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_a_body_in_crumbs_is_refused_and_its_connection_closed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        server = Server(monkeypatch)
        status, headers, said = await server.post(path, parts([b" "] * (MAX_CRUMBS + 1), Silence()))
        assert (status, said["code"]) == (400, "body-in-crumbs")
        assert headers[b"connection"] == b"close"
        for fair in ([b" "] * (MAX_CRUMBS - 2), [b" " * (CRUMB_BYTES + 1)] * (MAX_CRUMBS + 1)):
            _, _, said = await server.post(path, parts([*fair, json.dumps(PING).encode()]))
            assert said.get("code") is None

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_too_large_is_refused_before_it_is_sent(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        server = Server(monkeypatch)
        status, _, said = await server.post(path, parts([], Silence()), content_length=str(10 * MIB))
        assert (status, said["code"]) == (413, "body-too-large")

    asyncio.run(run())


MESSAGES: Final = {
    "objects without end": (b"[" + b"{}," * 2_000_000 + b"{}]", 422, "too-many-values"),
    "keys without end": (
        b"{" + b",".join(b'"%d":0' % n for n in range(600_000)) + b"}", 422, "too-many-values",
    ),
    "values in a ping": (json.dumps({**PING, "params": {"a": [0] * 20_000}}).encode(), 422, "too-many-values"),
    "200,000 pings": (b"[" + b",".join([json.dumps(PING).encode()] * 150_000) + b"]", 422, "too-many-values"),
    "texts without end": (b'""' * 40_000, 422, "too-many-values"),
    "two pings": (json.dumps([PING, PING]).encode(), 400, "invalid-json"),
    "brackets": (b"[" * 10**6, 422, "too-many-values"),
    "100 brackets": (b'{"a":' * 100, 422, "input-too-deep"),
    "digits": (b'{"id": ' + b"9" * 10**6 + b"}", 422, "number-too-long"),
    "UTF-16": (json.dumps(PING).encode("utf-16"), 400, "not-utf8"),
    "no JSON": (b"{", 400, "invalid-json"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_many_values_is_refused_before_it_is_parsed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol's package parses on the event loop, which pages share."""
    data, status, code = MESSAGES[name]

    async def run() -> None:
        given, _, said = await Server(monkeypatch).post("/mcp", parts([data]))
        assert (given, said["code"]) == (status, code)

    asyncio.run(run())


def test_a_long_log_is_one_value_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    log = '{"prompt_tokens": [900], "completion_tokens": 80}\n' * 100_000
    call = {**PING, "method": "tools/call", "params": {"name": "workload", "arguments": {"log": log}}}

    async def run() -> None:
        server = Server(monkeypatch)
        status, _, said = await server.post("/mcp", parts([json.dumps(call).encode()]))
        assert (status, said["result"]["isError"]) == (200, False)
        assert server.asked[0].body == log.encode()

    asyncio.run(run())
