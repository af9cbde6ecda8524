"""Stacked bars on one GiB axis as data and as HTML: pieces, lines across them, notes, ticks.

Places are shares of the axis in CSS variables; every text is escaped; colours and patterns are classes of the page's
stylesheet. A note stands where it belongs and inside the drawing at every width; what stands on a piece is seen where
it fits.
"""

from __future__ import annotations

import math
from html import escape
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import plain

MOST_TICKS: Final = 8
MISSING, OVERLAP, UNEXPLAINED = "kv-missing", "kv-overlap", "kv-unexplained"
BUDGET, CAPACITY, SPAN = "kv-budget-line", "kv-capacity-line", "kv-budget-span"


class Piece(Struct, frozen=True, kw_only=True):
    """A stretch of a bar, in GiB. `look` is a class of the stylesheet, `said` is written on it, `title` is its
    tooltip."""

    look: str
    start: float
    size: float
    said: tuple[str, ...] = ()
    title: str = ""

    @property
    def end(self) -> float:
        """The end, in GiB."""
        return self.start + self.size


class Note(Struct, frozen=True, kw_only=True):
    """A text at a place on the axis, in GiB, in a row of its own or on a bar."""

    at: float
    text: str
    is_warning: bool = False


class Bar(Struct, frozen=True, kw_only=True):
    """One bar: its name at the left end, its pieces, the lines across it, and notes on it or above it."""

    pieces: tuple[Piece, ...] = ()
    across: tuple[Piece, ...] = ()
    notes: tuple[Note, ...] = ()
    above: tuple[Note, ...] = ()
    name: str = ""


class Stack(Struct, frozen=True, kw_only=True):
    """Bars on one axis from 0 to `end` GiB, with notes above them."""

    bars: tuple[Bar, ...]
    end: float
    axis: str
    notes: tuple[Note, ...] = ()

    def html(self, name: str, alternative: str) -> str:
        """The drawing as one labelled image: `name` is a class of the stylesheet, `alternative` describes the image.

        Example:
            >>> Stack(bars=(), end=8.0, axis="GiB").html("kv-one", "a < b")[:62]
            '<figure class="kv-stack kv-one" role="img" aria-label="a &lt; '
        """
        names = " kv-named" if any(bar.name for bar in self.bars) else ""
        above = self._rows(self.notes)
        drawn = "".join(self._bar(bar) for bar in self.bars)
        marks = "".join(
            f'<span style="--at:{self._share(tick)}">{escape(text)}</span>' for tick, text in ticks(self.end)
        )
        return (
            f'<figure class="kv-stack {name}{names}" role="img" aria-label="{escape(alternative)}">{above}{drawn}'
            f'<div class="kv-ticks">{marks}</div><div class="kv-axis">{escape(self.axis)}</div></figure>'
        )

    def _share(self, size: float) -> str:
        """A share of the axis, with as many digits as a wide screen has pixels."""
        share = size / self.end if self.end > 0 else 0.0
        return f"{min(max(share, 0.0), 1.0):.5g}"

    def _bar(self, bar: Bar) -> str:
        named = f'<div class="kv-bar-name">{escape(bar.name)}</div>' if bar.name else ""
        inside = "".join(self._piece(piece) for piece in (*bar.pieces, *bar.across))
        notes = "".join(self._note(note) for note in bar.notes)
        return f'{self._rows(bar.above)}{named}<div class="kv-stack-bar">{inside}{notes}</div>'

    def _rows(self, notes: tuple[Note, ...]) -> str:
        """Each note in a row of its own, where it covers nothing at any width."""
        return "".join(f'<div class="kv-note-row">{self._note(note)}</div>' for note in notes)

    def _piece(self, piece: Piece) -> str:
        said = "<br>".join(escape(line) for line in piece.said)
        text = f"<span><b>{said}</b></span>" if said else ""
        title = f' title="{escape(piece.title)}"' if piece.title else ""
        place = f"--at:{self._share(piece.start)};--size:{self._share(piece.size)}"
        return f'<div class="kv-piece {piece.look}" style="{place}"{title}>{text}</div>'

    def _note(self, note: Note) -> str:
        looks = "kv-note" + " kv-warning" * note.is_warning
        return f'<div class="{looks}" style="--at:{self._share(note.at)}">{escape(note.text)}</div>'


def ticks(end: float) -> tuple[tuple[float, str], ...]:
    """At most nine round numbers from 0 to `end` with their texts, 1, 2 or 5 times a power of ten apart.

    Example:
        >>> [text for _, text in ticks(79.9)]
        ['0', '10', '20', '30', '40', '50', '60', '70']
        >>> [text for _, text in ticks(0.27)]
        ['0', '0.05', '0.1', '0.15', '0.2', '0.25']
    """
    if not 0 < end < math.inf:
        return ((0.0, "0"),)
    least = end / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * by for by in (1, 2, 5, 10, 20) if power * by >= least)
    return tuple((index * step, plain(index * step)) for index in range(math.floor(end / step) + 1))
