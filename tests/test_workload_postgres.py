"""LiteLLM's SpendLogs in a PostgreSQL of our own: the same numbers, nothing written, coded errors."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcore.base.errors import WorkloadError
from kvcore.workload.database import connection
from kvcore.workload.database.connection import read_table
from kvcore.workload.database.query import take_away
from tests.workload_rows import cells_of, rows

pytest.importorskip("ibis", reason="pip install -r tools/requirements.txt")
psycopg = pytest.importorskip("psycopg", reason="pip install -r tools/requirements.txt")
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
NOBODY = 65534
ROWS = [(prompt or 0, answer or 0) for prompt, answer in rows() if max(prompt or 0, answer or 0) < 2**31]
# schema.prisma of LiteLLM's proxy: counts are Int with 0 in place of nothing.
TABLE = """CREATE TABLE "LiteLLM_SpendLogs" (request_id text PRIMARY KEY, call_type text, spend double precision,
    total_tokens integer DEFAULT 0, prompt_tokens integer DEFAULT 0, completion_tokens integer DEFAULT 0,
    "startTime" timestamp, "endTime" timestamp, model text DEFAULT '', session_id text)"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a throw-away cluster; PostgreSQL does not run as root."""
    if not BINARIES:
        pytest.skip("apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="kv-postgres-"))
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    if user:
        os.chown(folder, NOBODY, NOBODY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(program: str, *arguments: str) -> None:
        command = [BINARIES[-1] / program, "-D", folder / "data", *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=120, **user)

    try:
        run("initdb", "--username=planner", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        run("pg_ctl", "--wait", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgres://planner@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "--wait", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def url(server: str) -> str:
    """The cluster with LiteLLM's table in it."""
    with psycopg.connect(server) as client, client.cursor() as cursor:
        cursor.execute(TABLE)
        with cursor.copy(
            'COPY "LiteLLM_SpendLogs" (request_id, prompt_tokens, completion_tokens) FROM STDIN'
        ) as copy:
            for number, row in enumerate(ROWS):
                copy.write_row((str(number), *row))
    return server


def test_the_numbers_are_those_of_python(url: str) -> None:
    assert read_table(url, "LiteLLM_SpendLogs") == cells_of(ROWS)
    assert read_table(url, "public.LiteLLM_SpendLogs") == cells_of(ROWS)


def test_the_query_to_take_away_gives_the_same_rows(url: str) -> None:
    with psycopg.connect(url) as client:
        found = client.execute(take_away("postgres", "LiteLLM_SpendLogs")).fetchall()
    assert connection.read_cells(found) == cells_of(ROWS)


def test_the_session_only_reads(url: str) -> None:
    backend = connection._connected(url, 5)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        backend.raw_sql('DELETE FROM "LiteLLM_SpendLogs"')
    backend.disconnect()


@pytest.mark.parametrize(
    ("table", "column", "code"),
    [
        ("nothing", None, "database-table"),
        ("LiteLLM_SpendLogs", "promptTokens", "database-columns"),
        ("LiteLLM_SpendLogs", "model", "database-failed"),
        ("LiteLLM_SpendLogs", "session_id", "database-no-lengths"),
    ],
)
def test_another_schema_is_a_coded_error(url: str, table: str, column: str | None, code: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_table(url, table, column)
    assert caught.value.code == code


def test_a_slow_server_ends_the_query_itself(url: str) -> None:
    backend = connection._connected(url, 1)
    with pytest.raises(WorkloadError) as caught, connection.coded(url):
        backend.raw_sql("SELECT pg_sleep(60)")
    assert caught.value.code == "database-slow"
    backend.disconnect()


def test_an_unknown_user_or_database(url: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_table(url.replace("/postgres", "/elsewhere").replace("planner@", "planner:s3cret@"), "requests")
    assert caught.value.code == "database-gone"
    assert "elsewhere" in str(caught.value)
    assert "s3cret" not in str(caught.value)
