"""The load generator that comes with a version: `benchmark.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from packaging.version import Version

from kvcore.versioned import Pattern, ReleaseRange, Reviewed, Source, TableFile

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
