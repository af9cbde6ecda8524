"""Tables that people sort, search and save: pandas frames, all in one look. The grid's own CSV is that same frame."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import pandas as pd
import streamlit as st

from kvcore.base.numbers import DASH


def show(
    table: pd.DataFrame,
    *,
    key: str | None = None,
    labels: Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
    links: Collection[str] = (),
    height: int | Literal["auto"] = "auto",
    alt: str | None = None,
    on_select: Callable[[], None] | None = None,
) -> None:
    """Shows `table`; `labels` are the heads of columns whose names are not texts for people.

    Numbers have the separators of the reader's language, or the format that `formats` gives; the columns `links` hold
    addresses. With `on_select` a row can be selected, which the callback finds in the session under `key`.
    """
    selection: dict[str, Any] = {}
    if on_select is not None:
        selection = {"on_select": on_select, "selection_mode": "single-row"}
    said, own = labels or {}, formats or {}
    columns = {
        name: _column(table[name], said.get(name, str(name)), own.get(name), is_link=name in links)
        for name in table.columns
    }
    st.dataframe(
        table,
        hide_index=True,
        placeholder=DASH,
        key=key,
        height=height,
        alt=alt,
        column_config=columns,
        **selection,
    )


def _column(values: pd.Series, label: str, number_format: str | None, *, is_link: bool) -> Any:
    if is_link:
        return st.column_config.LinkColumn(label, width="medium")
    if number_format or pd.api.types.is_numeric_dtype(values):
        return st.column_config.NumberColumn(label, format=number_format or "localized")
    return st.column_config.TextColumn(label)
