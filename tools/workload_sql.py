"""Writes kvcore/workload/database/dialects.json: the histogram query in each dialect, from the one Ibis expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ibis

from kvcore.workload.database.query import (
    ANSWER,
    DIALECTS,
    LANGFUSE,
    LANGFUSE_FILES,
    PROMPT,
    TABLE,
    cells,
    lengths,
)

OUT = Path(__file__).resolve().parents[1] / "kvcore" / "workload" / "database" / "dialects.json"
FINAL = "\nSETTINGS final = 1"
"""The last of rows that replace each other."""


def table(name: str = TABLE, prompt: str = PROMPT, answer: str = ANSWER, schema: str | None = None) -> Any:
    """A table of counts of any type, by a cast of each column."""
    return ibis.table({prompt: "decimal(38, 0)", answer: "decimal(38, 0)"}, name=name, database=schema)


def sql(dialect: str, counts: Any, prompt: str = PROMPT, answer: str = ANSWER) -> str:
    """The query over `counts` in a dialect."""
    name = "pyspark" if dialect == "spark" else dialect
    return str(ibis.to_sql(cells(lengths(counts, prompt, answer)), dialect=name))


def langfuse(dialect: str = "clickhouse") -> str:
    """The query over Langfuse's observations."""
    columns = {"usage_details": "map<string, uint64>", "type": "string", "is_deleted": "uint8"}
    found = cells(lengths(ibis.table(columns, name="observations")))
    return str(ibis.to_sql(found, dialect=dialect)) + (FINAL if dialect == "clickhouse" else "")


def main() -> None:
    """Writes the file."""
    kept = {dialect: sql(dialect, table()) for dialect in DIALECTS} | {
        LANGFUSE: langfuse(),
        LANGFUSE_FILES: langfuse("duckdb"),
    }
    OUT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
