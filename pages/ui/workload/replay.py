"""The Workload page's replay: the log just read, or random arrivals of a mix, through the engine's own scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from html import escape
from typing import Any, TypeVar

import streamlit as st
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import DASH, concurrency_text, count, share_text, short_number
from kvcore.base.shared_work import PAUSE_SECONDS
from kvcore.base.words import Words
from kvcore.charts.goal_figures import reaching
from kvcore.charts.replay_figures import (
    FIELDS,
    OTHER_ENGINES,
    REPLICAS,
    Compared,
    ReplayFigures,
    block_gib,
    bound_clock,
    comparing,
    hit_texts,
    minute_sentence,
    replay_cards,
    replay_chart,
    replay_figures,
    replay_verdict,
    reuse_chart,
    reuse_sentence,
    time_unit,
)
from kvcore.charts.tier_rows import TierRow, knee_gib, tier_rows
from kvcore.planning import Plan, plan
from kvcore.replay.clock import Clock
from kvcore.replay.reuse import reuse_of
from kvcore.replay.series import Replay, most_rate, replayed, replaying, sped_up, times_carried
from kvcore.replay.settings import settings_of
from kvcore.replay.trace import MINUTE as MINUTE_SECONDS
from kvcore.replay.trace import (
    TraceRequest,
    admitted,
    busiest,
    busiest_minute,
    random_arrivals,
    trace_of,
)
from kvcore.workload.mix import Mix
from kvcore.workload.timeline import Timeline
from pages.ui.shared import elements, net, notes, numbers, state
from pages.ui.shared.numbers import Limits
from pages.ui.workload import clocks, goals, source

T = TypeVar("T")
TRACE, ASKED, DONE = "workload.replay.trace", "workload.replay.asked", "workload.replay.done"
REUSE = "workload.replay.reuse"
RUN, RATE = "replay", "rate"
"""Keys of what was asked for: a run, or a field to compare."""
MINUTE = "workload.replay.minute"
REQUESTS = 1000
"""Requests of random arrivals."""
USUAL = 5000
"""Requests of a longer log that are replayed unless all are asked for."""
MOST_AT_ONCE = 600
"""Requests of the busiest minute that are replayed without being asked for: a moment."""
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
    limit, now = planned.resolved.max_model_len, state.scenario().max_model_len
    if now not in (None, limit):
        said = t("With max_model_len {limit}: with {now} this deployment does not start.", limit=count(limit),
                 now=count(now or 0))  # fmt: skip
        st.text(said)
    try:
        planned = _without_tier(planned, t)
        settings_of(planned)
        trace, factor = _trace(planned, mix, t)
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
        st.button(t("Compare them"), key="workload.replay.compare", on_click=_ask, args=(field,))
    goals.controls(planned, clock, _timeline(), _ask, t)
    asked = st.session_state.pop(ASKED, None)
    key = (goals.worked_on(), len(trace), trace[-1].arrival, clock, factor)
    try:
        if asked == RUN:
            work = _replaying(key, sped_up(trace, factor), planned, clock)
            st.session_state[DONE] = key, RUN, _worked(work, t)
            figures = _figures(st.session_state[DONE][2], factor)
            state.set_page_parameter(figures.parameter, figures.encode())
        elif asked == goals.GOAL:
            goal, routing = goals.asked()
            starts = goals.starts(_timeline())
            reached = reaching(planned, sped_up(trace, factor), goal, clock, routing, starts)
            st.session_state[DONE] = key, goals.GOAL, _worked(reached, t)
            goals.keep(st.session_state[DONE][2])
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
    if done is None or done[0] != key:
        _from_link(t)
        goals.from_link(t)
    else:
        if done[1] == goals.GOAL:
            goals.shown(done[2], planned, t)
            return
        _show(done[1], done[2], trace, factor, t)
        if done[1] == RUN:
            _reuse(planned, trace, t)


def _replaying(
    key: object, trace: tuple[TraceRequest, ...], planned: Plan, clock: Clock
) -> Generator[tuple[int, int], None, tuple[Replay, int]]:
    """A replay, kept at once, and then how many times this traffic one replica carries."""
    settings = settings_of(planned)
    found = yield from replaying(trace, settings, clock)
    st.session_state[DONE] = key, RUN, (found, None)
    return found, (yield from times_carried(trace, settings, clock, found))


@net.callback
def _ask(what: str) -> None:
    st.session_state[ASKED] = what


def _trace(planned: Plan, mix: Mix, t: Words) -> tuple[tuple[TraceRequest, ...], float]:
    """The log just read, at its own times; a mix without times comes at random, at a stated rate."""
    logged = _logged(planned, t)
    grid = st.grid(2, min_column_width=190)
    factor = numbers.of_session(
        grid.cell(), t("Arrival rate ×"), RATE_FACTOR, "workload.replay.factor", 1.0, t, step=0.25
    )
    if logged is None:
        rate = numbers.of_session(
            grid.cell(), t("Requests a second"), PER_SECOND, "workload.replay.per_second", 1.0, t
        )
        drawn = random_arrivals(mix.joint_cells, per_second=float(rate), requests=REQUESTS)
        return drawn, float(factor)
    requests = logged
    if len(requests) > USUAL:
        sizes = (USUAL, len(requests))
        most = grid.selectbox(
            t("Requests to replay"),
            sizes,
            format_func=lambda size: (
                t("the busiest {requests}", requests=count(size))
                if size == USUAL
                else t("all {requests}", requests=count(size))
            ),
            key="workload.replay.most",
        )
        requests = busiest(requests, most)
    return requests, float(factor)


def _logged(planned: Plan, t: Words) -> tuple[TraceRequest, ...] | None:
    """The requests of the log just read that the engine admits; says what they are, or why there are none."""
    trace = _own_trace()
    kept = source.shown_log()
    if trace is None or kept is None:
        st.caption(
            t("This log has no times of arrival: its requests come at random, at the rate that you state.")
            if kept is not None
            else t("Requests of these lengths come at random, at the rate that you state.")
        )
        return None
    limit, timeline = planned.resolved.max_model_len, kept.log.timeline
    found = admitted(trace, limit)
    span = trace[-1].arrival
    unit, name = time_unit(span)
    lines = [
        t(
            "{source}: {requests} {requests:request|requests} over {span} {unit}, {rate} a second, replayed when "
            "they came.",
            source=kept.source, requests=count(len(trace)), span=short_number(span / unit), unit=t(name),
            rate=short_number(len(trace) / max(span, 1.0)),
        )
    ]  # fmt: skip
    if missing := len(trace) - len(found):
        lines.append(
            t(
                "{requests} with a prompt of {limit} tokens or more are left out: the engine refuses them.",
                requests=count(missing), limit=count(limit),
            )
        )  # fmt: skip
    if timeline.untimed:
        lines.append(t("{requests} without a time are left out.", requests=count(timeline.untimed)))
    if timeline.left_out:
        lines.append(t("The log is longer: {requests} more are left out.", requests=count(timeline.left_out)))
    st.text(" ".join(lines))
    return found


def _own_trace() -> tuple[TraceRequest, ...] | None:
    """The requests of the log just read with their times; None where it has no times."""
    timeline = _timeline()
    if timeline is None:
        return None
    held = st.session_state.get(TRACE)
    if held is None or held[0] is not timeline:
        held = st.session_state[TRACE] = timeline, trace_of(timeline)
    found: tuple[TraceRequest, ...] = held[1]
    return found


def _timeline() -> Timeline | None:
    """The arrivals of the log just read; None where it has no times."""
    kept = source.shown_log()
    return None if kept is None or not kept.log.timeline.span_seconds else kept.log.timeline


def has_times() -> bool:
    """Whether the log just read says when its requests came."""
    return _own_trace() is not None


def busiest_minute_line(planned: Plan, t: Words) -> str:
    """What the busiest minute of the log just read takes, replayed; "" where that cannot be said quickly."""
    trace = _own_trace()
    if trace is None:
        return ""
    minute = busiest_minute(admitted(trace, planned.resolved.max_model_len))
    if not 0 < len(minute) <= MOST_AT_ONCE:
        return ""
    key = str(state.params()), len(trace), minute[0].arrival
    held = st.session_state.get(MINUTE)
    if held is None or held[0] != key:
        try:
            settings, clock = settings_of(planned), bound_clock(planned)
            found = replayed(minute, settings, clock)
            said = found, sum(one.arrival > minute[-1].arrival - MINUTE_SECONDS for one in minute)
        except KvPlannerError:
            return ""
        held = st.session_state[MINUTE] = key, said
    found, number = held[1]
    return minute_sentence(found, number, t)


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


def _figures(found: tuple[Replay, int | None], factor: float) -> ReplayFigures:
    is_logged = has_times()
    rate = (
        factor if is_logged else factor * float(numbers.held("workload.replay.per_second", PER_SECOND, 1.0))
    )
    return replay_figures(*found, goals.worked_on(), rate, is_logged=is_logged)


def _from_link(t: Words) -> None:
    """The replay that the link carries, where this visit made none and the rest of the link is as it was."""
    text = state.page_parameter(ReplayFigures.parameter)
    figures = ReplayFigures.decode(text) if text else None
    if figures is None or figures.worked_on != goals.worked_on():
        return
    _totals(figures, t)
    rate = f"{figures.rate:g}"
    st.caption(
        t("From the link: a replay of a log that is not in it, when its requests came, at {factor} × its rate.",
          factor=rate)
        if figures.is_logged
        else t("From the link: a replay of requests that came at random, {rate} a second.", rate=rate)
    )  # fmt: skip


def _totals(figures: ReplayFigures, t: Words) -> None:
    notes.verdict(replay_verdict(figures, t))
    cards = replay_cards(figures, t)
    elements.card_grid(st.grid(len(cards), min_column_width=150), cards)


def _show(what: str, found: Any, trace: tuple[TraceRequest, ...], factor: float, t: Words) -> None:
    shown: dict[str, Callable[[], None]] = {
        RUN: lambda: _replay(found[0], _figures(found, factor), t),
        RATE: lambda: _rate(found, trace, t),
    }
    shown.get(what, lambda: _comparison(what, found, t))()


def _replay(found: Replay, figures: ReplayFigures, t: Words) -> None:
    _totals(figures, t)
    elements.chart(
        replay_chart(found, t),
        "workload_replay",
        t("KV use, running and waiting requests over time; at most {share} of the blocks are in use",
          share=share_text(found.peak_usage, t)),
    )  # fmt: skip
    entries = (
        ("kv-use", t("KV use")),
        ("kv-running", t("requests that run")),
        ("kv-waiting", t("requests that wait")),
        *([("kv-preempted", t("preemptions"))] if found.preemptions else ()),
    )
    items = "".join(
        f'<li><span class="kv-swatch {name}"></span>{escape(text)}</li>' for name, text in entries
    )
    st.html(f'<ul class="kv-legend kv-wrapping">{items}</ul>')


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
    rows = tier_rows(planned, found, engine.usable_blocks)
    said = reuse_sentence(found, engine, gib, t, knee_gib(rows))
    elements.chart(reuse_chart(found, engine, gib, t), "workload_reuse", said)
    st.text(said)
    if rows:
        _tiers(rows, t)


def _without_tier(planned: Plan, t: Words) -> Plan:
    """The plan that is replayed: a tier in CPU memory changes nothing of the pool, and its loads are not replayed."""
    if planned.scenario.kv_offloading_size is None:
        return planned
    flag = "--kv-offloading-size"
    st.caption(
        t("Replayed without {flag}; what a tier finds stands below the hits by cache size.", flag=flag)
    )
    return plan(replace(planned.scenario, kv_offloading_size=None))


def _tiers(rows: tuple[TierRow, ...], t: Words) -> None:
    """What a tier of each size buys, the one at the knee marked."""
    names = (
        "--kv-offloading-size",
        t("Tokens it holds"),
        t("Prefix hit rate"),
        t("Prompt tokens spared"),
        t("Prefill spared, at least"),
    )
    body = "".join(
        f"<tr><td>{elements.two_lines(f'{row.asked_gib:g} GiB', t('knee') if row.is_knee else '')}</td>"
        + elements.figure_cells(
            count(row.tokens),
            share_text(row.hit_rate, t),
            count(row.spared_tokens),
            DASH if row.spared_seconds is None else f"{short_number(row.spared_seconds)} s",
        )
        + "</tr>"
        for row in rows
    )
    elements.table(names, body, "kv-lengths")


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
                     count(found.preemptions), hit_texts(found, t)[0],
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
