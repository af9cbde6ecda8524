"""A list of records on one line, as exports of conversations have it, however long the line is."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest

from kvcore.workload import opening
from kvcore.workload.records import RequestLog, read_logs_here

ODD = ['a "quoted" \\ text', "{[}]", "\\\\", "汉字", "", "\n"]


def conversations(number: int) -> list[dict[str, Any]]:
    chosen = random.Random(5)
    return [
        {
            "id": f"s{at}",
            "conversations": [
                {"from": "human", "value": "word " * chosen.randint(1, 90) + chosen.choice(ODD)},
                {"from": "gpt", "value": "word " * chosen.randint(1, 40)},
            ],
        }
        for at in range(number)
    ]


def read(text: str | bytes) -> RequestLog:
    return read_logs_here([io.BytesIO(text if isinstance(text, bytes) else text.encode())])


@pytest.mark.parametrize("slice_bytes", [7, 64, 1000, 1 << 18])
def test_one_long_line_is_read_like_a_line_for_each_member(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    found = conversations(60)
    by_line = read("\n".join(map(json.dumps, found)))
    monkeypatch.setattr(opening, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(opening, "SLICE_BYTES", slice_bytes)
    for text in (json.dumps(found), "[ " + json.dumps(found, ensure_ascii=False)[1:] + "\n"):
        log = read(text)
        assert log.traffic == by_line.traffic
        assert log.unusable == 0


def test_a_member_that_is_too_long_is_left_out_and_a_list_that_never_ends_is_read_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(opening, "SLICE_BYTES", 100)
    found = conversations(9)
    found[4]["conversations"][0]["value"] = "word " * 5000
    log = read(json.dumps(found))
    assert (log.traffic.requests, log.unusable) == (8, 1)
    found.pop(4)
    assert log.traffic == read("\n".join(map(json.dumps, found))).traffic
    whole = json.dumps(conversations(30))
    for cut in (whole[:-1], whole[:-40], whole[: whole.rindex("word")] + "\\"):
        assert 29 <= read(cut).traffic.requests <= 30


def test_lines_after_a_long_list_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_LINE_BYTES", 2000)
    found = conversations(20)
    text = json.dumps(found) + "\n" + json.dumps({"prompt_tokens": 9999, "completion_tokens": 1}) + "\n"
    log = read(text)
    assert (log.traffic.requests, log.traffic.prompts.longest_tokens) == (21, 9999)
