"""What a host may set, all in the environment of the server, and the limits that are the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import invalid

PREFIX: Final = "KVPLANNER_API"
MIB: Final = 1 << 20
BODY_BYTES: Final[Mapping[str, int]] = {
    "plan": 8 * MIB,
    "batch": 8 * MIB,
    "sweep": MIB,
    "log": 50 * MIB,
    "workload": 50 * MIB,
    "mcp": 8 * MIB,
}
"""Of one request, by what it asks; a request log or a start-up log as large as the pages take."""
MESSAGE_VALUES: Final = 1 << 14
"""Values of a message to /mcp, which is parsed where the pages are served; a log in it is one, however long."""
ALL_BODY_BYTES: Final = 160 * MIB
"""Of all bodies together that are in memory at the same time."""
CLIENT_BODY_BYTES: Final = 100 * MIB
"""Of those of one client: two of the largest."""
CLIENTS: Final = 10_000
"""Addresses that are remembered."""
COSTS: Final[Mapping[str, int]] = {
    "plan": 1,
    "catalogue": 1,
    "batch": 10,
    "sweep": 10,
    "log": 5,
    "workload": 5,
    "mcp": 1,
}
"""What a question takes of a client's allowance."""
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "RATE": (0.01, 10_000),
    "BURST": (10, 100_000),
    "WORKERS": (1, 64),
    "AT_ONCE": (1, 64),
}
_WHOLE: Final = ("workers", "at_once")


class Settings(Struct, frozen=True, kw_only=True):
    """How one server answers."""

    is_on: bool = True
    rate: float = 5.0
    """Allowance of a client that comes back in a second; a plan takes 1 of it."""
    burst: float = 60.0
    """The most that a client can have."""
    workers: int = 2
    longest_line: int = 64
    """Questions that are being worked on or wait, of all clients."""
    at_once: int = 16
    """Of one client."""
    cpu_seconds: float = 20.0
    """What one answer may compute."""
    answer_seconds: float = 60.0
    """What one answer may take, waiting for the Hub included."""
    body_seconds: float = 60.0
    """What a body may take to arrive."""
    base: str = ""
    """The address of the pages, before every link; relative without."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """The settings of an environment. Raises ScenarioError `invalid-value`.

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
            base=environment.get("KVPLANNER_URL", "").rstrip("/"),
        )

    def worker_environment(self) -> dict[str, str]:
        """What a worker gets: the server's own, and where this package is."""
        root = str(Path(__file__).resolve().parents[2])
        others = os.environ.get("PYTHONPATH")
        return {**os.environ, "PYTHONPATH": root if not others else f"{root}{os.pathsep}{others}"}


def _number(environment: Mapping[str, str], name: str) -> float:
    full = f"{PREFIX}_{name}"
    low, high = _RANGES[name]
    try:
        value = float(environment[full])
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise invalid(full, environment[full], f"it must lie between {low:g} and {high:g}")
    return value
