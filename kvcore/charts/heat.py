"""The matrix of the Explore page: accelerators by tensor parallel size, as a plain dict in Plotly's JSON schema.

Every cell says its figure or its word, so that nothing is shown by colour alone. What fits the wanted requests is
filled and outlined; everything else is only text on a faint ground. The head of the columns is not part of the figure:
it stays in view while the rows scroll (`head_html`), which is why the margins are fixed.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final
from unicodedata import east_asian_width

from kvcore.advice.sweep_cell import Cell
from kvcore.base.numbers import DASH, concurrency_text, count, gib_text, money, rough_requests
from kvcore.base.units import GIB
from kvcore.base.words import Words
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.charts import plotting as draw
from kvcore.charts.matrix import FAILURE_WORDS, VENDOR_NAMES, Row, Target
from kvcore.charts.plotting import DARK_TEXT
from kvcore.planning import Verdict
from kvcore.texts import LABELS

ROW_PIXELS: Final = 34
NAME_LETTERS: Final = 17
"""Letters on one line of a card's name: leaves a phone room for four columns."""
NAME_PIXELS: Final = 136
"""Room for names, left of the cells; the head's grid in style.css has the same."""
EDGE_PIXELS: Final = 4
CELL_LETTERS: Final = 8
"""Letters on one line of a cell on a phone."""
STEPS: Final = ("#E3F1EC", "#BFE3D6", "#93D1BC", "#5FBD9E", "#2BA981", "#009E73")
"""Colours from 1 to 1,000 requests and more, up to the green of the KV cache; dark text is readable on all of them."""
STEP_DECADES: Final = 0.6
TIGHT_GROUND: Final = "#F5E6B8"
FAINT: Final = "rgba(138,138,138,0.09)"
OUTLINE: Final = "#00694D"
OUTLINE_PIXELS: Final = 2
GAP: Final = 0.03
"""The gap between cells, as a share of a cell."""
VENDOR_LINE: Final = "vendor:"
MET: Final = "met"
NOT_MET: Final = "not met"
"""Names of the two traces of bars: cells that fit the wanted requests, and the others."""

REFUSAL_WORDS: Final = LABELS["refusals"]


def cell_word(cell: Cell, t: Words) -> str:
    """The text of a cell: requests at once, or in a word why it does not start."""
    if cell.verdict is None:
        return t(REFUSAL_WORDS.get(cell.refusal, REFUSAL_WORDS["other"]))
    if not cell.starts:
        return t(FAILURE_WORDS[cell.verdict])
    requests = rough_requests(cell.requests)
    return t("{requests} tight", requests=requests) if cell.verdict is Verdict.TIGHT else requests


def cell_sentence(cell: Cell, card: Accelerator, t: Words) -> str:
    """A cell as a full sentence, for the tooltip and for readers of the selection."""
    head = f"{t.card(card.name)} × {cell.gpus or cell.tensor_parallel_size}"
    if cell.verdict is None:
        return f"{head}<br>{cell_word(cell, t)} ({cell.refusal})"
    lines = [head, t("weights {size} per GPU", size=gib_text(cell.weights_gib * GIB))]
    if cell.tokens:
        lines.append(t("KV cache of {tokens} tokens", tokens=count(cell.tokens)))
        lines.append(t("longest request {tokens} tokens", tokens=count(cell.longest_request_tokens)))
    requests = t("{requests} at once", requests=concurrency_text(cell.requests))
    lines.append(requests if cell.starts else cell_word(cell, t))
    return "<br>".join(lines)


def column_names(rows: Sequence[Row], target: Target, t: Words) -> tuple[str, ...]:
    """The column heads of `heat_map`."""
    own = (t("Fewest GPUs"), *((t("Cost per hour, per slot"),) if target.prices else ()))
    return (*own, *(f"TP {cell.tensor_parallel_size}" for cell in rows[0][1])) if rows else own


def head_html(rows: Sequence[Row], target: Target, t: Words) -> str:
    """The column heads as HTML, on the same grid as the figure."""
    names = column_names(rows, target, t)
    cells = "".join(f"<span>{html.escape(name)}</span>" for name in names)
    return f'<div class="kv-matrix-head" style="--columns: {len(names)}" aria-hidden="true"><span></span>{cells}</div>'


def heat_map(rows: Sequence[Row], target: Target, t: Words, *, is_grouped: bool = True) -> draw.Figure:
    """One row for each accelerator, under a line for each vendor; a click selects a cell.

    The columns: the fewest GPUs that store the wanted requests, their cost where there are prices, then one for each
    tensor parallel size.
    """
    columns = len(column_names(rows, target, t))
    lines = _lines(rows, is_grouped)
    by_id = {card.id: card for card, _ in rows}
    named = [line for line in lines if line in by_id]
    vendors = {line: Vendor(line.removeprefix(VENDOR_LINE)) for line in lines if line.startswith(VENDOR_LINE)}
    place = {"xref": "paper", "xanchor": "left", "xshift": -NAME_PIXELS, "yanchor": "middle"}
    bare: draw.Figure = {"showgrid": False, "zeroline": False, "ticks": ""}
    return draw.figure(
        [*_fewest(rows, target, t), *_cells(rows, target, t)] if rows else [],
        ROW_PIXELS * max(len(lines), 1) + 12,
        (NAME_PIXELS, EDGE_PIXELS, 4, 8),
        barmode="overlay",
        bargap=0,
        clickmode="event+select",
        hovermode="closest",
        hoverlabel={"align": "left"},
        annotations=[
            draw.note(0, line, f"<b>{t(VENDOR_NAMES[vendor])}</b>", size=14) | place
            for line, vendor in vendors.items()
        ],
        xaxis=draw.axis(range=[0, columns], showticklabels=False, **bare),
        yaxis=draw.axis(
            tickfont={"size": 12},
            tickvals=named,
            ticktext=short_names([by_id[line] for line in named]),
            type="category",
            categoryorder="array",
            categoryarray=lines,
            range=[len(lines) - 0.5, -0.5],
            **bare,
        ),
    )


def _lines(rows: Sequence[Row], is_grouped: bool) -> list[str]:
    """The categories of the vertical axis: ids of cards, and a line with the vendor's name before its first card."""
    lines: list[str] = []
    for card, _ in rows:
        head = f"{VENDOR_LINE}{card.vendor.value}"
        if is_grouped and head not in lines:
            lines.append(head)
        lines.append(card.id)
    return lines


def short_name(card: Accelerator) -> str:
    """A card's name on at most two short lines.

    Example:
        >>> from kvcore.catalogue import find_accelerator
        >>> short_name(find_accelerator("RTX-PRO-6000-Server-96GB")), short_name(find_accelerator("H100-80GB"))
        ('RTX PRO 6000<br>Blackwell Server', 'H100 SXM5 80GB')
    """
    name = " ".join(card.name.removeprefix("GeForce ").split(" (")[0].split())
    first, *rest = wrap(name, NAME_LETTERS, break_long_words=False, break_on_hyphens=False) or [""]
    return "<br>".join((first, " ".join(rest))) if rest else first


def short_names(cards: Sequence[Accelerator]) -> list[str]:
    """The short names of `cards`; two alike are told apart by the bracket of the long name.

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
    """A long word of a cell, broken at a space: cells are narrow on a phone.

    Chinese has none: its characters are two letters wide, and its last word has two of them.
    """
    if sum(2 if east_asian_width(letter) in "WF" else 1 for letter in word) <= CELL_LETTERS:
        return word
    if not set(word) & set("： "):
        return word if word.isascii() else f"{word[:-2]}<br>{word[-2:]}"
    return word.replace("：", "：<br>") if "：" in word else word.replace(" ", "<br>", 1)


def _fewest(rows: Sequence[Row], target: Target, t: Words) -> Iterator[draw.Figure]:
    """The columns before the sizes: the fewest GPUs of each card, and their cost."""
    smallest = [(card, target.smallest((card, cells))) for card, cells in rows]
    serving = [(card, cell) for card, cell in smallest if cell is not None]
    yield {**_plain_bars(serving, 0, t), "marker": {"color": "rgba(0,0,0,0)"}}
    shared = target.spreads.values()
    yield _texts(
        0,
        [
            (card, DASH if cell is None else f"<b>{cell.gpus}</b>" + (" (EP)" if cell in shared else ""))
            for card, cell in smallest
        ],
    )
    if target.prices:
        costs = [(row[0], target.cost(row)) for row in rows]
        texts = [
            f"{money(cost.per_hour)}<br>{money(cost.per_slot_hour)}" if cost else DASH for _, cost in costs
        ]
        yield _texts(1, [(card, text) for (card, _), text in zip(costs, texts, strict=True)])


def _cells(rows: Sequence[Row], target: Target, t: Words) -> Iterator[draw.Figure]:
    """The cells by size: a trace of bars for those that fit the wanted requests, and one with texts for the others."""
    first = len(column_names((), target, t))
    for index in range(len(rows[0][1])):
        column = [(card, cells[index]) for card, cells in rows]
        for is_met in (True, False):
            part = [(card, cell) for card, cell in column if target.is_met(cell, card) is is_met]
            if not part:
                continue
            texts = [_two_lines(cell_word(cell, t)) for _, cell in part]
            yield {
                **_plain_bars(part, first + index, t),
                "name": f"TP {part[0][1].tensor_parallel_size}",
                "meta": MET if is_met else NOT_MET,
                "text": texts,
                "textposition": "inside" if is_met else "none",
                "insidetextanchor": "middle",
                "constraintext": "none",
                "textangle": 0,
                "textfont": {"size": 12, "color": DARK_TEXT},
                "marker": {
                    "color": [_ground(cell, is_met) for _, cell in part],
                    "line": {"color": OUTLINE, "width": OUTLINE_PIXELS if is_met else 0},
                },
            }
            if not is_met:
                yield _texts(
                    first + index, [(card, text) for (card, _), text in zip(part, texts, strict=True)]
                )


def _plain_bars(cells: Sequence[tuple[Accelerator, Cell]], column: int, t: Words) -> draw.Figure:
    """Bars that fill their cells up to a gap; they look the same when selected."""
    return {
        "type": "bar",
        "orientation": "h",
        "y": [card.id for card, _ in cells],
        "x": [1 - 2 * GAP] * len(cells),
        "base": [column + GAP] * len(cells),
        "width": 1 - 3 * GAP,
        "hovertext": [cell_sentence(cell, card, t) for card, cell in cells],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "customdata": [[card.id, cell.tensor_parallel_size] for card, cell in cells],
        "selected": {"marker": {"opacity": 1}},
        "unselected": {"marker": {"opacity": 1}},
    }


def _texts(column: int, named: Sequence[tuple[Accelerator, str]]) -> draw.Figure:
    """Texts in the theme's own colour: they stand on the page's ground, light or dark."""
    return draw.scatter(
        "text",
        [column + 0.5] * len(named),
        [card.id for card, _ in named],
        text=[text for _, text in named],
        textfont={"size": 12},
        cliponaxis=False,
        selected={"textfont": {}},
        unselected={"textfont": {}},
    )


def _ground(cell: Cell, is_met: bool) -> str:
    if not is_met:
        return FAINT
    step = int(math.log10(max(cell.requests, 1.0)) / STEP_DECADES)
    return TIGHT_GROUND if cell.verdict is Verdict.TIGHT else STEPS[min(step, len(STEPS) - 1)]
