"""Explore: where the chosen model runs, and what the chosen hardware runs."""

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.model.families import read_architecture
from pages.ui.explore import cards, models
from pages.ui.shared import net, notes, shell, state, undo

shell.guard()
undo.follow()
t = state.translator()

notes.repairs(t)
st.header(t("Which hardware serves your requests?"), anchor=False)
lost = state.lost_model()
if lost is not None:
    notes.unknown_model(lost, t)
    net.end_page()
try:
    read_architecture(state.scenario().config)
except KvPlannerError as error:
    notes.refusal(error, t)

notes.scenario_line_of(state.scenario(), state.planned(), t)
VIEWS = {"cards": t("Where this model runs"), "models": t("What this hardware runs")}
view = st.segmented_control(
    t("Question"),
    list(VIEWS),
    format_func=lambda name: VIEWS[name],
    required=True,
    label_visibility="collapsed",
    **state.bound("view", "explore_view", takes="default"),
)
if view == "models":
    models.show(t)
else:
    cards.show(t)
