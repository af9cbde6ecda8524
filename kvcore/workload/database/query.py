"""The joint histogram of prompts and answers as one query: an Ibis expression, and as SQL to take away without Ibis.

`dialects.json` has the SQL with placeholders for names. `tools/workload_sql.py` writes it, and a test compares it with
Ibis's output.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kvcore.base.errors import WorkloadError
from kvcore.tables import Record, Source, TableFile
from kvcore.workload.columns import columns_of
from kvcore.workload.database.cells import BITS, UNKNOWN
from kvcore.workload.fields import FAILURES
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.requests import plain_name, tables

Table = Any
"""ibis.expr.types.Table; Ibis is an extra, and its expressions are built by names."""
SHOWN_COLUMNS: Final = 12

Name = Annotated[str, Meta(pattern=r"^\w{1,60}$")]


class Layout(Record, frozen=True, kw_only=True):
    """The table in which a product stores its log."""

    name: Name
    """Name of the table."""
    usage: Name
    """Column with a map of kinds of tokens to their number."""
    prompt: Name
    """Part of the names of all kinds that belong to the prompt."""
    answer: Name
    only: Mapping[Name, str | int]
    """Columns and their values in the rows that count."""
    sources: tuple[Source, ...]


class _Tables(Record, frozen=True, kw_only=True):
    layouts: tuple[Layout, ...]


@cache
def layouts() -> tuple[Layout, ...]:
    """Tables without columns of lengths (layouts.toml)."""
    return TableFile("kvcore.workload.database", "layouts.toml", _Tables).load().layouts


def length_columns(
    names: tuple[str, ...], prompt: str | None = None, answer: str | None = None
) -> tuple[str, str | None] | Layout:
    """The columns with the tokens of prompts and answers, or the layout of a product.

    Columns that are not given are found by the names in request logs. Raises WorkloadError `database-columns` with the
    columns that the table has.

    Example:
        >>> length_columns(("id", "ContextTokens", "GeneratedTokens"))
        ('ContextTokens', 'GeneratedTokens')
    """
    if prompt is None and answer is None:
        for layout in layouts():
            if {layout.usage, *layout.only} <= set(names):
                return layout
        found = columns_of("\t".join(names))
        if found is not None and found.prompt is not None:
            prompt = names[found.prompt]
            answer = None if found.completion is None else names[found.completion]
    if prompt is None or prompt not in names or (answer is not None and answer not in names):
        shown = ", ".join(names[:SHOWN_COLUMNS])
        raise WorkloadError("database-columns", columns=shown)
    return prompt, answer


def lengths(table: Table, prompt: str | None = None, answer: str | None = None) -> Table:
    """Two columns, `prompt` and `answer`, of a table, with the tokens of prompt and answer.

    Raises WorkloadError `database-columns` with the columns that the table has.
    """
    import ibis

    found = length_columns(tuple(table.columns), prompt, answer)
    if isinstance(found, Layout):
        return _summed(table, found)
    table = _counted(table)
    prompts, answers = found
    known = ibis.null("int64") if answers is None else table[answers].cast("int64")
    return table.select(prompt=table[prompts].cast("int64"), answer=known)


class Deciding(Struct, frozen=True, kw_only=True):
    """Columns that tell which rows are requests that were answered."""

    status: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()


def deciding(names: Iterable[str]) -> Deciding:
    """The columns that decide, by the names in request logs (../requests.toml).

    Example:
        >>> deciding(("id", "Status", "call_type"))
        Deciding(status=('Status',), error=(), kind=('call_type',), sums=())
    """
    known, given = tables().names, tuple(names)
    return Deciding(
        status=tuple(name for name in given if plain_name(name) in known.status),
        error=tuple(name for name in given if plain_name(name) in known.error),
        kind=tuple(name for name in given if plain_name(name) in known.kind),
        sums=tuple(name for name in given if plain_name(name) in known.sums),
    )


_FAILED_CODES: Final = ("400", "599")
_NO_ERROR: Final = ("", "{}", "[]", "null", "none")
_BETWEEN_WORDS: Final = ("_", "-", " ", ".")
"""Characters that the names of kinds are compared without."""


def _counted(table: Table) -> Table:
    """The rows of requests that were answered: by columns of status, error and kind, and by those of sums."""
    found, schema = deciding(table.columns), table.schema()

    def said(name: str) -> Any:
        return table[name].cast("string").lower().fill_null("")

    plain = {name for name in table.columns if schema[name].is_string() or schema[name].is_numeric()}
    plain |= {name for name in table.columns if schema[name].is_boolean()}
    for name in plain.intersection(found.status):
        text = said(name)
        code = (text.length() == len(_FAILED_CODES[0])) & text.between(*_FAILED_CODES)
        table = table.filter(~(text.isin(sorted(FAILURES)) | code))
    for name in plain.intersection(found.error):
        table = table.filter(said(name).isin(_NO_ERROR))
    for name in plain.intersection(found.kind):
        text = said(name)
        for character in _BETWEEN_WORDS:
            text = text.replace(character, "")
        table = table.filter(~text.isin(sorted(tables().other.kinds)))
    for name in plain.intersection(found.sums):
        if schema[name].is_numeric():
            table = table.filter(table[name].fill_null(1) <= 1)
    return table


def _summed(table: Table, layout: Layout) -> Table:
    """Sums over kinds of tokens whose names contain `input` or `output`, as Langfuse itself shows them."""
    usage = table[layout.usage]

    def tokens(kind: str) -> Any:
        kinds = usage.keys().filter(lambda key: key.contains(kind))
        return kinds.map(lambda key: usage.get(key, 0)).sums().cast("int64")

    rows = table.filter([table[name] == value for name, value in layout.only.items()])
    return rows.select(prompt=tokens(layout.prompt), answer=tokens(layout.answer))


def cells(lengths: Table) -> Table:
    """Prompt, answer, requests: each length rounded up to BITS leading bits by whole numbers alone, so that every
    database gives the same.

    A length of n bits is rounded up to a multiple of 2^(n - BITS), as `kvcore.workload.histogram` does.
    """
    import ibis

    prompt, answer = lengths.prompt, lengths.answer
    usable = prompt.between(1, MAX_TOKENS) & answer.fill_null(0).between(0, MAX_TOKENS)
    known = lengths.select(
        prompt=ibis.ifelse(usable, prompt, UNKNOWN).cast("int32"),
        answer=ibis.ifelse(usable, answer, UNKNOWN).fill_null(UNKNOWN).cast("int32"),
    )
    # Within 32 bits, because a database divides those in half the time; UNKNOWN is short and stays as it is.
    binned = known.select(prompt=rounded_up(known.prompt), answer=rounded_up(known.answer))
    return binned.group_by(["prompt", "answer"]).agg(requests=binned.count())


def rounded_up(tokens: Any) -> Any:
    """A column of lengths up to 2^24, rounded up to BITS leading bits."""
    import ibis

    def multiple(step: int) -> Any:
        # A mask in place of a remainder: steps are powers of two, and dividing is what a row would take longest for.
        return (tokens + (step - 1)) & ibis.literal(-step, type="int32")

    powers = range(BITS, MAX_TOKENS.bit_length() - 1)
    exact = (tokens <= 1 << BITS, tokens)
    *steps, (_, last) = [(tokens <= 2 << power, multiple(2 << (power - BITS))) for power in powers]
    return ibis.cases(exact, *steps, else_=last)


TABLE, PROMPT, ANSWER = "kv_table", "kv_prompt", "kv_answer"
"""Placeholders for names in the stored SQL."""
LONGEST_NAME: Final = 128
DIALECTS: Final[Mapping[str, str]] = {
    "postgres": '"', "clickhouse": '"', "bigquery": "`", "snowflake": '"', "trino": '"', "spark": "`", "duckdb": '"',
}  # fmt: skip
"""Quotation mark of names by dialect."""
LANGFUSE: Final = "clickhouse-langfuse"
"""Langfuse's own table, with its names."""
LANGFUSE_FILES: Final = "duckdb-langfuse"
"""Files exported from Langfuse."""


@cache
def _kept() -> Mapping[str, str]:
    text = resources.files("kvcore.workload.database").joinpath("dialects.json").read_text("utf-8")
    kept: dict[str, str] = json.loads(text)
    return kept


_TEXTS: Final[Mapping[str, str]] = {"bigquery": "STRING", "spark": "STRING", "clickhouse": "Nullable(String)"}
"""Types of texts by dialect, where that is not VARCHAR."""


def counted_where(dialect: str, found: Deciding) -> str:
    """The condition, in a dialect, of a row that is a request that was answered; TRUE where no column decides.

    Raises WorkloadError `sql-name`.

    Example:
        >>> print(counted_where("duckdb", Deciding(error=("error",))))
        LOWER(COALESCE(CAST("error" AS VARCHAR), '')) IN ('', '{}', '[]', 'null', 'none')
    """
    quote = DIALECTS[dialect.partition("-")[0]]
    kind = _TEXTS.get(dialect.partition("-")[0], "VARCHAR")

    def said(name: str) -> str:
        return f"LOWER(COALESCE(CAST({_quoted(name, quote, 'column')} AS {kind}), ''))"

    def listed(texts: Iterable[str]) -> str:
        return "(" + ", ".join(f"'{text}'" for text in texts) + ")"

    low, high = _FAILED_CODES
    parts = []
    for name in found.status:
        code = f"(LENGTH({said(name)}) = {len(low)} AND {said(name)} BETWEEN '{low}' AND '{high}')"
        parts.append(f"NOT ({said(name)} IN {listed(sorted(FAILURES))} OR {code})")
    parts += [f"{said(name)} IN {listed(_NO_ERROR)}" for name in found.error]
    for name in found.kind:
        text = said(name)
        for character in _BETWEEN_WORDS:
            text = f"REPLACE({text}, '{character}', '')"
        parts.append(f"{text} NOT IN {listed(sorted(tables().other.kinds))}")
    parts += [f"COALESCE({_quoted(name, quote, 'column')}, 1) <= 1" for name in found.sums]
    return " AND ".join(parts) or "TRUE"


def take_away(
    dialect: str,
    table: str = "requests",
    prompt: str = "prompt_tokens",
    answer: str = "completion_tokens",
    status: str | None = None,
) -> str:
    """The query in a dialect; `table` may be preceded by its schema and a dot. With a column `status` rows of failed
    requests do not count.

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
    if status is not None:
        where = counted_where(dialect, Deciding(status=(status,)))
        quoted[TABLE] = f"(SELECT * FROM {quoted[TABLE]} WHERE {where})"
    return re.sub(f"{quote}({'|'.join(names)}){quote}", lambda found: quoted[found[1]], text)


def _quoted(name: str, quote: str, field: str) -> str:
    # A backslash escapes in some of the dialects; no name needs one.
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or "\\" in name:
        raise WorkloadError("sql-name", field=field.removeprefix("kv_"), value=name)
    return quote + name.replace(quote, quote * 2) + quote
