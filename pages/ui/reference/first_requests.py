"""After the start: the first request, what to look at while the server runs, and a script that checks its memory."""

from __future__ import annotations

import streamlit as st

from kvcore.base.words import Words
from kvcore.deploy.first_requests import (
    SCRIPT,
    card_commands,
    first_request,
    memory_check,
    memory_check_commands,
    metrics_command,
)
from kvcore.deploy.going_live import Load
from kvcore.planning import Plan


def requests(plan: Plan, load: Load, t: Words) -> None:
    """The request as curl and as the SDK sends it."""
    request = first_request(plan, load)
    st.subheader(t("First request"), anchor=False)
    if request.sdk is None:
        st.code(request.curl, language="bash", wrap_lines=True)
        return
    curl, sdk = st.tabs(["curl", t("OpenAI SDK")])
    curl.code(request.curl, language="bash", wrap_lines=True)
    sdk.code(request.sdk, language="python", wrap_lines=True)


def watching(plan: Plan, t: Words) -> None:
    """Commands for the server's metrics and the memory of the cards."""
    st.subheader(t("While it serves"), anchor=False)
    st.caption(t("Metrics of this release, without the buckets of histograms; then the memory of the cards."))
    st.code(metrics_command(plan) + card_commands(plan), language="bash", wrap_lines=True)


def memory(plan: Plan, load: Load, t: Words) -> None:
    """The script to take away, and how it is called."""
    st.subheader(t("Memory check"), anchor=False)
    st.caption(
        t(
            "A script without dependencies that asks the driver, not PyTorch: “profile” shows what a short and a long "
            "request add to each card, “leak” runs next to the load test and fails when memory keeps growing. "
            "torch.cuda.empty_cache() in a client does neither: the workers are other processes."
        )
    )
    st.code(memory_check_commands(plan, load), language="bash", wrap_lines=True)
    with st.container(horizontal=True):
        st.download_button(
            t("Download {name}", name=SCRIPT),
            data=memory_check(),
            file_name=SCRIPT,
            mime="text/x-python",
            on_click="ignore",
            key="download_memory_check",
            icon=":material/download:",
        )
    with st.expander(SCRIPT, icon=":material/code:"):
        st.code(memory_check(), language="python", wrap_lines=True)
