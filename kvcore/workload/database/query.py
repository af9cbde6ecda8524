"""The joint histogram of prompts and answers as one query: an Ibis expression, and as SQL to take away without Ibis.

`dialects.json` has the SQL with placeholders for names. `tools/workload_sql.py` writes it, and a test compares it with
Ibis's output.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final

from msgspec import Meta

from kvcore.base.errors import WorkloadError
from kvcore.tables import Record, Source, TableFile
from kvcore.workload.columns import columns_of
from kvcore.workload.database.cells import BITS, UNKNOWN
from kvcore.workload.histogram import MAX_TOKENS

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
    prompts, answers = found
    known = ibis.null("int64") if answers is None else table[answers].cast("int64")
    return table.select(prompt=table[prompts].cast("int64"), answer=known)


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


def take_away(
    dialect: str,
    table: str = "requests",
    prompt: str = "prompt_tokens",
    answer: str = "completion_tokens",
) -> str:
    """The query in a dialect; `table` may be preceded by its schema and a dot.

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
