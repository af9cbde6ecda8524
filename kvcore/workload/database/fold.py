"""The cells of the one query, added up where they are: DuckDB runs it and folds its answer, so that few rows leave it.

The query is the text that is kept of the Ibis expression (`sql.py`), so files need neither Ibis nor the time that it
takes to start; what comes out is what `Cells.traffic` makes of the same cells.
"""

from __future__ import annotations

from typing import Any, Final

from kvcore.base.errors import WorkloadError
from kvcore.workload.database.cells import BITS, UNKNOWN, lengths_error
from kvcore.workload.histogram import EXACT_BITS, JointHistogram, LengthHistogram, error_of
from kvcore.workload.traffic import MAX_CELLS, Traffic

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
    """Runs the one query, as `take_away` gives it.

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
    """The traffic of the cells that `make_cells` made, its joint histogram in at most MAX_CELLS cells at their means.

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
    """As `JointHistogram.binned` does it: the most leading bits that fit, each cell at its mean."""
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
    """`kvcore.workload.histogram.rounded_up`; the logarithm of a length is exact enough to count its bits."""
    step = f"(1 << greatest(0, floor(log2(greatest({tokens}, 1)))::INTEGER + {1 - bits}))"
    return f"({tokens} + {step} - 1) // {step} * {step}"
