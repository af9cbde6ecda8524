"""Work is done once for all who ask, in a queue, and is given up when nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

import pytest

from kvcore.base.errors import KvPlannerError
from kvcore.base.shared_work import Progress, SharedWork, Work

LONGEST_WAIT_SECONDS = 60


def shared(*, most_bytes: int = 1000, longest_line: int = 8) -> SharedWork[str]:
    return SharedWork(bytes_of=len, most_bytes=most_bytes, longest_line=longest_line)


def counted(found: str, runs: list[str]) -> Work[str]:
    def work() -> Generator[Progress, None, str]:
        runs.append(found)
        yield 1, 1
        return found

    return work


def gated(found: str, runs: list[str]) -> tuple[Work[str], threading.Event, threading.Event]:
    """Work that signals its start and waits for permission to end."""
    begun, may_end = threading.Event(), threading.Event()

    def work() -> Generator[Progress, None, str]:
        runs.append(found)
        begun.set()
        assert may_end.wait(LONGEST_WAIT_SECONDS)
        yield 1, 2
        yield 2, 2
        return found

    return work, begun, may_end


def answer(store: SharedWork[str], key: str, work: Work[str]) -> str:
    with store.asked(key, work) as asked:
        return asked.result()


def in_threads(count: int, call: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_forty_who_ask_the_same_have_it_worked_out_once() -> None:
    store, runs, found = shared(), [], []
    work, begun, may_end = gated("table", runs)
    everybody = threading.Barrier(40)

    def ask() -> None:
        everybody.wait(LONGEST_WAIT_SECONDS)
        with store.asked("key", work) as asked:
            found.append(asked.result())

    threads = in_threads(40, ask)
    assert begun.wait(LONGEST_WAIT_SECONDS)
    may_end.set()
    for thread in threads:
        thread.join(LONGEST_WAIT_SECONDS)
    assert found == ["table"] * 40
    assert runs == ["table"]
    assert answer(store, "key", work) == "table"
    assert runs == ["table"]


def test_work_is_given_up_when_nobody_waits_for_it() -> None:
    store, runs = shared(), []
    work, begun, may_end = gated("left", runs)
    with store.asked("left", work) as left:
        assert begun.wait(LONGEST_WAIT_SECONDS)
    may_end.set()
    assert answer(store, "next", counted("next", runs)) == "next"
    assert left.wait(LONGEST_WAIT_SECONDS)
    assert left.found == []
    assert store.bytes_kept == len("next")
    assert answer(store, "left", counted("again", runs)) == "again"
    assert runs == ["left", "next", "again"]


def test_work_that_left_the_queue_never_starts() -> None:
    store, runs = shared(), []
    work, begun, may_end = gated("first", runs)
    with store.asked("first", work) as first:
        assert begun.wait(LONGEST_WAIT_SECONDS)
        with store.asked("second", counted("second", runs)):
            pass
        may_end.set()
        assert first.result() == "first"
    assert answer(store, "third", counted("third", runs)) == "third"
    assert runs == ["first", "third"]


def test_a_full_queue_is_refused_with_a_code() -> None:
    store, runs = shared(longest_line=1), []
    work, begun, may_end = gated("first", runs)
    with store.asked("first", work) as first:
        assert begun.wait(LONGEST_WAIT_SECONDS)
        with store.asked("second", counted("second", runs)) as second:
            with pytest.raises(KvPlannerError) as refused, store.asked("third", counted("third", runs)):
                pass
            assert refused.value.code == "server-busy"
            may_end.set()
            assert (first.result(), second.result()) == ("first", "second")


def test_the_least_recently_used_result_goes_first() -> None:
    store, runs = shared(most_bytes=10), []
    for name in ("aaaa", "bbbb"):
        answer(store, name, counted(name, runs))
    answer(store, "aaaa", counted("aaaa", runs))
    answer(store, "cccc", counted("cccc", runs))
    assert store.bytes_kept == 8
    answer(store, "aaaa", counted("aaaa", runs))
    answer(store, "bbbb", counted("bbbb", runs))
    assert runs == ["aaaa", "bbbb", "cccc", "bbbb"]
    answer(store, "large", counted("x" * 11, runs))
    assert store.bytes_kept <= 10


def test_an_error_reaches_who_asked_and_stops_no_other_work() -> None:
    store, runs = shared(), []

    def broken() -> Generator[Progress, None, str]:
        yield 1, 2
        raise OverflowError("of this piece")

    with store.asked("broken", broken) as asked, pytest.raises(OverflowError):
        asked.result()
    assert answer(store, "broken", counted("whole", runs)) == "whole"


def test_a_result_not_to_be_cached_is_forgotten() -> None:
    store, runs = shared(), []
    for _ in range(2):
        with store.asked("own", counted("own", runs), is_kept=False) as asked:
            assert asked.result() == "own"
    assert runs == ["own", "own"]
    assert store.bytes_kept == 0


def test_all_who_wait_see_the_progress() -> None:
    store, runs = shared(), []
    work, begun, may_end = gated("slow", runs)
    with store.asked("slow", work) as one, store.asked("slow", work) as other:
        assert one is other
        assert begun.wait(LONGEST_WAIT_SECONDS)
        may_end.set()
        assert one.result() == "slow"
        assert other.progress == (2, 2)
