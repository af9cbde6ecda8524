"""Which releases lack a model class: a class came with one release, and may have gone with another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

from packaging.version import Version

from kvcore.engine.rooms import find_engine
from kvcore.errors import EngineRefusalError
from kvcore.versioned import NEVER, OLDEST, Pattern, Published, Reviewed, Source, TableFile

ModelClass = Annotated[str, Pattern(r"[A-Za-z][A-Za-z0-9_]*", "a model class")]


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
class GoneRow:
    """Classes that were dropped: the first read release without them, and the last one with them in its own words."""

    first_without: Published
    until: Published
    architectures: tuple[ModelClass, ...]
    back: Published | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchitectureTables(Reviewed):
    """architectures.toml."""

    source: Source
    read: tuple[Published, ...]
    since: Mapping[Published, tuple[ModelClass, ...]]
    transformers: Mapping[Published, tuple[ModelClass, ...]]
    gone: tuple[GoneRow, ...]

    def __post_init__(self) -> None:
        if list(self.read) != sorted(set(self.read)):
            raise ValueError("read holds each release once, oldest first")
        absences_of(self)


ARCHITECTURES: Final = TableFile("kvcore.engine.vllm", "architectures.toml", ArchitectureTables)


@cache
def known_absences() -> Mapping[str, tuple[Absence, ...]]:
    """The absences of architectures.toml by class."""
    return absences_of(ARCHITECTURES.load())


def absences_of(tables: ArchitectureTables) -> Mapping[str, tuple[Absence, ...]]:
    """Absences by class. Raises ValueError for a class that is listed twice, or not where it has to be."""
    earlier = _by_class(tables.transformers)
    absences: dict[str, list[Absence]] = {}
    for name, since in _by_class(tables.since).items():
        last = _before(earlier.pop(name, since), tables.read)
        absences[name] = [Absence(first=OLDEST, last=last, since=since)]
    if earlier:
        raise ValueError("transformers names a class that since does not: " + ", ".join(sorted(earlier)))
    for row in tables.gone:
        for name in row.architectures:
            absences.setdefault(name, []).append(_gone(row, tables.read))
    return {name: tuple(rows) for name, rows in absences.items()}


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
    if version < find_engine(engine).refusals.model_classes_since:
        return None
    absences = known_absences()
    found = [
        next((absence for absence in absences.get(name, ()) if absence.covers(version)), None)
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
    absences = known_absences()
    return not names or any(
        not any(absence.is_unsure(version) for absence in absences.get(name, ())) for name in names
    )


def _by_class(table: Mapping[Published, tuple[str, ...]]) -> dict[str, Published]:
    """Class -> the release that it is listed under."""
    found: dict[str, Published] = {}
    for release, names in table.items():
        for name in names:
            if name in found:
                raise ValueError(f"{name} is listed twice")
            found[name] = release
    return found


def _gone(row: GoneRow, read: tuple[Published, ...]) -> Absence:
    _before(row.first_without, read)
    last = NEVER if row.back is None else _before(row.back, read)
    return Absence(first=row.first_without, last=last, until=row.until)


def _before(version: Published, read: tuple[Published, ...]) -> Published:
    """The read release before that one."""
    if version not in read[1:]:
        raise ValueError(f"{version} is not a release that was read, with one before it")
    return read[read.index(version) - 1]
