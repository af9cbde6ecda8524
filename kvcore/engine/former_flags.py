"""Flags that older guides name and later versions renamed or dropped: `former_flags.toml`, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final

from packaging.version import InvalidVersion, Version

from kvcore.engine.metrics import entries, invalid

FILE: Final = "former_flags.toml"
_KEYS: Final = {"flag", "seen", "gone", "replaced_by", "source"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerFlag:
    """`seen`: the last version read that has it, None for a flag that never was; `gone`: the first one without."""

    flag: str
    seen: Version | None
    gone: Version
    replaced_by: str
    source: str


def former_flag(flag: str) -> FormerFlag | None:
    """What became of `flag`; None for one that is still there.

    Example:
        >>> former_flag("--swap-space").replaced_by
        '--kv-offloading-size'
    """
    return next((former for former in former_flags() if former.flag == flag), None)


@lru_cache(maxsize=1)
def former_flags() -> tuple[FormerFlag, ...]:
    """All known ones."""
    return read_former_flags(resources.files("kvcore.engine").joinpath(FILE).read_text("utf-8"))


def read_former_flags(text: str) -> tuple[FormerFlag, ...]:
    """Flags of a TOML text; raises CatalogueError `invalid-catalogue-entry` for any other shape."""
    found = []
    for row in entries(text, FILE, "flags"):
        if set(row) != _KEYS:
            raise invalid(FILE, f"unknown or missing key in {sorted(row)}")
        try:
            seen, gone = Version(row["seen"]) if row["seen"] else None, Version(row["gone"])
        except InvalidVersion as error:
            raise invalid(FILE, str(error)) from None
        found.append(
            FormerFlag(
                flag=row["flag"], seen=seen, gone=gone, replaced_by=row["replaced_by"], source=row["source"]
            )
        )
    return tuple(found)
