"""Runs of pages in turn: by client, one waiting for each session, long ones beside others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from pages.ui.fair import turns as turns_module
from pages.ui.fair.limits import FRESH_SECONDS, REST_SECONDS, RUNS_OF_CLIENT, SENDING_SECONDS
from pages.ui.fair.turns import Turns

FLOODER, VISITOR = "203.0.113.9", "198.51.100.1"
SECONDS = 300


class Stage:
    """Runs in threads of their own that go on until a test ends them; time passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.computed: Counter[int] = Counter()
        self.turns = Turns(clock=lambda: self.now)
        self.begun: list[str] = []
        self._ends: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        monkeypatch.setattr(turns_module, "_computed_by", self._clock_of)

    def _clock_of(self, thread: int) -> Callable[[], float]:
        return lambda: float(self.computed[thread])

    def run(self, client: str, session: str) -> None:
        """A run asks for its turn."""
        self._ends[session] = threading.Event()

        def body() -> None:
            with self.turns.turn(client, session) as is_there:
                with self._changed:
                    self.begun.append(session if is_there else f"not {session}")
                    self._changed.notify_all()
                while is_there and not self._ends[session].wait(0.01):
                    self.turns.rest()

        self._threads.append(threading.Thread(target=body, daemon=True))
        self._threads[-1].start()
        self.until(
            lambda: session in self.begun or any(run.session == session for run in self.turns._waiting)
        )

    def until(self, is_so: Callable[[], bool]) -> None:
        """Waits for a state."""
        with self._changed:
            while not is_so():
                self._changed.wait(0.01)

    def rests(self, session: str) -> bool:
        """Whether a run has paused."""
        return any(run.session == session and run.is_resting for run in self.turns._running)

    def end(self, session: str, computed: float = 0.1) -> None:
        """A run ends, having computed for so long."""
        thread = next(index for index, name in enumerate(self._ends) if name == session)
        self.computed[self._threads[thread].ident or 0] += computed  # type: ignore[assignment]
        self._ends[session].set()
        self._threads[thread].join(SECONDS)

    def close(self) -> None:
        """Ends all runs; of those that wait each has its turn."""
        self.now += SECONDS
        for event in self._ends.values():
            event.set()
        for thread in self._threads:
            thread.join(SECONDS)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    made = Stage(monkeypatch)
    yield made
    made.close()


def test_a_visitor_begins_at_once_beside_a_client_with_many_pages(stage: Stage) -> None:
    for page in range(20):
        stage.run(FLOODER, f"flood {page}")
    assert stage.begun == ["flood 0"]
    stage.run(VISITOR, "visitor")
    assert stage.begun == ["flood 0", "visitor"]


def test_pages_of_one_client_take_turns(stage: Stage) -> None:
    for page in range(3):
        stage.run(FLOODER, f"page {page}")
    for page in range(3):
        stage.until(lambda page=page: f"page {page}" in stage.begun)  # type: ignore[misc]
        assert stage.begun == [f"page {number}" for number in range(page + 1)]
        stage.end(f"page {page}")


def test_who_has_used_least_is_next(stage: Stage) -> None:
    others = [f"192.0.2.{number}" for number in range(3)]
    for client in others:
        stage.run(client, client)
    stage.run(FLOODER, "flood 0")
    stage.end(others[0])
    stage.until(lambda: "flood 0" in stage.begun)
    stage.run(FLOODER, "flood 1")
    stage.run(VISITOR, "visitor")
    stage.end("flood 0", computed=5.0)
    stage.until(lambda: len(stage.begun) == 5)
    assert stage.begun[-1] == "visitor"


def test_who_has_used_much_waits_for_a_fresh_run_of_who_has_not(stage: Stage) -> None:
    stage.run(FLOODER, "flood 0")
    stage.end("flood 0", computed=5.0)
    stage.run(FLOODER, "flood 1")
    stage.run(VISITOR, "visitor")
    stage.until(lambda: stage.begun == ["flood 0", "flood 1", "visitor"])
    stage.run(FLOODER, "flood 2")
    stage.end("flood 1", computed=0.1)
    assert stage.begun[-1] == "visitor"
    stage.run("192.0.2.7", "another visitor")
    stage.until(lambda: stage.begun[-1] == "another visitor")
    stage.end("visitor")
    stage.end("another visitor")
    assert "flood 2" not in stage.begun, "what others have drawn is sent first"
    stage.now += SENDING_SECONDS
    stage.until(lambda: stage.begun[-1] == "flood 2")


def test_a_run_of_who_has_used_much_pauses_while_a_visitors_is_worked_out_and_sent(stage: Stage) -> None:
    stage.run(FLOODER, "flood 0")
    stage.end("flood 0", computed=5.0)
    stage.run(FLOODER, "flood 1")
    stage.run(VISITOR, "visitor")
    stage.until(lambda: stage.rests("flood 1"))
    stage.run(FLOODER, "flood 2")
    stage.end("visitor")
    assert stage.rests("flood 1")
    stage.now += SENDING_SECONDS
    stage.until(lambda: not stage.rests("flood 1"))
    assert "flood 2" not in stage.begun, "of one client one run begins at a time, one that has paused too"


def test_a_run_pauses_for_a_second_at_most(stage: Stage) -> None:
    stage.run(FLOODER, "flood 0")
    stage.end("flood 0", computed=5.0)
    stage.run(FLOODER, "flood 1")
    for number in range(20):
        stage.run(f"192.0.2.{number}", f"visitor {number}")
        stage.now += FRESH_SECONDS / 2
        stage.until(lambda number=number: f"visitor {number}" in stage.begun)  # type: ignore[misc]
        stage.end(f"visitor {number}")
        if number == 2:
            stage.until(lambda: stage.rests("flood 1"))
    stage.until(lambda: not stage.rests("flood 1"))
    (run,) = (run for run in stage.turns._running if run.session == "flood 1")
    assert REST_SECONDS <= run.rested < 2 * REST_SECONDS


def test_a_long_run_of_a_visitor_keeps_nobody_from_beginning(stage: Stage) -> None:
    stage.run(FLOODER, "flood 0")
    stage.end("flood 0", computed=5.0)
    stage.run(VISITOR, "visitor")
    stage.until(lambda: stage.begun[-1] == "visitor")
    stage.run(FLOODER, "flood 1")
    assert "flood 1" not in stage.begun
    stage.now += FRESH_SECONDS * 1.1
    stage.until(lambda: stage.begun[-1] == "flood 1")


def test_a_long_run_lets_the_next_of_its_client_begin_but_not_all(stage: Stage) -> None:
    for page in range(6):
        stage.run(FLOODER, f"long {page}")
    for most in range(1, 7):
        stage.until(lambda most=most: len(stage.begun) >= min(most, RUNS_OF_CLIENT))  # type: ignore[misc]
        stage.now += FRESH_SECONDS * 1.1
        for thread in stage._threads:
            stage.computed[thread.ident or 0] += FRESH_SECONDS  # type: ignore[assignment]
    assert len(stage.begun) == RUNS_OF_CLIENT
    stage.end("long 0")
    stage.until(lambda: len(stage.begun) == RUNS_OF_CLIENT + 1)


def test_runs_that_wait_for_the_hub_keep_nobody_from_beginning(stage: Stage) -> None:
    for page in range(12):
        stage.run(FLOODER, f"hub {page}")
        stage.until(lambda page=page: f"hub {page}" in stage.begun)  # type: ignore[misc]
        stage.now += FRESH_SECONDS * 1.1
    assert len(stage.begun) == 12


def test_a_page_that_has_left_takes_no_turn(stage: Stage) -> None:
    stage.run(FLOODER, "first")
    stage.run(FLOODER, "gone")
    stage.turns.left("gone")
    stage.until(lambda: "not gone" in stage.begun)
    assert stage.begun == ["first", "not gone"]


def test_a_session_waits_from_the_moment_its_thread_is_made(stage: Stage) -> None:
    turns = stage.turns
    assert not turns.waits("one")
    turns.comes("one", is_there=True)
    assert turns.waits("one")
    with turns.turn(VISITOR, "one"):
        assert not turns.waits("one")
        turns.comes("one", is_there=True)
        assert turns.waits("one")
    for _ in range(2):
        turns.comes("one", is_there=False)
    assert not turns.waits("one")
    assert not turns._coming
