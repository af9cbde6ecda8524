"""What changes from release to release: TOML files with the code that reads them, checked whole when loaded.

A table is a frozen Struct, and the types of its fields are what a value may be: a StrEnum or a Literal is one of its
members, `Annotated[int, Bounds(1, 64)]` lies between both, `Annotated[str, Pattern(...)]` reads so, a `Published` is
a release of vLLM. A key that no field has and a field without a key are refused. A value that depends on the others
is checked in `__post_init__`, which raises ValueError.

    TableFile("kvcore.engines.vllm", "benchmark.toml", BenchmarkTable).load()

A new kind of value is a branch of `conversion.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec import Struct

from kvcore.base.toml_files import file_text
from kvcore.tables.conversion import convert, read_toml, wrong
from kvcore.tables.kinds import (
    NEVER,
    OLDEST,
    Amount,
    Bounds,
    ByRelease,
    Capability,
    CapabilityNumber,
    Count,
    Decimal,
    Named,
    OneOf,
    Pattern,
    Published,
    ReleaseRange,
    Reviewed,
    Share,
    Source,
    Timeline,
    vocabulary,
)

__all__ = [
    "NEVER",
    "OLDEST",
    "Amount",
    "Bounds",
    "ByRelease",
    "Capability",
    "CapabilityNumber",
    "Count",
    "Decimal",
    "Named",
    "OneOf",
    "Pattern",
    "Published",
    "ReleaseRange",
    "Reviewed",
    "Share",
    "Source",
    "TableFile",
    "Timeline",
    "convert",
    "file_text",
    "read_table",
    "read_toml",
    "wrong",
]

T = TypeVar("T")


class TableFile(Struct, Generic[T], frozen=True, eq=False):
    """A bundled file of tables, read as a Struct. It is itself the key of what was read, and asked for often."""

    package: str
    file: str
    kind: type[T]

    def load(self) -> T:
        """Its tables, read once. Raises TableError `invalid-catalogue-entry` with file, key and what is allowed."""
        found: T = _load(self)
        return found

    def read(self, raw: Mapping[str, Any]) -> T:
        """Tables of the same shape. Raises TableError `invalid-catalogue-entry`."""
        found: T = read_table(raw, self.kind, self.file)
        return found

    def raw(self) -> Mapping[str, Any]:
        """What the file says, unchecked. Raises TableError `invalid-catalogue-entry` for what is no TOML."""
        return read_toml(file_text(self.package, self.file), self.file)


def read_table(raw: Mapping[str, Any], kind: type[T], where: str) -> T:
    """A whole file as `kind`, its `Named` texts those of its `names`. Raises TableError `invalid-catalogue-entry`."""
    names = convert(raw.get("names", []), frozenset[str], f"{where} names")
    used: set[str] = set()
    token = vocabulary.set((names, used))
    try:
        found: T = convert(raw, kind, where)
    finally:
        vocabulary.reset(token)
    if unused := names - used:
        raise wrong(f"{where} names", f"nothing is called {', '.join(sorted(unused))}")
    return found


@cache
def _load(table: TableFile[Any]) -> Any:
    return table.read(table.raw())
