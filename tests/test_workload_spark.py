"""Spark in local-cluster mode, two workers as processes of their own: the same numbers from a Parquet file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcore.workload.database import connection
from kvcore.workload.database.cells import read_cells
from kvcore.workload.database.connection import read_table
from kvcore.workload.database.query import take_away
from tests.workload_rows import cells_of, rows

ibis = pytest.importorskip("ibis", reason="pip install -r tools/requirements.txt")
pytest.importorskip("pyspark", reason="make databases")
if shutil.which("java") is None:
    pytest.skip("apt-get install default-jre-headless", allow_module_level=True)
ROWS = rows()
MASTER = "local-cluster[2,1,1024]"


@pytest.fixture(scope="module")
def parquet(tmp_path_factory) -> Path:
    """The rows in two files, one for each worker."""
    folder = tmp_path_factory.mktemp("spark") / "logs"
    folder.mkdir()
    backend = ibis.duckdb.connect()
    for number, part in enumerate((ROWS[::2], ROWS[1::2])):
        table = ibis.memtable(part, schema={"prompt_tokens": "int64", "completion_tokens": "int64"})
        backend.create_table(f"part{number}", table)
        backend.raw_sql(f"COPY part{number} TO '{folder}/{number}.parquet'")
    return folder


@pytest.fixture(scope="module")
def spark() -> Iterator[object]:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = connection._spark_session(MASTER)
    yield session
    session.stop()


def test_the_numbers_are_those_of_python(spark, parquet: Path) -> None:
    assert read_table(MASTER, f"{parquet}/*.parquet") == cells_of(ROWS)


def test_the_query_to_take_away_gives_the_same_rows(spark, parquet: Path) -> None:
    spark.read.parquet(str(parquet)).createOrReplaceTempView("requests")
    found = [tuple(row) for row in spark.sql(take_away("spark")).collect()]
    assert read_cells(found) == cells_of(ROWS)


def test_several_workers_ran_the_query(spark) -> None:
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    workers = [one.host() + str(one.port()) for one in tracker.getExecutorInfos()]
    assert len(workers) == 3, "the driver and two workers"
