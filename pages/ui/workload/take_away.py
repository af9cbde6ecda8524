"""SQL to copy, for logs in a database that nobody may connect to; its answer is uploaded like a log."""

from __future__ import annotations

import streamlit as st

from kvcore.base.errors import WorkloadError
from kvcore.base.words import Words
from kvcore.workload.database.query import LANGFUSE, take_away
from pages.ui.shared import notes

KEY = "workload.sql"
NAMES = {
    "postgres": "PostgreSQL", "clickhouse": "ClickHouse", LANGFUSE: "ClickHouse, Langfuse", "bigquery": "BigQuery",
    "snowflake": "Snowflake", "trino": "Trino", "spark": "Spark", "duckdb": "DuckDB",
}  # fmt: skip
HEIGHT = 240


def query(t: Words) -> None:
    """The names of table and columns, and the query."""
    with st.expander(t("Logs in a database: SQL to take away"), icon=":material/database:"):
        st.caption(
            t(
                "Run this query where your logs are, save its answer as CSV, and drop that above. It counts requests "
                "by the lengths of prompt and answer, each rounded up by at most 1/64; no text leaves the database."
            )
        )
        grid = st.grid(5, min_column_width=130)
        dialect: str = grid.selectbox(
            t("Database"), list(NAMES), format_func=NAMES.__getitem__, key=f"{KEY}.dialect"
        )
        known = dialect == LANGFUSE
        asked = (
            (t("Table"), "requests"),
            (t("Tokens of the prompt"), "prompt_tokens"),
            (t("Tokens of the answer"), "completion_tokens"),
        )
        table, prompt, answer = [
            grid.text_input(label, usual, disabled=known, key=f"{KEY}.{usual}") or ""
            for label, usual in asked
        ]
        status = grid.text_input(
            t("Status"), disabled=known, key=f"{KEY}.status", placeholder="status",
            help=t("The column by which failed requests are left out; empty where the table has none."),
        )  # fmt: skip
        if dialect == "snowflake":
            st.caption(t("Snowflake keeps names that were never quoted in capitals: write them so."))
        try:
            st.code(
                take_away(dialect) if known else take_away(dialect, table, prompt, answer, status or None),
                language="sql",
                height=HEIGHT,
            )
        except WorkloadError as error:
            notes.problem(t("This query cannot be written"), error, t)
