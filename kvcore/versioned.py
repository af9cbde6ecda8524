"""What changes from release to release: TOML files with the code that reads them, checked whole when loaded.

A table is a frozen dataclass, and the types of its fields are what a value may be: a StrEnum or a Literal is one of its
members, `Annotated[int, Bounds(1, 64)]` lies between both, `Annotated[str, Pattern(...)]` reads so, a `Published` is
a release of vLLM. A key that no field has and a field without a key are refused. A value that depends on the others
is checked in `__post_init__`, which raises ValueError.

    TableFile("kvcore.engine.vllm", "benchmark.toml", BenchmarkTable).load()

A new kind of value is a branch of `convert`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
import tomllib
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from packaging.version import InvalidVersion, Version

from kvcore.errors import TableError

Published = NewType("Published", Version)
"""A published release of vLLM, or 0.0 for all before the first known one."""

OLDEST: Final = Published(Version("0.0"))
NEVER: Final = Published(Version("9999"))
RELEASES: Final = ("kvcore.engine.vllm", "releases.toml")
"""Where `releases` lists the published ones."""
MAX_NEAR: Final = 9
"""Names that the error for another one lists."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the largest number that a field takes, both included."""

    low: float
    high: float

    def check(self, value: Any) -> None:
        """Raises ValueError outside."""
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is not between {self.low:g} and {self.high:g}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a text reads like, and how that is said."""

    pattern: str
    meaning: str

    def check(self, value: Any) -> None:
        """Raises ValueError for another text."""
        if re.fullmatch(self.pattern, value) is None:
            raise ValueError(f"{value!r} is not {self.meaning}")


@dataclass(frozen=True, slots=True)
class Named(Pattern):
    """A name from outside, of which the package has no list: it stands in `names` of its file as well.

    So a misspelling of either stops the load: each name that is used is in `names`, and each of those is used.
    """

    def check(self, value: Any) -> None:
        """Raises ValueError for a text that reads otherwise, or that `names` lacks."""
        Pattern.check(self, value)
        names, used = _vocabulary.get() or (frozenset((value,)), set())
        used.add(value)
        if value and value not in names:
            alike = [name for name in sorted(names) if name[:3] == value[:3]] or sorted(names)
            near = ", ".join(alike[:9])
            raise ValueError(f"{value!r} is none of the file's {len(names)} names, such as {near}")


_vocabulary: Final[ContextVar[tuple[frozenset[str], set[str]] | None]] = ContextVar(
    "vocabulary", default=None
)
"""Of the file that is being read: the names that it may use, and those that it has used."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """The names that a text may be."""

    names: tuple[str, ...]

    def check(self, value: Any) -> None:
        """Raises ValueError for another name."""
        if value not in self.names:
            raise ValueError(f"{value!r} is none of {', '.join(self.names)}")


Decimal = NewType("Decimal", float)
"""A number that is written with a decimal point."""
Source = Annotated[str, Pattern(r"(?s)\S.*", "a source")]
Count = Annotated[int, Bounds(0, 1 << 40)]
Amount = Annotated[float, Bounds(0.0, 1e12)]
Share = Annotated[float, Bounds(0.0, 1.0)]
Capability = Annotated[str, Pattern(r"\d{1,2}\.\d", "a compute capability such as 9.0")]
CapabilityNumber = Annotated[int, Bounds(0, 999)]
"""major × 10 + minor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseRange:
    """A row that stores from one release on and below another."""

    since: Published = OLDEST
    below: Published = NEVER

    def covers(self, version: Version) -> bool:
        """Whether the row stores in `version`."""
        return self.since <= version < self.below


@dataclass(frozen=True, kw_only=True, slots=True)
class Reviewed:
    """A file of tables that was compared with every release up to `reviewed`."""

    reviewed: Published
    names: frozenset[str] = frozenset()
    """The `Named` texts of the file, once more."""


@dataclass(frozen=True, slots=True)
class Timeline(Generic[T]):
    """One value by release: that of the highest release that is not above the asked one."""

    entries: tuple[tuple[Published, T], ...]
    """Oldest first; the first is of 0.0."""

    def at(self, version: Version) -> T:
        """The value in `version`.

        Example:
            >>> Timeline(((OLDEST, 0.9), (Published(Version("0.20.0")), 0.92))).at(Version("0.19.1"))
            0.9
        """
        return next(value for since, value in reversed(self.entries) if since <= version)


@dataclass(frozen=True, slots=True)
class ByRelease(Generic[T]):
    """All fields of a dataclass by release, each with a timeline of its own that names its source."""

    kind: type[T]
    timelines: Mapping[str, Timeline[Any]]

    def at(self, version: Version) -> T:
        """The dataclass in `version`."""
        return self.kind(**{name: timeline.at(version) for name, timeline in self.timelines.items()})


@dataclass(frozen=True, slots=True)
class TableFile(Generic[T]):
    """A bundled file of tables, read as a dataclass."""

    package: str
    file: str
    kind: type[T]

    def load(self) -> T:
        """Its tables, read once. Raises TableError `invalid-catalogue-entry` with file, key and what is allowed."""
        found: T = _load(self)
        return found

    def read(self, raw: Mapping[str, Any]) -> T:
        """Tables of the same shape. Raises TableError `invalid-catalogue-entry`."""
        found: T = read_table(raw, self.kind, self.file)
        return found

    def raw(self) -> Mapping[str, Any]:
        """What the file says, unchecked. Raises TableError `invalid-catalogue-entry` for what is no TOML."""
        return _bundled(self.package, self.file)


def read_table(raw: Mapping[str, Any], kind: type[T], where: str) -> T:
    """A whole file as `kind`, its `Named` texts those of its `names`. Raises TableError `invalid-catalogue-entry`."""
    names = convert(raw.get("names", []), frozenset[str], f"{where} names")
    used: set[str] = set()
    token = _vocabulary.set((names, used))
    try:
        found: T = convert(raw, kind, where)
    finally:
        _vocabulary.reset(token)
    if unused := names - used:
        raise wrong(f"{where} names", f"nothing is called {', '.join(sorted(unused))}")
    return found


@cache
def _load(table: TableFile[Any]) -> Any:
    return table.read(table.raw())


@cache
def known_releases() -> frozenset[Version]:
    """Every published release of vLLM, and 0.0."""
    return frozenset((OLDEST, *map(Version, _bundled(*RELEASES)["releases"])))


def _bundled(package: str, file: str) -> Mapping[str, Any]:
    return read_toml(resources.files(package).joinpath(file).read_text("utf-8"), file)


def read_toml(text: str, file: str) -> Mapping[str, Any]:
    """A TOML text as it is. Raises TableError `invalid-catalogue-entry`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise wrong(file, str(error)) from None


def wrong(where: str, reason: str) -> TableError:
    """The error for a bundled file that is not as it has to be."""
    return TableError("invalid-catalogue-entry", field=where, reason=reason)


def convert(value: Any, kind: Any, where: str) -> Any:
    """`value` of a TOML file as `kind`; `where` names file and key.

    Raises TableError `invalid-catalogue-entry` for any other value, with those that are allowed.

    Example:
        >>> convert({"since": "0.19.0"}, ReleaseRange, "a.toml").since
        <Version('0.19.0')>
        >>> convert("warm", Literal["hot", "cold"], "a.toml tap")
        Traceback (most recent call last):
        kvcore.errors.TableError: a.toml tap: 'warm' is none of hot, cold
    """
    origin = get_origin(kind)
    if origin is not None:
        return _generic(value, kind, origin, get_args(kind), where)
    if kind is object:
        return value
    if kind is Decimal and type(value) is not float:
        raise wrong(where, f"{value!r} is no number with a decimal point")
    if kind is Published:
        return _published(value, where)
    if kind is Version:
        return _version(value, where)
    if dataclasses.is_dataclass(kind):
        return _record(value, kind, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(value, tuple(kind), where)
    return _plain(value, float if kind is Decimal else kind, where)


def _generic(value: Any, kind: Any, origin: Any, arguments: tuple[Any, ...], where: str) -> Any:
    if origin is Annotated:
        found = convert(value, arguments[0], where)
        for rule in arguments[1:]:
            _checked(rule.check, found, where)
        return found
    if origin in (Union, types.UnionType):
        return _union(value, [part for part in arguments if part is not type(None)], where)
    if origin is Literal:
        return _member(value, arguments, where)
    if origin is frozenset:
        return frozenset(_items(value, arguments[0], where))
    if origin is tuple and isinstance(value, Mapping):
        key, item = get_args(arguments[0])
        return tuple(sorted(_mapping(value, key, item, where).items()))
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return _items(value, arguments[0], where)
    if origin is tuple:
        if len(_list(value, where)) != len(arguments):
            raise wrong(where, f"it is a list of {len(arguments)}")
        parts = zip(value, arguments, strict=True)
        return tuple(convert(item, part, f"{where}[{at}]") for at, (item, part) in enumerate(parts))
    if origin is Timeline:
        return _timeline(value, arguments[0], where)
    if origin is ByRelease:
        return _by_release(value, arguments[0], where)
    return _mapping(value, arguments[0], arguments[1], where)


def _union(value: Any, kinds: list[Any], where: str) -> Any:
    """The first of `kinds` that the value is; the last one refuses."""
    for kind in kinds[:-1]:
        with contextlib.suppress(TableError):
            return convert(value, kind, where)
    return convert(value, kinds[-1], where)


def _items(value: Any, kind: Any, where: str) -> tuple[Any, ...]:
    found = tuple(convert(item, kind, f"{where}[{at}]") for at, item in enumerate(_list(value, where)))
    if kind is str and len(set(found)) < len(found):
        raise wrong(where, "a name is there twice")
    return found


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(where, "it is a list")
    return value


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(where, "it is a table")
    return value


def _mapping(value: Any, key: Any, item: Any, where: str) -> Mapping[Any, Any]:
    rows = _table(value, where).items()
    return {convert(name, key, where): convert(row, item, f"{where} {name}") for name, row in rows}


def _timeline(value: Any, kind: Any, where: str) -> Timeline[Any]:
    entries = _mapping(value, Published, kind, where)
    if OLDEST not in entries:
        raise wrong(where, "0.0 is missing")
    return Timeline(tuple(sorted(entries.items(), key=lambda entry: entry[0])))


def _by_release(value: Any, kind: Any, where: str) -> ByRelease[Any]:
    hints = _hints(kind)
    _check_keys(_table(value, where), frozenset(hints), frozenset(hints), where)
    timelines = {}
    for name, table in value.items():
        rest = dict(_table(table, f"{where} {name}"))
        convert(rest.pop("source", ""), Source, f"{where} {name} source")
        timelines[name] = _timeline(rest, hints[name], f"{where} {name}")
    return ByRelease(kind, timelines)


def _record(value: Any, kind: Any, where: str) -> Any:
    hints = _hints(kind)
    _check_keys(_table(value, where), frozenset(hints), _required(kind), where)
    values = {name: convert(item, hints[name], f"{where} {name}") for name, item in value.items()}
    return _checked(lambda found: kind(**found), values, where)


def _check_keys(
    table: Mapping[str, Any], allowed: frozenset[str], required: frozenset[str], where: str
) -> None:
    keys = f"its keys are {', '.join(sorted(allowed))}"
    if unknown := sorted(table.keys() - allowed):
        raise wrong(where, f"unknown {', '.join(unknown)}; {keys}")
    if missing := sorted(required - table.keys()):
        raise wrong(where, f"missing {', '.join(missing)}; {keys}")


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """The types of a dataclass's fields, in order."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _required(kind: Any) -> frozenset[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return frozenset(one.name for one in fields if one.default is missing and one.default_factory is missing)


def _member(value: Any, allowed: tuple[Any, ...], where: str) -> Any:
    for member in allowed:
        if type(value) is type(getattr(member, "value", member)) and value == member:
            return member
    raise wrong(where, f"{value!r} is none of {', '.join(map(str, allowed))}")


def _version(value: Any, where: str) -> Version:
    try:
        return Version(_plain(value, str, where))
    except InvalidVersion:
        raise wrong(where, f"{value!r} is no version such as 0.19.0") from None


def _published(value: Any, where: str) -> Version:
    version = _version(value, where)
    if version not in known_releases():
        raise wrong(where, f"{value} is none of the releases of {RELEASES[1]}")
    return version


_NAMES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text",
                 datetime.date: "a date"}  # fmt: skip


def _plain(value: Any, kind: type[Any], where: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise wrong(where, f"{value!r} is not {_NAMES[kind]}")
    return value


def _checked(check: Callable[[Any], T], value: Any, where: str) -> T:
    try:
        return check(value)
    except TableError:
        raise
    except ValueError as error:
        raise wrong(where, str(error)) from None
