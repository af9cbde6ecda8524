"""Texts counted by a tokenizer built here of five words; a bad tokenizer is a coded error."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import tokenizers

from kvcore.base.errors import WorkloadError
from kvcore.cli import main
from kvcore.workload.logs import read_request_log
from kvcore.workload.requests import Reading
from kvcore.workload.texts import read_tokenizer


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """One token for each word."""
    found = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_prompt_counts_by_the_tokenizer(words: Path) -> None:
    count = read_tokenizer(str(words))
    line = json.dumps({"prompt": "one two three", "completion": "four five"}).encode()
    log = read_request_log(io.BytesIO(line), reading=Reading(counter=count))
    assert (log.traffic.prompts.lengths, log.traffic.answers.lengths) == ((3,), (2,))
    assert (log.counted_by, log.estimated) == ("tokenizer", 0)
    assert read_request_log(io.BytesIO(line)).counted_by == "approximation"


def test_the_command_takes_a_tokenizer(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.jsonl").write_text('{"prompt": "one two three"}\n')
    assert main(["workload", "--json", "--tokenizer", str(words), str(tmp_path / "log.jsonl")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["prompt"]["max"], report["counted_by"]) == (3, "tokenizer")


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"type": "WordLevel"}}'])
def test_a_bad_tokenizer_is_a_coded_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(WorkloadError) as caught:
        read_tokenizer(str(tmp_path / "tokenizer.json"))
    assert caught.value.code == "tokenizer-unreadable"


def test_a_text_that_the_tokenizer_fails_on_is_a_coded_error(tmp_path: Path) -> None:
    found = tokenizers.Tokenizer(tokenizers.models.WordLevel({"one": 0}, unk_token="?"))
    found.save(str(tmp_path / "tokenizer.json"))
    lines = b'{"prompt": "one"}\n{"prompt": "two"}\n'
    with pytest.raises(WorkloadError) as caught:
        read_request_log(
            io.BytesIO(lines), reading=Reading(counter=read_tokenizer(str(tmp_path / "tokenizer.json")))
        )
    assert (caught.value.code, caught.value.field, caught.value.params) == (
        "tokenizer-failed",
        "tokenizer",
        {},
    )
    assert caught.value.next_step


def test_a_panic_of_the_package_is_a_coded_error(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {}, "unk_token": "?"}
    text = json.dumps({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}, "model": model})
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(WorkloadError) as caught:
        read_tokenizer(str(tmp_path / "tokenizer.json"))
    assert caught.value.code == "tokenizer-unreadable"
