"""Flags that older guides name and later versions renamed or dropped: `former_flags.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from kvcore.versioned import Pattern, Published, Reviewed, Source, TableFile

Flag = Annotated[str, Pattern(r"--[a-z][a-z0-9-]*", "a flag with its dashes")]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerFlag:
    """`seen`: the last version read that has it, None for a flag that never was; `gone`: the first one without."""

    flag: Flag
    gone: Published
    source: Source
    seen: Published | None = None
    replaced_by: Flag | None = None

    def __post_init__(self) -> None:
        if self.seen is not None and self.seen >= self.gone:
            raise ValueError("seen is before gone")


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerFlags(Reviewed):
    """former_flags.toml."""

    flags: tuple[FormerFlag, ...]


FORMER_FLAGS: Final = TableFile("kvcore.engine.vllm", "former_flags.toml", FormerFlags)


def former_flag(flag: str) -> FormerFlag | None:
    """What became of `flag`; None for one that is still there.

    Example:
        >>> former_flag("--swap-space").replaced_by
        '--kv-offloading-size'
    """
    return next((former for former in FORMER_FLAGS.load().flags if former.flag == flag), None)
