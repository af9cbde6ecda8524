"""A WebSocket's bytes before they are a message: many small frames, and large messages that never end.

uvicorn puts a message together before anything here sees it, and answers pings by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from websockets.frames import Frame, Opcode

from pages.ui.fair import limits

TRY_AGAIN, POLICY = 1013, 1008
"""Codes of RFC 6455 and its registry: try again later, policy violation."""
MESSAGES: Final = (Opcode.CONT, Opcode.TEXT, Opcode.BINARY)


class _Connection:
    """What is known of one WebSocket."""

    def __init__(self, protocol: Any, now: float) -> None:
        self.frames_left = float(limits.FRAMES_BURST)
        self.looked = self.since = now
        self.pending = 0
        """Bytes of a message that is not whole."""
        self.is_whole = self.is_closed = False
        self._found = protocol.conn.events_received
        protocol.conn.events_received = self._events

    def _events(self) -> list[Any]:
        events: list[Any] = self._found()
        self.frames_left -= len(events)
        self.is_whole |= any(isinstance(one, Frame) and one.fin and one.opcode in MESSAGES for one in events)
        return events

    def counted(self) -> int:
        """Bytes that count as pending."""
        return self.pending if self.pending > limits.SMALL_MESSAGE_BYTES else 0


class Frames:
    """All WebSockets of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._connections: dict[Any, _Connection] = {}
        self.pending = 0
        """Bytes of all large messages that are not whole."""

    def receive(self, protocol: Any, data: bytes, received: Callable[[Any, bytes], None]) -> None:
        """Hands data on in slices; closes a connection that is over a limit."""
        if protocol not in self._connections:
            self._connections[protocol] = _Connection(protocol, self._clock())
        state = self._connections[protocol]
        if state.is_closed:
            return
        for at in range(0, len(data), limits.SLICE_BYTES):
            part = data[at : at + limits.SLICE_BYTES]
            received(protocol, part)
            if protocol.transport.is_closing():
                return
            over = self._over(protocol, state, len(part))
            if over is not None:
                state.is_closed = True
                close(protocol, *over)
                return

    def _over(self, protocol: Any, state: _Connection, size: int) -> tuple[int, str] | None:
        now = self._clock()
        refilled = state.frames_left + (now - state.looked) * limits.FRAMES_RATE
        state.frames_left, state.looked = min(float(limits.FRAMES_BURST), refilled), now
        before = state.counted()
        if state.is_whole:
            state.pending, state.since, state.is_whole = len(protocol.conn.reader.buffer), now, False
        else:
            state.pending += size
        self.pending += state.counted() - before
        if state.frames_left < 0:
            return POLICY, "too-many-messages"
        if state.counted() and self.pending > limits.PENDING_BYTES:
            return TRY_AGAIN, "server-busy"
        if state.counted() and now - state.since > limits.PENDING_SECONDS:
            return POLICY, "body-too-slow"
        return None

    def forget(self, protocol: Any) -> None:
        """A connection is gone."""
        state = self._connections.pop(protocol, None)
        if state is not None:
            self.pending -= state.counted()


def close(protocol: Any, code: int, reason: str) -> None:
    """Closes a connection with a coded reason; the application hears of it as of any other end.

    What still comes is read and dropped for a while: a connection with unread data ends by a reset, which takes the
    reason with it.
    """
    if protocol.handshake_complete and not protocol.close_sent:
        protocol.conn.send_close(code, reason)
        protocol.close_sent = True
        protocol.transport.write(b"".join(protocol.conn.data_to_send()))
    protocol.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
    protocol.transport.resume_reading()
    # With a timer set, uvicorn leaves the connection to it.
    protocol.close_timer = protocol.loop.call_later(limits.LAST_WORDS_SECONDS, protocol.transport.abort)
