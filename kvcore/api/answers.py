"""Coded errors as answers of a web server."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from kvcore.api.problems import MEDIA, problem_bytes, status_of
from kvcore.base.errors import KvPlannerError

RETRY_SECONDS: Final = 2
"""Seconds to wait after a question that the server had no time for."""
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
