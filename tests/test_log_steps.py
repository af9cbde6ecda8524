"""The cost of reading a log: in proportion to the text, bounded beyond that, with turns for other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvcore.base.errors import LogError
from kvcore.evidence.log import arguments as log_flags
from kvcore.evidence.log import commands as log_commands
from kvcore.evidence.log import reader as logs
from kvcore.evidence.log.cleaned import (
    BACKWARD_WINDOW,
    MAX_LINE_CHARACTERS,
    MAX_STEPS,
    SLICE,
    WINDOW,
    LogText,
    Steps,
    clean_log,
    line_blocks,
    message_of,
)
from kvcore.evidence.log.reader import read_log
from kvcore.manifests import values as log_fields

DATA = Path(__file__).parent / "data" / "logs"
STARTED = "INFO Available KV cache memory: 1.50 GiB\n"
ENGINE = "Initializing a V1 LLM engine (v0.11.0) with config: model='m', "

ADVERSARIES = {
    "docker, no container": "docker run ---a b\n",
    "docker, continued": "docker run --a b \\\n",
    "docker, of the engine, no image": "docker run --vllm b \\\n",
    "docker, no line break": "docker run --rm ",
    "serve, continued": "vllm serve --x \\\n",
    "serve, open quote": "vllm serve 'abc --x \\\n",
    "exports": "export VLLM_USE_V1=1 A='\n",
    "fields": "non-default args: {,,,,,,,,,,,,",
    "fields, on lines": "non-default args: {'a': ((((\n",
    "engines on one line": ENGINE,
    "engines on lines": ENGINE + "\n",
    "starts": "vLLM API server version 0.9.2\n" + ENGINE + "\n",
    "failures": ENGINE + "\nValueError: y\n",
    "hits": "(Worker_TP0 pid=7) Available KV cache memory: 1.5 GiB Available KV cache memory: 1 GiB\n",
    "hits on one line": "Available KV cache memory: 1 GiB ",
    "near hits": "Free memory on device (1,1,1,1,1,1,1,",
    "carriage returns": "ab\r",
    "nothing but breaks": "\n",
    "zeros": "abcdefghij" * 9 + "\x00",
    "escapes": "\x1b[",
    "colours": "[1;2;3;4;5",
    "entities": "&" + "z" * 31,
    "wrapped": '{"log": "x"}\n',
    "nested": '{"log": ' + "[" * 200 + "\n",
    "quotation": "> | * ",
    "separators": "\u2028\u200b",
}


def read(text: str) -> None:
    try:
        read_log(text)
    except LogError:
        return


def filled(unit: str, characters: int) -> str:
    return (unit * (characters // len(unit) + 1))[:characters]


def cpu_seconds(text: str) -> float:
    before = time.thread_time()
    read(text)
    return time.thread_time() - before


@pytest.mark.parametrize("unit", ADVERSARIES.values(), ids=ADVERSARIES)
def test_four_times_the_text_takes_no_more_than_its_share(unit: str) -> None:
    small, large = 10_000, 40_000
    # what a quadratic reader would take for the large one is 16 times the small one; a bounded part takes less than 4
    least = min(cpu_seconds(filled(unit, small)) for _ in range(2))
    assert cpu_seconds(filled(unit, large)) < 9 * least + 1.0


@pytest.mark.parametrize("unit", ["docker run ---a b\n", "docker run --a vllm \\\n", "vllm serve m --x \\\n"])
def test_a_line_is_looked_at_a_fixed_number_of_times(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(line: str) -> str:
        seen.append(len(line))
        return message_of(line)

    monkeypatch.setattr(log_commands, "message_of", counting)
    lines = 4000
    read(unit * lines)
    longest_command = log_commands.MAX_COMMAND_LINES * log_commands.MAX_COMMANDS
    assert len(seen) <= 2 * lines + longest_command


def spent(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    kept: list[LogText] = []

    def keeping(given: str | bytes) -> LogText:
        kept.append(clean_log(given))
        return kept[-1]

    monkeypatch.setattr(logs, "clean_log", keeping)
    read(text)
    return MAX_STEPS - kept[-1].steps.left


def test_real_starts_are_far_from_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in sorted(DATA.glob("*.log")):
        assert spent(path.read_text("utf-8"), monkeypatch) < MAX_STEPS / 100, path.name


def test_a_log_read_in_part_has_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "INFO Available KV cache memory: 1.5 GiB, non-default args: {'max_model_len': 8192}\n" * 40
    assert "log-read-in-part" not in {notice.code for notice in read_log(text).notices}
    monkeypatch.setattr(logs, "clean_log", lambda given: replace(clean_log(given), steps=Steps(left=1100)))
    log = read_log(text)
    assert "log-read-in-part" in {notice.code for notice in log.notices}
    assert log.worst_rank.available_kv_gib is not None


def test_steps_that_are_spent_stay_spent() -> None:
    steps = Steps(left=10)
    assert [steps.take(6), steps.take(6), steps.take(1), steps.take(0)] == [True, False, False, False]


def test_the_input_of_a_call_into_c_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    cut_fields: Callable[..., object] = log_fields.cut_fields

    def noting(text: str, closing: str) -> object:
        given.append(len(text))
        return cut_fields(text, closing)

    monkeypatch.setattr(log_flags, "cut_fields", noting)
    read("non-default args: {" + "'a': 1, " * 400_000)
    assert given
    assert max(given) <= log_flags.MAX_ARGUMENT_CHARACTERS
    blocks = list(line_blocks("x" * (3 * MAX_LINE_CHARACTERS) + "\n" + "short line\n" * 400_000))
    assert max(sum(len(line) + 1 for line in block) for block in blocks) <= MAX_LINE_CHARACTERS + 2 * SLICE


@pytest.mark.parametrize(
    "unit",
    ["INFO 10-05 18:31:40 [loader.py:1] nothing of interest\n", "\u4e2d\u201c", "x", "\x1b[31m[1m", "a\r\n"],
)
def test_other_threads_get_their_turn(unit: str) -> None:
    """The longest stretch of this process's CPU time between two turns of another thread."""
    text = filled(unit, 6 << 20 if len(unit) > 3 else 3 << 20)
    stop = threading.Event()
    turns: list[float] = []

    def take_turns() -> None:
        while not stop.is_set():
            turns.append(time.process_time())
            time.sleep(0)

    other = threading.Thread(target=take_turns)
    other.start()
    try:
        read(text)
    finally:
        stop.set()
        other.join()
    longest = max(after - before for before, after in pairwise(turns))
    assert longest < 0.5


class TestLines:
    def test_slices_do_not_show(self) -> None:
        text = "".join(f"{number} \u663e\u5b58 x\r\n" for number in range(60_000))
        for given in (text, text.encode(), text.encode("utf-16")):
            lines = [line for block in line_blocks(given) for line in block]
            assert lines == [*text.split("\r\n")]

    def test_a_break_between_two_slices_is_one(self) -> None:
        text = "a" * (SLICE - 1) + "\r\n" + "b"
        assert [line for block in line_blocks(text) for line in block] == ["a" * (SLICE - 1), "b"]

    def test_characters_escaped_by_a_web_page_are_read(self) -> None:
        assert message_of("&gt; x &amp;lt; &quot;a&#39;s&quot;") == '> x &lt; "a\'s"'

    @pytest.mark.parametrize("line", ["&#" + "1" * 5000 + ";", "&#x110000;", "&zz"])
    def test_no_entity_can_stop_it(self, line: str) -> None:
        assert message_of(line) == line

    def test_a_colour_goes_with_and_without_its_escape(self) -> None:
        assert list(line_blocks("\x1b[1;36m(a)\x1b[0m [32mb[0m \x1b[Kc [x]")) == [["(a) b c [x]"]]


class TestWindows:
    @pytest.mark.parametrize("at", [0, 5, WINDOW - 3, WINDOW - 1, WINDOW, 2 * WINDOW - 2, 2 * WINDOW + 90])
    def test_words_are_found_across_the_edge_of_a_window(self, at: int) -> None:
        text = "." * at + "words" + "." * (3 * WINDOW - at)
        log = LogText(text=text, starts=(0,), lines=("",), cut_lines=0)
        assert (log.find("words"), log.find("words", at + 1)) == (at, -1)
        assert (log.rfind("words", 0, len(text)), log.rfind("words", 0, at + 4)) == (at, -1)

    @pytest.mark.parametrize("gap", [1, BACKWARD_WINDOW - 6, BACKWARD_WINDOW, 3 * BACKWARD_WINDOW])
    def test_of_several_the_last_is_found_from_the_end(self, gap: int) -> None:
        text = "words" + "." * gap + "words" + "." * gap
        log = LogText(text=text, starts=(0,), lines=("",), cut_lines=0)
        assert log.rfind("words", 0, len(text)) == text.rindex("words")
        assert log.rfind("words", 0, text.rindex("words")) == 0


def test_a_figure_at_the_end_of_a_long_text_is_found() -> None:
    log = read_log("nothing here\n" * 200_000 + STARTED)
    found = log.worst_rank.available_kv_gib
    assert found is not None
    assert (found.value, found.line_number) == (1.5, 200_001)
