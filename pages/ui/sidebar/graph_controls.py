"""The sidebar's controls for CUDA graphs: the largest captured batch, and the mode."""

from __future__ import annotations

from functools import partial

import streamlit as st

from kvcore.base.numbers import count
from kvcore.base.words import Words
from kvcore.controls import offers
from kvcore.flags import FLAGS
from kvcore.planning import Plan
from kvcore.scenario import AUTO, CudagraphMode
from pages.ui.shared import net, numbers, state
from pages.ui.shared.state import seed, set_field

LARGEST = "max_cudagraph_capture_size"
MODE = "cudagraph_mode"
LISTED_SIZES = 12
"""Most sizes of a list that are shown one by one."""


def largest(plan: Plan | None, t: Words) -> None:
    """The largest captured batch, where the release has the flag; nothing to set where the start is eager."""
    scenario = state.scenario()
    if not offers.takes_flag(scenario, LARGEST) and scenario.max_cudagraph_capture_size is None:
        return
    listed = scenario.cudagraph_capture_sizes
    sizes = plan.resolved.cudagraph_capture_sizes if plan is not None else ()
    numbers.box(
        st,
        t(FLAGS[LARGEST].label),
        numbers.Limits(*FLAGS[LARGEST].bounds),
        scenario.max_cudagraph_capture_size,
        t,
        key=LARGEST,
        take=partial(set_field, LARGEST),
        is_optional=True,
        placeholder=t("{value} by default", value=count(sizes[-1])) if sizes and listed is None else "",
        disabled=scenario.enforce_eager,
        help=t(FLAGS[LARGEST].help),
    )
    if listed is not None and not scenario.enforce_eager:
        shown = ", ".join(map(str, listed[:LISTED_SIZES])) + (", …" if len(listed) > LISTED_SIZES else "")
        st.caption(t("A list of sizes is captured: {sizes}. A maximum replaces the list.", sizes=shown))


def mode(plan: Plan | None, t: Words) -> None:
    """The mode of the graphs, where the release has the flag."""
    scenario = state.scenario()
    if not offers.takes_flag(scenario, MODE) and scenario.cudagraph_mode is None:
        return
    now = scenario.cudagraph_mode or AUTO
    options = (AUTO, *CudagraphMode)
    key = seed(MODE, now)
    used = plan.resolved.cudagraph_mode if plan is not None else "-"
    st.selectbox(
        t(FLAGS[MODE].label),
        options,
        index=options.index(now),
        key=key,
        disabled=scenario.enforce_eager,
        help=t(FLAGS[MODE].help, mode=used),
        on_change=net.taking(
            key, lambda value: set_field(MODE, None if value == AUTO else CudagraphMode(value)), options
        ),
    )
