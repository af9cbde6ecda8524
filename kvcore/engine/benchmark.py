"""The load generator that comes with a version: `benchmark.toml`, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final

from packaging.version import InvalidVersion, Version

from kvcore.engine.metrics import entries, invalid

FILE: Final = "benchmark.toml"
_KEYS: Final = {"since", "words", "flags", "source"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkProgram:
    """How it is called, and the flags that a command may use, without dashes."""

    since: Version
    words: tuple[str, ...]
    flags: frozenset[str]
    source: str


def benchmark_program(version: Version) -> BenchmarkProgram:
    """The load generator of `version`.

    Example:
        >>> " ".join(benchmark_program(Version("0.33.0")).words)
        'vllm bench serve'
    """
    return [program for program in benchmark_programs() if program.since <= version][-1]


@lru_cache(maxsize=1)
def benchmark_programs() -> tuple[BenchmarkProgram, ...]:
    """All known ones, oldest first."""
    return read_programs(resources.files("kvcore.engine").joinpath(FILE).read_text("utf-8"))


def read_programs(text: str) -> tuple[BenchmarkProgram, ...]:
    """Programs of a TOML text; raises CatalogueError `invalid-catalogue-entry` for any other shape."""
    found = []
    for row in entries(text, FILE, "programs"):
        if set(row) != _KEYS:
            raise invalid(FILE, f"unknown or missing key in {sorted(row)}")
        try:
            since = Version(row["since"])
        except InvalidVersion as error:
            raise invalid(FILE, str(error)) from None
        found.append(
            BenchmarkProgram(
                since=since, words=tuple(row["words"]), flags=frozenset(row["flags"]), source=row["source"]
            )
        )
    return tuple(sorted(found, key=lambda program: program.since))
