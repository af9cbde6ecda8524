"""Files by DuckDB: Parquet, JSON lines and CSV, packed or not, many at once, on this machine or in a bucket."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kvcore.errors import WorkloadError
from kvcore.workload.database.cells import Cells
from kvcore.workload.database.connection import (
    TIMEOUT_SECONDS,
    Backend,
    answered,
    bounded,
    coded,
    log_of_cells,
)
from kvcore.workload.database.query import Table, lengths
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import MAX_LOG_BYTES

MEMORY: Final = "512MB"
"""What DuckDB takes at most; beyond it, it writes to a folder of its own."""
JSON_ENDINGS: Final = (".jsonl", ".ndjson", ".json")
CSV_ENDINGS: Final = (".csv", ".tsv")
PARQUET: Final = ".parquet"
PACKINGS: Final = (".gz", ".zst")
MOST_UNUSABLE: Final = 100
"""Requests for each row without a length; with fewer the log is of a kind that DuckDB does not know."""
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
_USAGE: Final = f"STRUCT({', '.join(f'{name} INTEGER' for name in _COUNTS)})"
_RECORD: Final = {
    "usage": _USAGE,
    "response": f"STRUCT(usage {_USAGE}, body STRUCT(usage {_USAGE}))",
    **dict.fromkeys(_COUNTS, "INTEGER"),
}
"""What is read of a JSON line: counts of its own, of its `usage`, and of a response in it (OpenAI's batch files)."""


def read_large(
    paths: Sequence[str], prompt: str | None, answer: str | None, timeout_seconds: int
) -> RequestLog | None:
    """What DuckDB reads of files that only it reads (patterns of names, places on the network), or that are large.

    None for the rest, and where it does not find the lengths of nearly all requests in files that others read too.
    Raises as `read_files`.
    """
    only_here = any(path.startswith(REMOTE) or "*" in path for path in paths)
    if not only_here and not (find_spec("ibis") and all(map(_is_large, paths))):
        return None
    try:
        found = read_files(paths, prompt, answer, timeout_seconds)
    except WorkloadError:
        if only_here:
            raise
        return None
    return log_of_cells(found) if only_here or found.unusable <= found.requests / MOST_UNUSABLE else None


def _is_large(path: str) -> bool:
    known = path.lower().endswith((*JSON_ENDINGS, *CSV_ENDINGS, *PACKINGS, PARQUET))
    return known and Path(path).is_file() and Path(path).stat().st_size > MAX_LOG_BYTES


def read_files(
    paths: Sequence[str],
    prompt: str | None = None,
    answer: str | None = None,
    timeout_seconds: int = TIMEOUT_SECONDS,
) -> Cells:
    """The joint histogram of all files, which are of one kind.

    Raises WorkloadError `database-extra`, `database-files`, `database-columns`, `database-slow`, `database-failed`, and
    as `kvcore.workload.database.cells.read_cells`.
    """
    with coded("duckdb://"):
        return bounded(lambda: _read(list(paths), prompt, answer), timeout_seconds)


def _read(paths: list[str], prompt: str | None, answer: str | None) -> Cells:
    import ibis

    backend = ibis.duckdb.connect(memory_limit=MEMORY, threads=os.cpu_count() or 1)
    backend.raw_sql("SET enable_progress_bar = false")
    if any(path.startswith("s3://") for path in paths):
        _open_buckets(backend)
    with coded("duckdb://", "database-files"):
        return answered(_lengths(backend, paths, prompt, answer))


def _lengths(backend: Backend, paths: list[str], prompt: str | None, answer: str | None) -> Table:
    kinds = {_kind(path) for path in paths}
    if len(kinds) != 1:
        raise WorkloadError("database-mixed-files")
    (kind,) = kinds
    if kind in JSON_ENDINGS and prompt is None:
        lines = backend.read_json(paths, columns=_RECORD, format="newline_delimited", ignore_errors=True)
        return _usage(lines)
    if kind in JSON_ENDINGS:
        return lengths(backend.read_json(paths), prompt, answer)
    if kind in CSV_ENDINGS:
        return lengths(backend.read_csv(paths, all_varchar=False), prompt, answer)
    return lengths(backend.read_parquet(paths), prompt, answer)


def _kind(path: str) -> str:
    name = path.lower()
    for packing in PACKINGS:
        name = name.removesuffix(packing)
    return next((ending for ending in (*JSON_ENDINGS, *CSV_ENDINGS) if name.endswith(ending)), PARQUET)


def _usage(lines: Table) -> Table:
    """Anthropic counts what its cache answered, or took in, apart from the rest of the prompt."""
    import ibis

    places: list[Any] = [lines.usage, lines.response["usage"], lines.response["body"]["usage"], lines]
    prompts: list[Any] = []
    for place in places:
        cached = [place[f"cache_{kind}_input_tokens"].fill_null(0) for kind in ("read", "creation")]
        prompts += [place["prompt_tokens"], place["input_tokens"] + cached[0] + cached[1]]
    answers = [place[name] for place in places for name in ("completion_tokens", "output_tokens")]
    return lines.select(prompt=ibis.coalesce(*prompts), answer=ibis.coalesce(*answers))


def _open_buckets(backend: Backend) -> None:
    """The keys are the environment's, as the tools of the bucket's provider read them."""
    given = {name: os.environ[key] for key, name in _BUCKET_SETTINGS.items() if os.environ.get(key)}
    if "ENDPOINT" in given:
        scheme, _, host = given["ENDPOINT"].partition("://")
        given |= {"ENDPOINT": host, "USE_SSL": "false" if scheme == "http" else "true", "URL_STYLE": "path"}
    backend.load_extension("httpfs")
    options = "".join(f", {name} '{value.replace(chr(39), chr(39) * 2)}'" for name, value in given.items())
    backend.raw_sql(f"CREATE SECRET (TYPE s3{options})")
