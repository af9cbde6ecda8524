"""The Workload page with a workload: the sentence, the histogram with a limit to move, the table of limits."""

from __future__ import annotations

import math
from functools import partial
from html import escape
from types import MappingProxyType
from typing import TypeAlias

import streamlit as st
from msgspec.structs import replace
from streamlit.delta_generator import DeltaGenerator

from kvcore.advice.fixes import Fix, fix_with
from kvcore.base.numbers import count, share_text, short_tokens
from kvcore.base.units import round_up
from kvcore.base.words import Words, listed, sentences
from kvcore.charts.length_histogram import length_histogram, marked_limits
from kvcore.charts.summary import Outcome, Sentence
from kvcore.charts.workload_summary import (
    choice_rows,
    choices_csv,
    histogram_csv,
    left_out_note,
    mix_sentence,
    sentence,
    target_sentence,
)
from kvcore.controls.offers import nearest_below
from kvcore.evidence.carry import carried_over
from kvcore.planning import Plan
from kvcore.workload.histogram import MAX_LENGTH
from kvcore.workload.limits import LimitChoice, limit_choice, limit_choices
from kvcore.workload.mix import ROUND_TO, Mix
from pages.ui.shared import elements, net, notes, numbers, shell, state, undo
from pages.ui.workload import source
from pages.ui.workload.source import TRIED

Choices: TypeAlias = MappingProxyType[int, LimitChoice]
LONGEST_LIMIT = round_up(MAX_LENGTH, ROUND_TO)
"""The length of the longest request that is counted."""
FIELD, SLIDER = "workload.limit", "workload.limit.slider"


def tried(mix: Mix) -> int:
    """The limit that is tried, at first the recommended one."""
    chosen: int = state.page_parameter(TRIED) or mix.recommended_max_model_len
    return chosen


def planned_choices(plan: Plan, mix: Mix, limit: int) -> Choices:
    """The planned limits of the table, by their tokens."""
    return MappingProxyType({choice.limit_tokens: choice for choice in limit_choices(plan, mix, limit)})


def answer(plan: Plan, mix: Mix, choices: Choices, t: Words) -> DeltaGenerator:
    """The sentence, and the button that takes the recommended length; a place between them for one more line."""
    wanted, now = mix.recommended_max_model_len, plan.resolved.max_model_len
    recommended, present = choices[wanted], choices[now]
    notes.scenario_line(plan, t)
    said = sentence(mix, recommended, present, t)
    target = target_sentence(present if present.starts else recommended, t)
    texts = (
        t("{sentence}.", sentence=said.text),
        mix_sentence(recommended, present, t),
        "" if target is None else target.text,
    )
    short = target is not None and target.outcome is not Outcome.FITS and said.outcome is Outcome.FITS
    notes.verdict(
        Sentence(outcome=Outcome.CAUTION if short else said.outcome, text=sentences(t, filter(None, texts)))
    )
    place = st.container()
    with st.container(horizontal=True, gap="small", key="workload.take", vertical_alignment="center"):
        if wanted != now and recommended.starts:
            use(wanted, t, primary=True)
        elif not recommended.starts:
            st.page_link(
                shell.page_at(""),
                label=t("The Plan page shows how to fix it"),
                icon=":material/build:",
                query_params=state.params(),
            )
        undo.offer(t)
    return place


def target_line(plan: Plan, t: Words) -> str:
    """For the Plan page: the target against full length and against the lengths of this session's requests; "" where
    one of them is not known."""
    mix = None if plan.scenario.wanted is None else source.current()
    if mix is None:
        return ""
    choice = limit_choice(plan.scenario, mix, plan.resolved.max_model_len)
    if not choice.starts:
        choice = limit_choice(plan.scenario, mix, mix.recommended_max_model_len)
    target = target_sentence(choice, t)
    return "" if target is None else target.text


def traffic_fix(plan: Plan) -> Fix | None:
    """For the Plan page: the length that this session's requests need, where that starts and serves the target at that
    length or with their own lengths."""
    mix = source.current()
    if mix is None or mix.recommended_max_model_len >= plan.resolved.max_model_len:
        return None
    found = fix_with(plan, "max_model_len", mix.recommended_max_model_len)
    target = None if found is None else found.serves
    if found is None or target is None or target.enough:
        return found
    choice = limit_choice(plan.scenario, mix, mix.recommended_max_model_len)
    is_enough = math.floor(choice.running_requests) * target.replicas >= target.wanted
    return found if is_enough else None


def replayed_plan(plan: Plan, mix: Mix, choices: Choices) -> Plan:
    """The plan to replay with: the present one, else the one with the recommended length where only that starts."""
    recommended = choices[mix.recommended_max_model_len]
    is_present = choices[plan.resolved.max_model_len].starts or not recommended.starts
    return plan if is_present or recommended.plan is None else recommended.plan


def use(limit: int, t: Words, *, primary: bool = False) -> None:
    """A button that makes `limit` the scenario's context length."""
    scenario = state.scenario()
    st.button(
        t("Use {tokens}", tokens=count(limit)),
        key=f"workload.use.{limit}.{'answer' if primary else 'tried'}",
        icon=":material/check:",
        type="primary" if primary else "secondary",
        on_click=undo.take,
        args=(carried_over(scenario, replace(scenario, max_model_len=limit)),),
    )


def histogram(plan: Plan, mix: Mix, limit: int, choice: LimitChoice, t: Words) -> None:
    """The histogram of the requests, with a limit to move over it."""
    wanted, now = mix.recommended_max_model_len, plan.resolved.max_model_len
    st.subheader(t("How long the requests are"), anchor=False)
    limits = marked_limits(limit, wanted, now, t)
    out = share_text(choice.share_left_out, t)
    elements.chart(
        length_histogram(mix, limit, limits, t),
        "workload_histogram",
        t("Histogram of request lengths; {share} of the requests need more than {limit} tokens", share=out,
          limit=count(limit)),
    )  # fmt: skip
    _legend(t)
    with st.container(horizontal=True, gap="medium", key="workload.try", vertical_alignment="bottom"):
        numbers.box(
            st.container(width=200),
            t("Custom limit (tokens)"),
            numbers.Limits(1, LONGEST_LIMIT),
            limit,
            t,
            key=FIELD,
            take=partial(state.set_page_parameter, TRIED),
            step=ROUND_TO,
        )
        steps = limit_steps(max(mix.needed.longest_tokens, wanted, now, limit))
        near = nearest_below(limit, steps)
        st.select_slider(
            t("Custom limit (slider)"),
            steps,
            near,
            format_func=short_tokens,
            key=state.seed(SLIDER, near),
            on_change=_try,
            args=(SLIDER,),
            label_visibility="collapsed",
            width=420,
        )
        if limit not in (wanted, now) and choice.starts:
            use(limit, t)
    lines = (
        t("{share} of the requests need more than {limit} tokens.", share=out, limit=count(limit)),
        left_out_note(choice, t),
    )
    st.caption(sentences(t, lines))


def lengths_only(mix: Mix, t: Words) -> None:
    """The histogram where nothing can be planned."""
    wanted = mix.recommended_max_model_len
    elements.chart(
        length_histogram(mix, wanted, marked_limits(wanted, wanted, wanted, t), t),
        "workload_histogram",
        t("How long the requests are"),
    )
    _legend(t)


def limit_steps(longest: int) -> tuple[int, ...]:
    """Round limits for a slider: four to each doubling, multiples of 256."""
    steps = {ROUND_TO, 2 * ROUND_TO, 3 * ROUND_TO}
    power = 4 * ROUND_TO
    while max(steps) < longest and power <= LONGEST_LIMIT // 2:
        steps |= {power * quarter // 4 for quarter in (4, 5, 6, 7, 8)}
        power *= 2
    return tuple(sorted(steps))


@net.callback
def _try(key: str) -> None:
    state.set_page_parameter(TRIED, int(st.session_state[key]))


def _legend(t: Words) -> None:
    entries = (
        ("kv-needed", t("context that a request needs: prompt + max_tokens, else prompt + answer")),
        ("kv-missing", t("over the custom limit")),
        ("kv-taken", t("tokens at its end: prompt + answer")),
    )
    items = "".join(
        f'<li><span class="kv-swatch {name}"></span>{escape(text)}</li>' for name, text in entries
    )
    st.html(f'<ul class="kv-legend kv-wrapping">{items}</ul>')


def table(plan: Plan, mix: Mix, choices: Choices, limit: int, t: Words) -> None:
    """The table of limits."""
    wanted, now = mix.recommended_max_model_len, plan.resolved.max_model_len
    st.subheader(t("What each limit means"), anchor=False)
    head = (
        "max_model_len",
        t("Requests over the limit"),
        t("At once, all of that length"),
        t("At once, mean length"),
        t("Preemptions a request at {seats} at once", seats=count(plan.resolved.max_num_seqs)),
        t("Engine"),
    )
    ordered = tuple(choices.values())
    body = ""
    for row in choice_rows(ordered, wanted, now, limit, t):
        marks = listed(t, row.marks)
        cells = (row.left_out, row.worst_case, row.at_mean, row.preempted)
        body += (
            f'<tr><td class="kv-figure">{escape(row.limit)} <span class="kv-soft">{escape(marks)}</span></td>'
            + elements.figure_cells(*cells)
            + f"<td>{escape(row.verdict)}</td></tr>"
        )
    elements.table(head, body)
    st.caption(
        t(
            "Per replica. Preemptions a request: with max_num_seqs requests running all the time, how often one "
            "is thrown out because answers outgrow the KV cache. The engine computes it again later: slow, but "
            "nothing fails."
        )
    )
    with st.container(horizontal=True):
        elements.download(t("Table as CSV"), "limits.csv", lambda: choices_csv(ordered), key="workload.csv")
        elements.download(
            t("Histogram as CSV"), "lengths.csv", lambda: histogram_csv(mix), key="workload.histogram_csv"
        )
