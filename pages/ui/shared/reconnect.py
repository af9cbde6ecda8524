"""A tab whose server was replaced: its first change on the new one takes effect and is not lost.

A tab that finds its way to a new server asks for nothing until somebody changes something. That change comes with the
first run of a session that knows no widgets yet, so Streamlit calls no callback for it, and the page would draw the
link over it. So such a run is repeated with the tab's own values, once every widget is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime.scriptrunner import RerunData, RerunException, get_script_run_ctx

REPEATED = "_is_repeated"
"""Whether this run has to send the value of every widget: it repeats a run that drew over a change, or follows one
that was overtaken, so that the browser may have seen nothing of it."""
_REACHED_ITS_END = "_reached_its_end"


@contextmanager
def replayed() -> Iterator[None]:
    """Runs the page as its link says; in a session that is new to its tab, then again with what the tab has changed."""
    context = get_script_run_ctx()
    is_new = context is not None and "link" not in st.session_state
    sent = context.session_state.get_widget_states() if context is not None and is_new else []
    st.session_state[REPEATED] = not st.session_state.get(_REACHED_ITS_END, True)
    st.session_state[_REACHED_ITS_END] = False
    try:
        yield
        st.session_state[_REACHED_ITS_END] = not sent
    finally:
        if context is not None and sent:
            raise RerunException(
                RerunData(
                    query_string=context.query_string,
                    page_script_hash=context.page_script_hash,
                    widget_states=WidgetStates(widgets=sent),
                    context_info=context.context_info,
                )
            )
