"""The lines that an engine prints, as data (line_formats.toml), and what they say of the machine.

A format is the engine's own words with `{figure}` in place of a number. Its literal beginning is searched as a plain
substring; a pattern without nested or unbounded repetition is tried only there. The time is linear in the log.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from kvcore.base.errors import CatalogueError
from kvcore.base.units import GIB, KIB, MIB
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.evidence.log.cleaned import LogText
from kvcore.flags import FLAGS, fields_of
from kvcore.scenario import Link
from kvcore.tables import Record, Reviewed, Source, TableFile, one_of

MAX_HITS: Final = 4096
"""Most occurrences of one format that are read; a start prints a few for each rank."""
MAX_TRIES: Final = 1 << 17
"""Most places of one start at which a format is tried."""
TRY_STEPS: Final = 4
HIT_STEPS: Final = 32
"""Steps of one try, and of a match with its line and its process."""
SHORTEST_BEGINNING: Final = 5
MAX_VERSIONS: Final = 16
"""Places at which a version is looked for."""
SURROUNDINGS: Final = (
    *(flag.name for flag in fields_of("surroundings").values()),
    *(f"env.{name}" for name in FLAGS["env"].common),
)
"""Facts about a machine that lines may tell, by their names in a request."""

Text = Annotated[str, Meta(pattern=r"^[!-~][ -~]{4,600}$")]
"""Text that an engine prints."""

_NUMBER: Final = r"(-?\d[\d,]{0,18}(?:\.\d{1,8})?)"
_SIZE: Final = r"(-?\d[\d,]{0,18}(?:\.\d{1,8})?(?:[KMGT]i?B|[Bb]ytes|B))"
_KINDS: Final[Mapping[str, str]] = {
    "number": _NUMBER,
    "bytes": _NUMBER,
    "mib": _NUMBER,
    "gb": _NUMBER,
    "size": _SIZE,
}
_FILLERS: Final[Mapping[str, str]] = {
    "any": ".{0,160}?",
    "word": r"[\w.:+/-]{0,80}?",
    "unit": "(?:GiB|GB|Gib)",
    "count": r"[1-9]\d{0,17}",
}
_FIELD: Final = re.compile(r"\{(\w{1,40})(?::(\w{1,10}))?\}")
_VERSION: Final = re.compile(r"[1-9][0-9]{0,3}(?:\.[0-9]{1,6}){1,3}")
_ON_PCIE: Final = (Interconnect.PCIE, Interconnect.NONE)
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
    """Whether its last number ends only with the line."""


class Hit(Struct, frozen=True, kw_only=True):
    """One match of a format: its offset, and its numbers by name."""

    offset: int
    numbers: tuple[tuple[str, float], ...]


class FigureRule(Record, frozen=True, kw_only=True):
    """A row of line_formats.toml: unit, scope and range of one figure."""

    unit: Literal["", "GiB", "tokens", "requests", "blocks", "ranks", "%"]
    scope: Literal["rank", "engine"]
    worst: Literal["min", "max"]
    """Whether the smallest or the largest of several ranks counts."""
    low: Annotated[float, Meta(ge=-1e15, le=1e15)]
    high: Annotated[float, Meta(ge=-1e15, le=1e15)]
    latest: bool = False
    """Whether the last line counts: a setting that one start may change."""


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
    """End of a number that ends a line: the line's end, or that of a next line that has only its last digits."""
    end = log.line_end(offset)
    following = _DIGITS.fullmatch(log.text, end, log.line_end(end)) if end < len(log.text) else None
    return end if following is None else following.end()


def _number(text: str, kind: str) -> float:
    """The figure in its own unit; sizes in GiB."""
    if kind == "size":
        digits = text.rstrip("KMGTiBbytes")
        unit = text[len(digits) :][:1]
        return float(digits.replace(",", "")) * _UNITS.get(unit, 1 / GIB)
    value = float(text.replace(",", ""))
    if kind == "gb":
        return value * 10**9 / GIB
    return value / GIB if kind == "bytes" else value * MIB / GIB if kind == "mib" else value


class LineRow(Record, frozen=True, kw_only=True):
    """The texts of one line, and where the engine prints it."""

    texts: tuple[Text, ...]
    source: Source
    ends_line: bool = False

    @property
    def formats(self) -> Iterator[LineFormat]:
        """Its formats."""
        return (compile_format(text, self.ends_line) for text in self.texts)


class SurroundingRow(Record, frozen=True, kw_only=True):
    """Texts that leave only these cases of a surrounding; without cases it is `words` and the number that follows."""

    texts: tuple[Text, ...]
    field: Annotated[str, one_of(SURROUNDINGS)]
    source: Source
    cases: tuple[str, ...] = ()
    above_ranks: Annotated[int, Meta(ge=0, le=1024)] = 0
    """The row applies to starts with a larger tensor parallel size."""
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


class LoggedSurrounding(Struct, frozen=True, kw_only=True):
    """The cases of one surrounding that a log leaves possible, and the line that decides."""

    field: str
    """By its name in a request: `surroundings.link`, `env.VLLM_USE_FLASHINFER_SAMPLER`."""
    cases: tuple[str, ...]
    line_number: int
    line: str

    def allows(self, value: str) -> bool:
        """Whether `value` is one of the cases; a driver's version may have fewer digits."""
        is_driver = self.field == "surroundings.driver"
        return value in self.cases or (is_driver and any(case.startswith(value) for case in self.cases))

    def settled(self, card: Accelerator | None) -> str | None:
        """The only case, or the one of two links that `card` has; None where it stays open."""
        if len(self.cases) > 1 and card is not None and self.field == "surroundings.link":
            mine = [
                case for case in self.cases if (case == Link.NVLINK) is not (card.interconnect in _ON_PCIE)
            ]
            return mine[0] if mine else self.cases[0]
        return self.cases[0] if len(self.cases) == 1 else None


def find_surroundings(log: LogText, start: int, end: int, ranks: int) -> tuple[LoggedSurrounding, ...]:
    """The surroundings that the lines between two offsets tell, for a start with `ranks` tensor parallel ranks.

    A row that contradicts the rows above it does not count.

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> log = clean_log("WARNING [interface.py:382] Using 'pin_memory=False' as WSL is detected.")
        >>> find_surroundings(log, 0, len(log.text), 1)[0].cases
        ('wsl',)
    """
    found: dict[str, LoggedSurrounding] = {}
    for row in FORMATS.load().surrounding:
        for at, said in _hits(row, log, start, end) if ranks > row.above_ranks else ():
            before = found.get(row.field)
            cases = tuple(case for case in said if before is None or case in before.cases)
            if cases and (before is None or cases != before.cases):
                found[row.field] = LoggedSurrounding(
                    field=row.field, cases=cases, line_number=log.line_number(at), line=log.line(at)
                )
    return tuple(found.values())


def _hits(row: SurroundingRow, log: LogText, start: int, end: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Offsets of the texts of a row, each with the cases that it leaves."""
    for text in row.beginnings:
        for at in islice(log.occurrences(text, start, end), 1 if row.cases else MAX_VERSIONS):
            version = _VERSION.match(log.text, at + len(text), end)
            if row.cases or version is not None:
                yield at, row.cases or (f"{row.words} {version[0] if version else ''}".strip(),)
