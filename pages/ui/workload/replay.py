"""The Workload page's replay: a trace, or random arrivals of the mix, through the engine's own scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import DASH, concurrency_text, count, share_text, short_number
from kvcore.base.shared_work import PAUSE_SECONDS
from kvcore.base.words import Words
from kvcore.charts.replay_figures import (
    FIELDS,
    OTHER_ENGINES,
    REPLICAS,
    Compared,
    block_gib,
    comparing,
    replay_cards,
    replay_chart,
    reuse_chart,
    reuse_sentence,
)
from kvcore.planning import Plan
from kvcore.replay.reuse import reuse_of
from kvcore.replay.series import Replay, most_rate, replaying, sped_up
from kvcore.replay.settings import settings_of
from kvcore.replay.trace import TraceRequest, random_arrivals, read_trace
from kvcore.workload.mix import Mix
from pages.ui.shared import elements, labels, net, notes, numbers, state
from pages.ui.shared.numbers import Limits
from pages.ui.workload import clocks

T = TypeVar("T")
TRACE, ASKED, DONE = "workload.replay.trace", "workload.replay.asked", "workload.replay.done"
REUSE = "workload.replay.reuse"
RUN, RATE = "replay", "rate"
"""Keys of what was asked for: a run, or a field to compare."""
TRACE_TYPES = ("jsonl", "json", "csv")
LARGEST_TRACE_MIB = 50
"""The limit of `.streamlit/config.toml`."""
REQUESTS = 1000
"""Requests of random arrivals."""
RATE_FACTOR = Limits(0.01, 1000, is_whole=False)
PER_SECOND = Limits(0.01, 10_000, is_whole=False)
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)


def panel(planned: Plan, mix: Mix, t: Words) -> None:
    """The choice of a replay, and its result."""
    st.subheader(t("Replay"), anchor=False)
    st.caption(
        t(
            "Requests go through vLLM's own scheduler and block pool, step by step: what runs, what waits, and when "
            "growing answers preempt others."
        )
    )
    try:
        settings_of(planned)
        trace, factor = _trace(mix, t)
        clock = clocks.chosen(planned, t)
    except KvPlannerError as error:
        notes.problem(t("This cannot be replayed"), error, t)
        return
    if clock is None:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.button(
            t("Replay"),
            key="workload.replay.run",
            type="primary",
            icon=":material/play_arrow:",
            on_click=_ask,
            args=(RUN,),
        )
        st.button(
            t("Find the rate at which preemption begins"),
            key="workload.replay.rate",
            on_click=_ask,
            args=(RATE,),
        )
        field = st.selectbox(
            t("Same requests over"),
            FIELDS,
            format_func=lambda name: t("replicas") if name == REPLICAS else name,
            key="workload.replay.field",
            width=220,
        )
        st.button(t("Compare"), key="workload.replay.compare", on_click=_ask, args=(field,))
    asked = st.session_state.pop(ASKED, None)
    key = (str(state.params()), len(trace), trace[-1].arrival, clock, factor)
    try:
        if asked == RUN:
            work = replaying(sped_up(trace, factor), settings_of(planned), clock)
            st.session_state[DONE] = key, RUN, _worked(work, t)
        elif asked == RATE:
            rising = most_rate(trace, settings_of(planned), clock, FACTORS)
            st.session_state[DONE] = key, RATE, _worked(rising, t)
        elif asked is not None:
            st.session_state[DONE] = (
                key,
                asked,
                _worked(comparing(planned, sped_up(trace, factor), clock, asked), t),
            )
    except KvPlannerError as error:
        notes.problem(t("This cannot be replayed"), error, t)
        return
    done = st.session_state.get(DONE)
    if done is not None and done[0] == key:
        _show(done[1], done[2], trace, t)
        if done[1] == RUN:
            _reuse(planned, trace, t)


@net.callback
def _ask(what: str) -> None:
    st.session_state[ASKED] = what


def _trace(mix: Mix, t: Words) -> tuple[tuple[TraceRequest, ...], float]:
    upload = st.file_uploader(
        labels.upload(
            t(
                "A trace with arrival times (JSON lines or CSV); without one, requests of your mix come at random"
            ),
            TRACE_TYPES,
            t,
            LARGEST_TRACE_MIB,
        ),
        type=[*TRACE_TYPES],
        max_upload_size=LARGEST_TRACE_MIB,
        key="workload.replay.upload",
    )
    grid = st.grid(2, min_column_width=190)
    factor = numbers.of_session(
        grid.cell(), t("Arrival rate ×"), RATE_FACTOR, "workload.replay.factor", 1.0, t, step=0.25
    )
    if upload is not None:
        kept = st.session_state.get(TRACE)
        if kept is None or kept[0] != upload.file_id:
            kept = upload.file_id, read_trace(upload)
            st.session_state[TRACE] = kept
        return kept[1], float(factor)
    rate = numbers.of_session(
        grid.cell(), t("Requests a second"), PER_SECOND, "workload.replay.per_second", 1.0, t
    )
    return random_arrivals(mix.joint_cells, per_second=float(rate), requests=REQUESTS), float(factor)


def _worked(work: Generator[tuple[int, int], None, T], t: Words) -> T:
    """Runs the work in slices; a press on Cancel ends this run of the page."""
    place = st.empty()
    with place.container():
        bar = st.progress(0.0, t("Replaying"))
        st.button(t("Cancel"), key="workload.replay.cancel", icon=":material/close:")
    while True:
        try:
            ended, total = next(work)
        except StopIteration as stopped:
            place.empty()
            found: T = stopped.value
            return found
        said = t(
            "Replaying: {ended} of {total} {total:request|requests}", ended=count(ended), total=count(total)
        )
        bar.progress(min(1.0, ended / total), said)
        time.sleep(PAUSE_SECONDS)


def _show(what: str, found: Any, trace: tuple[TraceRequest, ...], t: Words) -> None:
    shown: dict[str, Callable[[], None]] = {
        RUN: lambda: _replay(found, t),
        RATE: lambda: _rate(found, trace, t),
    }
    shown.get(what, lambda: _comparison(what, found, t))()


def _replay(found: Replay, t: Words) -> None:
    figures = replay_cards(found, t)
    elements.card_grid(st.grid(len(figures), min_column_width=150), figures)
    elements.chart(
        replay_chart(found, t),
        "workload_replay",
        t("KV use, running and waiting requests over time; at most {share} of the blocks are in use",
          share=share_text(found.peak_usage, t)),
    )  # fmt: skip
    st.caption(t("Blue: KV use. Green: running. Orange, dashed: waiting. Crosses: preemptions."))


def _reuse(planned: Plan, trace: tuple[TraceRequest, ...], t: Words) -> None:
    """Prefix hits by cache size, where requests share anything."""
    engine, gib = settings_of(planned), block_gib(planned)
    if engine.groups:
        st.caption(t("Hits by cache size are known only where all layers share one group of full attention."))
        return
    kept = st.session_state.get(REUSE)
    if kept is None or kept[0] is not trace or kept[1] != engine.block_size:
        kept = trace, engine.block_size, reuse_of(trace, engine.block_size)
        st.session_state[REUSE] = kept
    found = kept[2]
    if not found.distances:
        return
    st.markdown(f"**{t('Prefix hits by cache size')}**")
    said = reuse_sentence(found, engine, gib, t)
    elements.chart(reuse_chart(found, engine, gib, t), "workload_reuse", said)
    st.text(said)


def _rate(found: float | None, trace: tuple[TraceRequest, ...], t: Words) -> None:
    seconds = max(trace[-1].arrival, 1e-9)
    if found is None:
        st.text(t("Even at a quarter of this rate requests are preempted."))
        return
    st.text(
        t("Up to {factor} × this rate, {rate} requests a second, nothing is preempted.", factor=f"{found:g}",
          rate=short_number(found * len(trace) / seconds))
    )  # fmt: skip


def _comparison(field: str, rows: Compared, t: Words) -> None:
    head = (
        t("replicas") if field == REPLICAS else field,
        t("KV use at most"),
        t("Running on average, per replica"),
        t("Preemptions"),
        t("Prefix hit rate"),
        t("Seconds"),
    )
    body = ""
    for name, found in rows:
        if isinstance(found, KvPlannerError):
            cells = (name, t.error(found), DASH, DASH, DASH, DASH)
        else:
            cells = (name, share_text(found.peak_usage, t), concurrency_text(found.mean_running),
                     count(found.preemptions), share_text(found.hit_rate, t) if found.has_looked_up else DASH,
                     f"{found.seconds:,.0f}")  # fmt: skip
        body += "<tr>" + elements.figure_cells(*cells) + "</tr>"
    elements.table(head, body)
    if field == REPLICAS:
        st.caption(
            t("Replicas take the requests in turn, so that each has to store a shared prefix for itself.")
        )
    elif field in OTHER_ENGINES:
        st.caption(
            t(
                "A benchmark says nothing of another engine: these rows take your own rates, else the fastest possible."
            )
        )
