"""What a version is watched and loaded with: its metrics (`metrics.toml`), its load generator (`benchmark.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, Literal

from packaging.version import Version

from kvcore.versioned import Pattern, ReleaseRange, Reviewed, Source, TableFile


class MetricRole(StrEnum):
    """What a metric is read for."""

    RUNNING = "running"
    WAITING = "waiting"
    WAITING_BY_REASON = "waiting_by_reason"
    KV_CACHE_USAGE = "kv_cache_usage"
    PREEMPTIONS = "preemptions"
    REQUEST_LATENCY = "request_latency"
    FIRST_TOKEN = "first_token"
    OUTPUT_TOKEN = "output_token"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    PREFIX_CACHE_QUERIES = "prefix_cache_queries"
    PREFIX_CACHE_HITS = "prefix_cache_hits"


class MetricKind(StrEnum):
    """Prometheus metric types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(ReleaseRange):
    """One metric by the name that a scraper sees; a histogram without its suffix."""

    role: MetricRole
    name: Annotated[str, Pattern(r"vllm:[a-z0-9_]+", "a metric of vLLM")]
    kind: MetricKind
    source: Source
    engine: Literal["any", "v0", "v1"] = "any"

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
        return (self.name,)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricTables(Reviewed):
    """metrics.toml."""

    metrics: tuple[Metric, ...]


METRICS: Final = TableFile("kvcore.engine.vllm", "metrics.toml", MetricTables)


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


Flag = Annotated[str, Pattern(r"[a-z][a-z0-9-]*", "a flag without its dashes")]


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkProgram(ReleaseRange):
    """How it is called, and the flags that a command may use, without dashes."""

    words: tuple[str, ...]
    flags: frozenset[Flag]
    source: Source


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkTables(Reviewed):
    """benchmark.toml."""

    programs: tuple[BenchmarkProgram, ...]


BENCHMARK: Final = TableFile("kvcore.engine.vllm", "benchmark.toml", BenchmarkTables)


def benchmark_program(version: Version) -> BenchmarkProgram:
    """The load generator of `version`.

    Example:
        >>> " ".join(benchmark_program(Version("0.33.0")).words)
        'vllm bench serve'
    """
    return next(program for program in BENCHMARK.load().programs if program.covers(version))
