"""What a session is told on its page: a limit that it met outside of a run."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words

MOST: Final = 1000
SHOWN_SECONDS: Final = 5.0
"""A run that begins within this time shows what is told: one may be broken off by the next before it has."""
_told: Final[OrderedDict[str, tuple[KvPlannerError, float]]] = OrderedDict()


def tell(session: str, error: KvPlannerError) -> None:
    """Has the session's next runs show an error."""
    _told[session] = (error, time.monotonic() + SHOWN_SECONDS)
    if len(_told) > MOST:
        _told.popitem(last=False)


def told(session: str) -> KvPlannerError | None:
    """What a session is to be told now."""
    error, until = _told.get(session, (None, 0.0))
    return error if time.monotonic() < until else None


def show(t: Words) -> None:
    """Shows what this session is to be told."""
    context = get_script_run_ctx()
    error = told(context.session_id) if context is not None else None
    if error is not None:
        with st.container(border=True, key="limit", gap="xsmall"):
            st.warning(t.error(error), icon=":material/hourglass_top:")
            st.text(t("Next: {step}", step=t.next_step(error)))
            st.caption(f":small[`{error.code}`]")
