"""Compare: one setting at several values, and up to four pinned scenarios, on one GiB axis."""

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.model.families import read_architecture
from pages.ui.compare import pins, varied
from pages.ui.shared import net, notes, shell, state, undo

shell.guard()
undo.follow()
t = state.translator()

notes.repairs(t)
st.header(t("What does one change bring?"), anchor=False)
lost = state.lost_model()
if lost is not None:
    notes.unknown_model(lost, t)
    net.end_page()
try:
    read_architecture(state.scenario().config)
except KvPlannerError as error:
    notes.refusal(error, t)
    net.end_page()

notes.scenario_line_of(state.scenario(), state.planned(), t)
varied.show(t)
pins.show(t)
