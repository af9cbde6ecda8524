"""The addresses of the API as Starlette routes: which clients may ask, how large a body may be, which worker answers.

`Api(Settings.of(os.environ)).routes()` go into any Starlette application, that of the page too.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message

from kvcore.api.answers import (
    HEADERS,
    RETRY_SECONDS,
    allow_origin,
    is_known,
    is_packable,
    kept_packed,
    packed,
    preflight,
    problem_response,
    tag_of,
)
from kvcore.api.bodies import Bodies, check_message, replayed
from kvcore.api.clients import Clients, Front
from kvcore.api.limits import BODY_BYTES, COSTS, Settings
from kvcore.api.openapi import openapi
from kvcore.api.operations import JSON, JSON_LINES, OPTIONS, Answered, Asked
from kvcore.api.pool import Pool
from kvcore.api.quotas import Allowances, Shares, client_of
from kvcore.base.errors import KvPlannerError, ScenarioError, defect
from kvcore.base.place import share_place
from kvcore.version import VERSION

Given = TypeVar("Given")
Endpoint = Callable[[Request], Awaitable[Response]]

PREFIX: Final = "/api"
AGENTS: Final = "/mcp"
BACKLOG: Final = 2048
_MEDIA: Final[Mapping[str, tuple[str, ...]]] = {
    "plan": (JSON,),
    "batch": (JSON, JSON_LINES),
    "sweep": (JSON,),
}
"""Media types of bodies; logs may have any, since they are recognised by their content."""
_ALIASES: Final = {"application/jsonl": JSON_LINES, "application/x-jsonlines": JSON_LINES}


class Api:
    """One server's API: its workers, and the limits of its clients."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        share_place()
        self.pool = Pool(settings)
        self.allowances = Allowances(rate=settings.rate, burst=settings.burst)
        self.bodies = Bodies(settings.body_seconds)
        self.line = Shares(most=settings.longest_line, each=settings.at_once)
        self._catalogue: dict[str, Answered] = {}

    def routes(self) -> list[BaseRoute]:
        """All addresses; none where the host has turned the API off."""
        if not self.settings.is_on:
            return []
        posts = {
            "plan": "plan",
            "plan:batch": "batch",
            "sweep": "sweep",
            "log": "log",
            "workload": "workload",
            "check": "check",
        }
        gets = {"catalogue": self._catalogue_rows, "openapi.json": self._openapi, "healthz": self._health}
        return [
            *(self._route(f"{PREFIX}/{path}", "POST", self._answers(name)) for path, name in posts.items()),
            *(self._route(f"{PREFIX}/{path}", "GET", endpoint) for path, endpoint in gets.items()),
            Route(PREFIX + "/{rest:path}", _Any(self._nothing, self.settings.origins), methods=None),
            *([Route(AGENTS, _Agents(self), methods=None)] if find_spec("mcp") is not None else []),
        ]

    def check_client(self, request: Request, operation: str) -> str:
        """The client of a request that it may ask now.

        Raises ScenarioError `foreign-origin` or `too-many-requests`.
        """
        origin = request.headers.get("origin")
        is_allowed = origin is None or origin in self.settings.origins
        if not is_allowed and _is_foreign(origin or "", request.headers.get("host")):
            raise ScenarioError("foreign-origin", value=origin)
        client = _client(request)
        self._charge(client, COSTS[operation])
        return client

    def _charge(self, client: str, cost: float) -> None:
        seconds = self.allowances.wait_seconds(client, cost)
        if seconds:
            raise ScenarioError("too-many-requests", seconds=seconds)

    async def answered(self, asked: Asked, client: str) -> Answered:
        """The answer to a question that is paid for. Raises ScenarioError `too-many-at-once`, or as Pool.answered."""
        self.line.take(client, 1)
        try:
            return await self.pool.answered(asked, client)
        finally:
            self.line.give_back(client, 1)

    async def answered_tool(self, asked: Asked, client: str) -> Answered:
        """The same for a tool, charging the cost that its message did not cover.

        Raises ScenarioError `too-many-requests` too.
        """
        self._charge(client, COSTS[asked.operation] - COSTS["mcp"])
        return await self.answered(asked, client)

    def _answers(self, operation: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            client = self.check_client(request, operation)
            media, options = _media(request, operation), self._options(request, operation)
            with self.bodies.of(client) as body:
                data = await body.read(request, BODY_BYTES[operation])
                asked = Asked(operation=operation, body=data, media=media, options=options)
                return await _sent(request, await _while_there(request, self.answered(asked, client)))

        return endpoint

    def _options(self, request: Request, operation: str) -> dict[str, str]:
        """Options in the address. Raises ScenarioError `unknown-field` or `named-twice`."""
        found: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name not in OPTIONS.get(operation, ()):
                raise ScenarioError("unknown-field", field=name)
            if name in found:
                raise ScenarioError("named-twice", field=name, value=value)
            found[name] = value
        return found if self.settings.base is None else {**found, "base": self.settings.base}

    async def _catalogue_rows(self, request: Request) -> Response:
        client = self.check_client(request, "catalogue")
        asked = Asked(operation="catalogue", options=self._options(request, "catalogue"))
        if asked.option("search"):
            return await _sent(request, await self.answered(asked, client))
        kind = asked.option("kind")
        if kind not in self._catalogue:
            found = await self.answered(asked, client)
            if found.status != 200:
                return await _sent(request, found)
            self._catalogue[kind] = found
        return await _sent_kept(request, self._catalogue[kind])

    async def _openapi(self, request: Request) -> Response:
        return await _sent_kept(request, Answered(status=200, media=JSON, body=openapi()))

    def _route(self, path: str, method: str, endpoint: Endpoint) -> Route:
        """A route for one method; other methods get a problem+json answer too."""

        async def checked(request: Request) -> Response:
            if request.method not in (method, "HEAD" if method == "GET" else method):
                raise ScenarioError("method-not-allowed", value=request.method, allowed=method)
            return await endpoint(request)

        return Route(path, _Any(checked, self.settings.origins), methods=None)

    async def _health(self, request: Request) -> Response:
        facts = {"status": "ok", "version": VERSION, "waiting": self.pool.waiting}
        return await _sent(request, Answered(status=200, media=JSON, body=json.dumps(facts).encode()))

    async def _nothing(self, _request: Request) -> Response:
        raise ScenarioError("no-such-address")


async def _while_there(request: Request, answer: Coroutine[Any, Any, Given]) -> Given:
    """An answer, given up when the client goes. Raises ClientDisconnect."""
    asked = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((asked, gone), return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise ClientDisconnect
        return await asked
    finally:
        for task in (asked, gone):
            task.cancel()
        await asyncio.wait((asked, gone))


async def _never() -> Message:
    """Whether the client is still there is asked by `_while_there` alone."""
    await asyncio.Event().wait()
    raise AssertionError


async def _gone(request: Request) -> None:
    if (await request.receive())["type"] != "http.disconnect":
        await asyncio.Event().wait()  # the body is read: whatever this is, nothing is learnt from it


class _Any:
    """An endpoint that is not a function, since Starlette lets a function answer only GET."""

    def __init__(self, endpoint: Endpoint, origins: frozenset[str]) -> None:
        self.endpoint, self.origins = endpoint, origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        origin = request.headers.get("origin", "")
        is_asked = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        try:
            if is_asked and origin in self.origins:
                response = preflight(origin)
            else:
                response = await self.endpoint(request)
        except ClientDisconnect:
            return
        except (
            Exception
        ) as error:  # the last net: a defect is a problem with a code, and says nothing of the request
            response = problem_response(error if isinstance(error, KvPlannerError) else defect(error))
        if origin in self.origins:
            allow_origin(response, origin)
        await response(scope, receive, send)


class _Agents:
    """The tools for agents, imported at the first question: the import takes as long as some plans."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        client = _client(request)
        with self.api.bodies.of(client) as body:
            try:
                self.api.check_client(request, "mcp")
                if request.method != "POST":
                    raise ScenarioError("method-not-allowed", value=request.method, allowed="POST")
                data = await body.read(request, BODY_BYTES["mcp"])
                # The protocol's own package then parses a small message on the event loop.
                await asyncio.to_thread(check_message, data)
                agents = await asyncio.to_thread(import_module, "kvcore.api.agents")
            except ClientDisconnect:
                return
            except Exception as error:  # the last net, as of the other addresses
                response = problem_response(error if isinstance(error, KvPlannerError) else defect(error))
                await response(scope, receive, send)
            else:
                answer = agents.answer_http(self.api, client, scope, replayed(data, _never), send)
                with suppress(ClientDisconnect):
                    await _while_there(request, answer)


async def _sent(request: Request, found: Answered) -> Response:
    """An answer, packed where its client takes that."""
    body, headers = found.body, dict(HEADERS)
    if is_packable(request, body):
        body = await asyncio.to_thread(packed, body)
        headers["Content-Encoding"] = "gzip"
    response = Response(body, status_code=found.status, media_type=found.media, headers=headers)
    response.headers.add_vary_header("Accept-Encoding")
    if found.status == 503:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


async def _sent_kept(request: Request, found: Answered) -> Response:
    """An answer that is the same for all: a client that has it is told so."""
    tag = tag_of(found.body)
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
    if is_known(request, tag):
        response = Response(status_code=304, headers=headers)
    elif is_packable(request, found.body):
        body = await asyncio.to_thread(kept_packed, found.body)
        response = Response(body, media_type=found.media, headers={**headers, "Content-Encoding": "gzip"})
    else:
        response = Response(found.body, media_type=found.media, headers=headers)
    response.headers.add_vary_header("Accept-Encoding")
    return response


def _client(request: Request) -> str:
    """The client of a request, by its address.

    Behind proxies, `Clients` has put the address there that they gave.
    """
    return client_of(request.client.host if request.client is not None else "")


def _is_foreign(origin: str, host: str | None) -> bool:
    """Whether the request comes from a page of another site; an origin that is no address counts as one."""
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True


def _media(request: Request, operation: str) -> str:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    media = _ALIASES.get(given, given)
    allowed = _MEDIA.get(operation)
    if allowed is not None and media not in allowed:
        raise ScenarioError("media-type-not-read", value=given or "-", allowed=", ".join(allowed))
    return media


def application() -> Starlette:
    """The API by itself, without the pages, as a Starlette application with the settings of the environment."""
    return Starlette(
        routes=Api(Settings.of(os.environ)).routes(),
        middleware=[Middleware(Clients, front=Front.of(os.environ))],
    )


def serve(host: str, port: int) -> None:
    """Answers until it is ended, after a line that says where. No request is written to a log.

    Raises ScenarioError `cannot-listen` for a port that is taken, or an address that is not this machine's.
    """
    import uvicorn

    try:
        listening = socket.create_server((host, port), family=_family(host), backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else "no such address"
        raise ScenarioError("cannot-listen", field="--port", value=f"{host}:{port}", error=reason) from None
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}"
    print(
        f"kvcore: {address}/api/openapi.json tells what it answers; Ctrl-C ends it",
        file=sys.stderr,
        flush=True,
    )
    server = uvicorn.Server(uvicorn.Config(application(), access_log=False, log_level="warning"))
    server.run(sockets=[listening])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
