"""Compares the numbers, time and memory of Spark and DuckDB on many rows: docs/workload-scale.md.

    python -m tools.scale --rows 100000000

Spark's workers make the rows themselves, as Parquet in a folder of its own; then both answer by the one expression. A
row follows from its number, so that the same can be made again.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvcore.workload.database.cells import Cells
from kvcore.workload.database.connection import _spark_session, read_table

MASTER = "local-cluster[2,1,1024]"
OUT = Path(__file__).resolve().parents[1] / "docs" / "workload-scale.md"
BEGIN, END = "<!-- table -->", "<!-- end -->"


def make(rows: int, folder: str) -> None:
    """Rows as Parquet: prompts and answers with long tails, one answer in 97 unknown, one prompt in 1,009 nothing."""
    from pyspark.sql import functions as f

    session = _spark_session(MASTER)
    mixed = f.pmod(f.xxhash64(f.col("id")), f.lit(1 << 20))
    other = f.pmod(f.xxhash64(f.col("id") + 1), f.lit(1 << 20))
    prompt = f.when(f.col("id") % 1009 == 0, 0).otherwise(f.floor(f.pow(2.0, 4 + mixed * 13.0 / (1 << 20))))
    answer = f.when(f.col("id") % 97 == 0, None).otherwise(f.floor(f.pow(2.0, other * 12.0 / (1 << 20))))
    made = session.range(0, rows, 1, 16)
    made = made.select(
        prompt.cast("int").alias("prompt_tokens"), answer.cast("int").alias("completion_tokens")
    )
    made.write.mode("overwrite").parquet(folder)


def timed(work: Callable[[], Cells]) -> tuple[Cells, float]:
    """The result, and seconds on the clock."""
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


def main(arguments: Sequence[str]) -> int:
    """Status 1 where the two differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/workload-scale.md")
    given = parser.parse_args(arguments)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    folder = tempfile.mkdtemp(prefix="kv-scale-")
    files = f"{folder}/rows/*.parquet"
    try:
        start = time.perf_counter()
        make(given.rows, f"{folder}/rows")
        made = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(folder, "rows").iterdir())
        spark, spark_seconds = timed(lambda: read_table(MASTER, files))
        _spark_session(MASTER).stop()
        duckdb, duckdb_seconds = timed(lambda: read_table("duckdb://", files))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = [
        "| what | rows | cells | seconds |",
        "|---|---|---|---|",
        f"| Spark makes the rows, {size / (1 << 20):,.0f} MiB of Parquet | {given.rows:,} | | {made:,.0f} |",
        f"| Spark, `{MASTER}` | {spark.requests + spark.unusable:,} | {len(spark.counts):,} | {spark_seconds:,.0f} |",
        f"| DuckDB, this process, peak {peak:.2f} GiB | {duckdb.requests + duckdb.unusable:,} "
        f"| {len(duckdb.counts):,} | {duckdb_seconds:,.0f} |",
    ]
    print("\n".join(table))
    same = spark == duckdb and spark.requests + spark.unusable == given.rows
    print("the same cells" if same else "DIFFERENT")
    if same and given.write:
        head, _, rest = OUT.read_text("utf-8").partition(BEGIN)
        OUT.write_text("\n".join([f"{head}{BEGIN}", *table, f"{END}{rest.partition(END)[2]}"]), "utf-8")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
