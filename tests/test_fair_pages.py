"""What is sent to a page that is closed: Streamlit's sender goes on for a moment, and its server writes no stack."""

import asyncio

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from pages.ui.fair.files import Files
from pages.ui.fair.layer import Page, Pages
from pages.ui.fair.turns import Turns

CLOSED = "Unexpected ASGI message 'websocket.send', after sending 'websocket.close'."
"""As uvicorn 0.54 says it: protocols/websockets/websockets_sansio_impl.py:send."""


def page(said: str) -> Page:
    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            raise RuntimeError(said)

    return Page(Pages(Turns(), Files.room), "client", receive, send)


async def sent(to: Page) -> None:
    socket = WebSocket({"type": "websocket"}, to.receive, to.send)
    await socket.accept()
    await socket.send_bytes(b"a message of the page")


def test_a_message_after_the_close_finds_the_page_gone() -> None:
    with pytest.raises(WebSocketDisconnect):
        asyncio.run(sent(page(CLOSED)))


def test_another_fault_is_not_taken_for_a_close() -> None:
    with pytest.raises(RuntimeError, match="something else"):
        asyncio.run(sent(page("something else")))
