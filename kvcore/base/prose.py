"""Prose as data: the strict reader of a file of texts, and the words of every coded error.

Each file is a table of entries that share one class, read strictly when the first of them is looked up. A `Text` is
shown to people and therefore translated (`tools/messages.py` collects them); every other value is a name.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Generic, NewType, TypeVar

from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from kvcore.base.toml_files import file_text, parsed

Text = NewType("Text", str)
"""English that is shown, and looked up in the catalogues of the other languages."""


class TextsError(ValueError):
    """A file of texts is wrong; the message names the file, the entry, the key, and what it may be."""


class Message(Struct, frozen=True, kw_only=True):
    """A coded error or notice; `{params}` are filled in after translation."""

    text: Text
    """What is wrong, lower case."""
    next_step: Text
    """What the person can do."""


Entry = TypeVar("Entry")


class Texts(Mapping[str, Entry], Generic[Entry]):
    """The entries of one file of `package` by key, in its order; `key` is the field of the class that repeats the key.

    Example:
        >>> MESSAGES["missing-field"].next_step
        'add it'
    """

    def __init__(self, package: str, file: str, kind: type[Entry], *, key: str | None = None) -> None:
        self.file, self.kind, self.key, self.package = file, kind, key, package

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def shown(self) -> Iterator[Text]:
        """Every text of the file, in its order."""
        hints = typing.get_type_hints(self.kind)
        texts = (getattr(entry, name) for entry in self.values() for name in hints if hints[name] is Text)
        return filter(None, texts)

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        text = file_text(self.package, self.file)
        return self.read(text)

    def read(self, text: str) -> dict[str, Entry]:
        """The entries of a file's `text`. Raises TextsError by file, entry and key."""
        try:
            tables = parsed(text)
        except ValueError as error:
            raise TextsError(f"{self.file}: {error}") from None
        return {key: self._entry(key, table) for key, table in tables.items()}

    def _entry(self, key: str, table: Any) -> Entry:
        place = f"{self.file}: [{key}]"
        if not isinstance(table, dict):
            raise TextsError(f"{place} must be a table")
        given = table if self.key is None else {self.key: key, **table}
        known: dict[str, FieldInfo] = {field.name: field for field in fields(self.kind)}  # type: ignore[arg-type]
        if unknown := sorted(table.keys() - (known.keys() - {self.key})):
            raise TextsError(f"{place} {unknown[0]}: no such key; known are {', '.join(known)}")
        for name, field in known.items():
            if name not in given and field.required:
                raise TextsError(f"{place} {name}: missing")
        hints = typing.get_type_hints(self.kind)
        return self.kind(
            **{name: text_value(f"{place} {name}", hints[name], value) for name, value in given.items()}
        )


def text_value(place: str, hint: Any, value: Any) -> Any:
    """`value` as `hint` wants it: a text, a name, one of the values of an enum, or several of them."""
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list) or not value:
            raise TextsError(f"{place}: must be a list")
        return tuple(text_value(place, typing.get_args(hint)[0], one) for one in value)
    if not isinstance(value, str) or not value.strip():
        raise TextsError(f"{place}: must be a text")
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if value not in list(hint):
            raise TextsError(f"{place}: {value!r} is none of {', '.join(hint)}")
        return hint(value)
    return value


MESSAGES: Final = Texts("kvcore.base", "messages.toml", Message)
"""The words of every coded error and notice, by its code."""
