"""Requests in columns, as Parquet has them: counted by Arrow, without an object for each row.

Rows whose columns say plainly what a request took are counted here; all others are left to the general reader
(fields.py), which also decides, once for each combination of their values, what columns of status, error and kind mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Final

from kvcore.workload.collector import Collector
from kvcore.workload.fields import MAX_SESSION_CHARACTERS, record_requests
from kvcore.workload.histogram import CELL, MAX_TOKENS, most_bits, packed_sum
from kvcore.workload.layers import seconds_of
from kvcore.workload.requests import Reading, Request, Rows, Unusable, UnusableLineError, field_name, tables

MAX_STATES: Final = 64
"""Combinations of status, error and kind that are told apart; a column with more values is read row by row."""
FEW: Final = 4
"""Pairs looked at first, for each bin that there may be."""
GRID: Final = 1 << 23
"""Bins of which each has a place of its own; those of a finer grid are sorted."""
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
            dropped.append((reason, pc.index(mask, _scalar(True)).as_py(), number))
        self._hold(plain, good)
        rest = pc.indices_nonzero(pc.and_(plain.left, pc.invert(good)))
        return batch.take(rest), rest.to_pylist(), dropped

    def _states(self, plain: _Plain) -> list[tuple[tuple[Any, ...], Any]] | None:
        """The combinations of values that decide, each with its rows; None for too many."""
        import pyarrow.compute as pc

        choices = [column.unique() for _, column in plain.states]
        if any(len(one) > MAX_STATES for one in choices):
            return None
        found = []
        for chosen in product(*choices):
            values, mask = tuple(value.as_py() for value in chosen), plain.left
            for value, (_, column) in zip(chosen, plain.states, strict=True):
                same = pc.fill_null(pc.equal(column, value), _scalar(False))
                mask = pc.and_(mask, same if value.is_valid else pc.is_null(column))
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
        longest = pc.coalesce(answers, asked, _scalar(0))
        columns = {
            "prompts": prompts,
            "answers": answers,
            "max_tokens": asked,
            "taken": pc.add(prompts, longest),
            "needed": pc.add(
                prompts,
                pc.max_element_wise(
                    pc.coalesce(asked, answers, _scalar(1)), pc.coalesce(answers, _scalar(1))
                ),
            ),
        }
        counts = {name: dict(_counted(column.drop_null())) for name, column in columns.items()}
        self._collector.add_counted(len(prompts), counts, _ColumnCells(prompts, longest))


def _counted(column: Any) -> Iterable[tuple[Any, int]]:
    """Each value of a column with its number of rows."""
    found = column.value_counts()
    return zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)


@lru_cache(typed=True)
def _scalar(value: int) -> Any:
    """A truth value or a whole number for Arrow, whose own `scalar` imports pandas: a third of a second."""
    import pyarrow as pa

    kind = pa.bool_() if isinstance(value, bool) else pa.int64()
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(value.to_bytes(8, "little", signed=True))])[0]


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
        self.asked = pc.if_else(pc.greater(asked, _scalar(0)), asked, nothing)
        self._cached = cached
        self._sessions, self._seconds, self._models = of(known.session), of(known.seconds), of(known.model)
        deciding = {*known.error, *known.status, *known.sums, *known.kind, *known.path}
        self.states = [(column, batch.column(column)) for name, column in names.items() if name in deciding]
        self.left = pc.is_valid(pa.nulls(self.rows).is_null())

        def between(column: Any, least: int) -> Any:
            return pc.and_(
                pc.greater_equal(column, _scalar(least)), pc.less_equal(column, _scalar(MAX_TOKENS))
            )

        usable = pc.fill_null(between(self.prompts, 1), _scalar(False))
        for column, least in ((self.answers, 0), (self.asked, 1), (self._cached, 0)):
            usable = pc.and_(usable, pc.fill_null(between(column, least), _scalar(True)))
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
        """Sessions, models and times of the rows that count; the times and lengths of the first `room` of them."""
        import pyarrow.compute as pc

        def numbers(column: Any) -> Counter[str]:
            """How often each text is there, in the order in which they come."""
            found: Counter[str] = Counter()
            for one, times in _counted(column.filter(good)):
                if one not in (None, ""):
                    found[str(one)[:MAX_SESSION_CHARACTERS]] += times
            return found

        seconds = None if self._seconds is None else _seconds(self._seconds.filter(good), room)
        lengths: list[list[int]] = [
            [] if seconds is None else column.filter(good).slice(0, room).to_pylist()
            for column in (self.prompts, self.answers, self.asked)
        ]
        return Rows(
            prompts=lengths[0],
            answers=lengths[1],
            asked=lengths[2],
            cached_tokens=pc.sum(self._cached.filter(good)).as_py() or 0,
            sessions=None if self._sessions is None else numbers(self._sessions),
            seconds=None if seconds is None else seconds[0],
            blocks=None,
            times=None if seconds is None else lambda most: seconds[1][:most],
            models=None if self._models is None else numbers(self._models),
        )


def _seconds(column: Any, room: int) -> tuple[tuple[float, float] | None, list[float | None]]:
    """The first and the last time in seconds, and those of the first `room` rows, as the general reader reads them."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    if types.is_timestamp(column.type):
        whole = pc.cast(column.cast(pa.timestamp("us", tz=column.type.tz)), pa.int64())
        ends = pc.min_max(whole).as_py()
        first = [None if one is None else one / 1e6 for one in whole.slice(0, room).to_pylist()]
        return None if ends["min"] is None else (ends["min"] / 1e6, ends["max"] / 1e6), first
    every = list(map(seconds_of, column.to_pylist()))
    known = [one for one in every if one is not None]
    return ((min(known), max(known)) if known else None), every[:room]


class _ColumnCells:
    """Pairs of a prompt and an answer, put into bins by NumPy."""

    def __init__(self, prompts: Any, answers: Any) -> None:
        import numpy

        prompt, answer = (numpy.from_dlpack(column.combine_chunks()) for column in (prompts, answers))
        self._pairs = prompt, answer
        self._longest = max(int(column.max()) for column in self._pairs)

    def most_bits(self, most: int, below: int) -> int:
        """The most leading bits up to `below` at which the pairs are in at most `most` bins."""
        few = max(1, len(self._pairs[0]) // (FEW * most))
        steps = (few, 1) if few > 1 else (1,)  # bins of some of the pairs are enough to say no

        def fits(bits: int) -> bool:
            return all(
                _Bins([tokens[::step] for tokens in self._pairs], bits).number <= most for step in steps
            )

        exact = min(self._longest.bit_length(), below)
        return below if fits(exact) else most_bits(fits, exact)

    def packed(self, bits: int) -> Iterable[tuple[int, int]]:
        """Bins of so many leading bits, each with its sums."""
        import numpy

        places, first = _Bins(self._pairs, bits).places
        prompts, answers = (_rounded_up(tokens[first], bits) for tokens in self._pairs)
        # All sums are below 2^53, by HELD_ROWS: exact as floating-point numbers.
        weights = (None, *self._pairs)
        sums = (numpy.bincount(places, weights=column).astype(numpy.int64).tolist() for column in weights)
        return zip((prompts * CELL + answers).tolist(), map(packed_sum, *sums), strict=True)


class _Bins:
    """The bin of each pair, as a number: both lengths by their leading bits."""

    def __init__(self, pairs: Sequence[Any], bits: int) -> None:
        prompts, answers = (_by_table(_code_of, column, bits) for column in pairs)
        width = int(answers.max()) + 1
        self._codes, self._size = prompts * width + answers, (int(prompts.max()) + 1) * width

    @property
    def number(self) -> int:
        """How many different bins there are."""
        import numpy

        if self._size <= GRID:
            return int(numpy.count_nonzero(self._seen))
        found = numpy.sort(self._codes)
        return int(numpy.count_nonzero(found[1:] != found[:-1])) + 1

    @property
    def _seen(self) -> Any:
        import numpy

        seen = numpy.zeros(self._size, numpy.bool_)
        seen[self._codes] = True
        return seen

    @property
    def places(self) -> tuple[Any, Any]:
        """The bin of each pair, numbered from 0; and for each bin the row of one of its pairs."""
        import numpy

        if self._size <= GRID:
            places = (numpy.cumsum(self._seen, dtype=numpy.int32) - 1)[self._codes]
        else:
            places = numpy.unique(self._codes, return_inverse=True)[1]
        rows = numpy.empty(int(places.max()) + 1, numpy.int64)
        rows[places] = numpy.arange(len(places))
        return places, rows


def _by_table(of: Callable[[Any, int], Any], column: Any, bits: int) -> Any:
    """`of` each length, worked out once for each that there may be where those are fewer."""
    import numpy

    longest = int(column.max())
    return of(column, bits) if longest >= len(column) else of(numpy.arange(longest + 1), bits)[column]


def _code_of(column: Any, bits: int) -> Any:
    """A number for each of the lengths that `rounded_up` knows, without gaps: they fill a grid."""
    shift = _shift(column, bits)
    return (shift << max(bits - 1, 0)) - (-column >> shift)


def _rounded_up(column: Any, bits: int) -> Any:
    """`rounded_up` of each."""
    shift = _shift(column, bits)
    return -(-column >> shift) << shift


def _shift(column: Any, bits: int) -> Any:
    """Bits that are cut off: an exponent is the number of bits."""
    import numpy

    return numpy.maximum(numpy.frexp(column.astype(numpy.float64))[1] - bits, 0).astype(numpy.int64)
