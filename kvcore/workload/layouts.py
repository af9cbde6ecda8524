"""Lines with the fields of a line seen before, decoded by type: the fast way through a log.

The general reader (fields.py) looks for every field by its many names. But the lines of a log are alike, so the layout
of a line is learned once: a type with exactly its fields, each value of the type and in the range that the general
reader takes. What a value is for is learned by asking the general reader, which reads the record again with that value
changed. A line that does not decode, and so may mean something else, is left to the general reader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import defstruct

from kvcore.workload.columns import Columns, row_request
from kvcore.workload.fields import MAX_SESSION_CHARACTERS, record_requests
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.layers import MAX_LAYERS, MAX_SECONDS, holds_records, parsed_json, seconds_of
from kvcore.workload.opening import Lines
from kvcore.workload.requests import Reading, Request, Rows, UnusableLineError, field_name, tables
from kvcore.workload.streams import json_at
from kvcore.workload.value_types import Kind, NoLayoutError, Roles, Value, any_value, depth_of, nothing_inside

MAX_LAYOUTS: Final = 8
MAX_TRIES: Final = 16
"""Lines of one log from which layouts are learned; the general reader reads each a hundred times at most."""
MAX_CHARACTERS: Final = 4096
"""Length of a line that may be learned from."""
MAX_VALUES: Final = 24
"""Values of a line that may count."""
MAX_LINE_BYTES: Final = 1 << 16
"""A longer line is left to the general reader."""
CHECKS: Final = 3
_MILLISECONDS_BELOW: Final = 1e8

Fields = dict[str, tuple[Any, Any]]
"""By attribute: the key in the record, and a Value, a type, or the Fields of an object."""


class Layout:
    """A type of records, and what its values are for."""

    def __init__(
        self, values: Sequence[Value], decode: Callable[[Any], Any], says: Mapping[str, list[Value]]
    ) -> None:
        self._decode = decode
        self._fixed = [(value.get, value.value) for value in values if value.is_compared]
        self._prompt, self._answer, self._cached = (
            says.get(name, []) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
        )
        self._sums = [
            ([part.get for part in parts], int(parts is self._prompt))
            for parts in (self._prompt, self._answer, self._cached)
            if len(parts) > 1
        ]
        self._asked, self._session, self._seconds, self._blocks, self._model = (
            _only(says.get(name, [])) for name in ("max_tokens", "session", "seconds", "blocks", "model")
        )
        self.are_milliseconds = False

        self.record = self._checked if self._fixed or self._sums else decode
        """Decodes a record. Raises ValueError or msgspec.DecodeError for data of another layout."""

    def _checked(self, data: Any) -> Any:
        found = self._decode(data)
        for get, value in self._fixed:
            if get(found) != value:
                raise ValueError
        for parts, least in self._sums:
            if not least <= sum([int(get(found)) for get in parts]) <= MAX_TOKENS:
                raise ValueError
        return found

    def rows(self, records: Sequence[Any]) -> Rows:
        """The requests of decoded records."""
        sessions = None if self._session is None else self._session.column(records)
        blocks = None if self._blocks is None else self._blocks.column(records)
        return Rows(
            _sums(self._prompt, records),
            _sums(self._answer, records) if self._answer else None,
            None if self._asked is None else self._asked.column(records),
            sum(_sums(self._cached, records)) if self._cached else 0,
            None if sessions is None else [str(one)[:MAX_SESSION_CHARACTERS] for one in sessions],
            None if self._seconds is None else self._first_and_last(self._seconds, records),
            None if blocks is None else [tuple(map(str, one)) for one in blocks],
            None if self._seconds is None else partial(self._times, self._seconds, records),
            None if self._model is None else self._model.column(records),
        )

    def _times(self, value: Value, records: Sequence[Any], most: int) -> list[float]:
        times = value.column(records[:most])
        if value.date is None:
            return self._in_seconds(times)
        zone = None if value.zone else UTC
        dates = map(datetime.fromisoformat, times)
        return [(date.replace(tzinfo=zone) if zone else date).timestamp() for date in dates]

    def _in_seconds(self, times: Sequence[Any]) -> list[float]:
        found = [one for one in map(seconds_of, times) if one is not None]
        if self.are_milliseconds:
            found = [one / 1e3 if one < _MILLISECONDS_BELOW else one for one in found]
        return found

    def _first_and_last(self, value: Value, records: Sequence[Any]) -> tuple[float, float]:
        times = value.column(records)
        if value.date is not None:
            # The texts are in the order of the times, but for what follows: "5Z" stands behind "5.5Z".
            bare = [time.removesuffix(value.zone) for time in times]
            times = [min(bare) + value.zone, max(bare) + value.zone]
        elif (last := max(map(float, times))) <= MAX_SECONDS:
            # Beyond, times may be in different units, and a larger number an earlier time.
            times = [min(map(float, times)), last]
        found = self._in_seconds(times)
        return min(found), max(found)


def _only(values: Sequence[Value]) -> Value | None:
    if len(values) > 1:
        raise NoLayoutError
    return values[0] if values else None


def _sums(parts: Sequence[Value], records: Sequence[Any]) -> list[int]:
    columns = [part.column(records) for part in parts]
    return columns[0] if len(columns) == 1 else list(map(sum, zip(*columns, strict=True)))


class Layouts:
    """The layouts of one log, learned from its own lines."""

    def __init__(self, form: JsonForm | RowForm) -> None:
        self._form = form
        self._layouts: list[Layout] = []
        # Where the user names a field within others, or asks for a time or for texts, no layout is learned.
        reading = form.reading
        is_timed = reading.since is not None or reading.until is not None
        self._tries = MAX_TRIES if reading.dotted or is_timed or reading.prefixes is not None else 0

    def learn(self, line: bytes) -> None:
        """Learns the layout of a line that the general reader has read as one request, if it can be known."""
        if len(line) > MAX_CHARACTERS or self._tries == MAX_TRIES or len(self._layouts) == MAX_LAYOUTS:
            return
        try:
            data = self._form.taken(line)
        except ValueError:
            return
        if any(self._records(one, [line], 0) for one in self._layouts):
            return
        self._tries += 1
        try:
            self._layouts.append(self._learned(data))
        except (
            NoLayoutError,
            UnusableLineError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
            msgspec.DecodeError,
        ):
            return

    def _learned(self, data: Any) -> Layout:
        record = self._form.record(data)
        fields = self._form.fields(record)
        values = list(_values(fields))
        base = self._form.request(record)
        if base.by_text or len(values) > MAX_VALUES:
            raise NoLayoutError
        changing = [value for value in values if not value.is_fixed]
        says: dict[str, list[Value]] = {}
        are_milliseconds = False
        for value in changing:
            found = self._form.request(_changed(record, value.path, value.other()))
            for name in _SAID[value.kind]:
                if getattr(found, name) != getattr(base, name):
                    says.setdefault(name, []).append(value)
            if value.kind is Kind.SECONDS and value.date is None:
                are_milliseconds |= found.seconds not in (base.seconds, float(value.other()))
            if value.kind is Kind.COUNT and not self._may_be_none(record, value):
                value.least = 1
        if "prompt_tokens" not in says:
            raise NoLayoutError
        layout = Layout(values, self._form.decoder(fields), says)
        layout.are_milliseconds = are_milliseconds
        self._check(layout, record, changing)
        return layout

    def _may_be_none(self, record: Any, value: Value) -> bool:
        """Whether a count of 0 is one less than a count of 1, and nothing else."""
        try:
            none, one = (
                self._form.request(_changed(record, value.path, value.of(count))) for count in (0, 1)
            )
        except UnusableLineError:
            return False
        counts = ("prompt_tokens", "completion_tokens", "cached_tokens")
        steps = {(getattr(one, name) or 0) - (getattr(none, name) or 0) for name in counts}
        return steps <= {0, 1} and one._replace(**{name: getattr(none, name) for name in counts}) == none

    def _check(self, layout: Layout, record: Any, values: Sequence[Value]) -> None:
        """Raises NoLayoutError where the layout says anything else than the general reader, in any order of fields."""
        chosen = random.Random(1)
        for _ in range(CHECKS):
            for value in values:
                if value.kind in (Kind.COUNT, Kind.ASKED):
                    record = _changed(record, value.path, value.of(chosen.randint(1, 9999)))
            rows = layout.rows([layout.record(self._form.data(record))])
            for same in (record, _turned(record)):
                read = self._form.request(same)
                timed = None if rows.times is None else next(iter(rows.times(1)), None)
                if _request_of(rows) != read or timed != read.seconds:
                    raise NoLayoutError

    def read(self, lines: Lines, alone: Callable[[], bool], add: Callable[[Rows], None]) -> None:
        """Reads all lines: those of known layouts with `add`, each other with `alone`, which takes it from `lines` and
        returns whether the next line belongs to it whatever it looks like."""
        is_open = False
        while lines.more():
            rows, number = (None, 0) if is_open else self._run(lines.slice, lines.at)
            if rows is None:
                is_open = alone()
            else:
                add(rows)
                lines.take(number)

    def _records(self, layout: Layout, lines: list[bytes], at: int) -> list[Any]:
        """The records of lines from `at` on, until the first that is of another layout."""
        found: list[Any] = []
        add, decode, taken = found.append, layout.record, self._form.taken
        with suppress(ValueError, msgspec.DecodeError):
            for place in range(at, len(lines)):
                add(decode(taken(lines[place])))
        return found

    def _run(self, lines: list[bytes], at: int) -> tuple[Rows | None, int]:
        """The requests of lines from `at` on, as many as are of one layout."""
        for place, layout in enumerate(self._layouts):
            if records := self._records(layout, lines, at):
                # The layout that was found last is tried first.
                self._layouts.insert(0, self._layouts.pop(place))
                return layout.rows(records), len(records)
        return None, 0


_SAID: Final[Mapping[Kind, Sequence[str]]] = {
    Kind.COUNT: ("prompt_tokens", "completion_tokens", "cached_tokens", "max_tokens"),
    Kind.ASKED: ("prompt_tokens", "completion_tokens", "cached_tokens", "max_tokens"),
    Kind.SESSION: ("session",),
    Kind.MODEL: ("model",),
    Kind.SECONDS: ("seconds",),
    Kind.BLOCKS: ("blocks",),
    Kind.STATE: (),
}
"""Fields of a request that a value of each kind may decide."""


def _request_of(rows: Rows) -> Request:
    """The request of the first row."""
    return Request(
        rows.prompts[0],
        rows.answers[0] if rows.answers is not None else None,
        rows.asked[0] if rows.asked is not None else None,
        cached_tokens=rows.cached_tokens,
        session=next(iter(rows.sessions)) if rows.sessions is not None else None,
        seconds=rows.seconds[0] if rows.seconds is not None else None,
        blocks=tuple(rows.blocks[0]) if rows.blocks is not None else (),
        model=next(iter(rows.models)) if rows.models is not None else "",
    )


def _values(fields: Fields) -> Iterator[Value]:
    for _, inner in fields.values():
        if isinstance(inner, Value):
            yield inner
        elif isinstance(inner, dict):
            yield from _values(inner)


def _type_of(fields: Fields, *, is_row: bool = False) -> Any:
    """A type with these fields and no others."""
    types = [
        (
            name,
            inner.type if isinstance(inner, Value) else _type_of(inner) if isinstance(inner, dict) else inner,
        )
        for name, (_, inner) in fields.items()
    ]
    keys = None if is_row else {name: key for name, (key, _) in fields.items()}
    return defstruct("Record", types, rename=keys, array_like=is_row, forbid_unknown_fields=True, gc=False)


def _changed(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a record with another value at `path`."""
    copy = record.copy()
    copy[path[0]] = value if len(path) == 1 else _changed(record[path[0]], path[1:], value)
    return copy


def _turned(record: Any) -> Any:
    """The record with its fields in the other order, in objects within it too; a row as it is."""
    if not isinstance(record, dict):
        return record
    return {key: _turned(value) for key, value in reversed(record.items())}


class JsonForm:
    """Lines with one JSON object each, which may have a comma behind it."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self._roles = reading, Roles(reading)
        self._objects = 0

    def taken(self, line: bytes) -> bytes:
        """The part of a line to decode. Raises ValueError for a line that is left to the general reader."""
        if len(line) > MAX_LINE_BYTES:
            raise ValueError
        if line[:1].isdigit() and (at := json_at(line.rstrip())) > 0:
            line = line[at:]
        if line.endswith((b"}\n", b"}")):
            return line
        text = line.strip()
        return text[:-1] if text.endswith(b"},") else text

    def record(self, data: bytes) -> Any:
        """The record of a decodable line. Raises ValueError."""
        record = parsed_json(data.decode())
        if not isinstance(record, dict):
            raise NoLayoutError
        return record

    def data(self, record: Any) -> bytes:
        """A record as it is decoded."""
        return msgspec.json.encode(record)

    def request(self, record: Any) -> Request:
        """The one request of a record by the general reader. Raises UnusableLineError, NoLayoutError."""
        found = list(record_requests(record, self.reading))
        if len(found) != 1 or not isinstance(found[0], Request) or found[0].call:
            raise NoLayoutError
        return found[0]

    def decoder(self, fields: Fields) -> Callable[[Any], Any]:
        """Decodes data with exactly these fields."""
        return msgspec.json.Decoder(_type_of(fields)).decode

    def fields(self, record: Any) -> Fields:
        """The fields of a record. Raises NoLayoutError."""
        self._objects = 0
        return self._object(record, (), "", is_usage=False)

    def _object(
        self,
        record: Mapping[str, Any],
        path: tuple[str, ...],
        within: str,
        *,
        is_usage: bool,
        place: str = "",
    ) -> Fields:
        fields: Fields = {}
        renamed = tables().within.get(place, {})
        self._objects += 1
        if self._objects > MAX_LAYERS:
            raise NoLayoutError
        for number, (key, value) in enumerate(record.items()):
            name, attribute, here = field_name(key), f"f{number}", (*path, key)
            name = renamed.get(name, name)
            kind = self._roles.kind(name, is_usage)
            inner: Any
            if isinstance(value, dict) and (
                name in self._roles.inside or holds_records(name, value, is_usage)
            ):
                is_inner = is_usage or name in self._roles.usage
                inner = self._object(value, here, f"{within}{attribute}.", is_usage=is_inner, place=name)
            elif name in self._roles.inside:
                inner = nothing_inside(value)
            elif kind is not None:
                inner = Value(here, within + attribute, kind, value)
            else:
                inner = any_value(depth_of(value))
            fields[attribute] = key, inner
        return fields


class RowForm:
    """Rows of a table; those with a quote are left to the csv module."""

    def __init__(self, columns: Columns, encoding: str, reading: Reading) -> None:
        self._columns, self._encoding, self.reading = columns, encoding, reading
        self._roles = Roles(reading)

    def taken(self, line: bytes) -> list[str]:
        """The cells of a row. Raises ValueError for one that is left to the general reader."""
        text = line.decode(self._encoding, "replace").rstrip("\r\n")
        if len(line) > MAX_LINE_BYTES or '"' in text or "\r" in text or "\0" in text:
            raise ValueError
        return text.split(self._columns.delimiter)

    def record(self, data: list[str]) -> Any:
        """The cells."""
        return data

    def data(self, record: Any) -> Any:
        """The cells."""
        return record

    def request(self, record: Any) -> Request:
        """The request of a row by the general reader. Raises UnusableLineError."""
        return row_request(record, self._columns, self.reading)

    def decoder(self, fields: Fields) -> Callable[[Any], Any]:
        """Decodes rows with exactly these columns."""
        return partial(msgspec.convert, type=_type_of(fields, is_row=True), strict=False)

    def fields(self, record: Any) -> Fields:
        """The columns of a row. Raises NoLayoutError."""
        names, fields = self._columns.names, Fields()
        for number, cell in enumerate(record):
            name = field_name(names[number]) if number < len(names) else ""
            inner: Any = str
            if name in self._roles.inside:
                inner = nothing_inside(cell)
            elif (kind := self._roles.kind(name)) is not None:
                inner = Value((number,), f"f{number}", kind, cell, is_cell=True)
            fields[f"f{number}"] = number, inner
        return fields
