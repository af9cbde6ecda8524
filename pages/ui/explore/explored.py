"""Sweeps for the Explore page and their drawings: shared by all who ask the same, with a bar while waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar
from uuid import uuid4

import streamlit as st

from kvcore.advice.sweep import LONGEST_LINE, SWEEPS, SweepRequest, Swept
from kvcore.base.kept import size_of
from kvcore.base.numbers import count
from kvcore.base.shared_work import Progress, SharedWork
from kvcore.base.words import Words

T = TypeVar("T")

OWN = "_own_sweeps"
"""This session's own sweeps, by their keys."""
MAX_OWN = 2
BAR_AFTER_SECONDS = 0.6
LOOK_SECONDS = 0.15
DRAWN: Final[SharedWork[Any]] = SharedWork(bytes_of=size_of, most_bytes=16 << 20, longest_line=LONGEST_LINE)
"""Drawings of shared sweeps; one takes some hundred kilobytes."""


def drawn(key: str, draw: Callable[[], T]) -> T:
    """The result of `draw`: once for all who ask with the same key, for this session alone with an empty one.

    Nobody may change it. Raises what `draw` raises, and KvPlannerError `server-busy`.
    """
    if not key:
        return draw()

    def work() -> Generator[Progress, None, T]:
        yield from ()
        return draw()

    with DRAWN.asked(key, work) as asked:
        found: T = asked.result()
    return found


def own_key() -> str:
    """A key that tells this session's own sweeps from those of others."""
    key: str = st.session_state.setdefault("_sweep_key", uuid4().hex)
    return key


def found(request: SweepRequest, t: Words) -> Swept:
    """The sweep of a request. Raises KvPlannerError `server-busy`."""
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
