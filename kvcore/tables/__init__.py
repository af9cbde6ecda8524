"""Facts as data: TOML files next to the code that reads them, checked whole when loaded.

A table is a `Record`. The types of its fields say what a value may be, as msgspec reads them: a StrEnum or a Literal is
one of its members, `Annotated[int, Meta(ge=1, le=64)]` lies between both, `Annotated[str, Meta(pattern="^[a-z]+$")]`
matches, a `Version` is a release. A key without a field and a field without a key are refused. A value that depends on
others is checked in `__post_init__`, which raises ValueError.

    TableFile("kvcore.engines.vllm", "benchmark.toml", BenchmarkTable).load()

Modules of records do without `from __future__ import annotations`: msgspec evaluates each text of an annotation, which
takes longer than all else of reading a table.

Names from outside (backends, model classes, flags of a server) match a pattern here; that they are the engine's own is
tested against its argument lists and registries (tests/test_outside_names.py).
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import fields
from packaging.version import Version

from kvcore.base.errors import TableError
from kvcore.base.toml_files import file_text, parsed
from kvcore.base.typed import place_and_reason, placed, typed

T = TypeVar("T")

OLDEST: Final = Version("0.0")
"""Before the first known release."""
NEVER: Final = Version("9999")
"""After every release."""


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table, or a row of one."""


class ReleaseRange(Record, frozen=True, kw_only=True):
    """Applies from release `since` up to, not including, `below`."""

    since: Version = OLDEST
    below: Version = NEVER

    def covers(self, version: Version) -> bool:
        """Whether the row applies to `version`."""
        is_begun = self.since is OLDEST or self.since <= version
        return is_begun and (self.below is NEVER or version < self.below)


class Reviewed(Record, frozen=True, kw_only=True):
    """A file of tables that was compared with every release up to `reviewed`."""

    reviewed: Version


class Releases(dict[Version, T], Generic[T]):
    """A value for each of some releases, oldest first."""


class Timeline(Generic[T]):
    """One value by release: that of the newest entry up to the release asked for."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[Version, T]]) -> None:
        self.entries = tuple(entries)
        """Oldest first; the first is 0.0."""

    def at(self, version: Version) -> T:
        """The value in `version`.

        Example:
            >>> Timeline([(OLDEST, 0.9), (Version("0.20.0"), 0.92)]).at(Version("0.19.1"))
            0.9
        """
        return next(value for since, value in reversed(self.entries) if since <= version)


class ByRelease(Generic[T]):
    """A record whose fields change by release. Each field in the file has a timeline and names its source; the others
    keep their defaults."""

    __slots__ = ("kind", "timelines")

    def __init__(self, kind: type[T], timelines: Mapping[str, Timeline[Any]]) -> None:
        self.kind, self.timelines = kind, timelines

    def at(self, version: Version) -> T:
        """The record in `version`."""
        found: T = _record_at(self, version)
        return found


@lru_cache(maxsize=1024)
def _record_at(rules: ByRelease[Any], version: Version) -> Any:
    return rules.kind(**{name: timeline.at(version) for name, timeline in rules.timelines.items()})


def one_of(names: Iterable[str]) -> Meta:
    """For a text that is one of `names`."""
    return Meta(pattern=f"^(?:{'|'.join(map(re.escape, names))})$")


Source = Annotated[str, Meta(pattern=r"\S")]
"""Where a value was found."""
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Amount = Annotated[float, Meta(ge=0.0, le=1e12)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Capability = Annotated[str, Meta(pattern=r"^\d{1,2}\.\d$")]
"""A CUDA compute capability: 9.0."""
CapabilityNumber = Annotated[int, Meta(ge=0, le=999)]
"""major × 10 + minor."""


class TableFile(Struct, Generic[T], frozen=True, eq=False):
    """A bundled file of tables and the record that it is read as."""

    package: str
    file: str
    kind: type[T]

    def load(self) -> T:
        """The tables, read once. Raises TableError `invalid-catalogue-entry` with file, key and what is allowed."""
        found: T = _load(self)
        return found

    def read(self, raw: Mapping[str, Any]) -> T:
        """Tables of the same shape. Raises TableError `invalid-catalogue-entry`."""
        found: T = convert(raw, self.kind, self.file)
        return found

    def raw(self) -> Mapping[str, Any]:
        """The file's content, unchecked. Raises TableError `invalid-catalogue-entry` for invalid TOML."""
        return read_toml(file_text(self.package, self.file), self.file)


@cache
def _load(table: TableFile[Any]) -> Any:
    return table.read(table.raw())


def read_toml(text: str, file: str) -> Mapping[str, Any]:
    """The content of a TOML text. Raises TableError `invalid-catalogue-entry`."""
    try:
        return parsed(text)
    except ValueError as error:
        raise wrong(file, str(error)) from None


def wrong(where: str, reason: str) -> TableError:
    """The error for a bundled file with a mistake."""
    return TableError("invalid-catalogue-entry", field=where, reason=reason)


def convert(value: Any, kind: Any, where: str) -> Any:
    """`value` of a TOML file as `kind`; `where` names the file, and the key unless it is the whole file.

    Raises TableError `invalid-catalogue-entry` with file, key and reason.

    Example:
        >>> convert({"since": "0.19.0"}, ReleaseRange, "a.toml").since
        <Version('0.19.0')>
        >>> convert({"rows": {"a": {"sinse": "0.19.0"}}}, Mapping[str, Mapping[str, ReleaseRange]], "a.toml")
        Traceback (most recent call last):
        kvcore.base.errors.TableError: a.toml rows a: Object contains unknown field `sinse`
    """
    try:
        return typed(value, kind, _read)
    except ValueError as error:
        place, reason = place_and_reason(error)
        raise wrong(where + place, reason) from None


def _read(kind: Any, value: Any) -> Any:
    """A value of a type that msgspec does not know. Raises ValueError."""
    if kind is object:
        return value
    if kind is Version:
        return _version(value)
    (argument,) = get_args(kind)
    origin = get_origin(kind)
    if origin is Releases:
        return Releases(_releases(value, argument))
    return _timeline(value, argument) if origin is Timeline else _by_release(value, argument)


@cache
def _version(text: Any) -> Version:
    if not isinstance(text, str):
        raise ValueError('Expected a release such as "0.19.0"')
    return Version(text)


def _releases(value: Any, kind: Any) -> list[tuple[Version, Any]]:
    """The entries of a table by release, oldest first."""
    found = typed(value, dict[str, kind], _read)
    return sorted(((_version(text), entry) for text, entry in found.items()), key=lambda entry: entry[0])


def _timeline(value: Any, kind: Any) -> Timeline[Any]:
    entries = _releases(value, kind)
    if not entries or entries[0][0] != OLDEST:
        raise ValueError("0.0 is missing")
    return Timeline(entries)


def _by_release(value: Any, kind: Any) -> ByRelease[Any]:
    tables = typed(value, dict[str, dict[str, Any]])
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(tables.keys() - known):
        raise ValueError(f"Object contains unknown field `{unknown[0]}`")
    timelines = {}
    for name, field in known.items():
        if name in tables:
            entries = dict(tables[name])
            try:
                if not str(entries.pop("source", "")).strip():
                    raise ValueError("Object missing required field `source`")
                timelines[name] = _timeline(entries, field.type)
            except ValueError as error:
                raise placed(error, f" {name}") from None
        elif field.required:
            raise ValueError(f"Object missing required field `{name}`")
    return ByRelease(kind, timelines)
