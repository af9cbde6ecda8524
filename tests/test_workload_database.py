"""The histogram as one expression: files by DuckDB, SQL to take away, its CSV read back, and errors."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore import cli
from kvcore.base.errors import WorkloadError
from kvcore.workload.database import cells, connection, files, query
from kvcore.workload.database.cells import Cells, read_cells, read_cells_csv
from kvcore.workload.histogram import MAX_TOKENS, LengthHistogram
from kvcore.workload.logs import read_request_log
from tests.workload_rows import cells_of, rows

ibis = pytest.importorskip("ibis", reason="pip install -r tools/requirements.txt")
from tools import workload_sql  # noqa: E402  it needs Ibis

ROWS = rows()


def refused(work, *arguments) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        work(*arguments)
    return caught.value


def usage_lines(some=ROWS) -> bytes:
    usages = [{"prompt_tokens": prompt, "completion_tokens": answer} for prompt, answer in some]
    return b"".join(json.dumps({"id": "x", "usage": usage}).encode() + b"\n" for usage in usages)


def csv_of(found: Cells) -> str:
    lines = [f"{prompt},{-1 if answer is None else answer},{count}" for prompt, answer, count in found.counts]
    return "\n".join(["prompt,answer,requests", *lines, f"-1,-1,{found.unusable}"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The rows as a table in a DuckDB file, as Parquet, JSON lines (packed too) and CSV."""
    place = tmp_path_factory.mktemp("logs")
    (place / "a.jsonl").write_bytes(usage_lines(ROWS[:1000]) + b"not a record\n\n")
    (place / "b.jsonl.gz").write_bytes(gzip.compress(usage_lines(ROWS[1000:])))
    backend = ibis.duckdb.connect(place / "logs.duckdb")
    table = ibis.memtable(ROWS, schema={"prompt_tokens": "int64", "completion_tokens": "int64"})
    backend.create_table("requests", table)
    backend.raw_sql(f"COPY requests TO '{place}/all.parquet'")
    backend.raw_sql(f"COPY requests TO '{place}/all.csv' (HEADER)")
    backend.disconnect()
    return place


class TestFiles:
    def test_parquet_csv_and_a_table_give_the_same_cells_as_python(self, folder: Path) -> None:
        expected = cells_of(ROWS)
        log = connection.log_of_cells(expected)
        assert files.read_files([f"{folder}/*.parquet"]) == log
        assert files.read_files([f"{folder}/all.csv"]) == log
        assert connection.read_table(f"duckdb://{folder}/logs.duckdb", "requests") == expected

    def test_json_lines_packed_or_not_count_broken_lines_too(self, folder: Path) -> None:
        found = files.read_files([f"{folder}/a.jsonl", f"{folder}/*.jsonl.gz"])
        assert found.traffic == cells_of(ROWS).traffic()
        assert found.unusable == cells_of(ROWS).unusable + 1

    @pytest.mark.parametrize(
        ("record", "lengths"),
        [
            ({"prompt_tokens": 9, "completion_tokens": 3}, (9, 3)),
            ({"usage": {"input_tokens": 9, "output_tokens": 3}}, (9, 3)),
            ({"usage": {"input_tokens": 9, "cache_read_input_tokens": 900, "output_tokens": 3}}, (912, 3)),
            ({"response": {"body": {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}}}, (9, 3)),
            ({"usage": {"prompt_tokens": 9}, "prompt": "prompt_tokens: 7"}, (9, None)),
        ],
    )
    def test_counts_are_found_in_the_places_of_each_api(self, record, lengths, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
        assert files.read_files([str(tmp_path / "a.jsonl")]).traffic == cells_of([lengths]).traffic()

    def test_the_command_reports_the_same_for_parquet_and_json_lines(self, folder: Path, capsys) -> None:
        """Percentiles of the exact lengths, and those of the cells at most 1/64 above."""
        exact = LengthHistogram.from_lengths([prompt for prompt, _ in ROWS[:2000]])
        small = folder / "small.parquet"
        backend = ibis.duckdb.connect()
        backend.create_table(
            "t", ibis.memtable(ROWS[:2000], schema={"inputTokens": "int64", "outputTokens": "int64"})
        )
        backend.raw_sql(f"COPY t TO '{small}'")
        assert cli.main(["workload", str(small).replace("small", "sma*"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["requests"] == 2000
        for percent in (50, 90, 95, 99):
            true = exact.percentile_tokens(percent)
            assert true <= found["prompt"][f"p{percent}"] <= true * (1 + 1 / 64)

    def test_failed_requests_and_embeddings_are_kept_apart(self, tmp_path: Path) -> None:
        """In JSON lines, in a table, and in the query to take away."""
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        some = [
            {"status": "success", "call_type": "completion", "usage": usage},
            {"status": "failure", "call_type": "completion", "usage": {**usage, "prompt_tokens": 500}},
            {"status_code": 429, "usage": {**usage, "prompt_tokens": 600}},
            {"error": {"message": "no"}, "usage": {**usage, "prompt_tokens": 700}},
            {"call_type": "aembedding", "usage": {**usage, "prompt_tokens": 800}},
        ]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))
        assert files.read_files([str(tmp_path / "a.jsonl")]).traffic.prompts.lengths == (9,)
        place = tmp_path / "a.duckdb"
        backend = ibis.duckdb.connect(place)
        backend.raw_sql(
            "CREATE TABLE requests AS SELECT * FROM (VALUES (9, 3, '200', 'completion'), "
            "(500, 3, '500', 'completion'), "
            "(600, 3, 'Failure', 'completion'), (7, 3, NULL, NULL), (800, 1, '200', 'aembedding')) "
            "AS t(prompt_tokens, completion_tokens, status, call_type)"
        )
        taken = backend.con.execute(query.take_away("duckdb", status="status")).fetchall()
        backend.raw_sql(f"COPY requests TO '{tmp_path}/a.csv' (HEADER)")
        backend.disconnect()
        assert sorted(row[0] for row in taken) == [7, 9, 800]
        found = connection.read_table(f"duckdb://{place}", "requests")
        assert [prompt for prompt, *_ in found.counts] == [7, 9]
        assert files.read_files([f"{tmp_path}/a.csv"]).traffic.prompts.lengths == (7, 9)

    def test_names_with_a_pattern_are_the_files_of_this_machine(self, folder: Path) -> None:
        assert files.named_files(f"{folder}/a*.csv") == [f"{folder}/all.csv"]
        assert refused(files.named_files, f"{folder}/no-*.csv").code == "database-files"
        assert (files.is_remote("s3://a/*.csv"), files.is_remote(str(folder))) == (True, False)

    def test_missing_files_and_mixed_kinds_are_refused(self, folder: Path) -> None:
        assert refused(files.read_files, [f"{folder}/no-*.parquet"]).code == "database-files"
        assert (
            refused(files.read_files, [f"{folder}/all.csv", f"{folder}/all.parquet"]).code
            == "database-mixed-files"
        )
        (folder / "broken.parquet").write_bytes(b"PAR1 and no more")
        assert refused(files.read_files, [f"{folder}/broken.parquet"]).code == "database-files"
        (folder / "other.csv").write_text("name,size\na,1\n")
        assert "name, size" in str(refused(files.read_files, [f"{folder}/other.csv"]))


class TestTakeAway:
    @pytest.mark.parametrize("dialect", query.DIALECTS)
    def test_the_stored_sql_is_that_of_ibis(self, dialect: str) -> None:
        counts = workload_sql.table("Spend Logs", "in", "out", schema="my_schema")
        assert query.take_away(dialect, "my_schema.Spend Logs", "in", "out") == workload_sql.sql(
            dialect, counts, "in", "out"
        )

    def test_langfuse_has_its_own_sql(self) -> None:
        assert query.take_away(query.LANGFUSE) == workload_sql.langfuse()
        assert query.take_away(query.LANGFUSE_FILES) == workload_sql.langfuse("duckdb")

    def test_names_cannot_leave_their_quotes(self) -> None:
        text = query.take_away("postgres", 'a"; DROP TABLE b; --')
        assert '"a""; DROP TABLE b; --"' in text
        assert refused(query.take_away, "bigquery", "a\\").code == "sql-name"
        assert refused(query.take_away, "postgres", "a..b").code == "sql-name"
        assert refused(query.take_away, "oracle").code == "sql-dialect"

    def test_the_query_runs_and_its_csv_comes_back_as_the_same_traffic(self, folder: Path, capsys) -> None:
        assert cli.main(["workload", "--sql", "duckdb"]) == 0
        query = capsys.readouterr().out
        backend = ibis.duckdb.connect(folder / "logs.duckdb", read_only=True)
        backend.raw_sql(f"COPY ({query}) TO '{folder}/answer.csv' (HEADER)")
        assert read_cells_csv((folder / "answer.csv").read_text()) == cells_of(ROWS)
        log = read_request_log((folder / "answer.csv").read_bytes().splitlines(keepends=True))
        assert log.traffic == cells_of(ROWS).traffic()
        assert log.unusable == cells_of(ROWS).unusable


class TestCells:
    @given(
        st.lists(st.tuples(st.integers(1, MAX_TOKENS), st.none() | st.integers(0, MAX_TOKENS)), min_size=1)
    )
    def test_written_cells_are_read_back(self, some) -> None:
        found = cells_of(some)
        text = csv_of(found).replace("-1,-1,0", "")
        assert read_cells_csv(text) == found
        assert read_cells_csv("\ufeff" + text.replace(",", ";").replace("prompt;", '"PROMPT";')) == found

    @pytest.mark.parametrize(
        "row", ["1,2", "1,2,3,4", "x,2,3", "1,2,0", "1,2,-1", "0,2,3", "1,-2,3", f"{MAX_TOKENS + 1},2,3", "1,2,1e3",
                "-1,5,3", "9" * 40 + ",1,1", '1,"2,3'],
    )  # fmt: skip
    def test_a_bad_cell_is_reported_with_its_line(self, row: str) -> None:
        error = refused(read_cells_csv, f"prompt,answer,requests\n5,5,5\n{row}\n")
        assert error.code == "cells-unreadable"

    def test_an_answer_is_bounded_and_never_empty(self, monkeypatch) -> None:
        monkeypatch.setattr(cells, "MAX_CELLS", 2)
        assert refused(read_cells, [(n, 1, 1) for n in range(1, 4)]).code == "cells-too-many"
        assert refused(read_cells, [(-1, -1, 7)]).params == {"rows": "7"}


class TestWhatGoesWrong:
    URL = "postgres://me:s%40cret@127.0.0.1:1/logs?sslpassword=abc123"

    def test_an_unreachable_database_is_named_without_its_secrets(self) -> None:
        error = refused(connection.read_table, self.URL, "requests", None, None, 5)
        assert error.code == "database-gone"
        shown = f"{error} {error.next_step} {error.params} {error.__cause__}"
        assert not any(secret in shown for secret in ("s%40cret", "s@cret", "abc123"))

    def test_the_address_may_come_from_the_environment(self, monkeypatch) -> None:
        monkeypatch.setenv("LOGS", self.URL)
        assert refused(connection.read_table, "env:LOGS", "requests", None, None, 5).code == "database-gone"
        assert refused(connection.read_table, "env:NOTHING", "requests").code == "database-address"
        assert refused(connection.read_table, "mongodb://me:secret@host", "requests").params.keys() == {
            "known"
        }

    def test_a_slow_answer_is_given_up(self) -> None:
        start = time.monotonic()
        assert refused(connection.bounded, lambda: time.sleep(30), 0.2).code == "database-slow"
        assert time.monotonic() - start < 10

    def test_another_table_or_another_schema(self, folder: Path) -> None:
        url = f"duckdb://{folder}/logs.duckdb"
        assert refused(connection.read_table, url, "nothing").code == "database-table"
        error = refused(connection.read_table, url, "requests", "lengths")
        assert (error.code, error.params["columns"]) == (
            "database-columns",
            "prompt_tokens, completion_tokens",
        )

    def test_the_database_is_not_written_to(self, folder: Path) -> None:
        backend = connection._connected(f"duckdb://{folder}/logs.duckdb", 5)
        with pytest.raises(Exception, match="read-only"):
            backend.raw_sql("DELETE FROM requests")
        backend.disconnect()

    def test_a_missing_extra_is_named(self, monkeypatch, capsys) -> None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        assert cli.main(["workload", "s3://none/*.parquet"]) == cli.UNREADABLE_INPUT
        assert "pip install '.[workload]'" in capsys.readouterr().err
        assert cli.main(["workload", "--sql", "postgres"]) == 0
