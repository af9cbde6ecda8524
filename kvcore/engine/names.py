"""What an engine calls the settings that a page shows, and settings that it alone has."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class OwnName(Struct, frozen=True, kw_only=True):
    """A field of a request as an engine with names of its own calls it. Texts are English, and translated on a page."""

    spelling: str
    """The flag of its command."""
    label: str = ""
    """The label of the control where the usual one says something else."""
    help: str = ""
    """What it means to this engine."""


class OwnArgument(Struct, frozen=True, kw_only=True):
    """An argument that no field of a request stands for, and the control that sets it."""

    name: str
    """Its name in `server_args`."""
    label: str
    help: str
    kind: Literal["choice", "whole", "share", "switch"]
    choices: tuple[str, ...] = ()
    largest: int = 1 << 31
