"""Coded errors as answers of a web server."""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kvcore.api.problems import MEDIA, problem_bytes, status_of
from kvcore.base.errors import KvPlannerError

RETRY_SECONDS: Final = 2
"""Seconds to wait after a question that the server had no time for."""
LEAST_PACKED: Final = 1024
"""Bytes from which on an answer is packed."""
PACKING_LEVEL: Final = 5
HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_CLOSES: Final = frozenset(("body-too-slow", "body-in-crumbs", "upload-too-slow"))
"""Errors that close the connection: the rest of the body is not waited for."""


def problem_response(error: KvPlannerError) -> Response:
    """A coded error as HTTP sends it."""
    response = Response(problem_bytes(error), status_code=status_of(error), media_type=MEDIA, headers=HEADERS)
    if response.status_code == 405:
        response.headers["Allow"] = error.params["allowed"]
    if error.code in _CLOSES:
        response.headers["Connection"] = "close"
    if response.status_code in (429, 503):
        response.headers["Retry-After"] = error.params.get("seconds", str(RETRY_SECONDS))
    return response


def is_packable(request: Request, body: bytes) -> bool:
    """Whether an answer is packed by gzip: its client takes that, and it is long enough to be worth it."""
    taken = request.headers.get("accept-encoding", "").lower().split(",")
    names = {one.partition(";")[0].strip(): one.partition(";")[2].replace(" ", "") for one in taken}
    return len(body) >= LEAST_PACKED and names.get("gzip", "q=0") not in ("q=0", "q=0.0")


@lru_cache(maxsize=8)
def kept_packed(body: bytes) -> bytes:
    """A body that many ask for, packed once."""
    return packed(body)


def packed(body: bytes) -> bytes:
    """A body packed by gzip; the same for the same body."""
    return gzip.compress(body, PACKING_LEVEL, mtime=0)


def tag_of(body: bytes) -> str:
    """The entity tag of a body: weak, since the packed body has the same.

    Example:
        >>> tag_of(b"{}")
        'W/"44136fa355b3678a1146ad16f7e8649e"'
    """
    return f'W/"{hashlib.sha256(body).hexdigest()[:32]}"' if body else ""


def is_known(request: Request, tag: str) -> bool:
    """Whether the client says that it has the body with this tag."""
    given = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    return "*" in given or tag.removeprefix("W/") in given


def allow_origin(response: Response, origin: str) -> None:
    """Lets the page of another site read an answer."""
    response.headers["Access-Control-Allow-Origin"] = origin
    response.headers["Access-Control-Expose-Headers"] = "ETag, Retry-After"
    response.headers.add_vary_header("Origin")


def preflight(origin: str) -> Response:
    """The answer to a browser that asks whether the page of another site may ask."""
    response = Response(status_code=204, headers=HEADERS)
    response.headers["Access-Control-Allow-Methods"] = "GET, POST"
    response.headers["Access-Control-Allow-Headers"] = "Content-Type"
    response.headers["Access-Control-Max-Age"] = "600"
    allow_origin(response, origin)
    return response
