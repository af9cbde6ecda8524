"""Which requests of a log were asked for: by model, kind, status, any other field, and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvcore.workload.layers import Layer, value_at
from kvcore.workload.requests import Reading, field_name

LONGEST_VALUE: Final = 200
"""Characters of a value that are compared."""


def is_asked(
    record: Mapping[str, Any], layers: Iterable[Layer], reading: Reading, seconds: float | None
) -> bool:
    """Whether a request has the values and the time that `reading` asks for."""
    if reading.since is not None and (seconds is None or seconds < reading.since):
        return False
    if reading.until is not None and (seconds is None or seconds >= reading.until):
        return False
    for field, wanted in reading.only:
        names = getattr(reading.names, field, ()) or (field_name(field),)
        said = value_at(record, field) if "." in field else None
        found = {_shown(said)} if said is not None else set()
        found |= {_shown(layer[name]) for layer in layers for name in names if layer.get(name) is not None}
        start = wanted.removesuffix("*").lower()
        if not any(one.startswith(start) if wanted.endswith("*") else one == start for one in found):
            return False
    return True


def _shown(value: object) -> str:
    """A value as a person writes it."""
    return str(value).strip().lower()[:LONGEST_VALUE]
