"""The HTML document that every visit begins with: Streamlit's own, with a style that applies from its first byte on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Asgi: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

END_OF_HEAD: Final = b"</head>"
END_OF_BODY: Final = b"</body>"
_HERE: Final = Path(__file__)
FIRST: Final = b'<style>%b</style><style id="kv-loading">%b</style>%b' % (
    _HERE.with_name("head.css").read_bytes(),
    _HERE.with_name("loading.css").read_bytes(),
    END_OF_HEAD,
)
"""Styles at the end of the head."""
STYLE: Final = b"<style>%b</style>%b" % (_HERE.with_name("style.css").read_bytes(), END_OF_BODY)
"""The pages' own style at the end of the body: Streamlit puts its styles into the head, and of two rules of the same
weight the later one wins."""
HTML: Final = b"text/html"
OF_THE_BODY: Final = (b"content-length", b"etag", b"last-modified")
"""Headers that say something of the document as it was."""


class StyledDocument:
    """Puts styles into each HTML document on its way out; everything else passes as it is.

    As an element of the page a style comes now and then a frame after what it is for: a bar without it is as high as
    the window. And the browser would weigh each rule again at every run.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not _asks_for_html(scope):
            await self._app(scope, receive, send)
            return
        # Compressed, the end of the head could not be found; and one that the browser keeps may have another style.
        left_out = (b"accept-encoding", b"if-none-match", b"if-modified-since")
        plain = [header for header in scope["headers"] if header[0] not in left_out]
        await self._app({**scope, "headers": plain}, receive, _styling(send))


def _asks_for_html(scope: Message) -> bool:
    return any(name == b"accept" and HTML in value for name, value in scope["headers"])


def _styling(send: Send) -> Send:
    """`send` with the style in an HTML document, which goes out whole; other answers go out as they come."""
    start: Message | None = None
    body = bytearray()

    async def styled(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and _is_html(message):
            start = message
            return
        if start is None or message["type"] != "http.response.body":
            await send(message)
            return
        body.extend(message.get("body", b""))
        if message.get("more_body"):
            return
        document = bytes(body).replace(END_OF_HEAD, FIRST, 1).replace(END_OF_BODY, STYLE, 1)
        headers = [header for header in start["headers"] if header[0].lower() not in OF_THE_BODY]
        length = (b"content-length", str(len(document)).encode())
        await send({**start, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": document})

    return styled


def _is_html(start: Message) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(HTML) for name, value in start["headers"])
