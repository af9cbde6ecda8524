"""A database named by the command line or the server's secrets: read only, bounded in time, its password never shown.

Where the database can, the server itself ends the query; `bounded` leaves every one behind when its time is up.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import unquote, unquote_plus, urlsplit

from kvcore.base.errors import WorkloadError
from kvcore.workload.database.cells import COLUMNS, MAX_CELLS, Cells, read_cells
from kvcore.workload.database.query import Table, cells, lengths
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import Unusable
from kvcore.workload.traffic import Traffic

Backend = Any
"""ibis.backends.BaseBackend."""
Found = TypeVar("Found")
TIMEOUT_SECONDS: Final = 600
CONNECT_SECONDS: Final = 10
SCHEMES: Final = {
    "postgres": "postgres", "postgresql": "postgres", "clickhouse": "clickhouse", "trino": "trino",
    "bigquery": "bigquery", "snowflake": "snowflake", "duckdb": "duckdb",
    "spark": "pyspark", "sc": "pyspark", "local": "pyspark", "local-cluster": "pyspark",
}  # fmt: skip
"""Ibis's name of the database by the scheme of an address."""
_ENVIRONMENT: Final = "env:"
_FILES: Final = re.compile(r".*[/*].*|.*\.(parquet|jsonl|ndjson|csv|gz|zst)")
_ABSENT: Final = re.compile(
    r"(does not|doesn't) exist|not found|unknown table|no such table|cannot be found", re.I
)
_SLOW: Final = re.compile(
    r"statement timeout|timeout exceeded|TIMEOUT_EXCEEDED|exceeded.*time|query_max_run_time", re.I
)


def read_table(
    address: str,
    table: str,
    prompt: str | None = None,
    answer: str | None = None,
    timeout_seconds: int = TIMEOUT_SECONDS,
) -> Cells:
    """The joint histogram of a table; columns are given, or found by the names that logs use.

    `address` is a URL (`postgres://user@host/database`), or `env:NAME` for the environment variable with it.
    `table` may have its schema before it, with a dot.

    Raises WorkloadError `database-extra`, `database-address`, `database-gone`, `database-table`, `database-columns`,
    `database-slow`, `database-failed`, and as `read_cells`.
    """
    url = _url(address)
    with coded(url):
        return bounded(lambda: _read(url, table, prompt, answer, timeout_seconds), timeout_seconds)


def _read(url: str, table: str, prompt: str | None, answer: str | None, seconds: int) -> Cells:
    with coded(url, "database-gone"):
        backend = _connected(url, seconds)
    with coded(url, "database-table"):
        found = _table(backend, table)
    return answered(lengths(found, prompt, answer))


def answered(rows: Table) -> Cells:
    """Runs the one query over two columns of lengths."""
    found = cells(rows).limit(MAX_CELLS + 1).to_pyarrow()
    return read_cells(zip(*(found[name].to_pylist() for name in COLUMNS), strict=True))


def log_of_cells(found: Cells) -> RequestLog:
    """Cells from a database as a RequestLog."""
    return log_of_traffic(found.traffic(), found.unusable)


def log_of_traffic(traffic: Traffic, unusable: int) -> RequestLog:
    """Traffic that was counted elsewhere as a RequestLog."""
    return RequestLog(
        traffic=traffic,
        estimated=0,
        unusable=unusable,
        unusable_lines=(),
        reasons=((Unusable.NO_LENGTH, unusable),) if unusable else (),
        other_lines=0,
    )


def bounded(work: Callable[[], Found], seconds: float) -> Found:
    """The result of `work` within that time. Raises WorkloadError `database-slow`; the work itself goes on.

    Example:
        >>> bounded(lambda: 7, 5)
        7
    """
    done: list[Found] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise WorkloadError("database-slow", seconds=f"{seconds:g}")
    return done[0]


@contextmanager
def coded(url: str, code: str = "database-failed") -> Iterator[None]:
    """Turns a driver's exception into a coded error, with its message without secrets of the address."""
    try:
        yield
    except (WorkloadError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        raise WorkloadError("database-extra", package=error.name or "ibis", extra=_extra(url)) from None
    except Exception as error:
        words = hidden(" ".join(str(error).split()) or type(error).__name__, url)
        if _SLOW.search(words):
            raise WorkloadError("database-slow", seconds=str(TIMEOUT_SECONDS)) from None
        if code == "database-table" and not (
            _ABSENT.search(words) or type(error).__name__ == "TableNotFound"
        ):
            code = "database-failed"
        raise WorkloadError(code, said=words) from None


def hidden(words: str, url: str) -> str:
    """`words` without the user's password and without the query string of the address.

    Example:
        >>> hidden("no route to postgres://me:s3cret@host/db as s3cret", "postgres://me:s3cret@host/db?token=abc")
        'no route to postgres://me:***@host/db as ***'
    """
    parts = urlsplit(url)
    values = [pair.partition("=")[2] for pair in parts.query.split("&")] if parts.query else []
    for secret in filter(None, (url, parts.password, *values)):
        for text in {secret, unquote(secret), unquote_plus(secret)}:
            shown = f"{parts.scheme}://***" if secret == url else "***"
            words = words.replace(text, shown)
    return words


def _extra(url: str) -> str:
    name = SCHEMES.get(urlsplit(url).scheme, "duckdb")
    return ".[workload]" if name == "duckdb" else f".[workload]' 'ibis-framework[{name}]"


def _url(address: str) -> str:
    url = address
    if address.startswith(_ENVIRONMENT):
        url = os.environ.get(address.removeprefix(_ENVIRONMENT), "")
    scheme = "local" if url.startswith("local") else url.partition("://")[0]
    if scheme not in SCHEMES:
        raise WorkloadError("database-address", known=", ".join(SCHEMES))
    return url


def _connected(url: str, seconds: int) -> Backend:
    import ibis

    name = SCHEMES["local" if url.startswith("local") else url.partition("://")[0]]
    if name == "pyspark":
        return ibis.pyspark.connect(_spark_session(url))
    options: dict[str, Any] = {}
    if name == "postgres":
        limits = f"-c default_transaction_read_only=on -c statement_timeout={seconds * 1000}"
        options = {"connect_timeout": CONNECT_SECONDS, "options": limits}
    elif name == "clickhouse":
        # `final`: of rows that replace each other the last counts.
        settings = {"readonly": 2, "max_execution_time": seconds, "final": 1}
        options = {"connect_timeout": CONNECT_SECONDS, "send_receive_timeout": seconds, "settings": settings}
    elif name == "trino":
        options = {"session_properties": {"query_max_run_time": f"{seconds}s"}}
    elif name == "snowflake":
        options = {"session_parameters": {"STATEMENT_TIMEOUT_IN_SECONDS": seconds}}
    elif name == "duckdb":
        options = {"read_only": urlsplit(url).path not in ("", "/")}
    backend = ibis.connect(url.replace("postgresql://", "postgres://", 1), **options)
    if name == "duckdb":
        backend.raw_sql("SET enable_progress_bar = false")
    return backend


def _spark_session(url: str) -> Any:
    from pyspark.sql import SparkSession  # type: ignore[import-not-found, unused-ignore]

    builder = SparkSession.builder.appName("kvcore workload").config("spark.ui.enabled", "false")
    built = builder.remote(url) if url.startswith("sc://") else builder.master(url)
    return built.getOrCreate()


def _table(backend: Backend, name: str) -> Table:
    if backend.name in ("duckdb", "pyspark") and _FILES.fullmatch(name):
        return backend.read_parquet(name)
    *schema, table = name.split(".")
    return backend.table(table, database=tuple(schema) or None)
