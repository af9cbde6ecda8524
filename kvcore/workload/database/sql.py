"""The query as SQL to take away, without Ibis: kept as it makes it, with a table's and its columns' names filled in.

`dialects.json` is written by `tools/workload_sql.py`, and a test compares it with what Ibis gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

from kvcore.base.errors import WorkloadError

TABLE, PROMPT, ANSWER = "kv_table", "kv_prompt", "kv_answer"
"""What stands in the kept text for names."""
LONGEST_NAME: Final = 128
DIALECTS: Final[Mapping[str, str]] = {
    "postgres": '"', "clickhouse": '"', "bigquery": "`", "snowflake": '"', "trino": '"', "spark": "`", "duckdb": '"',
}  # fmt: skip
"""Dialect -> how it quotes a name."""
LANGFUSE: Final = "clickhouse-langfuse"
"""Langfuse's own table, whose names are known."""
LANGFUSE_FILES: Final = "duckdb-langfuse"
"""The same of files that were exported from it."""


@cache
def _kept() -> Mapping[str, str]:
    text = resources.files("kvcore.workload.database").joinpath("dialects.json").read_text("utf-8")
    kept: dict[str, str] = json.loads(text)
    return kept


def take_away(
    dialect: str,
    table: str = "requests",
    prompt: str = "prompt_tokens",
    answer: str = "completion_tokens",
) -> str:
    """The query in a dialect; `table` may have its schema before it, with a dot.

    Raises WorkloadError `sql-dialect` and `sql-name`.

    Example:
        >>> '"public"."LiteLLM_SpendLogs"' in take_away("postgres", "public.LiteLLM_SpendLogs")
        True
    """
    if dialect not in _kept():
        raise WorkloadError("sql-dialect", value=dialect, known=", ".join(_kept()))
    text = _kept()[dialect]
    quote = DIALECTS[dialect.partition("-")[0]]
    names = {TABLE: table.split("."), PROMPT: [prompt], ANSWER: [answer]}
    quoted = {name: ".".join(_quoted(one, quote, name) for one in given) for name, given in names.items()}
    return re.sub(f"{quote}({'|'.join(names)}){quote}", lambda found: quoted[found[1]], text)


def _quoted(name: str, quote: str, field: str) -> str:
    # A backslash escapes in some of the dialects; no name needs one.
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or "\\" in name:
        raise WorkloadError("sql-name", field=field.removeprefix("kv_"), value=name)
    return quote + name.replace(quote, quote * 2) + quote
