"""The places of Streamlit 1.67 and uvicorn 0.54 where the limits take hold; tests/test_fair_server.py shows it.

Each hook replaces a method by one that calls it: an upgrade that moves one fails here, when the server starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from streamlit import runtime
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime import memory_uploaded_file_manager
from streamlit.runtime.scriptrunner import script_runner
from streamlit.runtime.state.common import GENERATED_ELEMENT_ID_PREFIX
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pages.ui.fair.files import Files
from pages.ui.fair.frames import Frames
from pages.ui.fair.turns import Turns

OPENED: Final[ContextVar[Callable[[str], str] | None]] = ContextVar("OPENED", default=None)
"""Called with the session's id when the message of a WebSocket begins a run; gives the client whose page it is."""
_CLIENTS: Final[dict[str, str]] = {}
"""Session -> its client, for as long as the session may come back."""


def install(turns: Turns, frames: Frames) -> None:
    """Puts runs into turns, files into their room, and a WebSocket's frames under their limits."""
    memory_uploaded_file_manager.MemoryUploadedFileManager = Files  # type: ignore[misc]
    runner = script_runner.ScriptRunner
    start, thread, run = runner.start, runner._run_script_thread, runner._run_script
    enqueue = runner._enqueue_forward_msg
    received, lost = WebSocketsSansIOProtocol.data_received, WebSocketsSansIOProtocol.connection_lost

    @functools.wraps(start)
    def counted_start(self: Any) -> None:
        opened = OPENED.get()
        if opened is not None:
            _CLIENTS[self._session_id] = opened(self._session_id)
        turns.comes(self._session_id, is_there=True)
        try:
            start(self)
        except BaseException:
            turns.comes(self._session_id, is_there=False)
            raise

    @functools.wraps(thread)
    def counted_thread(self: Any) -> None:
        try:
            thread(self)
        finally:
            turns.comes(self._session_id, is_there=False)

    @functools.wraps(run)
    def run_in_turn(self: Any, rerun_data: Any) -> None:
        with turns.turn(_CLIENTS.get(self._session_id, self._session_id), self._session_id) as is_there:
            if is_there:
                _drop_forged(rerun_data.widget_states)
                run(self, rerun_data)

    @functools.wraps(enqueue)
    def enqueue_in_turn(self: Any, msg: Any) -> None:
        turns.rest()
        enqueue(self, msg)

    @functools.wraps(received)
    def bounded_received(self: Any, data: bytes) -> None:
        frames.receive(self, data, received)

    @functools.wraps(lost)
    def forgotten(self: Any, exc: Exception | None) -> None:
        frames.forget(self)
        lost(self, exc)

    runner.start, runner._run_script_thread = counted_start, counted_thread  # type: ignore[method-assign]
    runner._run_script = run_in_turn  # type: ignore[method-assign]
    runner._enqueue_forward_msg = enqueue_in_turn  # type: ignore[method-assign]
    WebSocketsSansIOProtocol.data_received = bounded_received  # type: ignore[method-assign]
    WebSocketsSansIOProtocol.connection_lost = forgotten  # type: ignore[method-assign]


def _drop_forged(states: WidgetStates | None) -> None:
    """Takes out values for widgets whose names Streamlit never gives: it fails on them, and the whole page with it."""
    if states is not None and not all(
        state.id.startswith(GENERATED_ELEMENT_ID_PREFIX) for state in states.widgets
    ):
        known = [state for state in states.widgets if state.id.startswith(GENERATED_ELEMENT_ID_PREFIX)]
        del states.widgets[:]
        states.widgets.extend(known)


def files() -> Files:
    """The files of the running server."""
    found = runtime.get_instance().uploaded_file_mgr
    assert isinstance(found, Files)
    return found


def free_ended_sessions() -> None:
    """Ends sessions whose time to come back is over, and frees what they have left.

    Streamlit forgets them only where another session leaves: until then their uploads would stay.
    """
    manager: Any = runtime.get_instance()._session_mgr
    manager._session_storage._cache.expire()
    sessions = {info.session.id for info in manager.list_sessions()}
    files().free_all_but(sessions)
    for session in set(_CLIENTS) - sessions:
        del _CLIENTS[session]


def run_again(session: str) -> None:
    """Runs the session's page again as it is, so that it shows what it is told."""
    found: Any = runtime.get_instance().get_app_session(session)
    if found is not None:
        found.request_rerun(found._client_state)
