"""Bars of memory as HTML: in their places, escaped, in the colours of the table of parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcore.base.parts import AFTER_POOL, PARTS, UNACCOUNTED, Part
from kvcore.charts.stack import Bar, Note, Piece, Stack, ticks

STYLE = Path(__file__).resolve().parents[1] / "pages" / "ui" / "shared" / "style.css"


def test_pieces_stand_at_their_shares_of_the_axis() -> None:
    piece = Piece(
        look="kv-weights", start=20.0, size=10.0, said=("Weights", "10.0 GiB"), title="Weights 10.0 GiB"
    )
    drawn = Stack(bars=(Bar(pieces=(piece,)),), end=80.0, axis="GiB").html("kv-one", "")
    assert 'class="kv-piece kv-weights" style="--at:0.25;--size:0.125" title="Weights 10.0 GiB"' in drawn
    assert "Weights<br>10.0 GiB" in drawn


@pytest.mark.parametrize("size", [0.0, 2.0**-40, 2.0**40, 1e300])
def test_every_size_has_a_place_inside_the_drawing(size: float) -> None:
    piece, note = Piece(look="kv-missing", start=size / 2, size=size), Note(at=size, text="end")
    drawn = Stack(bars=(Bar(pieces=(piece,), notes=(note,)),), end=size, axis="").html("kv-one", "")
    shares = [float(found) for found in re.findall(r"--(?:at|size):([^;\"]+)", drawn)]
    assert len(shares) > 3
    assert all(0 <= share <= 1 for share in shares)


def test_no_text_is_markup() -> None:
    evil = "<img src=x onerror=alert(1)>\"'&"
    piece = Piece(look="kv-weights", start=0.0, size=1.0, said=(evil,), title=evil)
    bar = Bar(pieces=(piece,), notes=(Note(at=0.0, text=evil),), name=evil)
    drawn = Stack(bars=(bar,), end=1.0, axis=evil, notes=(Note(at=1.0, text=evil),)).html("kv-one", evil)
    assert "<img" not in drawn
    assert drawn.count("&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;") == 7


@pytest.mark.parametrize(
    ("end", "texts"),
    [
        (79.9, ["0", "10", "20", "30", "40", "50", "60", "70"]),
        (142.5, ["0", "20", "40", "60", "80", "100", "120", "140"]),
        (23.8, ["0", "5", "10", "15", "20"]),
        (0.5, ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        (0.0, ["0"]),
        (float("inf"), ["0"]),
    ],
)
def test_ticks_are_round(end: float, texts: list[str]) -> None:
    assert [text for _, text in ticks(end)] == texts


@pytest.mark.parametrize("end", [2.0**power * 1.01 for power in range(-30, 60, 3)])
def test_ticks_are_few_and_on_the_axis(end: float) -> None:
    found = ticks(end)
    assert 4 <= len(found) <= 9
    assert all(0 <= place <= end for place, _ in found)


@pytest.mark.parametrize("part", [*PARTS, UNACCOUNTED, AFTER_POOL])
def test_the_stylesheet_has_the_colours_of_the_parts(part: Part) -> None:
    written = part.color.lower().replace(",", ", ").replace("0.10", "0.1")
    rule = re.search(rf"\n\.kv-{part.name} {{(.*?)}}", STYLE.read_text("utf-8"), re.S)
    assert rule is not None
    shortened = re.sub(r"#(.)\1(.)\2(.)\3$", r"#\1\2\3", written)
    assert written in rule[1] or shortened in rule[1]
