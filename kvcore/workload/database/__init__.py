"""Counts logs of any size where they are: files with DuckDB, tables in their own database, or by SQL to take away.

One query gives the joint histogram of prompts and answers; only bins and counts leave the database. `connection.py`
needs Ibis, `files.py` only DuckDB: both are in the extra `workload` (docs/workload-databases.md).
"""
