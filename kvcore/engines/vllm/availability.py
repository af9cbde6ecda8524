"""Contents of a release: flags and their values, metrics (`metrics.toml`), a load generator (`benchmark.toml`).

The argument parser stops the start for a flag or value that it does not have yet, or no more (`availability.toml`).
What older guides name and no release has today is in `former_flags.toml`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.engine.records import FormerFlag, LoadGenerator, Metric
from kvcore.flags import FLAGS, Flag, check_fields
from kvcore.scenario import NEEDED_DRAFTS, Scenario, value_of
from kvcore.tables import Record, Reviewed, Source, TableFile


def values_of(field: str) -> tuple[str, ...]:
    """The words that a flag takes, as far as they are known.

    Example:
        >>> values_of("mamba_cache_mode"), values_of("max_model_len")
        (('all', 'align', 'none'), ('auto',))
    """
    flag = FLAGS[field]
    methods = sorted(NEEDED_DRAFTS) if field == "speculative_config.method" else ()
    return (*flag.choices, *(("auto",) if flag.auto is not None else ()), *methods)


class Availability(Record, frozen=True, kw_only=True):
    """From which release on a flag takes a value, or does no more; `value` is a prefix, "" for the flag itself."""

    field: str
    value: str
    since: Version
    source: Source
    is_gone: bool = False

    def __post_init__(self) -> None:
        parent, _, key = self.field.rpartition(".")
        check_fields((key,), parent)
        known = values_of(self.field)
        if self.value and not any(name.startswith(self.value) for name in known):
            raise ValueError(f"value {self.value!r} begins none of {', '.join(known)}")

    def is_missing_in(self, version: Version) -> bool:
        """Whether `version` does not take it."""
        return (version < self.since) is not self.is_gone


class Availabilities(Reviewed, frozen=True, kw_only=True):
    """availability.toml."""

    value: tuple[Availability, ...]


AVAILABILITY: Final = TableFile("kvcore.engines.vllm", "availability.toml", Availabilities)


class FormerFlags(Reviewed, frozen=True, kw_only=True):
    """former_flags.toml."""

    flags: tuple[FormerFlag, ...]


FORMER_FLAGS: Final = TableFile("kvcore.engines.vllm", "former_flags.toml", FormerFlags)


def check_availability(scenario: Scenario, version: Version) -> None:
    """Raises EngineRefusalError `flag-not-in-release` for a flag or value that the release does not have yet,
    `flag-gone-from-release` for one that it has no more."""
    for known in _missing_in(version):
        given = _asked(scenario, FLAGS[known.field])
        if given is not None and given.startswith(known.value):
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
    missing = _missing_in(version)
    return not any(known.field == field and value.startswith(known.value) for known in missing)


@lru_cache(maxsize=256)
def _missing_in(version: Version) -> tuple[Availability, ...]:
    """The flags and values that a release does not take."""
    return tuple(known for known in AVAILABILITY.load().value if known.is_missing_in(version))


def former_flag(flag: str) -> FormerFlag | None:
    """The fate of `flag`: since when it is gone, and its replacement; None for one that is still there.

    Example:
        >>> former_flag("--swap-space").replaced_by
        '--kv-offloading-size'
    """
    return next((former for former in FORMER_FLAGS.load().flags if former.flag == flag), None)


def _asked(scenario: Scenario, flag: Flag) -> str | None:
    """The value of a flag as text, None where it is not set."""
    value = value_of(scenario, flag.name)
    if value is None or value == flag.default:
        return None
    return "auto" if flag.auto is not None and value == flag.auto else str(value)


class MetricTables(Reviewed, frozen=True, kw_only=True):
    """metrics.toml."""

    metrics: tuple[Metric, ...]


METRICS: Final = TableFile("kvcore.engines.vllm", "metrics.toml", MetricTables)


@lru_cache(maxsize=256)
def exported_metrics(version: Version, is_v0: bool) -> Mapping[str, Metric]:
    """Role -> the metric that `version` exports for it; a role that it has no metric for is absent.

    Example:
        >>> exported_metrics(Version("0.33.0"), False)["kv_cache_usage"].name
        'vllm:kv_cache_usage_perc'
        >>> exported_metrics(Version("0.8.5"), True)["kv_cache_usage"].name
        'vllm:gpu_cache_usage_perc'
    """
    mine = ("any", "v0" if is_v0 else "v1")
    found: dict[str, Metric] = {}
    for metric in sorted(METRICS.load().metrics, key=lambda metric: metric.since):
        if metric.engine in mine and metric.covers(version):
            found[metric.role] = metric
    return found


class BenchmarkTables(Reviewed, frozen=True, kw_only=True):
    """benchmark.toml."""

    programs: tuple[LoadGenerator, ...]


BENCHMARK: Final = TableFile("kvcore.engines.vllm", "benchmark.toml", BenchmarkTables)


def load_generator(version: Version) -> LoadGenerator:
    """The load generator of `version`.

    Example:
        >>> " ".join(load_generator(Version("0.33.0")).words)
        'vllm bench serve'
    """
    return next(program for program in BENCHMARK.load().programs if program.covers(version))
