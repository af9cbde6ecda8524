"""A stranger's tokenizer counts a log in a process of its own, which always ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from kvcore.base.errors import WorkloadError
from kvcore.base.place import VARIABLE, place
from kvcore.workload import logs as apart
from kvcore.workload.logs import counted_apart

LOG = b'{"prompt": "one two three", "completion": "four five", "max_tokens": 9}\n{"prompt": "one"}\n'
WORDS: dict[str, Any] = {
    "version": "1.0",
    "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
}


def words(**changes: Any) -> bytes:
    """One token for each word, cut at two by the file's own wish."""
    return json.dumps({**WORDS, **changes}).encode()


def code(tokenizer: bytes, log: bytes = LOG, **given: Any) -> str:
    with pytest.raises(WorkloadError) as caught:
        counted_apart(tokenizer, [log], **given)
    return caught.value.code


def test_texts_count_whole_despite_the_files_truncation() -> None:
    assert len(tokenizers.Tokenizer.from_str(words().decode()).encode("one two three").ids) == 2
    taken: list[int] = []
    log = counted_apart(words(), [LOG, LOG], look=taken.append)
    assert (log.traffic.prompts.lengths, log.traffic.prompts.counts) == ((1, 3), (2, 2))
    assert (log.traffic.answers.lengths, log.traffic.max_tokens.lengths) == ((2,), (9,))
    assert (log.counted_by, log.estimated, log.by_text) == ("tokenizer", 0, 4)
    assert taken


def test_given_columns_and_refusals_pass_the_pipe() -> None:
    log = counted_apart(words(), [b'{"wieviel": 7}\n'], columns=(("prompt", "wieviel"),))
    assert log.traffic.prompts.lengths == (7,)
    assert code(words(), b'{"model": "x"}\n') == "request-log-fields"
    assert code(b"{}") == "tokenizer-unreadable"
    assert code(words(), b"\x00" * 100) == "request-log-not-text"


def test_the_kernel_ends_a_pattern_that_backtracks() -> None:
    hostile = split("(a|a|aa)+$")
    # Each run stays below the steps at which the package's own patterns give up, which is a failure of its own.
    log = json.dumps({"prompt": ("a" * 12 + "b") * 100_000}).encode()
    begun = time.process_time()
    assert code(hostile, log, cpu_seconds=3) == "tokenizer-ended"
    assert time.process_time() - begun < 2


def test_the_memory_limit_ends_a_growing_normalizer() -> None:
    doubled = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    hostile = words(normalizer={"type": "Sequence", "normalizers": [doubled] * 8})
    assert code(hostile, b'{"prompt": "aaaa"}\n', cpu_seconds=20) == "tokenizer-ended"


def largest() -> bytes:
    """250,000 words by merges, as the largest vocabularies of models have them."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    found: dict[str, None] = dict.fromkeys((*letters, " "))
    merges: list[list[str]] = []
    level = [*letters]
    while len(found) < 250_000:
        merges += [[head, last] for head in level for last in letters][: 250_000 - len(found)]
        level = [head + last for head in level for last in letters]
        found.update(dict.fromkeys(level[: 250_000 - len(found)]))
    vocab = {word: number for number, word in enumerate(found)}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": None, "byte_fallback": False}
    return words(model=model, pre_tokenizer=json.loads(split(" "))["pre_tokenizer"])


def test_the_largest_vocabulary_and_a_long_text_fit() -> None:
    log = json.dumps({"prompt": "the quick brown fox jumps " * 80_000}).encode()
    assert len(log) > 2_000_000
    assert counted_apart(largest(), [log]).traffic.prompts.requests == 1


def limited(before: str = "") -> list[int]:
    """oom_score_adj and the limits of a process that has limited itself."""
    script = (
        f"import os, resource; {before}\n"
        "from kvcore.workload.logs import limit_this_process\n"
        "limit_this_process(7, 400 << 20)\n"
        "print(open('/proc/self/oom_score_adj').read())\n"
        "for what in (resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_AS):\n"
        "    print(resource.getrlimit(what)[1])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return [int(word) for word in ran.stdout.split()]


needs_proc = pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="not Linux")


@needs_proc
def test_the_process_is_limited_and_ended_first_by_the_kernel() -> None:
    score, cpu, data, addresses = limited()
    assert (score, cpu, data) == (1000, 7, 400 << 20)
    assert data < addresses < 1 << 30


@needs_proc
def test_limits_are_set_even_if_lowering_the_priority_is_forbidden() -> None:
    """systemd's filter `~@resources` has nice(); another has its own /proc."""
    refused = "os.nice = lambda by: os.open('/', os.O_WRONLY)"
    assert limited(refused) == limited()


def test_endless_nesting_is_not_a_tokenizer() -> None:
    deep = b'{"normalizer":' + b'{"type":"Sequence","normalizers":[' * 200_000
    assert code(deep, cpu_seconds=20) == "tokenizer-unreadable"


def charsmap(text: str) -> bytes:
    return words(normalizer={"type": "Precompiled", "precompiled_charsmap": text})


def split(pattern: str) -> bytes:
    return words(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
    )


def test_a_failing_tokenizer_is_not_reported_as_a_limit() -> None:
    assert code(split("(a+)+$"), json.dumps({"prompt": "a" * 200 + "!"}).encode()) == "tokenizer-failed"
    assert code(charsmap("AAAAAA==")) == "tokenizer-failed"
    assert code(charsmap("")) == "tokenizer-unreadable"
    assert code(charsmap("BAAAAP///////w==")) == "tokenizer-unreadable"


@pytest.mark.parametrize("known", [{}, {"one": 0}])
def test_a_text_that_the_tokenizer_fails_on_is_not_an_unusable_line(known: dict[str, int]) -> None:
    """Nine of ten lines, and all of them."""
    own = words(model={"type": "WordLevel", "vocab": known, "unk_token": "?"})
    log = b'{"prompt": "one"}\n' + b'{"prompt": "one two"}\n' * 9
    assert code(own, log) == "tokenizer-failed"


def test_half_a_character_in_a_log_does_not_fail_the_tokenizer() -> None:
    log = counted_apart(words(), [b'{"prompt": "one \\ud83d two"}\n'])
    assert (log.traffic.prompts.lengths, log.unusable) == ((3,), 0)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "tokenizer-ended"),
        ("os.kill(os.getpid(), signal.SIGXCPU)", "tokenizer-ended"),
        ("raise MemoryError", "tokenizer-ended"),
        (
            "os.write(2, b'memory allocation of 512 bytes failed\\n' + b'-' * 99); os.abort()",
            "tokenizer-ended",
        ),
        ("os.write(2, b'overflowed' * 100_000); os.abort()", "tokenizer-failed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "tokenizer-failed"),
        ("raise ZeroDivisionError", "tokenizer-failed"),
    ],
)
def test_the_end_of_the_process_tells_the_cause(
    last: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaces the counter in the other process as it starts."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def answer(head, source):\n"
        f"    {last}\n"
        "sys.path.insert(0, os.getcwd())\n"
        "from kvcore.workload import texts\n"
        "texts.counter_of = lambda text: answer(None, None)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert code(words()) == expected


def test_sizes_and_places_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apart, "MAX_TOKENIZER_BYTES", 10)
    assert code(words()) == "input-too-large"
    monkeypatch.setattr(apart, "MAX_TOKENIZER_BYTES", 1 << 20)
    monkeypatch.setattr(apart, "MAX_LOG_BYTES", 10)
    assert code(words()) == "request-log-too-large"
    monkeypatch.setattr(apart, "MAX_LOG_BYTES", 1 << 20)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "place"))
    with place(0):
        assert code(words()) == "tokenizer-busy"
    monkeypatch.setattr(apart, "find_spec", lambda name: None)
    assert code(words()) == "request-log-needs"


def test_the_process_ends_when_the_visitor_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    whole = subprocess.Popen

    def popen(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        begun.append(whole(*given, **named))
        return begun[-1]

    def gone(taken: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(apart.subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        counted_apart(words(), [LOG], look=gone)
    assert begun[0].poll() is not None


def test_no_secret_of_the_server_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in repr(apart._environment())
