"""What surrounds a start, off the lines of its log: link, installation, host, driver, and how it samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.evidence.log.cleaned import LogText
from kvcore.evidence.log.line_formats import FORMATS, SurroundingRow
from kvcore.scenario import Link

MAX_VERSIONS: Final = 16
"""Places at which a version is looked for."""
_VERSION: Final = re.compile(r"[1-9][0-9]{0,3}(?:\.[0-9]{1,6}){1,3}")
_ON_PCIE: Final = (Interconnect.PCIE, Interconnect.NONE)


class LoggedSurrounding(Struct, frozen=True, kw_only=True):
    """What the lines of a log leave possible of one surrounding, and the line that says most."""

    field: str
    """By its name in a request: `surroundings.link`, `env.VLLM_USE_FLASHINFER_SAMPLER`."""
    cases: tuple[str, ...]
    line_number: int
    line: str

    def allows(self, value: str) -> bool:
        """Whether `value` is one of its cases; a driver's version also where it is said in fewer digits."""
        is_driver = self.field == "surroundings.driver"
        return value in self.cases or (is_driver and any(case.startswith(value) for case in self.cases))

    def settled(self, card: Accelerator | None) -> str | None:
        """The only case, or of two links the one that such cards have; None where it stays open."""
        if len(self.cases) > 1 and card is not None and self.field == "surroundings.link":
            mine = [
                case for case in self.cases if (case == Link.NVLINK) is not (card.interconnect in _ON_PCIE)
            ]
            return mine[0] if mine else self.cases[0]
        return self.cases[0] if len(self.cases) == 1 else None


def find_surroundings(log: LogText, start: int, end: int, ranks: int) -> tuple[LoggedSurrounding, ...]:
    """What the lines between two offsets say, of a start with that tensor parallel size.

    A row that leaves nothing of what the rows above it leave is not counted.

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
    """Where the texts of a row stand first, and the cases that they leave."""
    for text in row.beginnings:
        for at in islice(log.occurrences(text, start, end), 1 if row.cases else MAX_VERSIONS):
            version = _VERSION.match(log.text, at + len(text), end)
            if row.cases or version is not None:
                yield at, row.cases or (f"{row.words} {version[0] if version else ''}".strip(),)
