"""Workload: the context length that real requests need, and how many of them fit at once."""

import streamlit as st

from kvcore.errors import KvPlannerError
from pages.ui import notes, shell, state, workload_input, workload_panels, workload_result, workload_source

shell.guard()
t = state.translator()
plan = state.planned()
mix = workload_source.current()

notes.repairs(t)
st.header(t("Which context length do your requests need?"), anchor=False)
if mix is None:
    workload_input.ask(t)
    st.stop()

workload_input.source(mix, t)
if isinstance(plan, KvPlannerError):
    notes.refused(plan, t)
    workload_result.lengths_only(mix, t)
    st.stop()

tried = workload_result.tried(plan, mix)
choices = workload_result.planned_choices(plan, mix, tried)
workload_result.answer(plan, mix, choices, t)
workload_result.histogram(plan, mix, tried, choices[tried], t)
workload_result.table(plan, mix, choices, tried, t)
workload_panels.batch(plan, mix, choices[tried], t)
workload_panels.conversation(mix, choices[tried], t)
workload_panels.prefix(mix, choices[tried], t)
workload_panels.advice(plan, mix, choices, t)
