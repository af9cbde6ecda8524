"""The Check page's results: why a start failed, its scenario, predicted against measured, advice."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st
from msgspec.structs import replace

from kvcore.advice.fixes import Fix, fix_with, fixes
from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words, listed, msg
from kvcore.charts import summary
from kvcore.charts.comparison import (
    BORROWED_LABELS,
    advice,
    compared_parts,
    comparison_bar,
    figure_sentences,
    part_rows,
)
from kvcore.charts.comparison import headline as comparison_headline
from kvcore.evidence.calibration import Comparison, calibrated, measured_values, with_measurements
from kvcore.evidence.log.failures import Change, Failure
from kvcore.evidence.log.reader import StartupLog
from kvcore.evidence.recognized import Recognized, contradictions, with_logged_surroundings
from kvcore.planning import Plan, Verdict
from kvcore.scenario import Measured, Scenario
from pages.ui.check import taken
from pages.ui.shared import drawings, elements, notes, state

PHASES = {
    "configuration": msg("while the flags were checked, before any memory was taken"),
    "device": msg("when a worker opened its card, before any weights were loaded"),
    "loading": msg("while the weights were loaded"),
    "profiling": msg("in the profile run"),
    "kv-cache": msg("when the KV cache was sized"),
    "graph-capture": msg("after the KV cache was allocated, while graphs were captured"),
    "warm-up": msg("in the warm-up after graph capture"),
    "run-time": msg("after the start, while requests ran"),
    "unknown": msg("at a point that the log does not show"),
}


def failure(
    log: StartupLog,
    scenario: Scenario,
    planned: Plan | KvPlannerError,
    t: Words,
    *,
    offers_fixes: bool = True,
) -> None:
    """A failed start in plain words, the engine's own line, and the smallest changes that fix it.

    What the log measured stands in place of what was predicted: no change is offered that the log itself disproves,
    and none for another model than the log's. Once one of them was made, the advice is done and goes.
    """
    found = log.failure
    if found is None:
        return
    phase = t(PHASES[found.phase.value])
    said = (
        t("This start failed {phase}.", phase=phase)
        if found.device is None
        else t("This start failed {phase}, on GPU {number}.", phase=phase, number=str(found.device))
    )
    st.error(said, icon=":material/cancel:")
    if isinstance(planned, Plan):
        planned = with_measurements(log, planned)
        scenario = planned.scenario
    is_fixed = taken.is_fixed()
    offered = _offered(planned) if offers_fixes and not is_fixed else ()
    if offered:
        found = replace(found, fp8_suffices=any(fix.field == "kv_cache_dtype" for fix in offered))
    change = _sufficient(found, planned, offered) if offers_fixes and not is_fixed else None
    with st.container(border=True, key="check.failure"):
        st.text(t.error(found.notice))
        if not is_fixed:
            st.text(t("Next: {step}", step=t.next_step(found.notice)))
        st.code(found.line, language=None, wrap_lines=True)
        st.caption(t("Line {number}", number=str(found.line_number)))
        if change is not None:
            st.button(
                t("Plan this start with {field} = {value}", field=change.field, value=str(change.value)),
                key="check.change",
                icon=":material/build:",
                type="primary",
                on_click=taken.take_with,
                args=(scenario, change.field, change.value),
            )
    if isinstance(planned, Plan):
        is_measured = planned.scenario.measured != Measured()
        others = [fix for fix in offered if change is None or fix.field != change.field]
        _fixes(others, planned, t(_HEADS[is_measured, change is not None]), t)
    taken.outcome(t)


_HEADS = {
    (True, False): msg("With this log's measurements, any one of these fixes it:"),
    (True, True): msg("Other ways to fix it, with this log's measurements:"),
    (False, False): msg("As it was started, it does not fit in the plan either. Any one of these fixes it:"),
    (False, True): msg("As it was started, it does not fit in the plan either. Other ways to fix it:"),
}
"""Headings of the changes, by whether the log measured anything and whether one change stands above them."""


def _offered(planned: Plan | KvPlannerError) -> tuple[Fix, ...]:
    """The changes that fix the plan of a failed start; none where it should have started."""
    if not isinstance(planned, Plan) or planned.verdict in (Verdict.FITS, Verdict.TIGHT):
        return ()
    return fixes(planned)


def _sufficient(found: Failure, planned: Plan | KvPlannerError, offered: tuple[Fix, ...]) -> Change | None:
    """The change that the failure asks for, unless the plan shows that it is not enough and has others.

    A length is the engine's own figure and stands.
    """
    change = found.change
    if change is None or change.field == "max_model_len" or not offered or not isinstance(planned, Plan):
        return change
    return change if fix_with(planned, change.field, change.value) is not None else None


def _fixes(found: Sequence[Fix], planned: Plan, head: str, t: Words) -> None:
    """A button for each change that fixes the plan."""
    if not found:
        return
    with st.container(horizontal=True, key="fixes", gap="small", vertical_alignment="center"):
        st.caption(head, width="content")
        for fix in found:
            st.button(
                f"{summary.fix_label(fix, t)} → {summary.fix_result(fix, t)}",
                key=f"check.fix.{fix.key}",
                on_click=taken.take_with,
                args=(planned.scenario, fix.field, fix.value),
            )


def headline(compared: Comparison, log: StartupLog, planned: Plan, t: Words, *, is_known: bool) -> None:
    """KV memory, tokens and requests of the start against the prediction; of a command alone, its verdict."""
    said = comparison_headline(compared, t, is_same_model=is_known)
    if said is not None:
        if said.is_lost:
            st.warning(said.text, icon=":material/trending_down:")
        elif log.failure is not None or not is_known:
            st.info(said.text, icon=":material/straighten:")
        else:
            st.success(said.text, icon=":material/check_circle:")
    elif log.failure is None and is_known and not compared.measured_parts:
        notes.verdict(summary.verdict_sentence(planned, t))
        if planned.verdict is not Verdict.FITS:
            _fixes(fixes(planned), planned, t("Fix it with one change:"), t)


def recognized(found: Recognized, planned: Plan, t: Words) -> None:
    """The scenario of the log in one line, what it leaves open, and the button that takes it."""
    st.subheader(t("The scenario of this log"), anchor=False)
    st.caption(" · ".join((f"`{summary.model_name(planned.scenario)}`", *summary.scenario_line(planned, t))))
    if found.borrowed:
        names = listed(t, (t(BORROWED_LABELS[name]) for name in found.borrowed))
        st.caption(t("Not in the log, taken from the sidebar: {names}", names=names))
    if replace(state.scenario(), measured=Measured()) == found.scenario:
        st.caption(t("The sidebar shows this scenario."))
    else:
        st.button(
            t("Use this scenario"),
            key="check.take",
            icon=":material/input:",
            on_click=taken.take,
            args=(found.scenario,),
        )


def surroundings(log: StartupLog, t: Words) -> None:
    """The surroundings of the log that differ from the sidebar's, and the button that takes them."""
    chosen = state.scenario()
    found = contradictions(chosen, log)
    if not found:
        return
    with st.container(border=True, key="check.surroundings"):
        st.markdown(f":material/compare_arrows: **{t('The log does not match your machine')}**")
        for one in found:
            st.text(f"{t.error(one)}\n→ {t.next_step(one)}")
        st.button(
            t("Use what the log says"),
            key="check.agree",
            icon=":material/input:",
            on_click=taken.take,
            args=(with_logged_surroundings(chosen, log),),
        )


def comparison(compared: Comparison, planned: Plan, t: Words) -> None:
    """One sentence of advice, two bars, and the table of differences with their causes."""
    st.subheader(t("Predicted and measured"), anchor=False)
    sentence = advice(compared, t)
    st.text(sentence)
    name = f"{t('Predicted and measured')}: {sentence}"
    st.html(comparison_bar(compared, planned, t).html("kv-comparison-bar", name))
    drawings.swatches(compared_parts(compared), t)
    if len(compared.measured_parts) < len(compared.parts):
        st.caption(t("Faint parts are not in the log and are drawn as predicted."))
    head = (
        t("GiB of one GPU"),
        t("Predicted"),
        t("Measured"),
        t("Difference"),
        t("80 % interval"),
        t("Likely cause"),
    )
    body = "".join(
        f"<tr><td>{escape(row.label)}</td>"
        f'<td class="kv-figure">{escape(row.predicted)} <span class="kv-soft">{escape(row.interval)}</span></td>'
        f'<td class="kv-figure">{escape(row.measured)}</td>'
        f'<td class="kv-figure">{escape(row.difference)}</td>'
        f'<td class="kv-figure">{"⚠ " if row.is_outside else ""}{escape(row.judgement)}</td>'
        f"<td>{'<br>'.join(escape(cause) for cause in row.causes)}</td></tr>"
        for row in part_rows(compared, t)
    )
    elements.table(head, body)
    if lines := figure_sentences(compared, t):
        st.text("\n".join(lines))
    notes.notices(compared.notices, t)


def use_measurements(log: StartupLog, found: Recognized, planned: Plan, t: Words) -> None:
    """The button that plans with the log's parts in place of the predicted ones, in the log's scenario."""
    given = calibrated(log, planned)
    if not measured_values(given):
        return
    target = replace(found.scenario, measured=given)
    if state.scenario() == target:
        st.success(
            t("The plan now starts from these measurements; the link carries them."),
            icon=":material/straighten:",
        )
        return
    st.button(
        t("Plan with these measurements"),
        key="check.calibrate",
        type="primary",
        icon=":material/straighten:",
        on_click=taken.take,
        args=(target,),
        help=t(
            "Parts that the log prints replace the predicted ones on every page, and travel in the "
            "link as numbers. What it does not print is fitted to reproduce the log's KV memory."
        ),
    )
