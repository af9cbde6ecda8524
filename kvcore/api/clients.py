"""Who asks, and by which name of this server: in front of everything that has a limit for each client.

A proxy writes the address of whoever it talks to at the end of X-Forwarded-For; what stands before that came from
outside and may be forged. So the client is the name that the outermost of our proxies wrote: counted from the right.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from kvcore.api.answers import problem_response
from kvcore.base.errors import ScenarioError, out_of_bounds

MOST_PROXIES: Final = 8
LONGEST_NAME: Final = 64
"""Characters of a client's name that are kept: an address has fewer."""
_UNCHECKED: Final = "/_stcore/health"
"""Asked by probes under any name; it tells nothing and changes nothing."""


class Front(Struct, frozen=True, kw_only=True):
    """What stands in front of a server."""

    proxies: int = 0
    """Proxies of our own between a client and this server; each writes one name. 0: as uvicorn found the client."""
    hosts: tuple[str, ...] = ()
    """Names under which the server may be asked, `*.` for all under one; `*` any."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Front:
        """The settings of an environment. Raises ScenarioError `invalid-value`.

        Example:
            >>> Front.of({"KVPLANNER_PROXIES": "2", "KVPLANNER_HOSTS": "planner.example.org"})
            Front(proxies=2, hosts=('planner.example.org',))
            >>> Front.of({"FORWARDED_ALLOW_IPS": "*"}).proxies
            1
        """
        given = environment.get(
            "KVPLANNER_PROXIES", "1" if environment.get("FORWARDED_ALLOW_IPS") == "*" else "0"
        )
        if not (given.isascii() and given.isdigit() and len(given) < 3 and int(given) <= MOST_PROXIES):
            raise out_of_bounds("KVPLANNER_PROXIES", given, 0, MOST_PROXIES)
        names = (name.strip().lower() for name in environment.get("KVPLANNER_HOSTS", "").split(","))
        return cls(proxies=int(given), hosts=tuple(name for name in names if name))

    def client(self, seen: str, forwarded: Iterable[str]) -> str:
        """The address of a client: what the peer is, or what our proxies wrote in X-Forwarded-For.

        Example:
            >>> Front(proxies=1).client("10.0.0.2", ["203.0.113.9, 198.51.100.7"])  # the first is forged
            '198.51.100.7'
            >>> Front(proxies=2).client("10.0.0.2", ["203.0.113.9, 198.51.100.7, 10.0.0.3"])
            '198.51.100.7'
            >>> Front().client("198.51.100.7", ["203.0.113.9"])
            '198.51.100.7'
        """
        names = [name for line in forwarded for one in line.split(",") if (name := one.strip())]
        if not self.proxies or not names:
            return seen
        return _without_port(names[-min(self.proxies, len(names))])[:LONGEST_NAME]

    def serves(self, host: str) -> bool:
        """Whether a request under this name is answered.

        Without a list that is every name which no stranger can point at this machine: an address, localhost, a name
        without a dot, the machine's own. Behind a proxy it is any: the proxy knows its names.

        Example:
            >>> [Front().serves(name) for name in ("127.0.0.1:8501", "[::1]:8501", "localhost", "evil.example")]
            [True, True, True, False]
        """
        name = _without_port(host.lower()).rstrip(".")
        if self.hosts:
            return any(
                one in ("*", name) or (one.startswith("*.") and name.endswith(one[1:])) for one in self.hosts
            )
        if self.proxies or _is_address(name):
            return True
        own = socket.gethostname().lower()
        return "." not in name or name.endswith(".localhost") or name in (own, f"{own}.local")


class Clients:
    """Puts the client where everything behind looks for it, and refuses names that are not this server's."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app, self._front = app, front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        host = header(scope, b"host")
        if scope["path"] != _UNCHECKED and not self._front.serves(host):
            refused = ScenarioError("host-not-served", value=host[:LONGEST_NAME])
            await problem_response(refused)(scope, receive, send)
            return
        seen, port = scope.get("client") or ("", 0)
        forwarded = (
            value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"
        )
        await self._app({**scope, "client": (self._front.client(seen, forwarded), port)}, receive, send)


def header(scope: Mapping[str, Any], name: bytes) -> str:
    """The first header of a name, or nothing."""
    return next((value.decode("latin-1") for known, value in scope["headers"] if known == name), "")


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
