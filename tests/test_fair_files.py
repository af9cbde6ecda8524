"""Room for uploads, their way through /tmp, and a log that a stranger cannot fill."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kvcore.base.errors import ScenarioError
from kvcore.base.place import VARIABLE, place
from pages.ui.fair.files import Room, Spool
from pages.ui.fair.quiet import BURST, KINDS, LONGEST, Quiet


def test_room_is_shared_out_by_session_client_and_in_all() -> None:
    room = Room(session=10, client=15, every=20)
    room.take("one", "a", "1", 6)
    with pytest.raises(ScenarioError, match="no more room"):
        room.take("one", "a", "2", 5)
    room.take("one", "a", "1", 10)  # in place of what it had
    with pytest.raises(ScenarioError):
        room.take("two", "a", "1", 6)
    room.take("two", "a", "1", 5)
    with pytest.raises(ScenarioError):
        room.take("three", "b", "1", 6)
    room.take("three", "b", "1", 5)
    assert (room.taken(), room.taken(client="a"), room.taken(session="three")) == (20, 15, 5)
    room.free("two", "1")
    room.free("two", "never")
    room.free_session("one")
    assert room.sessions() == ["three"]
    assert room.taken() == 5


def test_uploads_wait_for_their_turn_through_the_temporary_folder() -> None:
    async def run() -> None:
        spool, order = Spool(client=10, every=15, seconds=300), []

        async def send(name: str, client: str, size: int, end: asyncio.Event) -> None:
            async with spool.place(client, size):
                order.append(name)
                await end.wait()

        first, others = asyncio.Event(), asyncio.Event()
        tasks = [
            asyncio.create_task(send("one", "a", 8, first)),
            asyncio.create_task(send("two", "a", 8, others)),
            asyncio.create_task(send("three", "b", 7, others)),
        ]
        while len(order) < 2:
            await asyncio.sleep(0)
        assert order == ["one", "three"]
        first.set()
        while len(order) < 3:
            await asyncio.sleep(0)
        others.set()
        await asyncio.gather(*tasks)
        assert not spool._taken

    asyncio.run(run())


def test_an_upload_that_finds_no_way_is_told_so() -> None:
    async def run() -> None:
        spool = Spool(client=10, every=10, seconds=0.01)
        async with spool.place("a", 10):
            with pytest.raises(ScenarioError) as refused:
                async with spool.place("b", 1):
                    pass
        assert refused.value.code == "uploads-busy"
        async with spool.place("b", 10):
            pass

    asyncio.run(run())


def record(text: str, *given: object, stack: bool = False) -> logging.LogRecord:
    error = (ValueError, ValueError("x"), None) if stack else None
    return logging.LogRecord("streamlit.x", logging.WARNING, "", 0, text, given, error)


def test_a_kind_of_line_is_written_so_often_and_what_is_left_out_is_counted() -> None:
    now = [0.0]
    quiet = Quiet(clock=lambda: now[0])
    assert sum(quiet.filter(record("aborted %s", number)) for number in range(1000)) == BURST
    assert quiet.filter(record("another %s", 1))
    now[0] = 61.0
    next_one = record("aborted %s", "again")
    assert quiet.filter(next_one)
    assert next_one.getMessage() == "aborted again (990 like it left out)"
    for number in range(3 * KINDS):
        quiet.filter(record(f"kind {number}"))
    assert len(quiet._kinds) <= KINDS


def test_a_line_has_an_end_and_no_stack_for_what_a_browser_sent() -> None:
    long, forged = record("x" * 100_000), record("Error deserializing back message", stack=True)
    quiet = Quiet()
    assert quiet.filter(long)
    assert len(long.getMessage()) == LONGEST
    assert quiet.filter(forged)
    assert forged.exc_info is None


def test_one_process_of_a_server_at_a_time_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "place"))
    code = "from kvcore.base.place import place\nwith place(0) as is_mine: print(is_mine)"

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
        ).stdout.strip()  # fmt: skip

    with place(0) as is_mine:
        assert is_mine
        assert other() == "False"
        with place(0) as again:
            assert not again
    assert other() == "True"
    with suppress(ValueError), place(0):
        raise ValueError
    assert other() == "True"
