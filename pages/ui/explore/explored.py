"""Sweeps for the Explore page: shared with whoever asks the same, waited for with a bar."""

from __future__ import annotations

import time
from uuid import uuid4

import streamlit as st

from kvcore.advice.sweep import SWEEPS, SweepRequest, Swept
from kvcore.texts.words import Words, count

OWN = "_own_sweeps"
"""Sweeps of what this session alone has, by their keys."""
MAX_OWN = 2
BAR_AFTER_SECONDS = 0.6
LOOK_SECONDS = 0.15


def own_key() -> str:
    """What tells this session's own sweeps from those of others."""
    key: str = st.session_state.setdefault("_sweep_key", uuid4().hex)
    return key


def found(request: SweepRequest, t: Words) -> Swept:
    """What was swept. Raises KvPlannerError `server-busy`."""
    own: dict[str, Swept] = st.session_state.setdefault(OWN, {})
    if request.key in own:
        return own[request.key]
    with SWEEPS.asked(request.key, request.work, is_kept=request.is_shared) as asked:
        started, place = time.monotonic(), None
        while not asked.wait(LOOK_SECONDS):
            if time.monotonic() - started < BAR_AFTER_SECONDS:
                continue
            place = st.empty() if place is None else place
            done, all_of_it = asked.progress
            words = (
                t("{done} of {all}", done=count(done), all=count(all_of_it)) if done else t("Waiting in line")
            )
            place.progress(done / all_of_it if done else 0.0, words)
        if place is not None:
            place.empty()
        swept = asked.result()
    if not request.is_shared:
        own[request.key] = swept
        while len(own) > MAX_OWN:
            del own[next(iter(own))]
    return swept
