"""The ASGI layer in front of Streamlit: who may open a page, send a message, put a file, and how much of each."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnected

from kvcore.api.answers import problem_response
from kvcore.api.clients import header
from kvcore.api.quotas import Allowances, client_of
from kvcore.base.errors import ScenarioError
from pages.ui.fair import limits, notices, quiet, streamlit_hooks
from pages.ui.fair.files import Files, Room, Spool
from pages.ui.fair.frames import Frames
from pages.ui.fair.turns import Turns

STREAM: Final = "/_stcore/stream"
UPLOAD: Final = re.compile(r"/_stcore/upload_file/([^/]+)/([^/]+)")
UNSUPPORTED_DATA: Final = 1003
POLICY_VIOLATION: Final = 1008
CLOSED: Final = "after sending 'websocket.close'"
"""Words of uvicorn 0.54 where something is sent to a page that is closed."""
FIELDS: Final = "fields"
NEXT: Final = "next message"
WAIT_LOOK_SECONDS: Final = 0.05
_numbers: Final = itertools.count()


def fair() -> Middleware:
    """The limits of this server, to be made before its application is."""
    turns = Turns()
    streamlit_hooks.install(turns, Frames())
    quiet.install()
    return Middleware(Fair, turns=turns)


class Fair:
    """The limits of one server, around its application."""

    def __init__(self, app: ASGIApp, turns: Turns) -> None:
        self._app = app
        self._pages = Pages(turns, Files.room)
        self._spool: Spool | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            sweep = asyncio.create_task(_sweep())
            try:
                await self._app(scope, receive, send)
            finally:
                sweep.cancel()
        elif scope["type"] == "websocket" and scope["path"] == STREAM:
            await self._pages.serve(self._app, scope, receive, send)
        elif (
            scope["type"] == "http"
            and scope["method"] == "PUT"
            and (found := UPLOAD.fullmatch(scope["path"]))
        ):
            await self._upload(found[1], found[2], scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _upload(self, session: str, file: str, scope: Scope, receive: Receive, send: Send) -> None:
        sending = _Sending(send)
        try:
            await self._put(session, file, scope, receive, sending)
        except ClientDisconnect:  # whoever sent it is gone: nobody to answer, nothing to log
            return
        except ScenarioError as error:
            if not sending.status:
                await _drained(receive)
                await problem_response(error)(scope, receive, send)
            if error.code != "upload-not-expected":
                tell(session, error)

    async def _put(self, session: str, file: str, scope: Scope, receive: Receive, sending: _Sending) -> None:
        """Lets a file arrive. Raises ScenarioError, ClientDisconnect."""
        files = streamlit_hooks.files()
        client = client_of((scope.get("client") or ("", 0))[0])
        size = _size_of(scope)
        if not files.is_expected(session, file):
            raise ScenarioError("upload-not-expected")
        files.room.take(session, client, file, size)
        self._spool = self._spool or Spool()
        try:
            async with self._spool.place(client, size), asyncio.timeout(limits.UPLOAD_SECONDS):
                await self._app(scope, receive, sending)
        except TimeoutError:
            raise ScenarioError("upload-too-slow", limit=f"{limits.UPLOAD_SECONDS:g}") from None
        finally:
            if sending.status != 204:
                files.room.free(session, file)


def tell(session: str, error: ScenarioError) -> None:
    """Shows an error on the session's page, now."""
    notices.tell(session, error)
    streamlit_hooks.run_again(session)


async def _drained(receive: Receive) -> None:
    """Reads what is left of a refused file and keeps nothing: a sender that is cut off never reads the answer."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.UPLOAD_SECONDS):
            while size <= limits.FILE_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return


def _size_of(scope: Scope) -> int:
    """The size that an upload declares. Raises ScenarioError `upload-unsized` or `upload-too-large`."""
    given = header(scope, b"content-length")
    if not (given.isascii() and given.isdigit()):
        raise ScenarioError("upload-unsized")
    if len(given) > len(str(limits.FILE_BYTES)) or int(given) > limits.FILE_BYTES:
        raise ScenarioError("upload-too-large", limit=str(limits.FILE_BYTES // limits.MIB))
    return int(given)


class _Sending:
    """A `send` that remembers the status of the answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


async def _sweep() -> None:
    """Frees what ended sessions have left, as long as the server runs."""
    while True:
        await asyncio.sleep(limits.SWEEP_SECONDS)
        try:
            streamlit_hooks.free_ended_sessions()
        except Exception as error:  # the last net: what is not freed now is freed the next time
            logging.getLogger(__name__).error("sweep: %s", type(error).__name__)


class Pages:
    """The WebSockets of all open pages."""

    def __init__(self, turns: Turns, room: Room) -> None:
        self.turns, self.room = turns, room
        self._opening = Allowances(rate=limits.OPENED_RATE, burst=limits.OPENED_BURST)
        self._open: dict[str, int] = {}

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one page, unless its client has too many."""
        client = client_of((scope.get("client") or ("", 0))[0])
        refused = self._refused(client)
        if refused is not None:
            await problem_response(refused)(scope, receive, send)
            return
        self._open[client] = self._open.get(client, 0) + 1
        page = Page(self, client, receive, send)
        token = streamlit_hooks.OPENED.set(page.opened)
        try:
            await app(scope, page.receive, page.send)
        except WebSocketDisconnected:  # the page went while something was sent to it
            pass
        finally:
            streamlit_hooks.OPENED.reset(token)
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]
            page.left()

    def _refused(self, client: str) -> ScenarioError | None:
        if self._open.get(client, 0) >= limits.CLIENT_SOCKETS:
            return ScenarioError("too-many-sockets")
        if sum(self._open.values()) >= limits.SOCKETS:
            return ScenarioError("api-busy")
        seconds = self._opening.wait_seconds(client, 1)
        return ScenarioError("too-many-requests", seconds=seconds) if seconds else None


class Page:
    """One page's messages on their way to Streamlit."""

    def __init__(self, pages: Pages, client: str, receive: Receive, send: Send) -> None:
        self._pages, self._client, self._receive, self._send = pages, client, receive, send
        self._own = f"page {next(_numbers)}"
        self._session = ""
        self._ahead: asyncio.Task[Message] | None = None
        self._left = float(limits.MESSAGES_BURST)
        self._looked = time.monotonic()
        self._slow_since = self._above_since = 0.0
        self._is_told = False

    def opened(self, session: str) -> str:
        """A message of this page began a run: from now on the page is that session's. Gives the client."""
        if self._session != session:
            self._pages.room.free_session(self._own)
            self._session = session
        return self._client

    def left(self) -> None:
        """The page is closed."""
        if self._ahead is not None:
            self._ahead.cancel()
        self._pages.room.free_session(self._own)
        if self._session:
            self._pages.room.free(self._session, NEXT)
            self._pages.turns.left(self._session)

    async def send(self, message: Message) -> None:
        """Sends it on; what comes after the close, by either side, meets a broken connection and no fault.

        Raises ConnectionResetError, which Starlette tells Streamlit as a page that went.
        """
        try:
            await self._send(message)
        except RuntimeError as error:
            if CLOSED not in str(error):
                raise
            raise ConnectionResetError from None

    async def receive(self) -> Message:
        """The next message that may go on."""
        while True:
            message = await self._next()
            if message["type"] != "websocket.receive":
                return message
            if message.get("bytes") is None:
                return await self._close(UNSUPPORTED_DATA, "text-not-read")
            size = len(message["bytes"])
            if not self._has_room(FIELDS, size):
                continue
            wait = self._wait_seconds(size)
            end = await self._while_there(asyncio.sleep(wait)) if wait else None
            if end is None and self._session and self._pages.turns.waits(self._session):
                end = await self._while_there(self._run_begun())
            return end or await self._slowed(wait) or message

    async def _next(self) -> Message:
        ahead, self._ahead = self._ahead, None
        if self._session:
            self._pages.room.free(self._session, NEXT)
        return await (ahead if ahead is not None else self._receive())

    def _has_room(self, item: str, size: int) -> bool:
        if size <= limits.SMALL_MESSAGE_BYTES:
            self._pages.room.free(self._session or self._own, item)
            return True
        try:
            self._pages.room.take(self._session or self._own, self._client, item, size)
        except ScenarioError:
            if self._session:
                tell(self._session, ScenarioError("message-too-large"))
            return False
        return True

    def _wait_seconds(self, size: int) -> float:
        """Takes a message off the page's allowance; the seconds until there is enough for it."""
        now = time.monotonic()
        refilled = self._left + (now - self._looked) * limits.MESSAGES_RATE
        self._left, self._looked = min(float(limits.MESSAGES_BURST), refilled), now
        self._left -= 1 + size // limits.BYTES_OF_A_MESSAGE
        return max(0.0, -self._left / limits.MESSAGES_RATE)

    async def _slowed(self, wait: float) -> Message | None:
        """Tells a page that is held back, and closes one that goes on; the end of the page then."""
        now = time.monotonic()
        if not wait:
            self._above_since = 0.0
        if not wait and (self._ahead is None or not self._ahead.done()):
            self._slow_since, self._is_told = 0.0, False
            return None
        self._slow_since = self._slow_since or now
        self._above_since = self._above_since or (now if wait else 0.0)
        if self._above_since and now - self._above_since > limits.CLOSE_SECONDS:
            return await self._close(POLICY_VIOLATION, "too-many-messages")
        if now - self._slow_since > limits.NOTICE_SECONDS and self._session and not self._is_told:
            notices.tell(self._session, ScenarioError("too-many-messages"))
            self._is_told = True
        return None

    async def _close(self, code: int, reason: str) -> Message:
        with suppress(OSError, RuntimeError):  # it is closed already
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        return {"type": "websocket.disconnect", "code": code}

    async def _run_begun(self) -> None:
        while self._pages.turns.waits(self._session):
            await asyncio.sleep(WAIT_LOOK_SECONDS)

    async def _while_there(self, waited: Awaitable[None]) -> Message | None:
        """Waits, and gives the end of the page if it comes meanwhile; the message after is read, and no further."""
        waiting = asyncio.ensure_future(waited)
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._read_ahead())
        try:
            await asyncio.wait((waiting, self._ahead), return_when=asyncio.FIRST_COMPLETED)
            if self._ahead.done() and self._ahead.result()["type"] != "websocket.receive":
                return self._ahead.result()
            await waiting
        finally:
            waiting.cancel()
        return None

    async def _read_ahead(self) -> Message:
        while True:
            message = await self._receive()
            size = len(message.get("bytes") or message.get("text") or b"")
            if message["type"] != "websocket.receive" or self._has_room(NEXT, size):
                return message
