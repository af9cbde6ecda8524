"""Uploaded files: only those that a page asked for, and no more than there is room for."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadFileUrlInfo

from kvcore.base.errors import ScenarioError
from pages.ui.fair import limits


class Room:
    """Bytes that sessions keep in this process, by session, by client and in all. For any thread."""

    def __init__(
        self,
        session: int = limits.SESSION_BYTES,
        client: int = limits.CLIENT_BYTES,
        every: int = limits.KEPT_BYTES,
    ) -> None:
        self._most_of_session, self._most_of_client, self._most = session, client, every
        # Streamlit frees files where a session is collected, which may happen while this lock is held.
        self._lock = threading.RLock()
        self._items: dict[str, dict[str, tuple[str, int]]] = {}

    def take(self, session: str, client: str, item: str, size: int) -> None:
        """Takes room for an item, in place of what it had. Raises ScenarioError `uploads-full`, takes nothing."""
        with self._lock:
            before = self._items.get(session, {}).get(item, (client, 0))[1]
            for taken, most in (
                (self.taken(session=session), self._most_of_session),
                (self.taken(client=client), self._most_of_client),
                (self.taken(), self._most),
            ):
                if taken - before + size > most:
                    raise ScenarioError("uploads-full", limit=str(most // limits.MIB))
            self._items.setdefault(session, {})[item] = (client, size)

    def taken(self, *, session: str | None = None, client: str | None = None) -> int:
        """Bytes taken in all, by a session, or by a client."""
        with self._lock:
            sessions = self._items.values() if session is None else [self._items.get(session, {})]
            return sum(
                size for items in sessions for owner, size in items.values() if client in (None, owner)
            )

    def free(self, session: str, item: str) -> None:
        """Gives an item's room back."""
        with self._lock:
            items = self._items.get(session, {})
            items.pop(item, None)
            if not items:
                self._items.pop(session, None)

    def free_session(self, session: str) -> None:
        """Gives back all that a session took."""
        with self._lock:
            self._items.pop(session, None)

    def sessions(self) -> list[str]:
        """Sessions that keep something."""
        with self._lock:
            return list(self._items)


class Spool:
    """Room in /tmp for files that arrive; whoever finds none waits. Used on the event loop alone."""

    def __init__(
        self,
        client: int = limits.CLIENT_SPOOL_BYTES,
        every: int = limits.SPOOL_BYTES,
        seconds: float = limits.SPOOL_WAIT_SECONDS,
    ) -> None:
        self._most_of_client, self._most, self._seconds = client, every, seconds
        self._taken: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def place(self, client: str, size: int) -> AsyncIterator[None]:
        """Room for one file. Raises ScenarioError `uploads-busy` where there is none for too long."""

        def has_room() -> bool:
            return (
                self._taken[client] + size <= self._most_of_client
                and self._taken.total() + size <= self._most
            )

        try:
            async with asyncio.timeout(self._seconds), self._changed:
                await self._changed.wait_for(has_room)
                self._taken[client] += size
        except TimeoutError:
            raise ScenarioError("uploads-busy", limit=f"{self._seconds:g}") from None
        try:
            yield
        finally:
            self._taken[client] -= size
            if not self._taken[client]:
                del self._taken[client]
            async with self._changed:
                self._changed.notify_all()


class Files(MemoryUploadedFileManager):
    """Streamlit's files, with the room that they take and the names that pages have asked for."""

    room: Final = Room()
    """One for the server: fields of pages take from it too."""

    def __init__(self, upload_endpoint: str) -> None:
        super().__init__(upload_endpoint)
        self._issued: dict[str, deque[str]] = {}

    def get_upload_urls(self, session_id: str, file_names: Sequence[str]) -> list[UploadFileUrlInfo]:
        """Places for files, of which the latest are remembered."""
        found = super().get_upload_urls(session_id, file_names[: limits.ISSUED])
        issued = self._issued.setdefault(session_id, deque(maxlen=limits.ISSUED))
        issued.extend(place.file_id for place in found)
        return found

    def is_expected(self, session_id: str, file_id: str) -> bool:
        """Whether a page has asked for this place."""
        return file_id in self._issued.get(session_id, ())

    def remove_file(self, session_id: str, file_id: str) -> None:
        """Frees the file and its room."""
        super().remove_file(session_id, file_id)
        self.room.free(session_id, file_id)

    def remove_session_files(self, session_id: str) -> None:
        """Frees all of a session."""
        super().remove_session_files(session_id)
        self._issued.pop(session_id, None)
        self.room.free_session(session_id)

    def free_all_but(self, sessions: Collection[str]) -> None:
        """Frees what sessions that are no more have left: a file may have arrived after its session."""
        for session in {*self.file_storage, *self._issued, *self.room.sessions()} - set(sessions):
            self.remove_session_files(session)
