"""What the values of a table file may be, beyond TOML's own kinds: a published release, a name of a list, a range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Annotated, Any, Final, Generic, NewType, TypeVar

from msgspec import Struct
from packaging.version import Version

Published = NewType("Published", Version)
"""A published release of vLLM, or 0.0 for all before the first known one."""

OLDEST: Final = Published(Version("0.0"))
NEVER: Final = Published(Version("9999"))

T = TypeVar("T")


class Bounds(Struct, frozen=True):
    """The least and the largest number that a field takes, both included."""

    low: float
    high: float

    def check(self, value: Any) -> None:
        """Raises ValueError outside."""
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is not between {self.low:g} and {self.high:g}")


_compiled: Final = cache(re.compile)
"""Looked up once for each value of a file: `re.fullmatch` looks longer for what it compiled."""


class Pattern(Struct, frozen=True):
    """What a text reads like, and how that is said."""

    pattern: str
    meaning: str

    def check(self, value: Any) -> None:
        """Raises ValueError for another text."""
        if _compiled(self.pattern).fullmatch(value) is None:
            raise ValueError(f"{value!r} is not {self.meaning}")


class Named(Pattern, frozen=True):
    """A name from outside, of which the package has no list: it stands in `names` of its file as well.

    So a misspelling of either stops the load: each name that is used is in `names`, and each of those is used.
    """

    def check(self, value: Any) -> None:
        """Raises ValueError for a text that reads otherwise, or that `names` lacks."""
        Pattern.check(self, value)
        names, used = vocabulary.get() or (frozenset((value,)), set())
        used.add(value)
        if value and value not in names:
            alike = [name for name in sorted(names) if name[:3] == value[:3]] or sorted(names)
            near = ", ".join(alike[:9])
            raise ValueError(f"{value!r} is none of the file's {len(names)} names, such as {near}")


vocabulary: Final[ContextVar[tuple[frozenset[str], set[str]] | None]] = ContextVar("vocabulary", default=None)
"""Of the file that is being read: the names that it may use, and those that it has used."""


class OneOf(Struct, frozen=True):
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


class ReleaseRange(Struct, frozen=True, kw_only=True):
    """A row that stores from one release on and below another."""

    since: Published = OLDEST
    below: Published = NEVER

    def covers(self, version: Version) -> bool:
        """Whether the row stores in `version`."""
        is_begun = self.since is OLDEST or self.since <= version
        return is_begun and (self.below is NEVER or version < self.below)


class Reviewed(Struct, frozen=True, kw_only=True):
    """A file of tables that was compared with every release up to `reviewed`."""

    reviewed: Published
    names: frozenset[str] = frozenset()
    """The `Named` texts of the file, once more."""


class Timeline(Struct, Generic[T], frozen=True):
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


class ByRelease(Struct, Generic[T], frozen=True, eq=False):
    """Fields of a dataclass by release, each with a timeline of its own that names its source; those without one keep
    their defaults. It is itself the key of what was found, and asked often."""

    kind: type[T]
    timelines: Mapping[str, Timeline[Any]]

    def at(self, version: Version) -> T:
        """The dataclass in `version`."""
        found: T = _fields_at(self, version)
        return found


@lru_cache(maxsize=1024)
def _fields_at(rules: ByRelease[Any], version: Version) -> Any:
    return rules.kind(**{name: timeline.at(version) for name, timeline in rules.timelines.items()})
