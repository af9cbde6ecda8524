"""What of a link could not be used."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.errors import KvPlannerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """A value of a link that could not be used, and what stands in its place ("" for the default)."""

    field: str
    given: str
    used: str
    error: KvPlannerError
