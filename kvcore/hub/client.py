"""The HTTP client of huggingface_hub, within the limits of the look-up that uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import httpx2
from huggingface_hub import get_session, set_client_factory

from kvcore.hub.requests import BOUNDS, MAX_REQUESTS

_INSTALLING: Final = threading.Lock()
_ERROR_HEADERS: Final = ("x-error-code", "x-error-message")
"""All that huggingface_hub needs of the headers of an answer."""


class BoundedClient(httpx2.Client):
    """Sends the requests of a look-up within its `Bounds`; others, of a program that uses kvcore, as they are."""

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The answer, read within its bounds; one that is an error has no body."""
        bounds = BOUNDS.get()
        if bounds is None:
            return super().send(request, **options)
        for _ in range(MAX_REQUESTS):
            bounds.allow(request)
            response = super().send(request, stream=True, follow_redirects=False)
            self.cookies.clear()
            try:
                if response.next_request is not None:
                    request = response.next_request
                    continue
                status = response.status_code
                if status < 400 and status not in (200, 206):
                    raise bounds.lookup.refused("hub-unreachable", reason=f"HTTP status {status}")
                body = bounds.body_of(response) if status < 400 else b""
            finally:
                response.close()
            headers = {name: response.headers[name] for name in _ERROR_HEADERS if name in response.headers}
            return httpx2.Response(status, headers=headers, content=body, request=request)
        raise bounds.lookup.refused("hub-unreachable", reason="too many redirects")


def use_bounded_client() -> None:
    """Makes huggingface_hub use `BoundedClient`, with the settings that its client had for everybody else."""
    with _INSTALLING:
        before = get_session()
        if isinstance(before, BoundedClient):
            return
        hooks = {kind: [_outside(hook) for hook in hooks] for kind, hooks in before.event_hooks.items()}
        follows, timeout = before.follow_redirects, before.timeout
        set_client_factory(
            lambda: BoundedClient(event_hooks=hooks, follow_redirects=follows, timeout=timeout)
        )


def _outside(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`hook` for requests of others."""
    return lambda message: hook(message) if BOUNDS.get() is None else None
