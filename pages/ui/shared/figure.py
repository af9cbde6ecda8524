"""Charts from plain dicts, without Plotly's validation of every property on every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import streamlit as st
from plotly.basedatatypes import BaseFigure

CONFIG: Final = {"displayModeBar": False}
"""Not `responsive`: Streamlit measures its own column and draws the chart again when that changes."""
TEMPLATE: Final = {"data": {}, "layout": {}}
"""Empty: Streamlit's own template has 3.7 kB of colours for traces without one, and all of ours have one."""


class _PlainFigure(BaseFigure):
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
