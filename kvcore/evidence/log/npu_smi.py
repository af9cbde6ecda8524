"""The table of `npu-smi info`: memory in use on each chip, and the chips with a process.

A killed process frees its memory some seconds later; until then a chip has memory in use and no process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from kvcore.base.errors import Notice
from kvcore.base.units import KIB
from kvcore.catalogue.accelerators import Vendor, load_accelerators
from kvcore.evidence.log.cleaned import LogText

HEAD: Final = "|AICore(%)Memory-Usage(MB)"
MAX_LINES: Final = 512
"""Longest table: a machine has a few dozen chips at most, each with a few lines and processes."""
LONGEST_LINE: Final = 400
LINE_STEPS: Final = 8
LEAST_TAKEN_GIB: Final = 0.5
"""Least memory that counts as in use: the driver's own varies by less."""
UNKNOWN_DRIVER_SHARE: Final = 0.07
"""The driver's share of the memory of a chip of unknown size. Source: accelerators.toml, what Ascend drivers keep."""

_CHIP: Final = re.compile(
    r"\| {0,8}(\d{1,3})(?: {1,12}(\d{1,4}))? {0,40}\| {0,8}[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d {0,12}\|"
    r"[ \d./]{1,120}?(\d{1,7}) {0,8}/ {0,8}(\d{1,7}) {0,12}\|"
)
_CARD: Final = re.compile(r"\| {0,8}(\d{1,3}) {1,12}(?:Ascend)?\d{3}[0-9A-Z_-]{0,12} {0,24}\|")
_PROCESS: Final = re.compile(r"\| {0,8}(\d{1,3}) {1,12}(\d{1,3}) {0,24}\| {0,8}\d{1,9} {0,24}\|")
_PROCESSES: Final = "Process id"


class Chip(Struct, frozen=True, kw_only=True):
    """One chip of the table, in MiB."""

    card: str
    chip: str
    used_mib: int
    total_mib: int
    has_process: bool
    line_number: int

    @property
    def taken_gib(self) -> float:
        """Memory in use beyond the driver's own, in GiB; the driver's is the total less what torch sees of such a chip.

        Example:
            >>> chip = Chip(card="0", chip="0", used_mib=34120, total_mib=65536, has_process=False, line_number=1)
            >>> chip.taken_gib
            30.29
        """
        total = self.total_mib / KIB
        seen = (card.memory_gib for card in load_accelerators() if card.vendor is Vendor.HUAWEI)
        most = max((memory for memory in seen if memory < total), default=0.0)
        own = total - most if most > total / 2 else UNKNOWN_DRIVER_SHARE * total
        return round(max(0.0, self.used_mib / KIB - own), 2)


def read_chips(log: LogText, start: int, end: int) -> tuple[Chip, ...]:
    """The chips of the last table between two offsets of a log, empty without one."""
    at = log.rfind(HEAD, start, end)
    if at < 0:
        return ()
    first = log.line_index(at) + 1
    lines = log.lines[first : first + MAX_LINES]
    found = list(_chips(lines, first, log))
    return tuple(found)


def _chips(lines: Sequence[str], first: int, log: LogText) -> Iterator[Chip]:
    split = next((index for index, line in enumerate(lines) if _PROCESSES in line[:LONGEST_LINE]), len(lines))
    busy = {
        (match[1], match[2])
        for line in lines[split:]
        if log.steps.take(LINE_STEPS) and (match := _PROCESS.search(line[:LONGEST_LINE]))
    }
    card = ""
    for number, line in enumerate(lines[:split], start=first + 1):
        if not log.steps.take(LINE_STEPS):
            return
        text = line[:LONGEST_LINE]
        if (chip := _CHIP.search(text)) is not None:
            yield Chip(
                card=card or chip[1],
                chip=chip[1],
                used_mib=int(chip[3]),
                total_mib=int(chip[4]),
                has_process=(card or chip[1], chip[1]) in busy,
                line_number=number,
            )
        elif (head := _CARD.search(text)) is not None:
            card = head[1]


def fullest(chips: Sequence[Chip]) -> Chip | None:
    """The chip with the most memory in use; None where all are free."""
    chip = max(chips, key=lambda one: one.taken_gib, default=None)
    return chip if chip is not None and chip.taken_gib >= LEAST_TAKEN_GIB else None


def chip_notices(chips: Sequence[Chip]) -> tuple[Notice, ...]:
    """`npu-memory-held` for chips without a process, else `npu-memory-taken`; none where all are free."""
    taken = [chip for chip in chips if chip.taken_gib >= LEAST_TAKEN_GIB]
    held = [chip for chip in taken if not chip.has_process]
    worst = fullest(held or taken)
    if worst is None:
        return ()
    params = {
        "chips": ", ".join(dict.fromkeys(one.card for one in held or taken)),
        "taken": f"{worst.taken_gib:.1f}",
        "used": str(worst.used_mib),
        "total": str(worst.total_mib),
        "line": str(worst.line_number),
    }
    return (Notice(code="npu-memory-held" if held else "npu-memory-taken", params=params),)
