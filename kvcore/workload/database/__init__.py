"""Logs of any size where they are: files by DuckDB, tables by their own database, SQL to take away.

One query gives the joint histogram of prompts and answers; only bins and counts leave the database. All but `sql.py`
and `cells.py` need the extra `workload` (../docs/workload.md).
"""
