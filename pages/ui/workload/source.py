"""The workload of this session: read from a log, opened from a sample, or typed. The link carries its percentiles.

A log is untrusted: only counts are kept of it, and only the percentiles leave the session.
"""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from kvcore.workload.histogram import LengthQuantiles
from kvcore.workload.mix import Mix, mix_of_log, mix_of_quantiles
from kvcore.workload.records import RequestLog
from pages.ui.shared import state

PARAMETER = "lengths"
"""Of the link: twelve numbers, see `LengthQuantiles.encode`."""
KEPT = "workload.kept"
TRIED = "limit"
"""Of the link: the limit under the hand."""


class KeptLog(NamedTuple):
    """A request log of this session: where it came from, its counts and its mix."""

    source: str
    log: RequestLog
    mix: Mix


def kept_log() -> KeptLog | None:
    """The log of this session, whether or not the link is still of it."""
    kept: KeptLog | None = st.session_state.get(KEPT)
    return kept


def shown_log() -> KeptLog | None:
    """The log that the link is of."""
    kept = kept_log()
    text = state.page_parameter(PARAMETER)
    return kept if kept is not None and text and kept.mix.quantiles.encode() == text else None


def current() -> Mix | None:
    """The mix of this session: of its log, else of the percentiles in the link; None without any."""
    shown = shown_log()
    if shown is not None:
        return shown.mix
    text = state.page_parameter(PARAMETER)
    return mix_of_quantiles(LengthQuantiles.decode(text)) if text else None


def keep(source: str, log: RequestLog) -> None:
    """Takes a log over, and writes its percentiles into the link."""
    mix = mix_of_log(log)
    st.session_state[KEPT] = KeptLog(source, log, mix)
    show(mix.quantiles)


def show(quantiles: LengthQuantiles) -> None:
    """Makes these percentiles the workload. For callbacks."""
    state.set_page_parameter(TRIED, None)
    state.set_page_parameter(PARAMETER, quantiles.encode())


def clear() -> None:
    """Back to the question. For callbacks."""
    st.session_state.pop(KEPT, None)
    state.set_page_parameter(TRIED, None)
    state.set_page_parameter(PARAMETER, None)
