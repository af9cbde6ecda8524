"""One visitor of a Streamlit server, without a browser: the messages that a browser would send and receive.

A visitor opens a link, keeps the page that the server draws, sets widgets, uploads files, follows links between the
pages. Every action ends when the server says that the run of the script is over.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import httpx2
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Block_pb2 import Block
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.Common_pb2 import FileUploaderState, FileURLs, UploadedFileInfo
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import ClientConnection, connect

from tools.soak.widgets import key_of, state_of, widget_of

XSRF_COOKIE = "_streamlit_xsrf"
TEXTS = {
    "heading": "body",
    "markdown": "body",
    "html": "body",
    "text": "body",
    "alert": "body",
    "code": "code_text",
}
"""Elements that are read -> their field."""
MODEL_SOURCES = "model_sources"
"""The popover of the sidebar with the other ways to a model; it is filled when it is opened."""
TRUSTED = ssl.create_default_context()
"""Shared by all visitors: making one takes as long as a page of the server."""
ACTION_SECONDS = 120
"""Longer than any action takes on a busy machine: only a server that hangs reaches it."""


class VisitError(Exception):
    """The server behaved otherwise than for a browser."""


class Node(NamedTuple):
    """One element or container of the page as drawn."""

    content: Element | Block
    script: str
    """Hash of the script that drew it: the app's frame or one page."""
    run: str
    fragment: str
    """The part of a script that runs by itself where one of its widgets changes; empty for the rest."""


class Visitor:
    """A browser tab, as far as the server can tell. Use it as an asynchronous context manager."""

    def __init__(self, address: str, *, locale: str = "en-US", client: str = "") -> None:
        self.address, self.locale = address.rstrip("/"), locale
        self._name = {"X-Forwarded-For": client} if client else {}
        """What a proxy would write of this visitor."""
        self.query = ""
        """The address bar's query string; the app rewrites it."""
        self.page = ""
        """Path of the page."""
        self.nodes: dict[tuple[int, ...], Node] = {}
        self.errors: list[str] = []
        """Exceptions that the server drew on the page."""
        self.received = 0
        """Bytes from the server."""
        self.on_message: Callable[[bytes], None] | None = None
        self._socket: ClientConnection | None = None
        self._web: httpx2.AsyncClient | None = None
        self._values: dict[str, WidgetState] = {}
        self._pages: dict[str, str] = {}
        self._session = self._main_script = self._run = self._page_script = ""
        self._fragments: frozenset[str] = frozenset()
        self._requests = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Closes the tab."""
        socket, web, self._socket, self._web = self._socket, self._web, None, None
        if socket is not None:
            await socket.close()
        if web is not None:
            await web.aclose()

    async def visit(self, query: str = "", page: str = "") -> None:
        """Opens a link in a new session, as a tab does that loads the address."""
        await self.leave()
        self._web = httpx2.AsyncClient(
            base_url=self.address, timeout=ACTION_SECONDS, trust_env=False, verify=TRUSTED, headers=self._name
        )
        (await self._web.get("/_stcore/health")).raise_for_status()
        cookie = self._web.cookies.get(XSRF_COOKIE, "")
        self._socket = await connect(
            f"ws://{urlsplit(self.address).netloc}/_stcore/stream",
            origin=self.address,  # type: ignore[arg-type]
            subprotocols=["streamlit", cookie] if cookie else ["streamlit"],  # type: ignore[list-item]
            additional_headers={"Cookie": f"{XSRF_COOKIE}={cookie}", **self._name},
            max_size=None,
            open_timeout=ACTION_SECONDS,
            ping_interval=None,
            proxy=None,
        )
        self.nodes, self._values, self._page_script = {}, {}, ""
        self.query, self.page = query.removeprefix("?"), page
        await self._rerun(ClientState(query_string=self.query, page_name=page))

    # What is on the page.

    def elements(self, kind: str) -> Iterator[Any]:
        """The elements of one kind, in the order of the page: metric, html, markdown, slider..."""
        for _, node in sorted(self.nodes.items()):
            if isinstance(node.content, Element) and node.content.WhichOneof("type") == kind:
                yield getattr(node.content, kind)

    def metrics(self) -> dict[str, str]:
        """The cards: label -> value with its note."""
        return {card.label: f"{card.body} {card.delta}".strip() for card in self.elements("metric")}

    def texts(self) -> list[str]:
        """Everything written on the page that a person reads outside of widgets and charts."""
        return [getattr(element, body) for kind, body in TEXTS.items() for element in self.elements(kind)]

    def names(self) -> list[str]:
        """The keys of all widgets of the page."""
        return [key_of(widget) for widget in self._widgets()]

    def find(self, name: str) -> Any | None:
        """The widget with that key, or else that label; None where the page has none."""
        widgets = self._widgets()
        by_key = (one for one in widgets if key_of(one) == name)
        return next(by_key, None) or next((one for one in widgets if one.label == name), None)

    # What a person does.

    async def set(self, name: str, value: Any) -> None:
        """Sets the widget with that key or label."""
        await self._rerun(self.changed(name, value))

    async def press(self, name: str) -> None:
        """Presses the button with that key or label."""
        widget = self._needed(name)
        state = self._state(changed=widget)
        state.widget_states.widgets.append(WidgetState(id=widget.id, trigger_value=True))
        await self._rerun(state)

    async def upload(self, name: str, *files: tuple[str, bytes]) -> None:
        """Drops files on the uploader with that key or label."""
        widget = self._needed(name)
        infos = []
        for (file_name, content), urls in zip(files, await self.places(len(files)), strict=True):
            answer = await self.put(urls.upload_url, file_name, content)
            if answer.status_code >= 400:
                raise VisitError(f"upload of {len(content)} bytes: {answer.status_code} {answer.text[:200]}")
            infos.append(
                UploadedFileInfo(name=file_name, size=len(content), file_id=urls.file_id, file_urls=urls)
            )
        if not widget.multiple_files:
            infos = infos[-1:]
        value = FileUploaderState(uploaded_file_info=infos)
        self._values[widget.id] = WidgetState(id=widget.id, file_uploader_state_value=value)
        await self._rerun(self._state(changed=widget))

    async def go(self, page: str) -> None:
        """Follows the link of the navigation to the page with that path."""
        target = next(
            (one for one in self.elements("page_link") if self._pages.get(one.page_script_hash) == page), None
        )
        if target is None:
            raise VisitError(f"no link to {page or 'the first page'} on {self.page or 'the first page'}")
        self.query, self.page = target.query_string, page
        shared = [node for node in self.nodes.values() if node.script == self._main_script]
        kept = {widget.id for node in shared if (widget := widget_of(node.content)) is not None}
        state = self._state(kept)
        state.page_script_hash = target.page_script_hash
        await self._rerun(state)

    async def again(self) -> None:
        """Runs the script once more, as the menu's "Rerun" does."""
        await self._rerun(self._state())

    # The wire.

    def _widgets(self) -> list[Any]:
        nodes = (node for _, node in sorted(self.nodes.items()))
        return [found for node in nodes if (found := widget_of(node.content)) is not None]

    def _needed(self, name: str) -> Any:
        widget = self.find(name)
        if widget is None:
            raise VisitError(f"no widget {name} on the page {self.page or 'plan'}")
        return widget

    def _state(self, kept: set[str] | None = None, changed: Any | None = None) -> ClientState:
        state = ClientState(query_string=self.query, page_script_hash=self._page_script)
        for node in self.nodes.values() if changed is not None else ():
            widget = widget_of(node.content)
            if widget is not None and widget.id == changed.id:
                state.fragment_id = node.fragment
        states = (value for name, value in self._values.items() if kept is None or name in kept)
        state.widget_states.widgets.extend(states)
        return state

    async def _rerun(self, state: ClientState) -> None:
        state.context_info.locale, state.context_info.timezone = self.locale, "UTC"
        state.context_info.url = f"{self.address}/{self.page}"
        await self._send(BackMsg(rerun_script=state))
        async with asyncio.timeout(ACTION_SECONDS):
            while True:
                message = await self._receive()
                if message.WhichOneof("type") == "script_finished" and message.script_finished in (
                    ForwardMsg.FINISHED_SUCCESSFULLY,
                    ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY,
                    ForwardMsg.FINISHED_WITH_COMPILE_ERROR,
                ):
                    break
        self.nodes = {path: node for path, node in self.nodes.items() if self._is_shown(node)}
        shown = {widget.id for node in self.nodes.values() if (widget := widget_of(node.content)) is not None}
        self._values = {name: value for name, value in self._values.items() if name in shown}

    def _is_shown(self, node: Node) -> bool:
        """Whether the last run has drawn it, or has left it alone."""
        return node.run == self._run or bool(self._fragments and node.fragment not in self._fragments)

    async def _send(self, message: BackMsg) -> None:
        if self._socket is None:
            raise VisitError("the visitor has opened no page")
        await self._socket.send(message.SerializeToString())

    async def _receive(self) -> ForwardMsg:
        if self._socket is None:
            raise VisitError("the visitor has opened no page")
        raw = await self._socket.recv()
        if isinstance(raw, str):
            raise VisitError("the server sent text")
        self.received += len(raw)
        if self.on_message is not None:
            self.on_message(raw)
        message = ForwardMsg.FromString(raw)
        self._apply(message)
        return message

    def _apply(self, message: ForwardMsg) -> None:
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self._run = message.metadata.run.script_run_id
            self._fragments = frozenset(message.metadata.run.fragment_ids)
            self._session = message.new_session.initialize.session_id
            self._main_script = message.new_session.main_script_hash
            self._page_script = message.new_session.page_script_hash
        elif kind == "navigation":
            self._pages = {page.page_script_hash: page.url_pathname for page in message.navigation.app_pages}
            self._pages |= {
                page.page_script_hash: "" for page in message.navigation.app_pages if page.is_default
            }
            self._page_script = message.navigation.page_script_hash
        elif kind == "page_info_changed":
            self.query = message.page_info_changed.query_string
        elif kind == "session_event" and message.session_event.HasField("script_compilation_exception"):
            self.errors.append(message.session_event.script_compilation_exception.message)
        elif kind == "page_not_found":
            self.errors.append(f"page not found: {message.page_not_found.page_name}")
        elif kind == "delta":
            self._draw(message)

    def _draw(self, message: ForwardMsg) -> None:
        path, script = tuple(message.metadata.delta_path), message.metadata.active_script_hash
        fragment = message.delta.fragment_id
        delta = message.delta.WhichOneof("type")
        if delta == "add_block":
            self.nodes[path] = Node(message.delta.add_block, script, self._run, fragment)
        elif delta == "new_element":
            element = message.delta.new_element
            below = [known for known in self.nodes if len(known) > len(path) and known[: len(path)] == path]
            for known in below:
                del self.nodes[known]
            self.nodes[path] = Node(element, script, self._run, fragment)
            if element.WhichOneof("type") == "exception" and not element.exception.is_warning:
                self.errors.append(f"{element.exception.type}: {element.exception.message}")
        else:
            return
        widget = widget_of(self.nodes[path].content)
        if widget is not None and (widget.id not in self._values or getattr(widget, "set_value", False)):
            state = state_of(widget)
            if state is not None:
                self._values[widget.id] = state

    async def places(self, files: int) -> list[FileURLs]:
        """Places for so many files to upload."""
        self._requests += 1
        request = BackMsg()
        request.file_urls_request.request_id = str(self._requests)
        request.file_urls_request.file_names.extend(["file"] * files)
        request.file_urls_request.session_id = self._session
        await self._send(request)
        async with asyncio.timeout(ACTION_SECONDS):
            while True:
                message = await self._receive()
                if message.WhichOneof("type") == "file_urls_response":
                    return list(message.file_urls_response.file_urls)

    async def put(self, url: str, name: str, content: bytes) -> httpx2.Response:
        """Sends a file to its place."""
        return await self.web.put(url, files={"file": (name, content)}, headers=self.token())

    def token(self) -> dict[str, str]:
        """The header that shows that a page of the server sends."""
        return {"X-Xsrftoken": self.web.cookies.get(XSRF_COOKIE, "")}

    @property
    def web(self) -> httpx2.AsyncClient:
        """The visitor's connection for all but messages."""
        if self._web is None:
            raise VisitError("the visitor has opened no page")
        return self._web

    @property
    def socket(self) -> ClientConnection:
        """The visitor's WebSocket, for what is no person's."""
        if self._socket is None:
            raise VisitError("the visitor has opened no page")
        return self._socket

    def changed(self, name: str, value: Any) -> ClientState:
        """What a browser sends for a new value of a widget."""
        widget = self._needed(name)
        self._values[widget.id] = state_of(widget, value)
        return self._state(changed=widget)
