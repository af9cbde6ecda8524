"""A value of a table file as the type of the field that it is for; what reads a type is made once."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct
from packaging.version import InvalidVersion, Version

from kvcore.base.errors import TableError
from kvcore.base.toml_files import file_text, parsed
from kvcore.tables.kinds import OLDEST, ByRelease, Decimal, Published, Source, Timeline

RELEASES: Final = ("kvcore.engines.vllm", "releases.toml")
"""Where `releases` lists the published ones."""


@cache
def known_releases() -> frozenset[Version]:
    """Every published release of vLLM, and 0.0."""
    return frozenset((OLDEST, *map(Version, read_toml(file_text(*RELEASES), RELEASES[1])["releases"])))


def read_toml(text: str, file: str) -> Mapping[str, Any]:
    """A TOML text as it is. Raises TableError `invalid-catalogue-entry`."""
    try:
        return parsed(text)
    except ValueError as error:
        raise wrong(file, str(error)) from None


def wrong(where: str, reason: str) -> TableError:
    """The error for a bundled file that is not as it has to be."""
    return TableError("invalid-catalogue-entry", field=where, reason=reason)


def convert(value: Any, kind: Any, where: str) -> Any:
    """`value` of a TOML file as `kind`; `where` names file and key.

    Raises TableError `invalid-catalogue-entry` for any other value, with those that are allowed.

    Example:
        >>> from kvcore.tables.kinds import ReleaseRange
        >>> convert({"since": "0.19.0"}, ReleaseRange, "a.toml").since
        <Version('0.19.0')>
        >>> convert("warm", Literal["hot", "cold"], "a.toml tap")
        Traceback (most recent call last):
        kvcore.base.errors.TableError: a.toml tap: 'warm' is none of hot, cold
    """
    try:
        return _reader(kind)(value)
    except _RefusedError as error:
        raise wrong(where + "".join(reversed(error.places)), error.reason) from None


class _RefusedError(Exception):
    """A value that no file may have, and where it stands: the innermost place first."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.places: list[str] = []


_Read: TypeAlias = Callable[[Any], Any]


@cache
def _reader(kind: Any) -> _Read:
    """What reads a value as `kind`, made once: files have thousands of values of few kinds."""
    origin = get_origin(kind)
    if origin is not None:
        return _generic(origin, get_args(kind))
    if kind is object:
        return lambda value: value
    if kind is Published:
        return _published
    if kind is Version:
        return _version
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _record(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(tuple(kind))
    return _decimal if kind is Decimal else _plain(kind)


def _generic(origin: Any, arguments: tuple[Any, ...]) -> _Read:
    if origin is Annotated:
        return _annotated(_reader(arguments[0]), [rule.check for rule in arguments[1:]])
    if origin in (Union, types.UnionType):
        return _union([_reader(part) for part in arguments if part is not type(None)])
    if origin is Literal:
        return _member(arguments)
    if origin is frozenset:
        items = _items(arguments[0])
        return lambda value: frozenset(items(value))
    if origin is tuple and arguments[1:] == (Ellipsis,):
        items, pair = _items(arguments[0]), get_args(arguments[0])
        rows = _mapping(*pair) if len(pair) == 2 and get_origin(arguments[0]) is tuple else items
        return lambda value: (
            tuple(sorted(rows(value).items()))
            if isinstance(value, Mapping) and rows is not items
            else items(value)
        )
    if origin is tuple:
        return _fixed([_reader(part) for part in arguments])
    if origin is Timeline:
        return _timeline(arguments[0])
    if origin is ByRelease:
        return _by_release(arguments[0])
    return _mapping(arguments[0], arguments[1])


def _annotated(read: _Read, checks: list[Callable[[Any], None]]) -> _Read:
    def checked(value: Any) -> Any:
        found = read(value)
        try:
            for check in checks:
                check(found)
        except TableError:
            raise
        except ValueError as error:
            raise _RefusedError(str(error)) from None
        return found

    return checked


def _union(readers: list[_Read]) -> _Read:
    """The first kind that the value is; the last one refuses."""
    if len(readers) == 1:
        return readers[0]

    def read(value: Any) -> Any:
        for reader in readers[:-1]:
            with contextlib.suppress(_RefusedError, TableError):
                return reader(value)
        return readers[-1](value)

    return read


def _each(read: _Read, values: Iterable[tuple[Any, Any]], place: str) -> Iterator[tuple[Any, Any]]:
    """Every value as it is read, with its key; where one is refused, at that place."""
    for key, value in values:
        try:
            found = read(value)
        except _RefusedError as error:
            error.places.append(place.format(key))
            raise
        yield key, found


def _items(kind: Any) -> _Read:
    item = _reader(kind)

    def read(value: Any) -> tuple[Any, ...]:
        try:
            found = tuple(map(item, _list(value)))
        except _RefusedError:
            found = tuple(one for _, one in _each(item, enumerate(_list(value)), "[{}]"))  # says where
        if kind is str and len(set(found)) < len(found):
            raise _RefusedError("a name is there twice")
        return found

    return read


def _fixed(items: list[_Read]) -> _Read:
    def read(value: Any) -> tuple[Any, ...]:
        if len(_list(value)) != len(items):
            raise _RefusedError(f"it is a list of {len(items)}")
        parts = enumerate(zip(items, value, strict=True))
        return tuple(one for _, one in _each(lambda part: part[0](part[1]), parts, "[{}]"))

    return read


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _RefusedError("it is a list")
    return value


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _RefusedError("it is a table")
    return value


def _mapping(key: Any, item: Any) -> _Read:
    name, row = _reader(key), _reader(item)

    def read(value: Any) -> dict[Any, Any]:
        try:
            return {name(one): row(found) for one, found in _table(value).items()}
        except _RefusedError:
            return {name(one): found for one, found in _each(row, _table(value).items(), " {}")}  # says where

    return read


def _timeline(kind: Any) -> _Read:
    entries = _mapping(Published, kind)

    def read(value: Any) -> Timeline[Any]:
        found = entries(value)
        if OLDEST not in found:
            raise _RefusedError("0.0 is missing")
        return Timeline(tuple(sorted(found.items(), key=lambda entry: entry[0])))

    return read


def _by_release(kind: Any) -> _Read:
    timelines = {name: _timeline(hint) for name, hint in _hints(kind).items()}
    source = _reader(Source)

    def one(pair: tuple[str, Any]) -> Timeline[Any]:
        name, table = pair
        rest = dict(_table(table))
        list(_each(source, [("source", rest.pop("source", ""))], " {}"))
        found: Timeline[Any] = timelines[name](rest)
        return found

    def read(value: Any) -> ByRelease[Any]:
        _check_keys(_table(value), frozenset(timelines), _required(kind))
        rows = ((name, (name, table)) for name, table in value.items())
        return ByRelease(kind, dict(_each(one, rows, " {}")))

    return read


def _record(kind: Any) -> _Read:
    hints, required = _hints(kind), _required(kind)
    allowed = frozenset(hints)
    readers: dict[str, _Read] = {}
    """Of fields that were there once: a record may have one of its own kind."""

    def read(value: Any) -> Any:
        if not allowed.issuperset(_table(value)) or not required.issubset(value):
            _check_keys(value, allowed, required)
        values = {}
        for name, item in value.items():
            reader = readers.get(name)
            if reader is None:
                reader = readers[name] = _reader(hints[name])
            try:
                values[name] = reader(item)
            except _RefusedError as error:
                error.places.append(f" {name}")
                raise
        try:
            return kind(**values)
        except TableError:
            raise
        except ValueError as error:
            raise _RefusedError(str(error)) from None

    return read


def _check_keys(table: Mapping[str, Any], allowed: frozenset[str], required: frozenset[str]) -> None:
    keys = f"its keys are {', '.join(sorted(allowed))}"
    if unknown := sorted(table.keys() - allowed):
        raise _RefusedError(f"unknown {', '.join(unknown)}; {keys}")
    if missing := sorted(required - table.keys()):
        raise _RefusedError(f"missing {', '.join(missing)}; {keys}")


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """The types of a record's fields, in order."""
    said: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        for name, hint in get_annotations(base).items():
            said[name] = _type_in(base.__module__, hint) if isinstance(hint, str) else hint
    return {name: said[name] for name in kind.__struct_fields__}


@cache
def _type_in(module: str, text: str) -> Any:
    """The type that a module calls so. `get_type_hints` takes four times as long, and tables are read at each start."""
    names = vars(sys.modules[module])
    plain = names.get(text) or vars(builtins).get(text)
    # The text is an annotation of a class of this package, never of a file: what get_type_hints evaluates too.
    return eval(text, names) if plain is None else plain


@cache
def _required(kind: Any) -> frozenset[str]:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    given = {
        name for name, default in zip(names[::-1], defaults[::-1], strict=False) if default is not NODEFAULT
    }
    return frozenset(names) - given


def _member(allowed: tuple[Any, ...]) -> _Read:
    members = {(type(plain), plain): one for one in allowed for plain in (getattr(one, "value", one),)}

    def read(value: Any) -> Any:
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise _RefusedError(f"{value!r} is none of {', '.join(map(str, allowed))}") from None

    return read


def _version(value: Any) -> Version:
    return _parsed(_text(value))


@cache
def _parsed(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise _RefusedError(f"{text!r} is no version such as 0.19.0") from None


def _published(value: Any) -> Version:
    version = _version(value)
    if version not in known_releases():
        raise _RefusedError(f"{value} is none of the releases of {RELEASES[1]}")
    return version


def _decimal(value: Any) -> float:
    if type(value) is not float:
        raise _RefusedError(f"{value!r} is no number with a decimal point")
    return value


_NAMES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text",
                 datetime.date: "a date"}  # fmt: skip


def _plain(kind: type[Any]) -> _Read:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise _RefusedError(f"{value!r} is not {_NAMES[kind]}")

    return read


_text: Final = _plain(str)
