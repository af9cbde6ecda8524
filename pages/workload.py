"""Workload: the context length that real requests need, and how many of them run at once."""

import streamlit as st

from kvcore.base.errors import KvPlannerError
from pages.ui.shared import net, notes, shell, state, undo
from pages.ui.workload import arrivals, panels, replay, result, source, upload

shell.guard()
undo.follow()
t = state.translator()
plan = state.planned()
mix = source.current()

notes.repairs(t)
st.header(t("Which context length do your requests need?"), anchor=False)
if mix is None:
    upload.ask(t)
    arrivals.panel(plan, t)
    net.end_page()

upload.source(mix, t)
if isinstance(plan, KvPlannerError):
    notes.refused(plan, t)
    upload.read_notes(mix, t)
    result.lengths_only(mix, t)
    net.end_page()

tried = result.tried(mix)
choices = result.planned_choices(plan, mix, tried)
minute = result.answer(plan, mix, choices, t)
upload.read_notes(mix, t)
is_logged, replayed = replay.has_times(), result.replayed_plan(plan, mix, choices)
if is_logged:
    replay.panel(replayed, mix, t)
result.histogram(plan, mix, tried, choices[tried], t)
result.table(plan, mix, choices, tried, t)
panels.steady(plan, choices[tried], t)
if not is_logged:
    replay.panel(replayed, mix, t)
panels.conversation(mix, choices[tried], t)
panels.prefix(mix, choices[tried], t)
panels.advice(plan, mix, choices, t)
if line := replay.busiest_minute_line(replayed, t):
    minute.text(line)
