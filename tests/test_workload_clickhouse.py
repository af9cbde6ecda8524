"""Langfuse's observations in ClickHouse (chdb, its engine as a library), asked over ClickHouse's own HTTP interface."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from kvcore.base.errors import WorkloadError
from kvcore.workload.database.cells import read_cells_csv
from kvcore.workload.database.connection import read_table
from kvcore.workload.database.query import LANGFUSE, take_away
from tests.workload_rows import cells_of, rows

pytest.importorskip("ibis", reason="pip install -r tools/requirements.txt")
session = pytest.importorskip("chdb.session", reason="make databases")
# Counts are UInt64: what is below 0 or unknown cannot be there.
ROWS = [(prompt or 0, answer or 0) for prompt, answer in rows() if min(prompt or 0, answer or 0) >= 0]
# packages/shared/clickhouse/migrations/unclustered/0002_observations.up.sql, the columns that matter here.
TABLE = """CREATE TABLE observations (id String, project_id String, type LowCardinality(String),
    start_time DateTime64(3), usage_details Map(LowCardinality(String), UInt64), event_ts DateTime64(3),
    is_deleted UInt8) ENGINE = ReplacingMergeTree(event_ts, is_deleted) PARTITION BY toYYYYMM(start_time)
    ORDER BY (project_id, type, toDate(start_time), id)"""


def values() -> Iterator[str]:
    """Each request with part of its prompt from a cache, an older version of it, a span, and one that was deleted."""
    for number, (prompt, answer) in enumerate(ROWS):
        cached = prompt // 3
        usage = (
            f"{{'input': {prompt - cached}, 'input_cached_tokens': {cached}, 'output': {answer}, 'total': 9}}"
        )
        yield f"('{number}', 'p', 'GENERATION', 1, {{'input': 77, 'output': 7}}, 1, 0)"
        yield f"('{number}', 'p', 'GENERATION', 1, {usage}, 2, 0)"
    yield "('span', 'p', 'SPAN', 1, {'input': 5, 'output': 5}, 1, 0)"
    yield "('gone', 'p', 'GENERATION', 1, {'input': 5, 'output': 5}, 1, 1)"


@pytest.fixture(scope="module")
def database() -> Iterator[object]:
    """A ClickHouse with Langfuse's table; parts are left as they came, so that old rows are still there."""
    one = session.Session()
    one.query("CREATE DATABASE langfuse ENGINE = Atomic")
    one.query("USE langfuse")
    one.query(TABLE)
    one.query("SYSTEM STOP MERGES")
    one.query("SET optimize_on_insert = 0")
    one.query("INSERT INTO observations VALUES " + ", ".join(values()))
    yield one
    one.close()


@pytest.fixture(scope="module")
def url(database) -> Iterator[str]:
    """The HTTP interface of a server, in front of the library: a query in, its answer in the format that was asked."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            given = parse_qs(urlsplit(self.path).query)
            query = given.pop("query", [""])[0] + body
            try:
                with lock:
                    database.query(f"SET final = {given.get('final', ['0'])[0]}")
                    answer, status = database.query(query, "TabSeparated").bytes(), 200
            except Exception as error:
                answer, status = str(error).encode(), 500
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"clickhouse://default:s3cret@127.0.0.1:{server.server_port}/langfuse"
    server.shutdown()


def test_the_query_to_take_away_gives_the_same_cells_as_python(database) -> None:
    assert read_cells_csv(str(database.query(take_away(LANGFUSE), "CSVWithNames"))) == cells_of(ROWS)


def test_lengths_in_columns(database) -> None:
    database.query("CREATE TABLE spend (prompt UInt32, answer Nullable(UInt64)) ENGINE = Memory")
    database.query("INSERT INTO spend VALUES " + ", ".join(map(str, ROWS)) + ", (9, NULL)")
    answer = str(
        database.query(take_away("clickhouse", "langfuse.spend", "prompt", "answer"), "CSVWithNames")
    )
    assert read_cells_csv(answer) == cells_of([*ROWS, (9, None)])


def test_the_connection_gives_the_same_cells(url: str) -> None:
    assert read_table(url, "observations") == cells_of(ROWS)


def test_another_table(url: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_table(url, "nothing")
    assert caught.value.code == "database-table"
    assert "s3cret" not in str(caught.value)
