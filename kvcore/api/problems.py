"""A coded error as problem details (RFC 9457): what is wrong, with which field, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kvcore.base.errors import DefectError, KvPlannerError

MEDIA: Final = "application/problem+json"
TYPE: Final = "urn:kv-planner:problem:"
"""Prefix of the code in the problem's type, which is a name and not an address."""
UNPLANNABLE: Final = 422
DEFECT: Final = 500
_STATUS: Final[Mapping[str, int]] = {
    "invalid-json": 400,
    "body-in-crumbs": 400,
    "not-utf8": 400,
    "foreign-origin": 403,
    "no-such-address": 404,
    "method-not-allowed": 405,
    "body-too-slow": 408,
    "input-too-large": 413,
    "body-too-large": 413,
    "log-too-large": 413,
    "request-log-too-large": 413,
    "media-type-not-read": 415,
    "too-many-requests": 429,
    "too-many-at-once": 429,
    "hub-unreachable": 502,
    "hub-malformed": 502,
    "too-many-sockets": 429,
    "too-many-messages": 429,
    "uploads-full": 429,
    "host-not-served": 421,
    "upload-not-expected": 409,
    "upload-unsized": 411,
    "upload-too-large": 413,
    "upload-too-slow": 408,
    "uploads-busy": 503,
    "api-busy": 503,
    "api-waited": 503,
    "server-busy": 503,
    "parquet-busy": 503,
    "tokenizer-busy": 503,
    "log-busy": 503,
    "hub-busy": 503,
    "hub-timeout": 504,
}
"""Statuses of errors other than a request that cannot be planned."""


def status_of(error: KvPlannerError) -> int:
    """The HTTP status of an error.

    Example:
        >>> from kvcore.base.errors import ScenarioError
        >>> status_of(ScenarioError("missing-field", field="model")), status_of(ScenarioError("server-busy"))
        (422, 503)
    """
    return DEFECT if isinstance(error, DefectError) else _STATUS.get(error.code, UNPLANNABLE)


def problem_of(error: KvPlannerError, request_id: object = None) -> dict[str, Any]:
    """The details of an error; `id` is the request's own, where it had one.

    Example:
        >>> from kvcore.base.errors import ScenarioError
        >>> found = problem_of(ScenarioError("missing-field", field="model"))
        >>> found["title"], found["detail"], found["next_step"]
        ('missing field', 'model is missing', 'add it')
    """
    return {
        "type": TYPE + error.code,
        "title": error.code.replace("-", " "),
        "status": status_of(error),
        "detail": error.message,
        "code": error.code,
        "field": error.field,
        "next_step": error.next_step,
        **({} if request_id is None else {"id": request_id}),
    }


def problem_bytes(error: KvPlannerError, request_id: object = None) -> bytes:
    """`problem_of` as JSON."""
    return json.dumps(problem_of(error, request_id)).encode()
