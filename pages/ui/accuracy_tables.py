"""Tables of the Accuracy page. Names and addresses are those of the bundled record, and are escaped all the same."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pandas as pd
import streamlit as st

from kvcore.evidence.accuracy import Accuracy, Check, PublishedStart
from kvcore.present.accuracy import ErrorRow, citation, percent, point_name
from kvcore.present.text import Words


def errors(rows: Sequence[ErrorRow], first: str, t: Words) -> None:
    """Median, ninth decile, bias and coverage, one line a row."""
    head = (
        first,
        t("Starts"),
        t("Median error"),
        t("90 % are within"),
        t("Bias"),
        t("Within 5 %"),
        t("Inside the interval"),
    )
    body = "".join(
        f"<tr><td>{escape(row.label)}</td>"
        + "".join(
            f'<td class="kv-figure">{escape(value)}</td>'
            for value in (row.count, row.median, row.p90, row.signed, row.near, row.inside)
        )
        + "</tr>"
        for row in rows
    )
    header = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    st.html(
        f'<div class="kv-table"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def addresses(record: Accuracy) -> None:
    """Where the other tools are published."""
    st.caption(" · ".join(f"[{peer.name}]({peer.address})" for peer in record.peers))


def sources(starts: Sequence[PublishedStart], check: Check, t: Words) -> None:
    """Every start of a check: measured, predicted, error, and where it was published."""
    shown = [start for start in starts if check in start.points]
    columns = {
        "start": t("Start"),
        "measured": t("Measured"),
        "predicted": t("Predicted"),
        "error": t("Error"),
        "date": t("Date"),
        "source": t("Source"),
        "cited": t("Cited as"),
    }
    rows = [
        {
            "start": point_name(start),
            "measured": start.points[check].measured,
            "predicted": start.points[check].predicted,
            "error": percent(start.points[check].error, signed=True),
            "date": start.date or "",
            "source": start.source,
            "cited": "" if start.source else citation(start, t),
        }
        for start in shown
    ]
    st.dataframe(
        pd.DataFrame(rows, columns=list(columns)),
        hide_index=True,
        key="accuracy.sources",
        column_config={
            **{
                name: st.column_config.NumberColumn(columns[name], format="%.5g")
                for name in ("measured", "predicted")
            },
            **{
                name: st.column_config.TextColumn(columns[name])
                for name in ("start", "error", "date", "cited")
            },
            "source": st.column_config.LinkColumn(columns["source"], width="medium"),
        },
    )
