"""Plan: the memory of one deployment on each GPU, how many requests fit, and what to change when it does not start.

The chart comes last, though it stands in the middle: the browser shows every figure before it draws one.
"""

import streamlit as st

from kvcore.advice.fixes import falls_short, fixes
from kvcore.advice.vary import concurrency_curve, tensor_parallel_curves
from kvcore.base.errors import KvPlannerError
from kvcore.charts import curves as charts
from kvcore.charts import summary
from kvcore.charts.engines import raise_or_lower
from kvcore.controls import in_force
from kvcore.explain import numbers as figures
from kvcore.planning import Verdict
from kvcore.workload.limits import is_above_model
from pages.ui.plan import groups, numbers, refused, share
from pages.ui.shared import drawings, elements, net, notes, shell, state, undo
from pages.ui.shared.elements import fold
from pages.ui.workload.result import target_line, traffic_fix

shell.guard()
t = state.translator()
plan = state.planned()

notes.repairs(t)
st.header(t("Does it fit on these GPUs, and for how many requests?"), anchor=False)
notes.what_this_is(t)
if isinstance(plan, KvPlannerError):
    if state.lost_model() is None:
        notes.scenario_line_of(state.scenario(), plan, t)
    found = notes.refused(plan, t)
    if state.lost_model() is None:
        refused.known(state.scenario(), found, t)
    net.end_page()

notes.scenario_head(plan, t)
sentence = summary.verdict_sentence(plan, t)
with st.container(horizontal=True, key="verdict", gap="small", vertical_alignment="center"):
    notes.verdict(sentence)
    if plan.verdict in (Verdict.FITS, Verdict.TIGHT):
        share.command(plan, t)
curve = concurrency_curve(plan, charts.curve_lengths(plan))
if said := summary.low_end_line(plan, curve, t):
    st.text(said)
if said := target_line(plan, t):
    st.text(said)
if said := raise_or_lower(plan, t):
    st.caption(said)
notes.other_platform(plan, t)
notes.above_model(plan, t)
if plan.verdict is not Verdict.FITS or falls_short(plan):
    notes.fixes(plan, fixes(plan), t, of_traffic=traffic_fix(plan))
notes.setting_chips(plan.scenario, t)
undo.offer(t)

drawings.memory(plan, sentence.text, t)
drawings.engines(plan, t)
drawings.host(plan, t)

elements.card_row("plan", summary.cards(plan, curve, t))

left, right = st.columns([5, 3], gap="medium")
right.html(drawings.head(t("One request")) + drawings.request(plan, t) + groups.drawing(plan, t))

shown_above = (notes.ENGINE_NOT_ON_CARD, *((notes.ABOVE_MODEL,) if is_above_model(plan) else ()))
notes.notices([one for one in plan.notices if one.code not in shown_above], t)
numbers.override_table(in_force.override_steps(plan), t)
share.panel(plan, t)
box, is_opened = fold(t("All numbers"), "numbers", ":material/table:")
if is_opened:
    with box:
        numbers.table(figures.number_rows(plan, t), t)
        numbers.downloads(plan, t)

with left:
    curves = tensor_parallel_curves(plan, curve.lengths, curve)
    drawings.concurrency(plan, curves, groups.chart_marks(plan), t)
    groups.ways(t)
