"""The matrix of the Explore page: accelerators by tensor parallel size, as a plain dict in Plotly's JSON schema.

Every cell says its figure or its word; what does not start is hatched, never told by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvcore.advice.sweep_cell import Cell
from kvcore.catalogue.accelerators import Accelerator
from kvcore.plan import Verdict
from kvcore.present.palette import DARK_TEXT, WARNING_GROUND, WARNING_TEXT
from kvcore.present.text import Words, concurrency_text, count, gib_text, msg
from kvcore.units import GIB

Figure: TypeAlias = dict[str, Any]

ROW_PIXELS: Final = 34
NAME_LETTERS: Final = 17
"""Of one line of a card's name: leaves a phone room for four columns."""
HEAD_PIXELS: Final = 34
CELL_LETTERS: Final = 9
"""Of one line of a cell on a phone."""
STEPS: Final = ("#E3F1EC", "#BFE3D6", "#93D1BC", "#5FBD9E", "#2BA981", "#009E73")
"""From 1 to 1,000 requests and more, light to the green of the KV cache; dark text reads on all of them."""
STEP_DECADES: Final = 0.6

REFUSED: Final = msg("refused")
REFUSAL_WORDS: Final[Mapping[str, str]] = {
    "heads-not-divisible": msg("refused: heads"),
    "size-not-divisible": msg("refused: sizes"),
    "state-heads-not-divisible": msg("refused: heads"),
    "state-blocks-too-few": msg("refused: states"),
    "fp8-kv-unsupported": msg("refused: fp8"),
    "bfloat16-unsupported": msg("refused: dtype"),
    "quantization-mismatch": msg("refused: weights"),
    "quantization-not-in-release": msg("refused: weights"),
    "quantization-not-on-card": msg("refused: weights"),
    "quantization-not-on-platform": msg("refused: weights"),
    "sparse-attention-unsupported": msg("refused: attention"),
    "nvfp4-kv-unsupported": msg("refused: nvfp4"),
    "architecture-not-in-release": msg("refused: release"),
    "architecture-gone-from-release": msg("refused: release"),
    "weight-block-cut": msg("refused: weights"),
}
_WORDS: Final = {
    Verdict.WEIGHTS_DO_NOT_FIT: msg("too big"),
    Verdict.NO_KV_MEMORY: msg("too big"),
    Verdict.CONTEXT_TOO_LONG: msg("too short"),
}


def cell_word(cell: Cell, t: Words) -> str:
    """What a cell says: requests at once, or in a word why none."""
    if cell.verdict is None:
        return t(REFUSAL_WORDS.get(cell.refusal, REFUSED))
    if not cell.starts:
        return t(_WORDS[cell.verdict])
    requests = concurrency_text(cell.max_concurrency)
    return t("{requests} tight", requests=requests) if cell.verdict is Verdict.TIGHT else requests


def cell_sentence(cell: Cell, card: Accelerator, t: Words) -> str:
    """A cell in full, for the pointer and the reader of the page."""
    head = f"{card.name} × {cell.gpus or cell.tensor_parallel_size}"
    if cell.verdict is None:
        return f"{head}<br>{cell_word(cell, t)} ({cell.refusal})"
    lines = [head, t("weights {size} per GPU", size=gib_text(cell.weights_gib * GIB))]
    if cell.tokens:
        lines.append(t("KV cache of {tokens} tokens", tokens=count(cell.tokens)))
        lines.append(t("longest request {tokens} tokens", tokens=count(cell.longest_request_tokens)))
    if cell.starts:
        lines.append(t("{requests} at once", requests=concurrency_text(cell.max_concurrency)))
    else:
        lines.append(cell_word(cell, t))
    return "<br>".join(lines)


def heat_map(rows: Sequence[tuple[Accelerator, Sequence[Cell]]], t: Words) -> Figure:
    """One row for each accelerator, one column for each tensor parallel size; a click selects a cell."""
    columns = [cell.tensor_parallel_size for cell in rows[0][1]] if rows else []
    names = [card.id for card, _ in rows]
    data = [trace for index in range(len(columns)) for trace in _column(index, rows, t)]
    return {
        "data": data,
        "layout": {
            "barmode": "overlay",
            "bargap": 0,
            "height": HEAD_PIXELS + 12 + ROW_PIXELS * len(rows),
            "margin": {"l": 4, "r": 4, "t": HEAD_PIXELS, "b": 8},
            "showlegend": False,
            "dragmode": False,
            "clickmode": "event+select",
            "hoverlabel": {"align": "left"},
            "xaxis": {
                "side": "top",
                "range": [0, len(columns)],
                "tickvals": [index + 0.5 for index in range(len(columns))],
                "ticktext": [f"TP {size}" for size in columns],
                "tickfont": {"size": 13},
                "fixedrange": True,
                "showgrid": False,
                "zeroline": False,
            },
            "yaxis": {
                "fixedrange": True,
                "automargin": True,
                "showgrid": False,
                "ticks": "",
                "tickfont": {"size": 12},
                "tickvals": names,
                "ticktext": short_names([card for card, _ in rows]),
                "type": "category",
                "categoryorder": "array",
                "categoryarray": names,
                "range": [len(names) - 0.5, -0.5],
            },
        },
    }


def short_name(card: Accelerator) -> str:
    """A card's name on at most two short lines.

    Example:
        >>> from kvcore.catalogue import find_accelerator
        >>> short_name(find_accelerator("RTX-PRO-6000-Server-96GB")), short_name(find_accelerator("H100-80GB"))
        ('RTX PRO 6000<br>Blackwell Server', 'H100 SXM5 80GB')
    """
    words = card.name.removeprefix("GeForce ").split(" (")[0].split()
    lines = [""]
    for word in words:
        joined = f"{lines[-1]} {word}".strip()
        if len(joined) <= NAME_LETTERS or not lines[-1] or len(lines) == 2:
            lines[-1] = joined
        else:
            lines.append(word)
    return "<br>".join(lines)


def short_names(cards: Sequence[Accelerator]) -> list[str]:
    """The short names of `cards`; where two would be alike, with what the bracket of the long name says.

    Example:
        >>> from kvcore.catalogue import find_accelerator
        >>> short_names([find_accelerator("Ascend-310P3-24GB"), find_accelerator("Ascend-310P3-Duo-48GB")])
        ['Ascend 310P3<br>Atlas 300I Pro', 'Ascend 310P3<br>Atlas 300I Duo']
    """
    names = [short_name(card) for card in cards]
    return [
        f"{name}<br>{_in_brackets(card)}" if names.count(name) > 1 and _in_brackets(card) else name
        for name, card in zip(names, cards, strict=True)
    ]


def _in_brackets(card: Accelerator) -> str:
    return card.name.partition(" (")[2].rstrip(")").partition(",")[0]


def _two_lines(word: str) -> str:
    """A long word of a cell, broken where it has a space: cells are narrow on a phone."""
    if len(word) <= CELL_LETTERS:
        return word
    return word.replace("：", "：<br>") if "：" in word else word.replace(" ", "<br>", 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """How cells of one kind are drawn: patterns tell them apart where colours do not."""

    pattern: str = ""
    ground: str = ""
    hatch: str = ""
    text: str = DARK_TEXT


_STARTS: Final = _Look()
_TIGHT: Final = _Look(pattern=".", ground="#F5E6B8", hatch="#DCC27A")
_TOO_BIG: Final = _Look(pattern="/", ground=WARNING_GROUND, hatch="#E9B08F", text=WARNING_TEXT)
_TOO_SHORT: Final = _Look(pattern="-", ground=WARNING_GROUND, hatch="#E9B08F", text=WARNING_TEXT)
_REFUSED: Final = _Look(pattern="x", ground="#E4E6E8", hatch="#BFC3C7", text="#3C4146")


def _column(index: int, rows: Sequence[tuple[Accelerator, Sequence[Cell]]], t: Words) -> Iterator[Figure]:
    """The cells of one tensor parallel size: a trace for each look, so that each has one pattern."""
    looks: dict[_Look, list[tuple[Accelerator, Cell]]] = {}
    for card, row in rows:
        looks.setdefault(_look(row[index]), []).append((card, row[index]))
    for look, cells in looks.items():
        marker: Figure = {
            "color": look.ground or [_shade(cell) for _, cell in cells],
            "line": {"color": "rgba(110,110,110,0.55)", "width": 1},
        }
        if look.pattern:
            marker["pattern"] = {
                "shape": look.pattern,
                "fgcolor": look.hatch,
                "bgcolor": look.ground,
                "size": 8,
                "solidity": 0.16,
            }
        yield {
            "type": "bar",
            "orientation": "h",
            "name": f"TP {cells[0][1].tensor_parallel_size}",
            "y": [card.id for card, _ in cells],
            "x": [1] * len(cells),
            "base": [index] * len(cells),
            "width": 1,
            "text": [_two_lines(cell_word(cell, t)) for _, cell in cells],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "constraintext": "none",
            "textangle": 0,
            "textfont": {"size": 12, "color": look.text},
            "hovertext": [cell_sentence(cell, card, t) for card, cell in cells],
            "hovertemplate": "%{hovertext}<extra></extra>",
            "customdata": [[card.id, cell.tensor_parallel_size] for card, cell in cells],
            "marker": marker,
            "selected": {"marker": {"opacity": 1}},
            "unselected": {"marker": {"opacity": 1}},
        }


def _look(cell: Cell) -> _Look:
    match cell.verdict:
        case None:
            return _REFUSED
        case Verdict.FITS:
            return _STARTS
        case Verdict.TIGHT:
            return _TIGHT
        case Verdict.CONTEXT_TOO_LONG:
            return _TOO_SHORT
        case _:
            return _TOO_BIG


def _shade(cell: Cell) -> str:
    step = int(math.log10(max(cell.max_concurrency, 1.0)) / STEP_DECADES)
    return STEPS[min(step, len(STEPS) - 1)]
