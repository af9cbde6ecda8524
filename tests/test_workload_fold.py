"""Cells folded by DuckDB: the traffic of the same cells in Python, and files that need no Ibis."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.base.errors import WorkloadError
from kvcore.workload.database import cells, files
from kvcore.workload.histogram import MAX_TOKENS, rounded_up
from kvcore.workload.traffic import read_traffic
from tests.workload_rows import Row, cells_of, rows

duckdb = pytest.importorskip("duckdb", reason="pip install -r tools/requirements.txt")
LENGTH = st.integers(-1, 300) | st.integers(1, MAX_TOKENS + 1)


def folded(some: list[Row]):
    """The traffic that DuckDB folds from rows in a table."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE log (prompt BIGINT, answer BIGINT)")
        connection.executemany("INSERT INTO log VALUES (?, ?)", some)
        unusable, unanswered = files.make_cells(connection, fold_query("log"))
        return files.folded(connection), unusable, unanswered


def fold_query(table: str) -> str:
    return files.take_away("duckdb", table, "prompt", "answer")


@given(st.lists(st.tuples(st.none() | LENGTH, st.none() | LENGTH), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_folded_cells_give_the_traffic_of_the_cells(some: list[Row]) -> None:
    expected = cells_of(some)
    if not expected.counts:
        with pytest.raises(WorkloadError) as caught:
            folded(some)
        assert (caught.value.code, caught.value.params["rows"]) == ("database-no-lengths", str(len(some)))
        return
    unanswered = sum(count for _, answer, count in expected.counts if answer is None)
    assert folded(some) == (expected.traffic(), expected.unusable, unanswered)


@pytest.mark.parametrize("most", [1, 4, 40, 400])
def test_a_joint_histogram_that_is_too_large_is_binned_as_python_does(most: int, monkeypatch) -> None:
    from kvcore.workload import traffic

    for module in (traffic, files):
        monkeypatch.setattr(module, "MAX_CELLS", most)
    found, *_ = folded(rows(300))
    assert found == cells_of(rows(300)).traffic()
    assert len(found.joint.counts) <= max(most, 25 * 26)


def test_every_edge_of_a_bin_is_rounded_by_whole_numbers() -> None:
    """Bins of 7 bits end at 65, 66, ... 128 times a power of two: the end stays, the next length is a bin further."""
    edges = [*range(1, 129), *(step << shift for shift in range(1, 18) for step in range(65, 129))]
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE log AS SELECT unnest(?::INTEGER[]) AS prompt, 0 AS answer", [edges])
        connection.execute(f"INSERT INTO log SELECT prompt + 1, 0 FROM log WHERE prompt < {MAX_TOKENS}")
        files.make_cells(connection, fold_query("log"))
        found = connection.execute("SELECT prompt, requests FROM kv_cells ORDER BY 1").fetchall()
    assert found == [(edge, 1 if edge == 1 else 2) for edge in edges]


def test_saved_traffic_of_a_large_log_can_be_read_again() -> None:
    chosen = random.Random(7)
    many = {(chosen.randrange(1, MAX_TOKENS), chosen.randrange(MAX_TOKENS)) for _ in range(150_000)}
    found = cells.read_cells((rounded_up(p, 7), rounded_up(a, 7), 1) for p, a in many).traffic()
    assert read_traffic(found.text()) == found


class TestFiles:
    def test_ibis_is_not_needed(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}\n')
        program = (
            "import sys; sys.modules['ibis'] = None\n"
            "from kvcore.workload.database.files import read_files\n"
            "print(read_files([sys.argv[1]]).traffic.prompts.lengths, 'pandas' in sys.modules)"
        )
        ran = [sys.executable, "-c", program, str(tmp_path / "a.jsonl")]
        assert subprocess.run(ran, check=True, capture_output=True, text=True).stdout == "(904,) False\n"

    def test_a_log_may_change_its_field_names(self, tmp_path: Path) -> None:
        """The first rows decide under which names is looked first; what they do not decide is what is counted."""
        first = {"usage": {"prompt_tokens": 100, "completion_tokens": 80}}
        later = {"usage": {"input_tokens": 9, "cache_read_input_tokens": 900, "output_tokens": 3}}
        rows = [first] * (files.SAMPLE_ROWS + 5) + [later] * 2
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        expected = cells_of([(100, 80)] * (files.SAMPLE_ROWS + 5) + [(909, 3)] * 2)
        found = files.read_files([str(tmp_path / "a.jsonl")])
        assert (found.traffic, found.unusable) == (expected.traffic(), 0)

    @pytest.mark.parametrize("also", [
        {"input_tokens": 9, "output_tokens": 3}, {"usage": {"prompt_tokens": 9}}, {"id": "x"},
    ])  # fmt: skip
    def test_a_line_of_another_layout_among_the_usual_ones(self, also, tmp_path: Path) -> None:
        usual = {"usage": {"prompt_tokens": 100, "completion_tokens": 80}}
        (tmp_path / "a.jsonl").write_text(
            "\n".join(json.dumps(one) for one in (usual, also, usual)) + "\nbroken {\n"
        )
        given = {"input_tokens": (9, 3), "usage": (9, None), "id": (None, None)}[next(iter(also))]
        expected = cells_of([(100, 80), (100, 80), given])
        found = files.read_files([str(tmp_path / "a.jsonl")])
        assert (found.traffic, found.unusable) == (expected.traffic(), expected.unusable + 1)

    def test_files_exported_from_langfuse(self, tmp_path: Path) -> None:
        out = tmp_path / "it's langfuse.parquet"
        usage = "MAP {'input': 100, 'input_cached_tokens': 20, 'output': 7, 'total': 127}"
        with duckdb.connect() as connection:
            kinds = "unnest(['GENERATION', 'SPAN']) AS type, 0 AS is_deleted"
            connection.execute(f"CREATE TABLE t AS SELECT {usage} AS usage_details, {kinds}")
            connection.execute(f"COPY t TO '{str(out).replace(chr(39), chr(39) * 2)}'")
        assert files.read_files([str(out)]).traffic == cells_of([(120, 7)]).traffic()

    def test_names_of_columns_stay_names(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('"in"" ; DROP",out\n9,3\n')
        found = files.read_files([str(tmp_path / "a.csv")], 'in" ; DROP', "out")
        assert found.traffic == cells_of([(9, 3)]).traffic()
