"""Parquet counted in columns: the same as row by row, however its columns are mixed."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

from kvcore.workload import columnar
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


def test_many_different_lengths_are_binned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("collector", "columnar"):
        monkeypatch.setattr(f"kvcore.workload.{module}.MAX_CELLS", 300)
    table = mixed(2000).drop_columns(["status", "call_type", "max_tokens"])
    assert read(table).traffic == by_rows(table, monkeypatch).traffic


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
