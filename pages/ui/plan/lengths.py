"""Lengths of the real requests on the Plan page: marks on the curve, and the ways to lengths and targets."""

from __future__ import annotations

import streamlit as st

from kvcore.base.words import Words
from kvcore.charts.curves import LengthMark
from kvcore.planning import Plan
from kvcore.workload.limits import requests_at
from pages.ui.shared import shell, state
from pages.ui.workload import source

PATH = "workload"
TARGETS = "explore"


def chart_marks(plan: Plan) -> tuple[LengthMark, ...]:
    """P50, P95 and P99 of what the requests need, and how many of each length fit at once; none without a workload."""
    mix = source.current()
    if mix is None:
        return ()
    lengths = mix.quantiles.needed.values
    held = requests_at(plan, lengths)
    names = ("P50", "P95", "P99")
    return tuple(LengthMark(*mark) for mark in zip(names, lengths, held, strict=True))


def ways(t: Words) -> None:
    """The links to the Workload and the Explore page, with the scenario."""
    page = shell.page_at(PATH)
    st.page_link(
        page,
        label=t("Which context length do your requests need? Read a request log on the Workload page"),
        icon=":material/straighten:",
        query_params=state.params(),
    )
    st.page_link(
        shell.page_at(TARGETS),
        label=t("How many requests at once do you need? Set a target on the Explore page"),
        icon=":material/group:",
        query_params=state.params(),
    )
