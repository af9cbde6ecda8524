"""Figures as cards, the same on every page."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.charts.summary import Card


def show(grid: DeltaGenerator, cards: Iterable[Card]) -> None:
    """Puts each card into the next cell of `st.grid(…)`."""
    for card in cards:
        _draw(grid.cell(), card)


def row(name: str, cards: Iterable[Card]) -> None:
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
