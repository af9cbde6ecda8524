"""The metrics that a version exports, by what they are read for: `metrics.toml`, read strictly."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from kvcore.engine.versions import NEVER, OLDEST
from kvcore.errors import CatalogueError

FILE: Final = "metrics.toml"
ENGINES: Final = ("any", "v0", "v1")


class MetricKind(StrEnum):
    """Prometheus metric types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric by the name that a scraper sees; a histogram without its suffix."""

    role: str
    name: str
    kind: MetricKind
    source: str
    engine: str = "any"
    since: Version = OLDEST
    below: Version = NEVER

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
        return (self.name,)


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
    for metric in sorted(all_metrics(), key=lambda metric: metric.since):
        if metric.engine in mine and metric.since <= version < metric.below:
            found[metric.role] = metric
    return found


@lru_cache(maxsize=1)
def all_metrics() -> tuple[Metric, ...]:
    """Every known metric of every version."""
    return read_metrics(resources.files("kvcore.engine").joinpath(FILE).read_text("utf-8"))


def read_metrics(text: str) -> tuple[Metric, ...]:
    """Metrics of a TOML text; raises CatalogueError `invalid-catalogue-entry` for any other shape."""
    names = {field.name for field in dataclasses.fields(Metric)}
    found = []
    for row in entries(text, FILE, "metrics"):
        if not set(row) <= names or not {"role", "name", "kind", "source"} <= set(row):
            raise invalid(FILE, f"unknown or missing key in {sorted(row)}")
        values: dict[str, Any] = dict(row)
        if values.get("engine", "any") not in ENGINES:
            raise invalid(FILE, f"engine is one of {', '.join(ENGINES)}")
        try:
            values["kind"] = MetricKind(values["kind"])
            values |= {key: Version(values[key]) for key in ("since", "below") if key in values}
        except (ValueError, InvalidVersion) as error:
            raise invalid(FILE, str(error)) from None
        found.append(Metric(**values))
    return tuple(found)


def entries(text: str, file: str, key: str) -> list[Mapping[str, Any]]:
    """The tables of a file that has nothing but `[[key]]`."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise invalid(file, str(error)) from None
    if set(raw) != {key} or not isinstance(raw[key], list):
        raise invalid(file, f"has nothing but [[{key}]]")
    return [dict(row) for row in raw[key]]


def invalid(file: str, reason: str) -> CatalogueError:
    """The error for a data file that is not as it has to be."""
    return CatalogueError("invalid-catalogue-entry", field=file, reason=reason)
