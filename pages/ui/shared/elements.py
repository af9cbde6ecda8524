"""Elements that all pages share: charts from plain dicts, tables, cards, folded parts, downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from types import ModuleType
from typing import Any, Final

import streamlit as st
from plotly.basedatatypes import BaseFigure
from streamlit.delta_generator import DeltaGenerator

from kvcore.charts.summary import Card
from pages.ui.shared import state

CONFIG: Final = {"displaylogo": False, "modeBarButtons": [["toImage"]]}
"""Under the pointer a chart shows a button that saves it as a picture.

Not `responsive`: Streamlit measures its own column and draws the chart again when that changes.
"""
TEMPLATE: Final[dict[str, dict[str, object]]] = {"data": {}, "layout": {}}
"""Empty: Streamlit's own template has 3.7 kB of colours for traces without one, and all of ours have one."""


MIMES: Final = {
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "py": "text/x-python",
    "svg": "image/svg+xml",
}


class _PlainFigure(BaseFigure):  # type: ignore[misc]
    """A figure whose dict is not validated: tests check ours, and validating takes longer than planning."""

    def __init__(self, figure: dict[str, Any]) -> None:
        object.__setattr__(self, "plain", figure)

    def to_dict(self) -> dict[str, Any]:
        """The figure in Streamlit's theme, which the browser writes into the template."""
        return {**self.plain, "layout": {**self.plain["layout"], "template": TEMPLATE}}


def chart(figure: dict[str, Any], key: str, alt: str) -> None:
    """Shows a figure; `alt` describes it to screen readers."""
    st.plotly_chart(_PlainFigure(figure), config=CONFIG, key=key, alt=alt)


def selectable(figure: dict[str, Any], key: str, alt: str, on_select: Callable[[], None]) -> None:
    """Shows a figure whose points can be selected; the callback finds them in the session under `key`."""
    st.plotly_chart(
        _PlainFigure(figure), config=CONFIG, key=key, alt=alt, on_select=on_select, selection_mode="points"
    )


def table_html(head: Iterable[str], body: str, kind: str = "") -> str:
    """A table with rows that are HTML already; `kind` is a class of its own."""
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    own = f" {kind}" if kind else ""
    return f'<div class="kv-table{own}"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def table(head: Iterable[str], body: str, kind: str = "") -> None:
    """Shows such a table on the page."""
    st.html(table_html(head, body, kind))


def figure_cells(*texts: str) -> str:
    """Table cells, each with a figure."""
    return "".join(f'<td class="kv-figure">{escape(text)}</td>' for text in texts)


def two_lines(first: str, second: str) -> str:
    """The content of a cell, with a second, fainter line where it is not empty."""
    return f'{escape(first)}<div class="kv-soft">{escape(second)}</div>' if second else escape(first)


def card_grid(grid: DeltaGenerator, cards: Iterable[Card]) -> None:
    """Puts each card into the next cell of `st.grid(…)`."""
    for card in cards:
        _draw(grid.cell(), card)  # type: ignore[attr-defined]


def card_row(name: str, cards: Iterable[Card]) -> None:
    """Puts the cards into a row of its own, a grid by the stylesheet: half the elements, and nothing is measured."""
    with st.container(key=f"cards_{name}"):
        for card in cards:
            _draw(st, card)


def _draw(place: DeltaGenerator | ModuleType, card: Card) -> None:
    place.metric(
        card.label,
        card.value,
        card.note,
        delta_color="off",
        delta_arrow="off",
        help=card.help or None,
        border=True,
        height="stretch",
    )


def download(
    label: str,
    name: str,
    data: str | bytes | Callable[[], str | bytes],
    *,
    key: str | None = None,
    icon: str | None = None,
    mime: str | None = None,
) -> None:
    """A button that downloads a file without a run of the page; a function as `data` is called for the download."""
    mime = mime or MIMES.get(name.rpartition(".")[2], "text/plain")
    st.download_button(label, data=data, file_name=name, mime=mime, on_click="ignore", key=key, icon=icon)


def fold(label: str, name: str, icon: str | None = None) -> tuple[DeltaGenerator, bool]:
    """An expander, and whether to fill it: from its first opening on, so that text typed into it stays.

    Its label makes it another expander in another language, so whether it is open is kept apart.
    """
    is_open, was_opened = f"{name}.open", f"{name}.opened"
    key = f"{name}.{state.language()}"
    if key not in st.session_state:
        st.session_state[key] = st.session_state.get(is_open, False)
    box = st.expander(label, key=key, icon=icon, on_change="rerun")
    st.session_state[is_open] = bool(box.open)
    return box, _is_opened(box.open, was_opened)


def pair(name: str) -> DeltaGenerator:
    """A row for a field with its slider: the label above both, the slider left of the field, what is refused below."""
    return st.container(key=f"pair_{name}", gap=None)


def other_ways(label: str, key: str, icon: str | None = ":material/add:") -> tuple[DeltaGenerator, bool]:
    """A small popover in the sidebar, and whether to fill it; its key says whether it is open, in any language."""
    box = st.popover(label, icon=icon, type="tertiary", key=key, on_change="rerun")
    return box, _is_opened(box.open, f"{key}.opened")


def _is_opened(is_open: bool | None, name: str) -> bool:
    if is_open:
        st.session_state[name] = True
    return name in st.session_state
