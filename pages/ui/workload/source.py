"""The workload of this session: read from a log, opened from a sample, or typed. The link carries its bins.

A log is untrusted: only counts are kept of it, and only the bins of the link leave the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from kvcore.workload.mix import Mix, mix_of_quantiles
from kvcore.workload.prefixes import PrefixReport
from kvcore.workload.records import RequestLog
from kvcore.workload.traffic import LengthQuantiles, unpacked
from pages.ui.shared import net, state

TYPED, TRAFFIC = "lengths", "traffic"
"""Page parameters: the twelve numbers of typed percentiles, and the bins of a log (`Traffic.for_link`)."""
KEPT, OPENED = "workload.kept", "workload.opened"
COLUMNS = "workload.columns"
LOG_TYPES = ("jsonl", "ndjson", "json", "csv", "tsv", "log", "txt", "gz", "zst", "parquet")
TRIED = "limit"
"""The page parameter of the tried limit."""


class KeptLog(NamedTuple):
    """A request log of this session: its source, its counts, and its mix as in the link."""

    source: str
    log: RequestLog
    mix: Mix
    packed: str
    tokenizer: str = ""
    """The tokenizer file that counted its texts; "" for none."""
    prefixes: PrefixReport | None = None
    """What breaks the prefix cache, where its texts say so."""


def kept_log() -> KeptLog | None:
    """The log of this session, whether or not the link still shows it."""
    kept: KeptLog | None = st.session_state.get(KEPT)
    return kept


def shown_log() -> KeptLog | None:
    """The log that the link shows."""
    kept = kept_log()
    return kept if kept is not None and kept.packed == state.page_parameter(TRAFFIC) else None


def current() -> Mix | None:
    """The mix of this session: its log's, else the link's; None without one."""
    shown = shown_log()
    if shown is not None:
        return shown.mix
    packed = state.page_parameter(TRAFFIC)
    if packed:
        return _opened(packed)
    text = state.page_parameter(TYPED)
    return mix_of_quantiles(LengthQuantiles.decode(text)) if text else None


def _opened(packed: str) -> Mix:
    opened: tuple[str, Mix] | None = st.session_state.get(OPENED)
    if opened is None or opened[0] != packed:
        opened = st.session_state[OPENED] = (packed, Mix(traffic=unpacked(packed)))
    return opened[1]


def keep(source: str, log: RequestLog, tokenizer: str = "", prefixes: PrefixReport | None = None) -> None:
    """Keeps a log, and writes it into the link in few enough bins to fit: the page shows those."""
    traffic = log.traffic.for_link()
    kept = KeptLog(source, log, Mix(traffic=traffic), traffic.packed(), tokenizer, prefixes)
    st.session_state[KEPT] = kept
    show_log(kept.packed)


@net.callback
def show_log(packed: str) -> None:
    """Makes this log the workload. For callbacks."""
    clear_link()
    state.set_page_parameter(TRAFFIC, packed)


def show(quantiles: LengthQuantiles) -> None:
    """Makes these percentiles the workload. For callbacks."""
    clear_link()
    state.set_page_parameter(TYPED, quantiles.encode())


def columns_by_hand() -> tuple[tuple[str, str], ...]:
    """The columns that a person chose for the file now read: pairs of a field and a name."""
    found: tuple[tuple[str, str], ...] = st.session_state.get(COLUMNS, ())
    return found


def let_go(uploads: Sequence[Any]) -> None:
    """Removes these files from the server's memory: their counts are enough."""
    context = get_script_run_ctx()
    if context is not None:
        for upload in uploads:
            context.uploaded_file_mgr.remove_file(context.session_id, upload.file_id)  # type: ignore[attr-defined]


def clear_link() -> None:
    """Takes the workload out of the link."""
    for name in (TRIED, TYPED, TRAFFIC):
        state.set_page_parameter(name, None)


@net.callback
def clear() -> None:
    """Removes the workload and asks again. For callbacks."""
    for name in (KEPT, COLUMNS):
        st.session_state.pop(name, None)
    clear_link()
