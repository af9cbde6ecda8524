"""The style in the document of a visit."""

import asyncio

from pages.ui.shared.document import FIRST, STYLE, Message, StyledDocument

PAGE = b"<!doctype html><html><head><title>x</title></head><body></body></html>"


def answer(
    accept: bytes, media: bytes, chunks: list[bytes]
) -> tuple[dict[bytes, bytes], bytes, dict[bytes, bytes]]:
    """Headers and body that arrive, and the headers of the request that the application sees."""
    seen: dict[bytes, bytes] = {}
    sent: list[Message] = []

    async def app(scope, receive, send) -> None:
        seen.update(scope["headers"])
        headers = [
            (b"content-type", media),
            (b"content-length", b"%d" % sum(map(len, chunks))),
            (b"etag", b'"1"'),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for place, chunk in enumerate(chunks):
            await send({"type": "http.response.body", "body": chunk, "more_body": place + 1 < len(chunks)})

    async def keep(message: Message) -> None:
        sent.append(message)

    async def nothing() -> Message:
        return {}

    headers = [(b"accept", accept), (b"accept-encoding", b"gzip"), (b"if-none-match", b'"1"')]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    asyncio.run(StyledDocument(app)(scope, nothing, keep))
    start, *bodies = sent
    return dict(start["headers"]), b"".join(body["body"] for body in bodies), seen


def test_a_document_gets_its_styles() -> None:
    headers, body, seen = answer(b"text/html,*/*", b"text/html; charset=utf-8", [PAGE[:40], PAGE[40:]])
    assert body == PAGE.replace(b"</head>", FIRST).replace(b"</body>", STYLE)
    assert headers[b"content-length"] == b"%d" % len(body)
    assert (
        b"etag" not in headers
    )  # the browser would keep it under the name of the document without the style
    assert set(seen) == {b"accept"}


def test_everything_else_passes_as_it_is() -> None:
    for accept, media in ((b"*/*", b"text/html"), (b"text/html", b"application/json")):
        headers, body, _ = answer(accept, media, [PAGE[:40], PAGE[40:]])
        assert body == PAGE
        assert headers[b"etag"] == b'"1"'


def test_the_styles_hold_no_script() -> None:
    assert (FIRST.count(b"<"), STYLE.count(b"<")) == (
        5,
        3,
    )  # their own tags, and the end of the head or the body
    assert b"<script" not in FIRST + STYLE
