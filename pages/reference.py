"""Reference: parameters with their effect here, the source documents as stories, going live, catalogues, glossary."""

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.base.words import msg
from pages.ui.reference import catalogue_tables, going_live, parameter_list, stories
from pages.ui.shared import notes, shell, state, undo
from pages.ui.shared.parameters import SECTIONS as SECTION_NAMES

shell.guard()
undo.follow()
t = state.translator()
plan = state.planned()

PARAMETERS, STORIES, GOING_LIVE, CATALOGUE, GLOSSARY = SECTION_NAMES
SECTIONS = {
    PARAMETERS: msg("Parameters"),
    STORIES: msg("Four guides, step by step"),
    GOING_LIVE: msg("Going live"),
    CATALOGUE: msg("Catalogue"),
    GLOSSARY: msg("Glossary"),
}


notes.repairs(t)
st.header(t("What does a flag do, and what comes after the start?"), anchor=False)
section = state.page_parameter("section")
st.segmented_control(
    t("Part"),
    list(SECTIONS),
    format_func=lambda name: t(SECTIONS[name]),
    required=True,
    label_visibility="collapsed",
    **state.bound("section", "reference_section", takes="default"),
)
planned = None if isinstance(plan, KvPlannerError) else plan
if section in (PARAMETERS, GOING_LIVE):
    if isinstance(plan, KvPlannerError):
        notes.refused(plan, t)
    else:
        notes.scenario_line(plan, t)
if section == PARAMETERS:
    parameter_list.parameters(planned, t)
elif section == STORIES:
    stories.panel(state.plain_translator())
elif section == GOING_LIVE and planned is not None:
    going_live.panel(planned, t)
elif section == CATALOGUE:
    catalogue_tables.tables(t)
elif section == GLOSSARY:
    parameter_list.glossary(t)
