"""Prose as data: the reader of a file of texts, and the words of every coded error.

Each file is a table of entries of one class, a `Prose`, read and checked when the first of them is looked up. A `Text`
is shown to people and therefore translated (`tools/messages.py` collects them); every other value is a name.
"""

import typing
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Generic, NewType, TypeVar

from msgspec import Struct

from kvcore.base.toml_files import file_text, parsed
from kvcore.base.typed import place_and_reason, typed

Text = NewType("Text", str)
"""English that is shown, and looked up in the catalogues of the other languages."""


class TextsError(ValueError):
    """A file of texts is wrong; the message names the file, the entry, the key and the reason."""


class Prose(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of a file of texts."""


class Message(Prose, frozen=True, kw_only=True):
    """A coded error or notice; `{params}` are filled in after translation."""

    text: Text
    """The fault, in lower case."""
    next_step: Text
    """Advice for the person."""


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
        for entry in self.values():
            if isinstance(entry, dict):
                yield from entry.values()
            else:
                hints = typing.get_type_hints(self.kind)
                yield from filter(None, (getattr(entry, name) for name in hints if hints[name] is Text))

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        return self.read(file_text(self.package, self.file))

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
        for name, value in table.items():
            if name == self.key or not (value.strip() if isinstance(value, str) else value):
                raise TextsError(f"{place} {name}: must not be {'there' if name == self.key else 'empty'}")
        try:
            entry: Entry = typed(table if self.key is None else {self.key: key, **table}, self.kind)
        except ValueError as error:
            inner, reason = place_and_reason(error)
            raise TextsError(f"{place}{inner}: {reason}") from None
        return entry


MESSAGES: Final = Texts("kvcore.base", "messages.toml", Message)
"""The words of every coded error and notice, by its code."""
