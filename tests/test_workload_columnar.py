"""Parquet counted in columns: the same as row by row, however its columns are mixed."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

from kvcore.workload import columnar
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.records import RequestLog, read_logs_here

pa = pytest.importorskip("pyarrow", reason="the app has it")
import pyarrow.parquet as pq  # noqa: E402  it needs pyarrow


def mixed(rows: int, seed: int = 3) -> Any:
    """Requests, failed ones, embeddings, lengths that are none, columns with and without values."""
    chosen = random.Random(seed)
    prompts = [
        chosen.choice([None, 0, 5, 10**9]) if at % 97 == 0 else 1 + int(chosen.lognormvariate(6, 1))
        for at in range(rows)
    ]
    return pa.table({
        "prompt_tokens": pa.array(prompts, pa.int64()),
        "completion_tokens": pa.array([None if at % 50 == 0 else at % 700 for at in range(rows)], pa.int32()),
        "max_tokens": pa.array([chosen.choice([None, 0, -1, 512, 1024]) for _ in range(rows)], pa.int64()),
        "status": [chosen.choice(["ok", "failure", None, "500"]) for _ in range(rows)],
        "call_type": [chosen.choice(["acompletion", "aembedding"]) for _ in range(rows)],
        "startTime": pa.array([(1_782_600_000 + at) * 10**6 for at in range(rows)], pa.timestamp("us", tz="UTC")),
        "model": [chosen.choice(["a", "b", None]) for _ in range(rows)],
        "session_id": [chosen.choice(["x", "y", None, ""]) for _ in range(rows)],
    })  # fmt: skip


def read(table: Any) -> RequestLog:
    out = io.BytesIO()
    pq.write_table(table, out)
    return read_logs_here([io.BytesIO(out.getvalue())])


def by_rows(table: Any, monkeypatch: pytest.MonkeyPatch) -> RequestLog:
    with monkeypatch.context() as patched:
        patched.setattr(columnar._Plain, "of", classmethod(lambda *_: None))
        return read(table)


def test_columns_and_rows_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    table = mixed(3000)
    found = read(table)
    assert found == by_rows(table, monkeypatch)
    assert (len(found.timeline), found.failed > 500, found.other_kinds > 500) == (
        found.traffic.requests,
        True,
        True,
    )


@pytest.mark.parametrize("few", [1, 1000])
@pytest.mark.parametrize("grid", [0, columnar.GRID])
def test_many_different_lengths_are_binned_alike(
    monkeypatch: pytest.MonkeyPatch, few: int, grid: int
) -> None:
    monkeypatch.setattr(columnar, "GRID", grid)
    monkeypatch.setattr("kvcore.workload.collector.MAX_CELLS", 300)
    monkeypatch.setattr(columnar, "FEW", few)
    table = mixed(2000).drop_columns(["status", "call_type", "max_tokens"])
    assert read(table).traffic == by_rows(table, monkeypatch).traffic


def test_sessions_and_times_beyond_the_limits_are_left_out_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcore.workload.collector.MAX_SESSIONS", 20)
    monkeypatch.setattr("kvcore.workload.timeline.MAX_ARRIVALS", 300)
    table = pa.table({
        "prompt_tokens": [*range(1, 1001)],
        "session_id": [None if at % 9 == 0 else f"s{at // 4 % 200}" for at in range(1000)],
        "timestamp": [1.7e9 + at for at in range(1000)],
        "model": [f"m{at % 3}" for at in range(1000)],
    })  # fmt: skip
    found = read(table)
    assert found == by_rows(table, monkeypatch)
    assert len(found.traffic.turns.counts) > 0
    assert len(found.timeline) == 300


def test_truth_values_and_numbers_for_arrow_are_apart() -> None:
    found = [columnar._scalar(value).as_py() for value in (True, 1, False, 0, MAX_TOKENS)]
    assert [(type(one), one) for one in found] == [
        (bool, True), (int, 1), (bool, False), (int, 0), (int, MAX_TOKENS),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "columns",
    [
        {"status": [str(at) for at in range(200)]},
        {"usage": [{"prompt_tokens": 7}] * 200},
        {"metadata": ['{"status": 500}'] * 200},
        {"prompt_tokens": [9.0] * 200},
        {"input_tokens": [9] * 200},
        {"created": ["2026-06-01T10:00:00Z"] * 200},
        {"hash_ids": [[1]] * 200},
    ],
)
def test_columns_that_are_not_plain_are_read_row_by_row(
    columns: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"prompt_tokens": [*range(1, 201)], "completion_tokens": [3] * 200}
    table = pa.table({**plain, **columns})
    results = []
    for work in (read, lambda one: by_rows(one, monkeypatch)):
        try:
            results.append(work(table))
        except Exception as error:
            results.append(str(error))
    assert results[0] == results[1]
