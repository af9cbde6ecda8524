"""The sidebar's controls for CUDA graphs: the largest captured batch, and the mode."""

from __future__ import annotations

import streamlit as st

from kvcore.flags.registry import FLAGS
from kvcore.planning import Plan
from kvcore.present import choices
from kvcore.present.text import Words, count
from kvcore.scenario import AUTO, CudagraphMode
from pages.ui import state
from pages.ui.state import seed, set_field

LARGEST = "max_cudagraph_capture_size"
MODE = "cudagraph_mode"
LISTED_SIZES = 12
"""Of a list, that are shown one by one."""


def controls(plan: Plan | None, t: Words) -> None:
    """What the release has of them; nothing to set where the start is eager."""
    scenario = state.scenario()
    if choices.takes_flag(scenario, LARGEST) or scenario.max_cudagraph_capture_size is not None:
        _largest(plan, t)
    if choices.takes_flag(scenario, MODE) or scenario.cudagraph_mode is not None:
        _mode(plan, t)


def _largest(plan: Plan | None, t: Words) -> None:
    scenario = state.scenario()
    listed = scenario.cudagraph_capture_sizes
    sizes = plan.resolved.cudagraph_capture_sizes if plan is not None else ()
    key = seed(LARGEST, scenario.max_cudagraph_capture_size)
    low, high = map(int, FLAGS[LARGEST].bounds)
    st.number_input(
        t("CUDA graphs up to (tokens)"),
        min_value=low,
        max_value=high,
        value=scenario.max_cudagraph_capture_size,
        step=1,
        key=key,
        placeholder=t("{value} by default", value=count(sizes[-1])) if sizes and listed is None else "",
        disabled=scenario.enforce_eager,
        help=t(
            "`--max-cudagraph-capture-size`: batches up to this size run as graphs, which saves "
            "small batches the gaps between kernels. Every captured size takes memory in every "
            "layer: a smaller maximum leaves more for the KV cache, and larger batches run without "
            "graphs."
        ),
        on_change=lambda: set_field(LARGEST, st.session_state[key]),
    )
    if listed is not None and not scenario.enforce_eager:
        shown = ", ".join(map(str, listed[:LISTED_SIZES])) + (", …" if len(listed) > LISTED_SIZES else "")
        st.caption(t("A list of sizes is captured: {sizes}. A maximum replaces the list.", sizes=shown))


def _mode(plan: Plan | None, t: Words) -> None:
    scenario = state.scenario()
    now = scenario.cudagraph_mode or AUTO
    options = (AUTO, *CudagraphMode)
    key = seed(MODE, now)
    used = plan.resolved.cudagraph_mode if plan is not None else "-"
    st.selectbox(
        t("CUDA graph mode"),
        options,
        index=options.index(now),
        key=key,
        disabled=scenario.enforce_eager,
        help=t(
            "`cudagraph_mode` of `--compilation-config`: PIECEWISE keeps attention out of the graphs, FULL_DECODE_ONLY "
            "captures only batches that decode. Now: {mode}.",
            mode=used,
        ),
        on_change=lambda: set_field(
            MODE, None if st.session_state[key] == AUTO else CudagraphMode(st.session_state[key])
        ),
    )
