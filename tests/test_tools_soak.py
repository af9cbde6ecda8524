"""The visitors of the soak run, on a server with a page that does what ours must not."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.server import running_server
from tools.soak.__main__ import Memory, quantile
from tools.soak.guest import Findings, Guest
from tools.soak.visitor import VisitError, Visitor

PAGE = """
import streamlit as st

@st.cache_resource
def shared():
    return []

@st.fragment
def apart():
    st.toggle("Apart", key="apart")
    st.metric("apart", str(st.session_state["apart"]))
    if st.button("Whole", key="whole"):
        st.rerun()

names = shared() if st.query_params.get("leaks") else st.session_state.setdefault("names", [])
kinds = st.session_state
st.text_input("Name", key="name")
st.number_input("Number", value=1.5, key="number")
st.slider("Share", 0.0, 1.0, 0.5, key="share")
st.select_slider("Size", ["small", "large"], key="size")
st.selectbox("Card", ["H100", "T4"], key="card")
st.segmented_control("Part", ["one", "two"], default="one", key="part")
st.toggle("Eager", key="eager")
files = st.file_uploader("File", key="file", accept_multiple_files=True)
st.code(repr([kinds[key] for key in ("name", "number", "share", "size", "card", "part", "eager")]))
st.text(" ".join(f"{file.name} {len(file.getvalue())}" for file in files))
if kinds["name"]:
    names.append(kinds["name"])
st.markdown(f"names: {names}")
if st.button("Break", key="break"):
    raise RuntimeError("broken")
if st.button("Again", key="again"):
    st.session_state["ran"] = True
    st.rerun()
if st.session_state.get("ran"):
    st.metric("ran", "twice")
if st.query_params.get("fragment"):
    apart()
    st.session_state["runs"] = st.session_state.get("runs", 0) + 1
    st.metric("runs", st.session_state["runs"])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("soak")
    script = folder / "page.py"
    script.write_text(PAGE)
    with running_server(folder / "server.log", script=script) as started:
        yield started.address


def values(visitor: Visitor) -> str:
    (code,) = (element.code_text for element in visitor.elements("code"))
    return str(code)


class TestVisitor:
    def test_widgets_have_the_drawn_value_until_they_are_set(self, server):
        async def visit() -> None:
            async with Visitor(server) as visitor:
                await visitor.visit()
                assert values(visitor) == "['', 1.5, 0.5, 'small', 'H100', 'one', False]"
                for name, value in (("name", "a"), ("number", 3), ("share", 0.75), ("size", "large"), ("card", "T4"),
                                    ("part", "two"), ("Eager", True)):  # fmt: skip
                    await visitor.set(name, value)
                assert values(visitor) == "['a', 3.0, 0.75, 'large', 'T4', 'two', True]"
                assert visitor.errors == []

        asyncio.run(visit())

    def test_files_arrive_whole(self, server):
        async def visit() -> None:
            async with Visitor(server) as visitor:
                await visitor.visit()
                await visitor.upload("file", ("one.log", b"x" * 300_000), ("two.log", b""))
                assert "one.log 300000 two.log 0" in visitor.texts()

        asyncio.run(visit())

    def test_an_action_ends_with_the_last_run_of_the_script(self, server):
        async def visit() -> None:
            async with Visitor(server) as visitor:
                await visitor.visit()
                await visitor.press("again")
                assert visitor.metrics() == {"ran": "twice"}

        asyncio.run(visit())

    def test_a_fragment_runs_by_itself_and_leaves_the_rest_alone(self, server):
        async def visit() -> None:
            async with Visitor(server) as visitor:
                await visitor.visit("fragment=yes")
                assert visitor.metrics() == {"apart": "False", "runs": "1"}
                await visitor.set("apart", True)
                assert visitor.metrics() == {"apart": "True", "runs": "1"}
                await visitor.press("whole")
                assert visitor.metrics() == {"apart": "True", "runs": "2"}
                await visitor.set("name", "a")
                assert visitor.metrics() == {"apart": "True", "runs": "3"}

        asyncio.run(visit())

    def test_an_exception_on_the_page_is_told(self, server):
        async def visit() -> None:
            async with Visitor(server) as visitor:
                await visitor.visit()
                await visitor.press("break")
                assert [text.split(":")[0] for text in visitor.errors] == ["RuntimeError"]
                with pytest.raises(VisitError):
                    await visitor.press("no such button")

        asyncio.run(visit())


class TestGuest:
    @pytest.mark.parametrize(("query", "leaks"), [("", 0), ("leaks=yes", 1)])
    def test_a_name_of_another_visitor_is_found(self, server, query, leaks):
        findings = Findings()

        async def visit() -> None:
            for number in range(2):
                guest = Guest(server, number, findings, seed=7)
                await guest.open(query, "")
                await guest.timed("name", guest.visitor.set("name", guest.sentinel))
                await guest.visitor.leave()

        asyncio.run(visit())
        assert findings.errors == []
        assert len(findings.own_seen) == 2
        assert len({text.split(" on ")[0] for text in findings.leaks}) == leaks

    def test_an_exception_is_an_error_of_the_run(self, server):
        findings = Findings()

        async def visit() -> None:
            guest = Guest(server, 0, findings, seed=7)
            await guest.open("", "")
            await guest.timed("break", guest.visitor.press("break"))
            await guest.timed("nothing", guest.visitor.press("no such button"))
            await guest.visitor.leave()

        asyncio.run(visit())
        assert [text.split(":")[0] for text in findings.errors] == ["break", "nothing"]


class TestTable:
    def test_quantiles_are_values_that_were_taken(self):
        assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 3.0
        assert quantile([3.0, 1.0, 2.0, 4.0], 0.95) == 4.0

    def test_memory_is_compared_after_the_warm_up(self):
        grows = Memory([(float(second), second) for second in range(0, 901, 2)])
        assert (grows.start, grows.end) == (300, 878)


def test_a_server_that_cannot_start_gives_its_reason(tmp_path: Path):
    with (
        pytest.raises(RuntimeError, match="File does not exist"),
        running_server(tmp_path / "log", script="no.py"),
    ):
        pass
