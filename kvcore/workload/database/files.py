"""Reads files with DuckDB: Parquet, JSON lines and CSV, packed or not, many at once, on this machine or in a bucket.

DuckDB runs the one query and folds its cells, so that few rows leave it. The query is the stored SQL of the Ibis
expression (query.py), so files need neither Ibis nor its start-up time; the result is that of `Cells.traffic`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any, Final

from kvcore.base.errors import WorkloadError
from kvcore.workload.database.cells import BITS, UNKNOWN, lengths_error
from kvcore.workload.database.connection import TIMEOUT_SECONDS, bounded, coded, log_of_traffic
from kvcore.workload.database.query import (
    LANGFUSE_FILES,
    Deciding,
    Layout,
    counted_where,
    deciding,
    length_columns,
    take_away,
)
from kvcore.workload.histogram import EXACT_BITS, JointHistogram, LengthHistogram, error_of
from kvcore.workload.records import RequestLog
from kvcore.workload.traffic import MAX_CELLS, Traffic

MEMORY: Final = "512MB"
"""Memory limit of DuckDB; beyond it, it spills to a folder of its own."""
JSON_ENDINGS: Final = (".jsonl", ".ndjson", ".json")
CSV_ENDINGS: Final = (".csv", ".tsv")
PARQUET: Final = ".parquet"
PACKINGS: Final = (".gz", ".zst")
REMOTE: Final = ("s3://", "gs://", "https://", "http://", "hf://")
_BUCKET_SETTINGS: Final = {
    "AWS_ACCESS_KEY_ID": "KEY_ID",
    "AWS_SECRET_ACCESS_KEY": "SECRET",
    "AWS_SESSION_TOKEN": "SESSION_TOKEN",
    "AWS_REGION": "REGION",
    "AWS_ENDPOINT_URL_S3": "ENDPOINT",
}
_COUNTS: Final = (
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_PLAIN: Final = _COUNTS[:2]
"""Names of OpenAI's counts."""
SAMPLE_ROWS: Final = 1000
"""Rows of the sample that tells the names of a log; if it misleads, the whole log is read again."""
_PLACES: Final = ("usage.", "response.usage.", "response.body.usage.", "")
"""Places of the counts in a JSON line: its `usage`, that of a response (OpenAI's batch files), or the line itself."""
_USAGE: Final = f"STRUCT({', '.join(f'{name} INTEGER' for name in _COUNTS)})"
_RECORD: Final = {
    "usage": _USAGE,
    "response": f"STRUCT(usage {_USAGE}, body STRUCT(usage {_USAGE}))",
    **dict.fromkeys(_COUNTS, "INTEGER"),
}
_DECIDING: Final = Deciding(
    status=("status", "status_code", "level"),
    error=("error",),
    kind=("type", "kind", "call_type", "operation"),
)
"""Fields of a JSON line that tell whether it counts."""
_LENGTHS: Final = "kv_lengths"
_LOG: Final = "kv_log"


def is_remote(path: str) -> bool:
    """Whether DuckDB fetches a file: it lies in a bucket or on a server.

    Example:
        >>> is_remote("s3://logs/2026-11-*.parquet"), is_remote("logs/2026-11-01.jsonl")
        (True, False)
    """
    return path.startswith(REMOTE)


def named_files(path: str) -> list[str]:
    """The files of this machine that a name stands for: itself, or all that fit its pattern, in order.

    Raises WorkloadError `database-files` where none fits.
    """
    if "*" not in path or Path(path).exists():
        return [path]
    found = sorted(glob(path, recursive=True))
    if not found:
        raise WorkloadError("database-files", said=f"no file fits {path}")
    return found


def read_files(
    paths: Sequence[str],
    prompt: str | None = None,
    answer: str | None = None,
    timeout_seconds: int = TIMEOUT_SECONDS,
) -> RequestLog:
    """Lengths of the requests in all files, which are of one kind; each row is counted or unusable.

    Raises WorkloadError `database-extra`, `database-files`, `database-columns`, `database-mixed-files`,
    `database-slow`, `database-failed`, `database-no-lengths`.
    """
    with coded("duckdb://"):
        return bounded(lambda: _read(list(paths), prompt, answer), timeout_seconds)


def _read(paths: list[str], prompt: str | None, answer: str | None) -> RequestLog:
    import duckdb

    with duckdb.connect(config={"memory_limit": MEMORY, "threads": os.cpu_count() or 1}) as connection:
        connection.execute("SET enable_progress_bar = false")
        if any(path.startswith("s3://") for path in paths):
            _open_buckets(connection)
        with coded("duckdb://", "database-files"):
            for query in _queries(connection, paths, prompt, answer):
                unusable, unanswered = make_cells(connection, query)
                if not unusable and not unanswered:
                    break
            return log_of_traffic(folded(connection), unusable)


def _queries(
    connection: Connection, paths: list[str], prompt: str | None, answer: str | None
) -> Iterator[str]:
    """The queries over the files: a second one for rows without a length or an answer."""
    kinds = {_kind(path) for path in paths}
    if len(kinds) != 1:
        raise WorkloadError("database-mixed-files")
    (kind,) = kinds
    files = f"[{', '.join(map(_text, paths))}]"
    if kind in JSON_ENDINGS and prompt is None:
        texts = dict.fromkeys((*_DECIDING.status, *_DECIDING.error, *_DECIDING.kind), "VARCHAR")
        columns = ", ".join(f"{name}: {_text(of)}" for name, of in (_RECORD | texts).items())
        lines = (
            f"(SELECT * FROM read_json({files}, columns = {{{columns}}}, format = 'newline_delimited', "
            f"ignore_errors = true) WHERE {counted_where('duckdb', _DECIDING)})"
        )
        # Most logs have all counts in the first place, under OpenAI's names, and what is not asked for is not read.
        if _has_all(connection, f"SELECT usage.* FROM {lines} LIMIT {SAMPLE_ROWS}", _PLAIN):
            plain = " AS prompt, ".join(f"usage.{name}" for name in _PLAIN)
            yield _over_lengths(connection, f"SELECT {plain} AS answer FROM {lines}")
        for places in (_PLACES[:1], _PLACES):
            yield _over_lengths(connection, _usage(lines, places))
        return
    reader = "read_json" if kind in JSON_ENDINGS else "read_csv" if kind in CSV_ENDINGS else "read_parquet"
    connection.execute(f"CREATE TEMP VIEW {_LOG} AS SELECT * FROM {reader}({files})")
    names = tuple(column[0] for column in connection.execute(f"SELECT * FROM {_LOG} LIMIT 0").description)
    found = length_columns(names, prompt, answer)
    if isinstance(found, Layout):
        connection.execute(f"CREATE TEMP VIEW {found.name} AS SELECT * FROM {_LOG}")
        yield take_away(LANGFUSE_FILES)
    else:
        prompts, answers = (_name(one) if one is not None else "NULL" for one in found)
        where = counted_where("duckdb", deciding(names))
        yield _over_lengths(
            connection, f"SELECT {prompts} AS prompt, {answers} AS answer FROM {_LOG} WHERE {where}"
        )


def _has_all(connection: Connection, sample: str, names: Sequence[str]) -> bool:
    """Whether each of these columns has a value in every row of a sample."""
    filled = " AND ".join(f"{name} IS NOT NULL" for name in names)
    (found,) = connection.execute(f"SELECT coalesce(bool_and({filled}), false) FROM ({sample})").fetchone()
    return bool(found)


def _over_lengths(connection: Connection, lengths: str) -> str:
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {_LENGTHS} AS {lengths}")
    return take_away("duckdb", _LENGTHS, "prompt", "answer")


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _kind(path: str) -> str:
    name = path.lower()
    for packing in PACKINGS:
        name = name.removesuffix(packing)
    return next((ending for ending in (*JSON_ENDINGS, *CSV_ENDINGS) if name.endswith(ending)), PARQUET)


def _usage(lines: str, places: Sequence[str]) -> str:
    """Lengths from usage; Anthropic counts cached prompt tokens, read or written, apart from the others."""
    prompts: list[str] = []
    for place in places:
        cached = (f"coalesce({place}cache_{kind}_input_tokens, 0)" for kind in ("read", "creation"))
        prompts += [f"{place}prompt_tokens", " + ".join((f"{place}input_tokens", *cached))]
    answers = (f"{place}{name}" for place in places for name in ("completion_tokens", "output_tokens"))
    return f"SELECT coalesce({', '.join(prompts)}) AS prompt, coalesce({', '.join(answers)}) AS answer FROM {lines}"


def _open_buckets(connection: Connection) -> None:
    """Opens the bucket with the keys in the environment that the provider's tools use."""
    given = {name: os.environ[key] for key, name in _BUCKET_SETTINGS.items() if os.environ.get(key)}
    if "ENDPOINT" in given:
        scheme, _, host = given["ENDPOINT"].partition("://")
        given |= {"ENDPOINT": host, "USE_SSL": "false" if scheme == "http" else "true", "URL_STYLE": "path"}
    connection.execute("INSTALL httpfs; LOAD httpfs")
    options = "".join(f", {name} '{value.replace(chr(39), chr(39) * 2)}'" for name, value in given.items())
    connection.execute(f"CREATE SECRET (TYPE s3{options})")


Connection = Any
"""duckdb.DuckDBPyConnection; DuckDB is an extra."""
_CELLS: Final = "kv_cells"
_USABLE: Final = f"FROM {_CELLS} WHERE prompt <> {UNKNOWN}"
_ANSWER: Final = "greatest(answer, 0)"
_HISTOGRAMS: Final = {
    "prompts": "prompt",
    "answers": f"CASE WHEN answer <> {UNKNOWN} THEN answer END",
    "taken": f"prompt + {_ANSWER}",
    "needed": "prompt + greatest(answer, 1)",
}


def make_cells(connection: Connection, query: str) -> tuple[int, int]:
    """Runs the one query, as `take_away` returns it.

    Gives the rows without a usable length, and those without an answer.
    """
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {_CELLS} AS {query}")
    unusable, unanswered = _row(
        connection,
        f"SELECT {_total(f'prompt = {UNKNOWN}')}, {_total(f'prompt <> {UNKNOWN} AND answer = {UNKNOWN}')} "
        f"FROM {_CELLS}",
    )
    return unusable, unanswered


def folded(connection: Connection) -> Traffic:
    """Traffic of the cells of `make_cells`; its joint histogram has at most MAX_CELLS cells, each at its mean.

    Raises WorkloadError `database-no-lengths` where no row has a length.
    """
    (rows,) = _row(connection, f"SELECT count(*) {_USABLE}")
    if not rows:
        (unusable,) = _row(connection, f"SELECT {_total('true')} FROM {_CELLS}")
        raise WorkloadError("database-no-lengths", rows=f"{unusable:,}")
    found: dict[str, Any] = {name: _histogram(connection, what) for name, what in _HISTOGRAMS.items()}
    joint, bits = _joint(connection)
    error = lengths_error(found["taken"])
    traffic = Traffic(
        **found,
        max_tokens=LengthHistogram(lengths=(), counts=()),
        joint=joint,
        error=error,
        joint_error=max(error, error_of(bits)),
    )
    return traffic.bounded()


def _row(connection: Connection, query: str) -> tuple[int, ...]:
    found: tuple[int, ...] = connection.execute(query).fetchone()
    return found


def _total(condition: str) -> str:
    return f"coalesce(sum(requests) FILTER ({condition}), 0)::BIGINT"


def _histogram(connection: Connection, what: str) -> LengthHistogram:
    query = f"SELECT {what} AS length, sum(requests)::BIGINT {_USABLE} AND length IS NOT NULL GROUP BY 1 ORDER BY 1"
    rows = connection.execute(query).fetchall()
    return LengthHistogram(
        lengths=tuple(length for length, _ in rows), counts=tuple(count for _, count in rows)
    )


def _joint(connection: Connection) -> tuple[JointHistogram, int]:
    """The histogram of `JointHistogram.binned`: as many leading bits as fit, each cell at its mean."""
    sums = (
        f"sum(requests * prompt)::BIGINT AS prompts, sum(requests * {_ANSWER})::BIGINT AS answers, "
        "sum(requests)::BIGINT AS number"
    )
    for bits in range(BITS, -1, -1):
        groups = f"{_USABLE} GROUP BY {_rounded_up('prompt', bits)}, {_rounded_up(_ANSWER, bits)}"
        (number,) = _row(connection, f"SELECT count(*) FROM (SELECT 1 {groups})")
        if number <= MAX_CELLS:
            break
    means = "round_even(prompts / number, 0)::INTEGER, round_even(answers / number, 0)::INTEGER"
    rows = connection.execute(
        f"SELECT {means}, sum(number)::BIGINT FROM (SELECT {sums} {groups}) GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall()
    prompts, answers, counts = zip(*rows, strict=True)
    joint = JointHistogram(prompts=prompts, answers=answers, counts=counts)
    return joint, EXACT_BITS if bits == BITS else bits


def _rounded_up(tokens: str, bits: int) -> str:
    """SQL of `kvcore.workload.histogram.rounded_up`; the logarithm is exact enough to count bits."""
    step = f"(1 << greatest(0, floor(log2(greatest({tokens}, 1)))::INTEGER + {1 - bits}))"
    return f"({tokens} + {step} - 1) // {step} * {step}"
