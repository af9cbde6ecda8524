"""KV Planner: the frame of the app. Every page shows one view of the same plan.

The server imports this file once, for the application that answers /api next to the pages; each run of a page runs it.
"""

import os

import streamlit as st
from streamlit import runtime

if not runtime.exists():
    from starlette.middleware import Middleware

    from kvcore.api.clients import Clients, Front
    from kvcore.api.limits import Settings
    from kvcore.api.routes import Api
    from pages.ui.fair.layer import fair
    from pages.ui.shared import net
    from pages.ui.shared.document import StyledDocument

    app = st.App(
        __file__,
        routes=Api(Settings.of(os.environ, has_pages=True)).routes(),
        middleware=[
            Middleware(Clients, front=Front.of(os.environ)),
            fair(),
            Middleware(StyledDocument),
        ],
        on_script_error=net.outside,
    )
else:
    from pages.ui.fair import notices
    from pages.ui.shared import net, notes, reconnect, share_link, shell, state
    from pages.ui.sidebar import controls

    with reconnect.replayed():
        shell.frame()
        state.adopt_link()
        t = state.translator()
        page = shell.navigation(t)
        shell.keep_modules()
        planned = state.make_plan()
        # After the page, whose figures are what a change is made for; but what a control refused stands beside it, and
        # the page says only what no control has said.
        says_what_was_refused = net.ERROR in st.session_state
        if says_what_was_refused:
            controls.sidebar(planned, t)
        with net.under("head", t):
            with st.container(horizontal=True, key="top", gap="small", vertical_alignment="center"):
                shell.links()
                share_link.button(t)
            share_link.large_code(t)
            notes.measurements(t)
            notices.show(t)
        with net.under("page", t):
            page.run()
        if not says_what_was_refused:
            controls.sidebar(planned, t)
        shell.keep_modules()
