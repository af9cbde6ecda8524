"""Which releases lack a model class: a class came with one release, and may have gone with another."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from packaging.version import Version

from kvcore.engine.rooms import find_engine
from kvcore.errors import CatalogueError, EngineRefusalError

FILE: Final = "architectures.toml"
_OLDEST: Final = Version("0.0")
_NEWEST: Final = Version("9999")
_KEYS: Final = frozenset(("source", "read", "since", "transformers", "gone"))
_GONE_KEYS: Final = frozenset(("first_without", "until", "architectures"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """Releases from `first` to `last` lack a class: it came with `since`, or the last release with it is `until`."""

    first: Version
    last: Version
    since: Version | None = None
    until: Version | None = None

    def covers(self, version: Version) -> bool:
        """Whether `version` surely lacks the class."""
        return self.first <= version <= self.last

    def is_unsure(self, version: Version) -> bool:
        """Whether `version` lacks the class, or comes after the last one that has it in the engine's own words."""
        return version <= self.last and (
            version >= self.first if self.until is None else version > self.until
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Classes:
    """The file: absences by class."""

    absences: Mapping[str, tuple[Absence, ...]]


@cache
def model_classes() -> Classes:
    """All that is known. Raises CatalogueError `invalid-catalogue-entry` for any other shape."""
    return read_model_classes(files("kvcore.engine").joinpath(FILE).read_text("utf-8"))


def read_model_classes(text: str) -> Classes:
    """The classes of a TOML text; raises CatalogueError `invalid-catalogue-entry` for any other shape."""
    raw = tomllib.loads(text)
    if raw.keys() != _KEYS:
        raise _invalid("unknown or missing " + ", ".join(sorted(raw.keys() ^ _KEYS)))
    read = [Version(name) for name in raw["read"]]
    if read != sorted(set(read)):
        raise _invalid("read holds each release once, oldest first")
    earlier = _by_class(raw["transformers"])
    absences: dict[str, list[Absence]] = {}
    for name, since in _by_class(raw["since"]).items():
        last = _before(earlier.pop(name, since), read)
        absences[name] = [Absence(first=_OLDEST, last=last, since=Version(since))]
    if earlier:
        raise _invalid("transformers names a class that since does not: " + ", ".join(sorted(earlier)))
    for row in raw["gone"]:
        for name in row["architectures"]:
            absences.setdefault(name, []).append(_gone(row, read))
    return Classes(absences={name: tuple(rows) for name, rows in absences.items()})


def check_architectures(names: tuple[str, ...], engine: str, version: Version) -> None:
    """Raises EngineRefusalError where `version` surely has none of the model classes `names` of a config.

    `architecture-not-in-release` for the first of them that it does not have yet, `architecture-gone-from-release` for
    one that it has no more.

    Source: vllm/model_executor/models/registry.py:_ModelRegistry._raise_for_unsupported (0.11.0, 0.32.0).
    """
    absence = absence_of(names, engine, version)
    if absence is None:
        return
    facts = {"value": names[0], "version": str(version)}
    if absence.until is not None:
        raise EngineRefusalError(
            "architecture-gone-from-release", field="engine_version", until=str(absence.until), **facts
        )
    raise EngineRefusalError(
        "architecture-not-in-release", field="engine_version", since=str(absence.since), **facts
    )


def absence_of(names: tuple[str, ...], engine: str, version: Version) -> Absence | None:
    """Why `version` has none of `names`, of the first of them; None where it has one, or that is not known.

    Example:
        >>> absence_of(("Qwen3_5ForConditionalGeneration",), "vllm", Version("0.9.2")).since
        <Version('0.17.1')>
        >>> absence_of(("Qwen3_5ForConditionalGeneration",), "vllm", Version("0.19.1"))
    """
    known = model_classes()
    if version < find_engine(engine).refusals.model_classes_since:
        return None
    found = [
        next((absence for absence in known.absences.get(name, ()) if absence.covers(version)), None)
        for name in names
    ]
    return found[0] if found and all(found) else None


def is_surely_there(names: tuple[str, ...], version: Version) -> bool:
    """Whether nothing speaks against a release of vLLM for a config of the classes `names`.

    Example:
        >>> is_surely_there(("BaichuanForCausalLM",), Version("0.23.0"))
        True
        >>> is_surely_there(("BaichuanForCausalLM",), Version("0.24.0"))
        False
    """
    absences = model_classes().absences
    return not names or any(
        not any(absence.is_unsure(version) for absence in absences.get(name, ())) for name in names
    )


def _by_class(table: Mapping[str, list[str]]) -> dict[str, str]:
    """Class -> the release that it is listed under."""
    found: dict[str, str] = {}
    for release, names in table.items():
        for name in names:
            if name in found:
                raise _invalid(f"{name} is listed twice")
            found[name] = release
    return found


def _gone(row: Mapping[str, Any], read: list[Version]) -> Absence:
    if row.keys() - {"back"} != _GONE_KEYS:
        raise _invalid("gone holds " + ", ".join(sorted(_GONE_KEYS)) + " and may hold back")
    first = Version(row["first_without"])
    _before(row["first_without"], read)
    last = _before(row["back"], read) if "back" in row else _NEWEST
    return Absence(first=first, last=last, until=Version(row["until"]))


def _before(release: str, read: list[Version]) -> Version:
    """The read release before that one."""
    version = Version(release)
    if version not in read[1:]:
        raise _invalid(f"{release} is not a release that was read, with one before it")
    return read[read.index(version) - 1]


def _invalid(reason: str) -> CatalogueError:
    return CatalogueError("invalid-catalogue-entry", field=FILE, reason=reason)
