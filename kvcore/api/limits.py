"""The limits of the API: fixed ones, and those that a host sets in the environment of its server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import invalid, out_of_bounds

PREFIX: Final = "KVPLANNER_API"
MIB: Final = 1 << 20
BODY_BYTES: Final[Mapping[str, int]] = {
    "plan": 9 * MIB,
    "batch": 8 * MIB,
    "sweep": MIB,
    "log": 50 * MIB,
    "workload": 50 * MIB,
    "check": 8 * MIB,
    "mcp": 8 * MIB,
}
"""Largest body of each operation; logs may be as large as on the pages."""
MESSAGE_VALUES: Final = 1 << 14
"""Most JSON values in a message to /mcp, which is parsed on the event loop; a log is one value, however long."""
ALL_BODY_BYTES: Final = 160 * MIB
"""Most bytes of all bodies in memory at the same time."""
CLIENT_BODY_BYTES: Final = 100 * MIB
"""Most bytes of one client's bodies: two of the largest."""
CLIENTS: Final = 10_000
"""Clients whose allowances are remembered."""
COSTS: Final[Mapping[str, int]] = {
    "plan": 1,
    "catalogue": 1,
    "batch": 10,
    "sweep": 10,
    "log": 5,
    "workload": 5,
    "check": 5,
    "fields": 1,
    "mcp": 1,
}
"""Cost of an operation, taken off the client's allowance."""
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "RATE": (0.01, 10_000),
    "BURST": (10, 100_000),
    "WORKERS": (1, 64),
    "AT_ONCE": (1, 64),
    "WAIT_SECONDS": (1, 600),
}
_WHOLE: Final = ("workers", "at_once")


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one server."""

    is_on: bool = True
    rate: float = 5.0
    """Allowance that a client regains in a second; a plan costs 1."""
    burst: float = 60.0
    """Largest allowance of a client."""
    workers: int = 3
    longest_line: int = 64
    """Most questions of all clients that wait or are being answered."""
    at_once: int = 16
    """The same of one client."""
    cpu_seconds: float = 20.0
    """CPU time of one answer."""
    answer_seconds: float = 60.0
    """Time of one answer, waiting for the Hub included."""
    wait_seconds: float = 30.0
    """Time that a question waits for a worker."""
    body_seconds: float = 60.0
    """Time for a body to arrive."""
    base: str | None = None
    """Address of the pages, put before every link: "" for links relative to this server, None where there are none."""
    origins: frozenset[str] = frozenset()
    """Sites whose pages may ask, as browsers name them: https://example.org."""

    @classmethod
    def of(cls, environment: Mapping[str, str], *, has_pages: bool = False) -> Settings:
        """The settings of an environment; `has_pages` where the same server has the pages too.

        Raises ScenarioError `invalid-value`.

        Example:
            >>> settings = Settings.of({"KVPLANNER_API_RATE": "2", "KVPLANNER_URL": "https://plan.example.org/"})
            >>> settings.rate, settings.base
            (2.0, 'https://plan.example.org')
        """
        numbers = {
            name.lower(): _number(environment, name) for name in _RANGES if f"{PREFIX}_{name}" in environment
        }
        own: dict[str, Any] = {**numbers} | {name: int(numbers[name]) for name in _WHOLE if name in numbers}
        return cls(
            **own,
            is_on=environment.get(PREFIX, "on") != "off",
            base=environment.get("KVPLANNER_URL", "").rstrip("/") or ("" if has_pages else None),
            origins=_origins(environment),
        )

    def worker_environment(self) -> dict[str, str]:
        """A worker's environment: the server's own, with this package on its path."""
        root = str(Path(__file__).resolve().parents[2])
        others = os.environ.get("PYTHONPATH")
        return {**os.environ, "PYTHONPATH": root if not others else f"{root}{os.pathsep}{others}"}


_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]{1,253}(?::[0-9]{1,5})?")


def _origins(environment: Mapping[str, str]) -> frozenset[str]:
    name = f"{PREFIX}_ORIGINS"
    found = frozenset(filter(None, (one.strip().rstrip("/") for one in environment.get(name, "").split(","))))
    for one in found:
        if _ORIGIN.fullmatch(one) is None:
            raise invalid(
                name, one, "it must be addresses of sites such as https://example.org, apart by commas"
            )
    return found


def _number(environment: Mapping[str, str], name: str) -> float:
    full = f"{PREFIX}_{name}"
    low, high = _RANGES[name]
    try:
        value = float(environment[full])
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise out_of_bounds(full, environment[full], float(low), float(high))
    return value
