"""The engine's line formats, compiled from data.

A format is the engine's own words with `{figure}` where a number stands. Its literal beginning is looked for as
a plain substring; only there is a pattern tried, one without nested or unbounded repetition. So the time is linear
in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from kvcore.base.errors import CatalogueError
from kvcore.base.units import GIB, KIB, MIB
from kvcore.evidence.log.cleaned import LogText
from kvcore.flags import FLAGS, fields_of
from kvcore.tables import Record, Reviewed, Source, TableFile, one_of

MAX_HITS: Final = 4096
"""Occurrences of one format that are read; a start prints a few for each rank."""
MAX_TRIES: Final = 1 << 17
"""Places of one start at which a format is tried."""
TRY_STEPS: Final = 4
HIT_STEPS: Final = 32
"""Steps of a try, and of a hit with its line and its process."""
SHORTEST_BEGINNING: Final = 5
SURROUNDINGS: Final = (
    *(flag.name for flag in fields_of("surroundings").values()),
    *(f"env.{name}" for name in FLAGS["env"].common),
)
"""What lines say of a machine, by its name in a request."""

Text = Annotated[str, Meta(pattern=r"^[!-~][ -~]{4,600}$")]
"""What an engine prints."""

_NUMBER: Final = r"(-?\d[\d,]{0,18}(?:\.\d{1,8})?)"
_SIZE: Final = r"(-?\d[\d,]{0,18}(?:\.\d{1,8})?(?:[KMGT]i?B|[Bb]ytes|B))"
_KINDS: Final[Mapping[str, str]] = {"number": _NUMBER, "bytes": _NUMBER, "mib": _NUMBER, "size": _SIZE}
_FILLERS: Final[Mapping[str, str]] = {
    "any": ".{0,160}?",
    "word": r"[\w.:+/-]{0,80}?",
    "unit": "(?:GiB|GB|Gib)",
}
_FIELD: Final = re.compile(r"\{(\w{1,40})(?::(\w{1,10}))?\}")
_DIGITS: Final = re.compile(r"[\d.,]{1,16}")
_UNITS: Final[Mapping[str, float]] = {"K": KIB / GIB, "M": MIB / GIB, "G": 1.0, "T": float(KIB)}


class LineFormat(Struct, frozen=True, kw_only=True):
    """One line of the engine: where to look, and its figures."""

    text: str
    beginning: str
    pattern: re.Pattern[str]
    fields: tuple[tuple[str, str], ...]
    """Name and kind of each captured number, in order."""
    ends_line: bool
    """Whether nothing but the end of the line ends its last number."""


class Hit(Struct, frozen=True, kw_only=True):
    """One occurrence of a format: its offset, and its numbers by name."""

    offset: int
    numbers: tuple[tuple[str, float], ...]


class FigureRule(Record, frozen=True, kw_only=True):
    """What is known of a figure before it is read."""

    unit: Literal["", "GiB", "tokens", "requests", "blocks", "ranks", "%"]
    scope: Literal["rank", "engine"]
    worst: Literal["min", "max"]
    """Which of several ranks decides."""
    low: Annotated[float, Meta(ge=-1e15, le=1e15)]
    high: Annotated[float, Meta(ge=-1e15, le=1e15)]
    latest: bool = False
    """Whether it is a setting that one start may change; the last line applies."""


@cache
def compile_format(text: str, ends_line: bool = False) -> LineFormat:
    """A format from the engine's words.

    Raises CatalogueError `invalid-catalogue-entry` for an unknown kind, or a beginning too short to look for.

    Example:
        >>> line = compile_format("Available KV cache memory: {available_kv_gib} GiB")
        >>> line.beginning, line.fields
        ('AvailableKVcachememory:', (('available_kv_gib', 'number'),))
    """
    beginning, *parts = _FIELD.split("".join(text.split()))
    if len(beginning) < SHORTEST_BEGINNING:
        raise CatalogueError("invalid-catalogue-entry", field=text[:80], reason="no literal beginning")
    pattern = re.escape(beginning)
    fields: list[tuple[str, str]] = []
    for name, given, literal in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
        kind = given or "number"
        if name not in _FILLERS:
            if kind not in _KINDS:
                raise CatalogueError(
                    "invalid-catalogue-entry", field=text[:80], reason=f"unknown kind {kind}"
                )
            fields.append((name, kind))
        pattern += (_FILLERS.get(name) or _KINDS[kind]) + re.escape(literal)
    return LineFormat(
        text=text,
        beginning=beginning,
        pattern=re.compile(pattern),
        fields=tuple(fields),
        ends_line=ends_line,
    )


def find_lines(log: LogText, line: LineFormat, start: int, end: int) -> Iterator[Hit]:
    """Every occurrence of a format between two offsets of the log, in order, at most MAX_HITS."""
    hits = 0
    for at in islice(log.occurrences(line.beginning, start, end), MAX_TRIES):
        if hits == MAX_HITS or not log.steps.take(TRY_STEPS):
            return
        match = line.pattern.match(log.text, at, end)
        if match is not None and line.ends_line:
            match = line.pattern.match(log.text, at, min(end, _number_end(log, match.start(match.re.groups))))
        if match is not None:
            hits += 1
            log.steps.take(HIT_STEPS)
            read = zip(line.fields, match.groups(), strict=True)
            yield Hit(offset=at, numbers=tuple((name, _number(text, kind)) for (name, kind), text in read))


def _number_end(log: LogText, offset: int) -> int:
    """Where a number ends that nothing follows: with its line, or with a next line of nothing but its last digits."""
    end = log.line_end(offset)
    following = _DIGITS.fullmatch(log.text, end, log.line_end(end)) if end < len(log.text) else None
    return end if following is None else following.end()


def _number(text: str, kind: str) -> float:
    """The figure in its own unit; sizes come out in GiB."""
    if kind == "size":
        digits = text.rstrip("KMGTiBbytes")
        unit = text[len(digits) :][:1]
        return float(digits.replace(",", "")) * _UNITS.get(unit, 1 / GIB)
    value = float(text.replace(",", ""))
    return value / GIB if kind == "bytes" else value * MIB / GIB if kind == "mib" else value


class LineRow(Record, frozen=True, kw_only=True):
    """The texts of one line, where the engine prints it, and in which versions."""

    texts: tuple[Text, ...]
    source: Source
    ends_line: bool = False

    @property
    def formats(self) -> Iterator[LineFormat]:
        """Its formats."""
        return (compile_format(text, self.ends_line) for text in self.texts)


class SurroundingRow(Record, frozen=True, kw_only=True):
    """Texts that leave these cases of a surrounding; without cases the number behind the text is one, after `words`."""

    texts: tuple[Text, ...]
    field: Annotated[str, one_of(SURROUNDINGS)]
    source: Source
    cases: tuple[str, ...] = ()
    above_ranks: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Only of a start with a larger tensor parallel size."""
    words: Annotated[str, Meta(pattern=r"^[A-Za-z]*$")] = ""

    def __post_init__(self) -> None:
        flag = FLAGS.get(self.field)
        known = ("0", "1") if flag is None else flag.choices
        if set(self.cases) - set(known) or bool(self.cases) is not bool(known):
            raise ValueError(f"cases of {self.field} are some of {', '.join(known)}")
        if any(len(text) < SHORTEST_BEGINNING for text in self.beginnings):
            raise ValueError("a text is too short to look for")

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Its texts as a cleaned log has them."""
        return tuple("".join(text.split()) for text in self.texts)


class FormatTables(Reviewed, frozen=True, kw_only=True):
    """line_formats.toml."""

    figure: Mapping[str, FigureRule]
    line: tuple[LineRow, ...]
    surrounding: tuple[SurroundingRow, ...]

    def __post_init__(self) -> None:
        read = {name for line in self.lines for name, _ in line.fields}
        if odd := sorted(read ^ self.figure.keys()):
            raise ValueError(f"a figure without a line, or in a line without a figure: {', '.join(odd)}")

    @property
    def lines(self) -> tuple[LineFormat, ...]:
        """The formats of all lines."""
        return tuple(one for row in self.line for one in row.formats)


FORMATS: Final = TableFile("kvcore.evidence.log", "line_formats.toml", FormatTables)
