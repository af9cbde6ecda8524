"""Flags and values that a release does not have yet, or no more: its argument parser stops the start.

What older guides name and no release has today is in `former_flags.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from packaging.version import Version

from kvcore.errors import EngineRefusalError
from kvcore.flags import FLAGS
from kvcore.scenario import Scenario, value_of
from kvcore.versioned import OneOf, Pattern, Published, Reviewed, Source, TableFile

Flag = Annotated[str, Pattern(r"--[a-z][a-z0-9-]*", "a flag with its dashes")]
Field = Annotated[str, OneOf(tuple(FLAGS))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """From which release on a flag takes a value, or does no more; `value` is a prefix, "" for the flag itself."""

    field: Field
    value: str
    since: Published
    source: Source
    is_gone: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Availabilities(Reviewed):
    """availability.toml."""

    value: tuple[Availability, ...]


AVAILABILITY: Final = TableFile("kvcore.engine.vllm", "availability.toml", Availabilities)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerFlag:
    """`seen`: the last version read that has it, None for a flag that never was; `gone`: the first one without."""

    flag: Flag
    gone: Published
    source: Source
    seen: Published | None = None
    replaced_by: Flag | None = None

    def __post_init__(self) -> None:
        if self.seen is not None and self.seen >= self.gone:
            raise ValueError("seen is before gone")


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerFlags(Reviewed):
    """former_flags.toml."""

    flags: tuple[FormerFlag, ...]


FORMER_FLAGS: Final = TableFile("kvcore.engine.vllm", "former_flags.toml", FormerFlags)


def check_availability(scenario: Scenario, version: Version) -> None:
    """Raises EngineRefusalError `flag-not-in-release` for a flag or value that the release does not have yet,
    `flag-gone-from-release` for one that it has no more."""
    asked = _asked(scenario)
    for known in AVAILABILITY.load().value:
        given = asked.get(known.field)
        if given is None or not given.startswith(known.value) or (version < known.since) is known.is_gone:
            continue
        raise EngineRefusalError(
            "flag-gone-from-release" if known.is_gone else "flag-not-in-release",
            field=known.field,
            value=given,
            flag=FLAGS[known.field].spelling,
            version=version,
            since=known.since,
        )


def is_available(field: str, value: str, version: Version) -> bool:
    """Whether the flag takes `value` in `version`.

    Example:
        >>> is_available("mamba_cache_mode", "all", Version("0.31.0"))
        True
        >>> is_available("mamba_cache_mode", "all", Version("0.32.0"))
        False
    """
    return not any(
        known.field == field
        and value.startswith(known.value)
        and (version < known.since) is not known.is_gone
        for known in AVAILABILITY.load().value
    )


def former_flag(flag: str) -> FormerFlag | None:
    """What became of `flag`; None for one that is still there.

    Example:
        >>> former_flag("--swap-space").replaced_by
        '--kv-offloading-size'
    """
    return next((former for former in FORMER_FLAGS.load().flags if former.flag == flag), None)


def _asked(scenario: Scenario) -> dict[str, str]:
    """The flags of `scenario` that some release does not have, where they are set, as text."""
    asked = {}
    for field in dict.fromkeys(known.field for known in AVAILABILITY.load().value):
        flag, value = FLAGS[field], value_of(scenario, field)
        if value is not None and value != flag.default:
            asked[field] = "auto" if flag.auto is not None and value == flag.auto else str(value)
    return asked
