"""Flags of the server that no field of a request stands for: those without effect on memory, and those that are not
planned (`other_flags.toml`)."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Final

from msgspec import Meta

from kvcore.tables import Record, Reviewed, Source, TableFile

FlagName = Annotated[str, Meta(pattern=r"^[A-Za-z][a-z0-9_]*$")]


class Effect(StrEnum):
    """What a flag without a field does to the memory of a card."""

    NONE = "none"
    NOT_PLANNED = "not-planned"
    UNKNOWN = "unknown"
    """No release has it, or nobody has looked."""


class OtherFlags(Record, frozen=True, kw_only=True):
    """Flags of one part of the engine, with underscores."""

    source: Source
    names: tuple[FlagName, ...] = ()
    objects: tuple[FlagName, ...] = ()
    """Those whose value is JSON; their keys may also stand behind a dot."""


class OtherFlagTables(Reviewed, frozen=True, kw_only=True):
    """other_flags.toml."""

    without_effect: tuple[OtherFlags, ...]
    not_planned: tuple[OtherFlags, ...]

    def groups(self) -> Iterator[tuple[Effect, OtherFlags]]:
        """Every row with its effect."""
        yield from ((Effect.NONE, row) for row in self.without_effect)
        yield from ((Effect.NOT_PLANNED, row) for row in self.not_planned)

    def __post_init__(self) -> None:
        names = [name for _, row in self.groups() for name in (*row.names, *row.objects)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{min(twice)} is named twice")


OTHER_FLAGS: Final = TableFile("kvcore.flags", "other_flags.toml", OtherFlagTables)


@cache
def _effects() -> tuple[Mapping[str, Effect], Mapping[str, Effect]]:
    """The effect of every flag, and those of objects."""
    rows = tuple(OTHER_FLAGS.load().groups())
    names = {name: effect for effect, row in rows for name in row.names}
    return names, {name: effect for effect, row in rows for name in row.objects}


def effect_of(name: str) -> Effect:
    """What a flag does to memory, by its name with underscores, dots among them.

    Example:
        >>> [effect_of(name).value for name in ("trust_remote_code", "attention_config_backend", "no_such")]
        ['none', 'not-planned', 'unknown']
    """
    names, objects = _effects()
    if name in names:
        return names[name]
    held = (one for one in objects if name == one or name.startswith(f"{one}_"))
    return objects.get(next(held, ""), Effect.UNKNOWN)
