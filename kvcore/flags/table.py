"""A TOML file as frozen dataclasses: every value of its field's type, or refused with file, key and what is allowed."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from kvcore.errors import CatalogueError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableFile(Generic[T]):
    """A bundled file of tables, read as a dataclass."""

    package: str
    file: str
    kind: type[T]

    def load(self) -> T:
        """Its tables. Raises CatalogueError `invalid-catalogue-entry`."""
        return self.read(self.raw())

    def read(self, raw: Mapping[str, Any]) -> T:
        """Tables of the same shape. Raises CatalogueError `invalid-catalogue-entry`."""
        found: T = _record(raw, self.kind, self.file)
        return found

    def raw(self) -> dict[str, Any]:
        """What the file says, unchecked."""
        return tomllib.loads(resources.files(self.package).joinpath(self.file).read_text("utf-8"))


def _wrong(where: str, reason: str) -> CatalogueError:
    return CatalogueError("invalid-catalogue-entry", field=where, reason=reason)


def _record(raw: Any, kind: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    if not isinstance(raw, Mapping):
        raise _wrong(where, "it is a table")
    if unknown := sorted(raw.keys() - hints.keys()):
        raise _wrong(where, f"unknown {', '.join(unknown)}; its keys are {', '.join(sorted(hints))}")
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - raw.keys()):
        raise _wrong(where, f"missing {', '.join(missing)}")
    values = {name: _value(value, hints[name], f"{where} {name}") for name, value in raw.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise _wrong(where, str(error)) from None


def _value(raw: Any, kind: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind is object:
        return raw
    if origin is UnionType:
        return _value(raw, get_args(kind)[0], where)
    if origin is tuple:
        if not isinstance(raw, list):
            raise _wrong(where, "it is a list")
        return tuple(_value(item, get_args(kind)[0], where) for item in raw)
    if origin is not None:
        return {name: _value(item, get_args(kind)[1], f"{where} {name}") for name, item in raw.items()}
    if dataclasses.is_dataclass(kind):
        return _record(raw, kind, where)
    if issubclass(kind, StrEnum):
        if raw not in tuple(kind):
            raise _wrong(where, f"{raw!r} is none of {', '.join(kind)}")
        return kind(raw)
    if kind is float and type(raw) is int:
        return float(raw)
    if type(raw) is not kind:
        raise _wrong(where, f"{raw!r} is not {_NAMES[kind]}")
    return raw


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
