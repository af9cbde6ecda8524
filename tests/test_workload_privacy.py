"""Prompts stay nowhere: sentinels are searched for in logs, caches, the session, the link, files and messages."""

from __future__ import annotations

import gc
import io
import json
import logging
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path

import pytest

from kvcore.base.errors import WorkloadError
from kvcore.workload.logs import counted_apart, read_request_log
from kvcore.workload.requests import Reading, plain_name
from tests.page_app import checked, params, seen
from tests.test_page_workload import html, open_workload, upload
from tests.test_workload_logs import words

SENTINEL = "SENTINEL-4f1c9a"
LINES = (
    {"prompt": f"{SENTINEL} prompt", "max_tokens": 64, "session_id": f"{SENTINEL} session"},
    {"messages": [{"role": "user", "content": f"{SENTINEL} message"}], "usage": {"prompt_tokens": 9}},
    {"conversations": [{"from": "human", "value": SENTINEL * 3}, {"from": "gpt", "value": SENTINEL}]},
    {"model": f"{SENTINEL} without a length", f"{SENTINEL} key": 1},
)
LOG = b"".join(json.dumps(line).encode() + b"\n" for line in LINES) + f'{{"cut": "{SENTINEL}\n'.encode()


def test_results_of_a_log_contain_no_text(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        log = read_request_log(io.BytesIO(LOG), reading=Reading(columns=(("session", "session_id"),)))
    assert log.traffic.requests == 3
    assert log.unusable == 2
    assert SENTINEL not in repr(log) + log.traffic.text() + caplog.text + "".join(capfd.readouterr())


def test_no_cache_keeps_anything_of_a_log() -> None:
    read_request_log(io.BytesIO(LOG))
    assert plain_name.cache_info().currsize == 0
    gc.collect()
    caches = [one for one in gc.get_objects() if isinstance(one, OrderedDict | set | Counter)]
    assert not [
        one for one in caches if any(SENTINEL in str(key) for key in list(one) if isinstance(key, str))
    ]


def test_a_refusal_quotes_no_text() -> None:
    for data in (f'{{"model": "{SENTINEL}"}}'.encode(), f"{SENTINEL} {SENTINEL}".encode()):
        with pytest.raises(WorkloadError) as caught:
            read_request_log(io.BytesIO(data))
        assert SENTINEL not in str(caught.value) + repr(caught.value.params)


def test_the_command_writes_only_counts(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(LOG)
    log, saved = str(tmp_path / "log.jsonl"), str(tmp_path / "t.json")
    command = [sys.executable, "-m", "kvcore", "workload", log, "--save", saved]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert SENTINEL not in done.stdout + done.stderr + (tmp_path / "t.json").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "t.json"}


def test_counting_apart_shows_and_writes_no_text(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.DEBUG):
        log = counted_apart(words(), [LOG])
        with pytest.raises(WorkloadError) as caught:
            counted_apart(words(), [f'{{"model": "{SENTINEL}"}}'.encode()])
    assert (log.traffic.requests, log.by_text) == (3, 2)
    assert SENTINEL not in repr(log) + str(caught.value) + repr(caught.value.params) + caplog.text
    assert SENTINEL not in "".join(capfd.readouterr())
    assert not list(tmp_path.iterdir())


def test_the_pages_tokenizer_keeps_and_shows_only_counts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        app = upload(open_workload(), "log.jsonl", LOG)
        app.file_uploader(key="workload.tokenizer.0").set_value([("t.json", words(), "application/json")])
        app.file_uploader(key="workload.tokenizer.log.0").set_value([("again.jsonl", LOG, "text/plain")])
        app = checked(app.run())
    assert "counted from their text by t.json" in seen(app)
    assert SENTINEL not in repr(dict(app.session_state._state.filtered_state))
    assert SENTINEL not in seen(app) + html(app) + repr(params(app)) + caplog.text


def test_the_page_keeps_and_shows_only_counts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        app = upload(open_workload(), "log.jsonl", LOG)
    assert "3 requests" in seen(app)
    state = dict(app.session_state._state.filtered_state)
    assert SENTINEL not in repr(state)
    assert SENTINEL not in seen(app) + html(app) + repr(params(app)) + caplog.text
