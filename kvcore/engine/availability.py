"""Flags and values that a release does not have yet: its argument parser stops the start."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from packaging.version import Version

from kvcore.errors import CatalogueError, EngineRefusalError
from kvcore.scenario import Scenario

FILE: Final = "availability.toml"
_KEYS: Final = frozenset(("field", "value", "since", "source"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """From which release on a flag takes a value; `value` is a prefix, "" for the flag itself."""

    field: str
    value: str
    since: Version


@cache
def availabilities() -> tuple[Availability, ...]:
    """All that is known. Raises CatalogueError `invalid-catalogue-entry` for a wrong key."""
    rows = tomllib.loads(files("kvcore.engine").joinpath(FILE).read_text("utf-8"))["value"]
    for row in rows:
        if row.keys() != _KEYS:
            raise CatalogueError(
                "invalid-catalogue-entry", field=FILE, reason="field, value, since and source are the keys"
            )
    return tuple(
        Availability(field=row["field"], value=row["value"], since=Version(row["since"])) for row in rows
    )


def check_availability(scenario: Scenario, version: Version) -> None:
    """Raises EngineRefusalError `flag-not-in-release` for a flag or value that the release does not have."""
    asked = {"kv_cache_dtype": scenario.kv_cache_dtype}
    if scenario.max_model_len == -1:
        asked["max_model_len"] = "auto"
    size = scenario.parallel.decode_context_parallel_size
    if size > 1:
        asked["decode_context_parallel_size"] = str(size)
    for known in availabilities():
        given = asked.get(known.field)
        if given is not None and given.startswith(known.value) and version < known.since:
            raise EngineRefusalError(
                "flag-not-in-release",
                field=known.field,
                value=given,
                flag="--" + known.field.replace("_", "-"),
                version=version,
                since=known.since,
            )
