"""KV Planner: the frame of the app. Every page shows one view of the same plan."""

import streamlit as st

from pages.ui import controls, measurements, net, shell, state

st.set_page_config(page_title="KV Planner", page_icon=str(shell.ICON), layout="wide")
state.adopt_link()
t = state.translator()
page = shell.navigation(t)
shell.frame()
planned = state.make_plan()
with st.sidebar:
    with net.under("sidebar", t):
        controls.scenario(planned, t)
    shell.language_switch(t)
with net.under("head", t):
    shell.links(t)
    measurements.chip(t)
with net.under("page", t):
    page.run()
