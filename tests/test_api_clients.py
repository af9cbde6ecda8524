"""Who a client is, behind no proxy, one, and two; and the names that a server answers to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message

from kvcore.api.clients import Clients, Front
from kvcore.base.errors import ScenarioError

FORGED, REAL, INGRESS, CADDY = "203.0.113.66", "198.51.100.7", "10.0.0.3", "10.0.0.2"


def ask(
    front: Front, *forwarded: str, host: str = "127.0.0.1:8501", kind: str = "http", path: str = "/"
) -> Any:
    """The client that the application sees, or the problem that is answered."""
    sent: list[Message] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse(Request({**scope, "type": "http"}).client.host)(scope, receive, send)  # type: ignore[union-attr]

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", host.encode()), *((b"x-forwarded-for", one.encode()) for one in forwarded)]
    scope = {
        "type": kind, "method": "GET", "path": path, "headers": headers, "client": (CADDY, 1),
        "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    asyncio.run(Clients(app, front)(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return body.decode() if sent[0]["status"] == 200 else (sent[0]["status"], json.loads(body)["code"])


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("proxies", "forwarded", "client"),
    [
        (0, (REAL,), CADDY),  # a stranger's header is nothing
        (1, (REAL,), REAL),  # a proxy that sets
        (1, (f"{FORGED}, {REAL}",), REAL),  # a proxy that appends
        (1, (FORGED, REAL), REAL),  # one that appends a line
        (2, (f"{FORGED},{REAL}, {INGRESS}",), REAL),  # an ingress that appends before Caddy
        (2, (f"{REAL}, {INGRESS}",), REAL),  # an ingress that sets
        (2, (INGRESS,), INGRESS),  # who went past the ingress is who it is
        (1, (f"{REAL}:4711",), REAL),
        (1, ("[2001:db8::9]:443",), "2001:db8::9"),
        (1, ("2001:db8::9",), "2001:db8::9"),
        (1, (), CADDY),
        (1, (" , ",), CADDY),
        (1, ("x" * 5000,), "x" * 64),
    ],
)
def test_a_client_is_the_name_that_our_outermost_proxy_wrote(
    kind: str, proxies: int, forwarded: tuple[str, ...], client: str
) -> None:
    assert ask(Front(proxies=proxies), *forwarded, kind=kind) == client


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("front", "host", "is_served"),
    [
        (Front(), "localhost:8501", True),
        (Front(), "planner.localhost", True),
        (Front(), "192.168.1.7:8501", True),
        (Front(), "[fe80::1]:8501", True),
        (Front(), "planner-1:8501", True),
        (Front(), "rebound.example", False),
        (Front(), "127.0.0.1.rebound.example:8501", False),
        (Front(proxies=1), "planner.example.org", True),
        (Front(proxies=1, hosts=("planner.example.org",)), "rebound.example", False),
        (Front(hosts=("planner.example.org",)), "Planner.Example.org.:443", True),
        (Front(hosts=("*.example.org",)), "a.example.org", True),
        (Front(hosts=("*.example.org",)), "badexample.org", False),
        (Front(hosts=("*",)), "rebound.example", True),
    ],
)
def test_a_server_answers_to_its_own_names(front: Front, host: str, is_served: bool, kind: str) -> None:
    found = ask(front, host=host, kind=kind)
    assert found == CADDY if is_served else found == (421, "host-not-served")


def test_health_is_told_under_any_name() -> None:
    assert ask(Front(), host="rebound.example", path="/_stcore/health") == CADDY


@pytest.mark.parametrize("value", ["-1", "9", "x", "1.5", "", "٢"])
def test_a_number_of_proxies_that_cannot_be_is_refused_by_name(value: str) -> None:
    with pytest.raises(ScenarioError, match="KVPLANNER_PROXIES"):
        Front.of({"KVPLANNER_PROXIES": value})


def test_trusting_everybody_trusts_one_proxy() -> None:
    assert Front.of({"FORWARDED_ALLOW_IPS": "*"}) == Front(proxies=1)
    assert Front.of({"FORWARDED_ALLOW_IPS": "10.0.0.2"}) == Front()
