"""Requests in columns, as Parquet has them: counted by Arrow, without an object for each row.

Rows whose columns say plainly what a request took are counted here; all others are left to the general reader
(fields.py), which also decides, once for each combination of their values, what columns of status, error and kind mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

from kvcore.workload.collector import Collector
from kvcore.workload.fields import MAX_SESSION_CHARACTERS, record_requests
from kvcore.workload.histogram import CELL, MAX_TOKENS, most_bits, packed_sum, rounded_up
from kvcore.workload.layers import seconds_of
from kvcore.workload.requests import Reading, Request, Rows, Unusable, UnusableLineError, field_name, tables
from kvcore.workload.traffic import MAX_CELLS

MAX_STATES: Final = 64
"""Combinations of status, error and kind that are told apart; a column with more values is read row by row."""
HELD_ROWS: Final = 1 << 21
"""Rows that are counted together."""
Dropped = tuple[Unusable, int, int]
"""Why rows do not count, the place of the first of them, their number."""


class ColumnReader:
    """Counts the rows of record batches."""

    def __init__(self, reading: Reading, collector: Collector) -> None:
        self._reading, self._collector = reading, collector
        self._known: dict[tuple[Any, ...], Unusable | None] = {}
        self._held: list[tuple[Any, Any, Any]] = []
        self._rows = 0

    def take(self, batch: Any) -> tuple[Any, Sequence[int], Sequence[Dropped]]:
        """Counts what it can of a batch: gives the other rows with their places, and what does not count."""
        reading = self._reading
        is_simple = not (reading.picks or reading.counter or reading.prefixes)
        plain = _Plain.of(batch, reading) if is_simple else None
        states = None if plain is None else self._states(plain)
        if plain is None or states is None:
            return batch, range(batch.num_rows), ()
        import pyarrow.compute as pc

        good, dropped = plain.usable, list[Dropped]()
        for values, mask in states:
            reason = self._known[values]
            number = pc.sum(mask).as_py() or 0
            if reason is None or not number:
                continue
            good = pc.and_(good, pc.invert(mask))
            if reason is Unusable.NOT_A_RECORD:
                continue  # the general reader says why
            plain.left = pc.and_(plain.left, pc.invert(mask))
            dropped.append((reason, pc.index(mask, True).as_py(), number))
        self._hold(plain, good)
        rest = pc.and_(plain.left, pc.invert(good))
        return batch.filter(rest), pc.indices_nonzero(rest).to_pylist(), dropped

    def _states(self, plain: _Plain) -> list[tuple[tuple[Any, ...], Any]] | None:
        """The combinations of values that decide, each with its rows; None for too many."""
        import pyarrow as pa
        import pyarrow.compute as pc

        choices = [column.unique() for _, column in plain.states]
        if any(len(one) > MAX_STATES for one in choices):
            return None
        found = []
        for values in product(*(one.to_pylist() for one in choices)):
            mask = pa.array([True] * plain.rows)
            for value, (_, column) in zip(values, plain.states, strict=True):
                same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
                mask = pc.and_(mask, same)
            if values not in self._known:
                names = (name for name, _ in plain.states)
                self._known[values] = self._reason(dict(zip(names, values, strict=True)))
            found.append((values, mask))
            if len(found) > MAX_STATES:
                return None
        return found

    def _reason(self, state: Mapping[str, Any]) -> Unusable | None:
        """Why a row with these values does not count; None where it does, NOT_A_RECORD where that is not plain."""
        try:
            (one,) = record_requests({**state, "prompt_tokens": 7, "completion_tokens": 5}, self._reading)
        except UnusableLineError as error:
            return (
                error.reason
                if error.reason in (Unusable.FAILED, Unusable.OTHER_KIND)
                else Unusable.NOT_A_RECORD
            )
        except ValueError:
            return Unusable.NOT_A_RECORD
        is_plain = isinstance(one, Request) and one[:3] == (7, 5, None) and not one.call
        return None if is_plain else Unusable.NOT_A_RECORD

    def _hold(self, plain: _Plain, good: Any) -> None:
        prompts = plain.prompts.filter(good)
        if not len(prompts):
            return
        self._held.append((prompts, plain.answers.filter(good), plain.asked.filter(good)))
        self._rows += len(prompts)
        self._collector.say(plain.said(good, self._collector.room), len(prompts))
        if self._rows >= HELD_ROWS:
            self.finish()

    def finish(self) -> None:
        """Counts the rows that are held."""
        if not self._held:
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        prompts, answers, asked = (pa.chunked_array(column) for column in zip(*self._held, strict=True))
        self._held, self._rows = [], 0
        longest = pc.coalesce(answers, asked, 0)
        columns = {
            "prompts": prompts,
            "answers": answers,
            "max_tokens": asked,
            "taken": pc.add(prompts, longest),
            "needed": pc.add(
                prompts, pc.max_element_wise(pc.coalesce(asked, answers, 0), pc.coalesce(answers, 0), 1)
            ),
        }
        counts = {name: _counts(column) for name, column in columns.items()}
        cells = _ArrowCells(prompts, longest)
        self._collector.add_counted(len(prompts), counts, cells, cells.different)


def _counts(column: Any) -> dict[int, int]:
    found = column.drop_null().value_counts()
    return dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))


class _Plain:
    """The columns of a batch by what they are for, where each of them is plain."""

    def __init__(self, batch: Any, names: Mapping[str, str], reading: Reading) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = reading.names
        self.rows = batch.num_rows

        def of(wanted: Iterable[str]) -> Any:
            found = next((names[name] for name in wanted if name in names), None)
            return None if found is None else batch.column(found)

        nothing = pa.nulls(self.rows, pa.int64())
        columns = [of(wanted) for wanted in (known.prompt, known.completion, known.max_tokens, known.cached)]
        self.prompts, self.answers, asked, cached = (
            nothing if one is None else one.cast(pa.int64()) for one in columns
        )
        self.asked = pc.if_else(pc.fill_null(pc.greater(asked, 0), False), asked, None)
        self._cached = cached
        self._sessions, self._seconds, self._models = of(known.session), of(known.seconds), of(known.model)
        deciding = {*known.error, *known.status, *known.sums, *known.kind, *known.path}
        self.states = [(column, batch.column(column)) for name, column in names.items() if name in deciding]
        self.left = pa.array([True] * self.rows)

        def between(column: Any, least: int) -> Any:
            return pc.and_(pc.greater_equal(column, least), pc.less_equal(column, MAX_TOKENS))

        usable = pc.fill_null(between(self.prompts, 1), False)
        for column, least in ((self.answers, 0), (self.asked, 1), (self._cached, 0)):
            usable = pc.and_(usable, pc.fill_null(between(column, least), True))
        self.usable = usable

    @classmethod
    def of(cls, batch: Any, reading: Reading) -> _Plain | None:
        """The columns of a batch; None where one of them is not plain: another type, one of several for the same thing,
        one that may hold others."""
        import pyarrow.types as types

        known, found = reading.names, tables()
        counts = {*known.prompt, *known.completion, *known.max_tokens, *known.cached}
        holders = {
            *found.inside.usage, *found.inside.other, *found.inside.counts, *found.inside.many, *known.blocks,
            *(name for more in found.plus.values() for name in more),
        }  # fmt: skip
        names: dict[str, str] = {}
        for field in batch.schema:
            name, kind = field_name(field.name), field.type
            is_text = types.is_string(kind) or types.is_large_string(kind)
            is_plain = is_text or types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
            if name in names or not (is_plain or types.is_timestamp(kind)) or name in holders - counts:
                return None
            if name in counts and not types.is_integer(kind):
                return None
            names[name] = field.name
        kinds = (known.prompt, known.completion, known.max_tokens, known.session, known.seconds, known.model)
        if any(sum(name in names for name in wanted) > 1 for wanted in kinds) or not set(names) & {
            *known.prompt
        }:
            return None
        return cls(batch, names, reading)

    def said(self, good: Any, room: int) -> Rows:
        """Sessions, models and times of the rows that count; the lengths of the first `room` of them."""
        import pyarrow.compute as pc

        def texts(column: Any) -> list[str]:
            return [
                str(one)[:MAX_SESSION_CHARACTERS]
                for one in column.filter(good).to_pylist()
                if one not in (None, "")
            ]

        times = None if self._seconds is None else _seconds(self._seconds.filter(good))
        known = [one for one in times or () if one is not None]
        lengths = [
            column.filter(good).slice(0, room).to_pylist()
            for column in (self.prompts, self.answers, self.asked)
        ]
        return Rows(
            prompts=lengths[0],
            answers=lengths[1],
            asked=lengths[2],
            cached_tokens=pc.sum(self._cached.filter(good)).as_py() or 0,
            sessions=None if self._sessions is None else texts(self._sessions),
            seconds=(min(known), max(known)) if known else None,
            blocks=None,
            times=None if times is None else lambda most: times[:most],
            models=None
            if self._models is None
            else [one for one in self._models.filter(good).to_pylist() if one],
        )


def _seconds(column: Any) -> list[float | None]:
    """Times in seconds, as the general reader reads them."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    if types.is_timestamp(column.type):
        whole = pc.cast(column.cast(pa.timestamp("us", tz=column.type.tz)), pa.int64()).to_pylist()
        return [None if one is None else one / 1e6 for one in whole]
    return list(map(seconds_of, column.to_pylist()))


class _ArrowCells:
    """Pairs of a prompt and an answer, put into bins by Arrow."""

    def __init__(self, prompts: Any, answers: Any) -> None:
        self._tokens = prompts.combine_chunks(), answers.combine_chunks()
        self._longest = max(max(column.unique().to_pylist()) for column in self._tokens)
        self._known = {self._longest.bit_length(): self._tokens}
        """Different pairs by their leading bits: those of fewer bits are found among those of more."""

    @property
    def different(self) -> int:
        """Different pairs, or all requests where those are few."""
        few = len(self._tokens[0])
        return few if few <= MAX_CELLS else self._distinct(self._longest.bit_length())

    def most_bits(self, most: int, below: int) -> int:
        """The most leading bits below `below` at which the pairs are in at most `most` bins."""
        return most_bits(lambda bits: self._distinct(bits) <= most, min(self._longest.bit_length(), below))

    def packed(self, bits: int) -> Iterable[tuple[int, int]]:
        """Bins of so many leading bits, each with its sums."""
        import pyarrow as pa

        groups = _groups(self._tokens, bits)
        table = pa.table({"bin": groups, "prompts": self._tokens[0], "answers": self._tokens[1]})
        found = table.group_by("bin", use_threads=False).aggregate(
            [("prompts", "sum"), ("answers", "sum"), ("prompts", "count")]
        )
        columns = (found[name].to_pylist() for name in ("bin", "prompts_count", "prompts_sum", "answers_sum"))
        return ((group, packed_sum(*sums)) for group, *sums in zip(*columns, strict=True))

    def _distinct(self, bits: int) -> int:
        """Different pairs of so many leading bits."""
        import pyarrow.compute as pc

        finer = min(one for one in self._known if one >= bits)
        found = _groups(self._known[finer], bits).unique()
        prompts = pc.divide(found, CELL)
        self._known[bits] = prompts, pc.subtract(found, pc.multiply(prompts, CELL))
        return len(found)


def _groups(pairs: tuple[Any, Any], bits: int) -> Any:
    """The bin of each pair."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = (column.dictionary_encode() for column in pairs)
    prompts, answers = (
        pa.array([rounded_up(one, bits) for one in column.dictionary.to_pylist()], pa.int64()).take(
            column.indices
        )
        for column in encoded
    )
    return pc.add(pc.multiply(prompts, CELL), answers)
