"""The bodies of requests: counted as they arrive, so that idle clients reserve no memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request
from starlette.types import Message, Receive

from kvcore.api.limits import ALL_BODY_BYTES, BODY_BYTES, CLIENT_BODY_BYTES, MESSAGE_VALUES, MIB
from kvcore.api.quotas import Shares
from kvcore.base.errors import ScenarioError
from kvcore.base.untrusted import parse_json_object, utf8_text

MAX_CRUMBS: Final = 4096
CRUMB_BYTES: Final = 256
"""A body in more parts than MAX_CRUMBS, smaller than this on average, is refused: each costs the event loop time."""


class Bodies:
    """All bodies of one server in memory."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.shares = Shares(most=ALL_BODY_BYTES, each=CLIENT_BODY_BYTES)

    @contextmanager
    def of(self, client: str) -> Iterator[Body]:
        """A client's next body; its memory is given back at the end of the block."""
        body = Body(self, client)
        try:
            yield body
        finally:
            self.shares.give_back(client, body.size)


class Body:
    """One body, as far as it has arrived."""

    def __init__(self, bodies: Bodies, client: str) -> None:
        self._bodies, self._client = bodies, client
        self.size = 0

    async def read(self, request: Request, limit: int) -> bytes:
        """The whole body.

        Raises ScenarioError `body-too-large`, `body-too-slow`, `body-in-crumbs`, or as Shares.take.
        """
        _check_declared(request, limit)
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._bodies.seconds):
                async for part in request.stream():
                    if self.size + len(part) > limit:
                        raise _too_large(limit)
                    self._bodies.shares.take(self._client, len(part))
                    self.size += len(part)
                    parts.append(part)
                    if len(parts) > MAX_CRUMBS and self.size < CRUMB_BYTES * len(parts):
                        raise ScenarioError("body-in-crumbs", parts=f"{MAX_CRUMBS:,}", size=CRUMB_BYTES)
        except TimeoutError:
            raise ScenarioError("body-too-slow", limit=f"{self._bodies.seconds:g}") from None
        return b"".join(parts)


def check_message(data: bytes) -> None:
    """Checks that a message to /mcp is one JSON object, small enough to be parsed on the event loop.

    Raises ScenarioError `not-utf8`, `too-many-values`, or as `parse_json_object`.
    """
    text = utf8_text(data)
    # The exact count of values stops the event loop for 0.4 s on millions of texts. An unescaped quote begins or ends a
    # text, and a value has at most two texts: its key and itself.
    if text.count('"') - text.count('\\"') > 4 * MESSAGE_VALUES:
        raise ScenarioError("too-many-values", limit=f"{MESSAGE_VALUES:,}")
    parse_json_object(text, max_bytes=BODY_BYTES["mcp"], max_values=MESSAGE_VALUES)


def replayed(data: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read already, then what really arrives."""
    left: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def received() -> Message:
        return left.pop() if left else await receive()

    return received


def _check_declared(request: Request, limit: int) -> None:
    """Refuses a body by its declared length, before it is sent."""
    given = request.headers.get("content-length", "")
    if given.isascii() and given.isdigit() and (len(given) > len(str(limit)) or int(given) > limit):
        raise _too_large(limit)


def _too_large(limit: int) -> ScenarioError:
    return ScenarioError("body-too-large", limit=f"{limit // MIB} MiB")
