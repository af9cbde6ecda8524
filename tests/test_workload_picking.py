"""Parts of a log by model, kind, status and time; its rate; and times that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcore import cli
from kvcore.base.errors import WorkloadError
from kvcore.replay.trace import read_trace, read_whole_trace
from kvcore.workload.collector import MAX_MODELS
from kvcore.workload.logs import read_request_log
from kvcore.workload.mix import workload_report
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import Reading

START = 1_782_600_000


def line(at: int, **more: Any) -> dict[str, Any]:
    return {"created": START + at, "model": "a" if at % 3 else "b", "call_type": "acompletion", "status": 200,
            "prompt_tokens": 100 + at, "completion_tokens": 5} | more  # fmt: skip


def packed(records: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one).encode() + b"\n" for one in records]


def read(records: list[dict[str, Any]], **options: Any) -> RequestLog:
    return read_request_log(packed(records), reading=Reading(**options))


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"only": (("model", "b"),)}, 20),
        ({"only": (("model", "A*"),)}, 40),
        ({"only": (("kind", "acompletion"), ("status", "200"))}, 60),
        ({"only": (("user.id", "7"),)}, 1),
        ({"since": START + 10}, 50),
        ({"since": START + 10, "until": START + 20.0}, 10),
    ],
)
def test_a_part_of_a_log(options: dict[str, Any], left: int) -> None:
    """By layouts and one by one, and the same from a table."""
    records = [line(at) for at in range(59)] + [line(59, user={"id": 7})]
    found = read(records, **options)
    assert (found.traffic.requests, found.not_asked, found.unusable) == (left, 60 - left, 0)
    assert len(found.timeline) == left
    slow = read([one | {f"x{at}": 1} for at, one in enumerate(records)], **options)
    assert slow.traffic == found.traffic
    if "user.id" not in str(options):
        names = list(records[0])
        rows = [",".join(names), *(",".join(str(one[name]) for name in names) for one in records)]
        table = read_request_log([f"{row}\n".encode() for row in rows], reading=Reading(**options))
        assert table.traffic == found.traffic


def test_nothing_that_was_asked_for_is_said() -> None:
    with pytest.raises(WorkloadError) as caught:
        read([line(1)], only=(("model", "c"),))
    assert caught.value.code == "request-log-none-asked"


def test_the_command_reads_and_replays_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.jsonl"
    log.write_bytes(b"".join(packed([line(at) for at in range(60)])))
    assert (
        cli.main(["workload", str(log), "--only", "model=b", "--until", "2026-06-27T22:40:30Z", "--json"])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["requests"], report["models"]) == (10, [{"model": "b", "requests": 10}])
    assert len(read_trace(packed([line(at) for at in range(60)]), Reading(only=(("model", "b"),)))) == 20


def test_the_rate_of_a_log_and_its_busiest_minute() -> None:
    seconds = [*range(0, 600, 10), *(300 + at / 10 for at in range(50))]
    report = workload_report(read([line(0, created=START + at) for at in seconds]))
    arrivals = report["arrivals"]
    assert (arrivals["timed"], arrivals["span_seconds"]) == (110, 590.0)
    assert arrivals["per_second"] == pytest.approx(110 / 590)
    # Fifty within five seconds, and the six others of a minute.
    assert arrivals["busiest_minute"] == 56


def test_times_in_any_unit_are_one_trace() -> None:
    """Seconds, milliseconds, microseconds, nanoseconds and ISO 8601 within one log."""
    units: list[Any] = [
        START,
        (START + 1) * 10**3,
        (START + 2) * 10**6,
        (START + 3) * 10**9,
        "2026-06-27T22:40:04Z",
    ]
    found = read_trace(packed([line(0, created=one) for one in units]))
    assert [one.arrival for one in found] == [0, 1, 2, 3, 4]


def test_wrong_times_are_counted_and_named() -> None:
    records = [line(at) for at in range(40)]
    records += [
        line(0, created=5.0),
        line(0, created=-5),
        line(0, created="soon"),
        line(0, created=START + 3),
    ]
    log = read(records)
    report = workload_report(log)
    assert (log.traffic.requests, log.unusable) == (44, 0)
    arrivals = report["arrivals"]
    assert (arrivals["timed"], arrivals["untimed"], arrivals["span_seconds"]) == (41, 3, 39.0)
    assert (arrivals["out_of_order"], arrivals["same_time"]) == (1, 1)
    assert [one["code"] for one in report["warnings"]] == ["request-log-odd-times"]
    same = workload_report(read([line(0) for _ in range(40)]))
    assert [one["code"] for one in same["warnings"]] == ["request-log-same-times"]
    assert same["arrivals"]["per_second"] is None


def test_hashes_stay_with_their_prompts_where_a_time_is_left_out() -> None:
    records = [
        {"timestamp": START + at, "input_length": 512, "output_length": 1, "hash_ids": [at]}
        for at in range(5)
    ]
    records.insert(2, {"timestamp": 5, "input_length": 1024, "output_length": 1, "hash_ids": [90, 91]})
    [*found] = read(records).timeline.arrivals()
    assert [len(one.hashes) for one in found] == [1] * 5


def test_many_models_are_bounded() -> None:
    records = [line(at, model=f"m{at}") for at in range(3 * MAX_MODELS)]
    models = dict(read(records).models)
    assert len(models) == MAX_MODELS + 1
    assert models[""] == 2 * MAX_MODELS


def test_one_bad_line_refuses_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a log, and of prompts in pieces; what is left out is counted."""
    pieces = [b'{"timestamp": %d, "prompt": [["a", 20]], "completion_tokens": 9}' % at for at in range(5)]
    found, left = read_whole_trace(
        [*pieces[:2], b'{"timestamp": 2, "prompt": [[1, 2]]}', b"{cut", *pieces[2:]]
    )
    assert (len(found), left.named) == (5, {"unusable": 2})
    log = packed([line(at) for at in range(9)]) + packed([line(3, status=500), line(4, created="soon")])
    found, left = read_whole_trace([*log, b"{cut"])
    assert (len(found), left.named) == (9, {"failed": 1, "unusable": 1, "untimed": 1})
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.jsonl"
    plan.write_text('{"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": 8192}')
    trace.write_bytes(b"".join(log))
    assert cli.main(["replay", str(trace), "--request", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"failed": 1, "untimed": 1}


def test_parts_of_a_database_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["workload", "s3://a/b.jsonl", "--only", "model=b"]) == cli.UNREADABLE_INPUT
    assert "files of this machine alone" in capsys.readouterr().err
