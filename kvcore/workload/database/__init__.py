"""Logs of any size where they are: files by DuckDB, tables by their own database, SQL to take away.

One query gives the joint histogram of prompts and answers; only bins and counts leave the database. `connection.py`
and `query.py` need Ibis, `files.py` and `fold.py` DuckDB alone: both are in the extra `workload` (../docs/workload.md).
"""
