"""Figures as cards, the same on every page."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from kvcore.views.summary import Card


def show(grid: st.delta_generator.DeltaGenerator, cards: Iterable[Card]) -> None:
    """Puts each card into the next cell of `st.grid(…)`."""
    for card in cards:
        grid.cell().metric(
            card.label,
            card.value,
            card.note,
            delta_color="off",
            delta_arrow="off",
            help=card.help or None,
            border=True,
            height="stretch",
        )
