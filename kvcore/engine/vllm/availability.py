"""Flags and values that a release does not have yet, or no more: its argument parser stops the start.

What older guides name and no release has today is in `former_flags.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from packaging.version import Version

from kvcore.errors import EngineRefusalError
from kvcore.scenario import AUTO, Scenario
from kvcore.versioned import Pattern, Published, Reviewed, Source, TableFile

Flag = Annotated[str, Pattern(r"--[a-z][a-z0-9-]*", "a flag with its dashes")]
Field = Literal[
    "max_model_len", "kv_cache_dtype", "decode_context_parallel_size", "mamba_cache_mode", "mamba_block_size",
    "mamba_cache_dtype", "mamba_ssm_cache_dtype", "max_cudagraph_capture_size", "cudagraph_mode",
]  # fmt: skip
_PLAIN: Final = ("mamba_cache_mode", "mamba_block_size", "mamba_cache_dtype", "mamba_ssm_cache_dtype",
                 "max_cudagraph_capture_size", "cudagraph_mode")  # fmt: skip
_IN_COMPILATION_CONFIG: Final = frozenset(("cudagraph_mode",))


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
            flag=flag_name(known.field),
            version=version,
            since=known.since,
        )


def flag_name(field: str) -> str:
    """What a command says for a field.

    Example:
        >>> flag_name("max_model_len"), flag_name("cudagraph_mode")
        ('--max-model-len', '--compilation-config cudagraph_mode')
    """
    if field in _IN_COMPILATION_CONFIG:
        return f"--compilation-config {field}"
    return "--" + field.replace("_", "-")


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
    """The flags of `scenario` that some release does not have, as text."""
    asked = {"kv_cache_dtype": scenario.kv_cache_dtype}
    if scenario.max_model_len == -1:
        asked["max_model_len"] = "auto"
    size = scenario.parallel.decode_context_parallel_size
    if size > 1:
        asked["decode_context_parallel_size"] = str(size)
    for field in _PLAIN:
        value = getattr(scenario, field)
        if value not in (None, AUTO):
            asked[field] = str(value)
    return asked
