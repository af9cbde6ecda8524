"""A real server with one who takes all that can be had: what he is told, and what others have meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from pages.ui.fair import limits
from tools.server import Server, running_server
from tools.soak.visitor import Visitor

QUERY = "model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&gpu_memory_utilization=0.7"
SLIDER = "gpu_memory_utilization.slider"
LARGEST = limits.FILE_BYTES - 1000
"""The largest file, without the form around it."""
SECONDS = 300
TTL_SECONDS = 2
CLASS = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server behind one proxy, which these tests are: each names its clients."""
    environment = {"KVPLANNER_PROXIES": "1", "STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL": str(TTL_SECONDS)}
    with running_server(tmp_path_factory.mktemp("fair") / "server.log", environment=environment) as found:
        yield found


def visiting(server: Server, client: str, act: Callable[[Visitor], Awaitable[None]], page: str = "") -> None:
    """A visitor who opens a page and does something."""

    async def run() -> None:
        async with asyncio.timeout(SECONDS), Visitor(server.address, client=client) as visitor:
            await visitor.visit(QUERY, page=page)
            assert not visitor.errors
            await act(visitor)

    asyncio.run(run())


async def put(visitor: Visitor, size: int, *, is_patient: bool = True) -> tuple[int, str]:
    """The status and code of an upload; sessions of tests before may still have room that they give back."""
    while True:
        (place,) = await visitor.places(1)
        answer = await visitor.put(place.upload_url, "log", b"x" * size)
        if answer.status_code == 204 or not (is_patient and answer.json()["code"] == "uploads-full"):
            return answer.status_code, "" if answer.status_code == 204 else answer.json()["code"]
        await asyncio.sleep(0.5)


def test_a_session_has_room_for_two_of_the_largest_files_and_is_told_of_the_third(server: Server) -> None:
    async def act(visitor: Visitor) -> None:
        assert [await put(visitor, LARGEST) for _ in range(2)] == [(204, "")] * 2
        assert await put(visitor, LARGEST, is_patient=False) == (429, "uploads-full")
        await visitor.again()
        assert any("104 MiB of uploads" in text for text in visitor.texts())
        assert any("uploads-full" in text for text in visitor.texts())

    visiting(server, "203.0.113.1", act, "workload")


def test_room_is_free_again_when_a_file_is_removed(server: Server) -> None:
    async def act(visitor: Visitor) -> None:
        assert await put(visitor, LARGEST) == (204, "")
        (place,) = await visitor.places(1)
        while (await visitor.put(place.upload_url, "log", b"x" * LARGEST)).status_code != 204:
            await asyncio.sleep(0.5)
        assert (await visitor.web.delete(place.delete_url, headers=visitor.token())).status_code == 204
        assert await put(visitor, LARGEST) == (204, "")

    visiting(server, "203.0.113.2", act, "workload")


def test_room_is_free_again_when_a_session_has_ended(server: Server) -> None:
    """Nobody else comes or goes meanwhile: a timer frees it."""

    async def fill(visitor: Visitor) -> None:
        assert [await put(visitor, LARGEST) for _ in range(2)] == [(204, "")] * 2

    async def wait(visitor: Visitor) -> None:
        assert [await put(visitor, LARGEST) for _ in range(2)] == [(204, "")] * 2

    visiting(server, "203.0.113.3", fill, "workload")
    visiting(server, "203.0.113.3", wait, "workload")


def test_an_upload_that_no_page_asked_for_is_refused(server: Server) -> None:
    async def act(visitor: Visitor) -> None:
        (place,) = await visitor.places(1)
        session, file = place.upload_url.rsplit("/", 2)[1:]
        for url in (
            place.upload_url.replace(file, "00000000-0000-4000-8000-000000000000"),
            place.upload_url.replace(session, "00000000-0000-4000-8000-000000000000"),
        ):
            answer = await visitor.put(url, "log", b"x")
            assert (answer.status_code, answer.json()["code"]) == (409, "upload-not-expected")
        answer = await visitor.put(place.upload_url, "log", b"x" * limits.FILE_BYTES)
        assert (answer.status_code, answer.json()["code"]) == (413, "upload-too-large")

        async def parts():  # type: ignore[no-untyped-def]
            yield b"x"

        answer = await visitor.web.put(place.upload_url, content=parts(), headers=visitor.token())
        assert (answer.status_code, answer.json()["code"]) == (411, "upload-unsized")

    visiting(server, "203.0.113.4", act, "workload")


def test_two_visitors_of_one_address_upload_40_mib_at_once(server: Server) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(SECONDS),
            Visitor(server.address, client="203.0.113.5") as first,
            Visitor(server.address, client="203.0.113.5") as second,
        ):
            await asyncio.gather(*(one.visit(QUERY, page="workload") for one in (first, second)))
            found = await asyncio.gather(*(put(one, 40 << 20) for one in (first, second)))
            assert found == [(204, "")] * 2

    asyncio.run(run())


def test_an_upload_that_is_broken_off_leaves_no_stack_in_the_log(server: Server) -> None:
    async def act(visitor: Visitor) -> None:
        async def half():  # type: ignore[no-untyped-def]
            yield b"x" * 100_000
            raise ConnectionError

        before = server.log.stat().st_size
        for _ in range(20):
            (place,) = await visitor.places(1)
            with suppress(ConnectionError):
                await visitor.web.put(
                    place.upload_url, content=half(), headers={"Content-Length": "1000000", **visitor.token()}
                )
        await visitor.again()
        assert server.log.stat().st_size == before
        assert await put(visitor, LARGEST) == (204, "")

    visiting(server, "203.0.113.6", act, "workload")


def test_a_flooder_is_told_and_then_closed_while_another_goes_on(server: Server) -> None:
    async def act(visitor: Visitor) -> None:
        socket = visitor.socket
        seen = bytearray()

        async def read() -> None:
            async for message in socket:
                seen.extend(message if b"too-many-messages" in message else b"")

        reading = asyncio.create_task(read())
        other = Visitor(server.address, client="198.51.100.1")
        await other.visit(QUERY)
        with suppress(ConnectionClosed):
            for number in range(100_000):
                # No run follows these, so that only their number holds them back.
                state = visitor.changed(SLIDER, 0.5 + number % 40 / 100)
                state.fragment_id = "" if number < 50 or number % 50 == 0 else "none"
                await socket.send(BackMsg(rerun_script=state).SerializeToString())
                if number % 500 == 0:
                    await other.set(SLIDER, 0.5 + number % 37 / 100)
                await asyncio.sleep(0.01)
        with suppress(ConnectionClosed):
            await reading
        assert (socket.close_code, socket.close_reason) == (1008, "too-many-messages")
        await other.set(SLIDER, 0.8)
        assert not other.errors
        await other.leave()
        assert b"too-many-messages" in seen

    visiting(server, "203.0.113.7", act)


def test_a_person_who_drags_a_slider_fast_meets_no_limit(server: Server) -> None:
    """A browser sends five changes a second at most; here are eight, for fifteen seconds."""

    async def act(visitor: Visitor) -> None:
        seen: list[bytes] = []
        visitor.on_message = lambda raw: seen.append(raw) if b"too-many" in raw else None
        for number in range(120):
            state = visitor.changed(SLIDER, 0.5 + number % 40 / 100)
            await visitor.socket.send(BackMsg(rerun_script=state).SerializeToString())
            await asyncio.sleep(0.125)
        for _ in range(3):
            await visitor.again()
        assert not visitor.errors
        assert visitor.socket.close_code is None

    visiting(server, "198.51.100.2", act)


def test_a_class_behind_one_address_meets_no_limit(server: Server) -> None:
    """All open the page at the same moment, change a setting and upload a log."""

    async def one(number: int) -> list[str]:
        async with Visitor(server.address, client="198.51.100.3") as visitor:
            await visitor.visit(QUERY, page="workload" if number % 2 else "")
            if number % 2:
                assert await put(visitor, 1 << 20) == (204, "")
            else:
                await visitor.set(SLIDER, 0.6)
            return [*visitor.errors, *(text for text in visitor.texts() if "too-many" in text)]

    async def run() -> None:
        async with asyncio.timeout(2 * SECONDS):
            assert await asyncio.gather(*(one(number) for number in range(CLASS))) == [[]] * CLASS

    asyncio.run(run())


def test_a_client_has_so_many_pages_and_another_is_let_in(server: Server) -> None:
    async def opened(client: str) -> object:
        return await connect(
            server.address.replace("http", "ws") + "/_stcore/stream",
            additional_headers={"X-Forwarded-For": client}, open_timeout=SECONDS, proxy=None,
        )  # fmt: skip

    async def run() -> None:
        pages = [await opened("203.0.113.8") for _ in range(limits.CLIENT_SOCKETS)]
        with pytest.raises(InvalidStatus) as refused:
            await opened("203.0.113.8")
        response = refused.value.response
        assert (response.status_code, json.loads(response.body)["code"]) == (429, "too-many-sockets")
        pages.append(await opened("198.51.100.4"))
        for page in pages:
            await page.close()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_forged_names_of_widgets_are_passed_over(server: Server) -> None:
    async def act(visitor: Visitor) -> None:
        before = server.log.stat().st_size
        for name in ("$$ID-forged-None", "x" * 1000, visitor.find(SLIDER).id + "x", ""):
            for value in (
                {"string_value": "x"},
                {"trigger_value": True},
                {"json_value": "{"},
                {"bytes_value": b"\xff"},
            ):
                state = visitor.changed(SLIDER, 0.6)
                state.widget_states.widgets.append(WidgetState(id=name, **value))
                await visitor._rerun(state)
        assert not visitor.errors
        assert server.log.read_bytes()[before:] == b""

    visiting(server, "203.0.113.10", act)


def test_a_forged_value_is_refused_in_one_line_of_the_log(server: Server) -> None:
    async def act(visitor: Visitor) -> None:
        before = server.log.stat().st_size
        state = visitor.changed(SLIDER, 0.6)
        (forged,) = (one for one in state.widget_states.widgets if one.id == visitor.find(SLIDER).id)
        forged.CopyFrom(WidgetState(id=forged.id, string_value="x"))
        await visitor._rerun(state)
        assert not visitor.errors
        assert any("internal-error" in text for text in visitor.texts())
        written = server.log.read_text()[before:]
        assert "Traceback" not in written
        assert written.count("\n") == 2

    visiting(server, "203.0.113.13", act)


def test_messages_that_are_none_close_the_page_quietly(server: Server) -> None:
    async def run() -> None:
        before = server.log.stat().st_size
        for sent, code in (("text", 1003), (b"\xff\xff\xff", 1002)):
            async with connect(
                server.address.replace("http", "ws") + "/_stcore/stream",
                additional_headers={"X-Forwarded-For": "203.0.113.11"}, open_timeout=SECONDS, proxy=None,
            ) as socket:  # fmt: skip
                await socket.send(sent)
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(socket.recv(), SECONDS)
                assert socket.close_code == code
        assert b"Traceback" not in server.log.read_bytes()[before:]

    asyncio.run(run())


def test_frames_without_end_close_the_page(server: Server) -> None:
    async def run() -> None:
        async with connect(
            server.address.replace("http", "ws") + "/_stcore/stream",
            additional_headers={"X-Forwarded-For": "203.0.113.12"}, open_timeout=SECONDS, proxy=None,
        ) as socket:  # fmt: skip
            with suppress(ConnectionClosed):
                for _ in range(100_000):
                    await socket.ping()
                    await asyncio.sleep(0)
            assert socket.close_reason == "too-many-messages"

    asyncio.run(run())


def test_the_log_has_no_stack_at_the_end_of_all_this(server: Server) -> None:
    text = server.log.read_text()
    assert "Traceback" not in text
    assert Path(server.log).stat().st_size < 20_000
