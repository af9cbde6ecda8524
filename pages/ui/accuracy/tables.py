"""Tables of the Accuracy page. Names and addresses of the bundled record are escaped all the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import pandas as pd
import streamlit as st
from msgspec.structs import astuple

from kvcore.base.numbers import error_percent
from kvcore.base.words import Words
from kvcore.charts.accuracy_figures import (
    CoverageRow,
    ErrorRow,
    LeftOutRow,
    SameStartsRow,
    citation,
    fit_text,
    point_name,
    surroundings_text,
)
from kvcore.evidence.accuracy import FITTED, Accuracy, Check, PublishedStart
from pages.ui.shared import elements, frames


def errors(rows: Sequence[ErrorRow], first: str, t: Words) -> None:
    """Median, ninth decile, bias and coverage, a line for each row."""
    head = (
        first,
        t("Starts"),
        t("Median error"),
        t("P90 error"),
        t("Bias"),
        t("Within 5 %"),
        t("Inside the interval"),
    )
    _table(head, map(astuple, rows))


def left_out(rows: Sequence[LeftOutRow], t: Words) -> None:
    """Errors with and without a start's own publication in the fit, a line for each quantity."""
    head = (
        t("Quantity"),
        t("Median, in the fit"),
        t("Median, held out"),
        t("P90, in the fit"),
        t("P90, held out"),
        t("P90, held out (GiB)"),
        t("Inside, held out"),
        t("Starts"),
        t("Single source"),
    )
    _table(head, map(astuple, rows))


def same_starts(rows: Sequence[SameStartsRow], t: Words) -> None:
    """Each other tool next to this planner, on the starts that the tool answered."""
    head = (
        t("Tool"),
        t("Starts"),
        t("Median error"),
        t("KV Planner, held out"),
        t("P90 error"),
        t("KV Planner, held out"),
    )
    _table(head, map(astuple, rows))


def coverage(rows: Sequence[CoverageRow], t: Words) -> None:
    """How often intervals fitted on other publications contain the measured figure, a line for each group."""
    head = (t("Group"), t("Inside the interval"), t("Share inside"), t("Median width"), t("Median error"))
    _table(head, map(astuple, rows))


def stated(rows: Sequence[Sequence[str]], t: Words) -> None:
    """For each surrounding, how many starts state it."""
    _table((t("Surroundings"), t("Stated by the author")), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    body = "".join(
        f"<tr><td>{escape(label)}</td>" + elements.figure_cells(*values) + "</tr>" for label, *values in rows
    )
    elements.table(head, body)


def addresses(record: Accuracy) -> None:
    """The addresses of the other tools."""
    st.caption(" · ".join(f"[{peer.name}]({peer.address})" for peer in record.peers))


def sources(starts: Sequence[PublishedStart], check: Check, t: Words) -> None:
    """Every start of a check: measured, predicted, error, its part in the fit, and where it was published."""
    shown = [start for start in starts if check in start.points]
    fit = {"left_out": t("Same-source data excluded"), "fit": t("In the fit")} if check in FITTED else {}
    columns = {
        "start": t("Start"),
        "measured": t("Measured"),
        "predicted": t("Predicted"),
        "error": t("Error"),
        **fit,
        "surroundings": t("Surroundings stated"),
        "date": t("Date"),
        "source": t("Source"),
        "cited": t("Cited as"),
    }
    rows = [
        {
            "start": point_name(start),
            "measured": start.points[check].measured,
            "predicted": start.points[check].predicted,
            "error": error_percent(start.points[check].error, t, signed=True),
            "left_out": None if (left := start.points[check].held_out) is None else left.predicted,
            "fit": fit_text(start.points[check], t),
            "surroundings": surroundings_text(start, t),
            "date": start.date or "",
            "source": start.source,
            "cited": "" if start.source else citation(start, t),
        }
        for start in shown
    ]
    frames.show(
        pd.DataFrame(rows, columns=list(columns)),
        key="accuracy.sources",
        labels=columns,
        formats=dict.fromkeys(("measured", "predicted", "left_out"), "%.5g"),
        links=("source",),
    )
