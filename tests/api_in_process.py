"""The API inside the test's own process: bodies that arrive as a test says, answers that no worker has to give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from kvcore.api.limits import Settings
from kvcore.api.operations import Answered, Asked
from kvcore.api.routes import Api

ANSWER: Final = b'{"status":"ok",  "id":100000000000000000000000}'
"""Written as no writer would."""
Receive = Callable[[], Awaitable[Message]]


class Server:
    """The API in this process, with an answer that no worker has to give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.api = Api(Settings(**{"rate": 10_000, "burst": 100_000, **settings}))
        self.app = Starlette(routes=self.api.routes())
        self.asked: list[Asked] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        monkeypatch.setattr(self.api.pool, "answered", self.answered)

    async def answered(self, asked: Asked, client: str = "") -> Answered:
        self.asked.append(asked)
        await self.may_answer.wait()
        return Answered(status=200, media="application/json", body=ANSWER)

    async def post(
        self, path: str, receive: Receive, client: str = "192.0.2.1", **headers: str
    ) -> tuple[int, dict[bytes, bytes], dict[str, Any]]:
        """The status, headers and JSON of the answer."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        given = {"content-type": "application/json", "accept": "application/json", **headers}
        scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"", "client": (client, 1),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
            "root_path": "", "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        await self.app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), json.loads(body) if body else {}


def parts(sent: Iterable[bytes], end: Receive | None = None) -> Receive:
    """A body as it arrives; after its parts the end, or what `end` says."""
    left = iter(sent)

    async def receive() -> Message:
        for part in left:
            return {"type": "http.request", "body": part, "more_body": True}
        return await end() if end is not None else {"type": "http.request", "body": b"", "more_body": False}

    return receive
