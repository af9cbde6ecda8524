"""A goal of latency on the Workload page: how many replicas keep it on these requests, and with which settings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import streamlit as st

from kvcore.base.numbers import DASH, count, short_number
from kvcore.base.words import Words
from kvcore.charts.goal_figures import GoalFigures, Reached, figures_of, goal_cards, goal_report
from kvcore.charts.replay_figures import ReplayFigures
from kvcore.planning import Plan
from kvcore.replay.clock import BoundClock, Clock
from kvcore.replay.goals import Goal
from kvcore.replay.routing import Routing
from kvcore.wire.link_names import LANGUAGE
from kvcore.workload.timeline import Timeline
from pages.ui.shared import elements, numbers, state
from pages.ui.shared.numbers import Limits
from pages.ui.shared.parameters import LARGEST_PRICE

GOAL: Final = GoalFigures.parameter
NOT_WORKED_ON: Final = (GOAL, ReplayFigures.parameter, LANGUAGE)
TTFT: Final = Limits(0.01, 3600, is_whole=False)
TPOT: Final = Limits(0.1, 60_000, is_whole=False)
PRICE: Final = Limits(0, LARGEST_PRICE, is_whole=False)
DEFAULT_TTFT, DEFAULT_TPOT = 2.0, 50.0
EITHER: Final = "either"
ROUTINGS: Final = (EITHER, *Routing)
KEYS: Final = ("workload.goal.ttft", "workload.goal.tpot")
BY_HOUR: Final = "workload.goal.hours"
HOUR: Final = 3600.0
"""A shorter log says one hour, which is the whole."""


def asked() -> tuple[Goal, Routing | None]:
    """The goal in the boxes, and the routing."""
    ttft, tpot = (
        numbers.held(key, limits, default)
        for key, limits, default in zip(KEYS, (TTFT, TPOT), (DEFAULT_TTFT, DEFAULT_TPOT), strict=True)
    )
    routing = st.session_state.get("workload.goal.routing", EITHER)
    return Goal(ttft=float(ttft), tpot=float(tpot) / 1e3), None if routing == EITHER else Routing(routing)


def starts(timeline: Timeline | None) -> float | None:
    """The Unix time at which a log begins whose hours are asked for; None where they are not, or it says no hours."""
    is_asked = st.session_state.get(BY_HOUR, False) and timeline is not None and timeline.span_seconds >= HOUR
    return timeline.starts if is_asked and timeline is not None else None


def controls(
    planned: Plan, clock: Clock, timeline: Timeline | None, ask: Callable[[str], None], t: Words
) -> None:
    """The boxes of a goal, and the button; what cannot be said without a clock."""
    st.markdown(f"**{t('Replicas for a goal of latency')}**")
    if isinstance(clock, BoundClock):
        st.text(
            t("The fastest possible step says nothing of latency: for a goal choose your own rates or a benchmark "
              "above.")
        )  # fmt: skip
        return
    grid = st.grid(4, min_column_width=150)
    numbers.of_session(grid.cell(), t("P95 TTFT under, seconds"), TTFT, KEYS[0], DEFAULT_TTFT, t, step=0.5)
    numbers.of_session(grid.cell(), t("P95 TPOT under, ms"), TPOT, KEYS[1], DEFAULT_TPOT, t, step=5)
    grid.selectbox(
        t("Requests go"),
        ROUTINGS,
        format_func=lambda one: _routing(one, t),
        key="workload.goal.routing",
    )
    numbers.of_session(
        grid.cell(), t("Price of a GPU and hour"), PRICE, "workload.goal.price", _price(planned), t
    )
    if timeline is not None and timeline.starts is not None and timeline.span_seconds >= HOUR:
        st.checkbox(t("And for each hour of the day"), key=BY_HOUR)
    st.button(t("How many replicas?"), key="workload.goal.run", on_click=ask, args=(GOAL,))


def _routing(one: str, t: Words) -> str:
    return {
        EITHER: t("whichever needs fewer"),
        Routing.ROUND_ROBIN: t("to replicas in turn"),
        Routing.LEAST_LOADED: t("to the least loaded"),
        Routing.PREFIX_AWARE: t("to who knows the prefix"),
    }[one]


def _price(planned: Plan) -> float:
    return float(state.page_parameter("prices").get(planned.accelerator.id, 0.0))


def worked_on() -> str:
    """Eight hexadecimal digits of the link that an answer belongs to: all of it but answers and the language."""
    link = sorted((name, value) for name, value in state.params().items() if name not in NOT_WORKED_ON)
    return hashlib.sha256(repr(link).encode()).hexdigest()[:8]


def keep(found: Reached) -> None:
    """Writes an answer into the link."""
    figures = figures_of(found, worked_on())
    state.set_page_parameter(GOAL, None if figures is None else figures.encode())


def from_link(t: Words) -> None:
    """The answer that the link carries, where this visit worked none out and the rest of the link is as it was."""
    text = state.page_parameter(GOAL)
    figures = GoalFigures.decode(text) if text else None
    if figures is None or figures.worked_on != worked_on():
        return
    cards = goal_cards(figures, None, t)
    elements.card_grid(st.grid(len(cards), min_column_width=170), cards)
    st.caption(
        t("From the link: worked out on {requests} requests of a log that is not in it, for P{percent} TTFT under "
          "{ttft} s and TPOT under {tpot} ms.",
          requests=count(figures.requests), percent=f"{figures.percent:g}", ttft=f"{figures.asked_ttft:g}",
          tpot=f"{1e3 * figures.asked_tpot:g}")
    )  # fmt: skip


def shown(found: Reached, planned: Plan, t: Words) -> None:
    """The answer: cards, all settings that were tried, and where to scale out."""
    price = float(numbers.held("workload.goal.price", PRICE, _price(planned)))
    figures = figures_of(found, worked_on())
    if figures is None:
        st.text(t("No setting that was tried keeps this goal, whatever the number of replicas."))
    else:
        cards = goal_cards(figures, price, t)
        elements.card_grid(st.grid(len(cards), min_column_width=170), cards)
    report = goal_report(found, planned, price)
    _table(report["answers"], found.goal.percent, t)
    said = [
        t("{requests} of {all} requests were replayed, those that came in the shortest time.",
          requests=count(found.requests), all=count(found.of_requests))
    ]  # fmt: skip
    if any(one["clock"] == "scaled" for one in report["answers"]):
        said.append(
            t("Rows with another tensor parallel size take your fit as the card's own limits scale it, without the "
              "time that cards talk to each other: measure them before you rely on them.")
        )  # fmt: skip
    if found.best is not None:
        said += [
            t("Scale out above {metric} {value}.", metric=name, value=f"{value:.2g}")
            for name, value in report["scale_out_above"].items()
        ]
    st.caption(" ".join(said))
    if report["hours"]:
        _hours(report["hours"], t)


def _hours(rows: Sequence[dict[str, Any]], t: Words) -> None:
    """Replicas by the hour of the day, for the busiest stretch of each."""
    head = (t("Hour (UTC)"), t("Requests"), t("Busiest, a second"), t("Replicas for this goal"))
    body = "".join(
        "<tr>"
        + elements.figure_cells(
            f"{row['hour_utc']:02}",
            count(row["requests"]),
            short_number(row["busiest_per_second"]),
            str(row["replicas"] or DASH),
        )
        + "</tr>"
        for row in rows
    )
    elements.table(head, body)


def _table(rows: Sequence[dict[str, Any]], percent: float, t: Words) -> None:
    head = (
        "tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", t("Requests go"), t("Engines"), t("GPUs"),
        t("P{percent} TTFT, s", percent=f"{percent:g}"), t("P{percent} TPOT, ms", percent=f"{percent:g}"),
    )  # fmt: skip
    body = ""
    for row in rows:
        ttft, tpot = (_latency(row[f"{name}_seconds"], percent) for name in ("ttft", "tpot"))
        size = f"{row['tensor_parallel_size']}{' *' if row['clock'] == 'scaled' else ''}"
        body += "<tr>" + elements.figure_cells(
            size, str(row["max_num_seqs"]), str(row["max_num_batched_tokens"]), _routing(Routing(row["routing"]), t),
            str(row["engines"] or DASH), str(row["gpus"] or DASH), f"{ttft:.2f}", f"{1e3 * tpot:.1f}",
        ) + "</tr>"  # fmt: skip
    elements.table(head, body)


def _latency(found: object, percent: float) -> float:
    value = found.get(f"p{percent:g}") if isinstance(found, dict) else None
    return float(value) if isinstance(value, int | float) else math.nan
