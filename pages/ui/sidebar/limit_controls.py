"""The sidebar's limits: the context length, the share of the card that the engine may take, and the captured graphs.

Length and share have a field for the exact value and a slider. A value that the field refuses changes nothing, and the
field says so.
"""

from __future__ import annotations

from functools import partial

import streamlit as st

from kvcore.base.numbers import count, short_tokens
from kvcore.base.words import Words
from kvcore.controls import offers
from kvcore.engine.protocol import Engine
from kvcore.engines.registry import engine_of
from kvcore.flags import FLAGS
from kvcore.planning import Plan
from kvcore.scenario import AUTO, CudagraphMode
from pages.ui.shared import labels, net, numbers, state
from pages.ui.shared.elements import pair
from pages.ui.shared.state import seed, set_field

LENGTH, SHARE = "max_model_len", "gpu_memory_utilization"
LOWEST_SLIDER_SHARE, HIGHEST_SLIDER_SHARE = 0.50, 0.98
REFUSED = "refused_entry"
SHOWN_CHARACTERS = 24


def _engine() -> Engine:
    return engine_of(state.scenario())


def context_length(plan: Plan | None, t: Words) -> None:
    """Any length that `--max-model-len` takes, as the engine reads it."""
    asked = state.scenario().max_model_len or -1
    now = plan.resolved.max_model_len if plan is not None else asked if asked > 0 else 8192
    limit = plan.resolved.derived_max_model_len if plan is not None else max(now, 32768)
    label = labels.label_of(FLAGS[LENGTH], t, _engine())
    with pair(LENGTH):
        st.text_input(
            label,
            value=str(now),
            key=seed(LENGTH, str(now)),
            help=labels.help_of(FLAGS[LENGTH], t, _engine()),
            on_change=_take_length,
        )
        given = _refused(LENGTH)
        if given:
            _say(
                t(
                    (
                        "{given} is not a valid length; still using {now}. Write 32768, 32k (32,000) or 32K "
                        "(32,768)."
                    ),
                    given=given,
                    now=count(now),
                )
            )
        st.select_slider(
            t("{label} (slider)", label=label),
            offers.context_lengths(limit, now),
            value=now,
            format_func=_slider_label,
            key=seed(f"{LENGTH}.slider", now),
            label_visibility="collapsed",
            on_change=net.taking(f"{LENGTH}.slider", partial(set_field, LENGTH)),
        )


def utilization(plan: Plan | None, t: Words) -> None:
    """Any share of the card."""
    now = (
        plan.resolved.gpu_memory_utilization if plan is not None else state.scenario().gpu_memory_utilization
    )
    now = offers.default_utilization(state.scenario()) if now is None else now
    label = labels.label_of(FLAGS[SHARE], t, _engine())
    with pair(SHARE):
        numbers.box(
            st,
            label,
            numbers.Limits(*FLAGS[SHARE].bounds, is_whole=False),
            now,
            t,
            key=SHARE,
            take=partial(set_field, SHARE),
            step=0.01,
            help=labels.help_of(FLAGS[SHARE], t, _engine()),
        )
        shown = min(max(round(now, 2), LOWEST_SLIDER_SHARE), HIGHEST_SLIDER_SHARE)
        st.slider(
            t("{label} (slider)", label=label),
            min_value=LOWEST_SLIDER_SHARE,
            max_value=HIGHEST_SLIDER_SHARE,
            value=shown,
            step=0.01,
            key=seed(f"{SHARE}.slider", shown),
            label_visibility="collapsed",
            on_change=net.taking(f"{SHARE}.slider", partial(set_field, SHARE)),
        )


def _slider_label(length: int) -> str:
    return count(length) if length % 1024 else short_tokens(length)


@net.callback
def _take_length() -> None:
    given = st.session_state[LENGTH]
    length = offers.length_from_text(given)
    if length is None:
        st.session_state[REFUSED] = (LENGTH, given.strip()[:SHOWN_CHARACTERS] or "–")
    else:
        set_field(LENGTH, length)


def _refused(field: str) -> str:
    """The refused text that was just typed into `field`, "" for none; shown once."""
    of, given = st.session_state.get(REFUSED, ("", ""))
    if of != field:
        return ""
    del st.session_state[REFUSED]
    return str(given)


def _say(text: str) -> None:
    with st.container(key="refused_entry_words"):
        st.text(text)


LARGEST = "max_cudagraph_capture_size"
MODE = "cudagraph_mode"
LISTED_SIZES = 12
"""Most sizes of a list that are shown one by one."""


def largest_graph(plan: Plan | None, t: Words) -> None:
    """The largest captured batch, where the release has the flag; nothing to set where the start is eager."""
    scenario = state.scenario()
    if not offers.takes_flag(scenario, LARGEST) and scenario.max_cudagraph_capture_size is None:
        return
    listed = scenario.cudagraph_capture_sizes
    sizes = plan.resolved.cudagraph_capture_sizes if plan is not None else ()
    numbers.box(
        st,
        labels.label_of(FLAGS[LARGEST], t, _engine()),
        numbers.Limits(*FLAGS[LARGEST].bounds),
        scenario.max_cudagraph_capture_size,
        t,
        key=LARGEST,
        take=partial(set_field, LARGEST),
        is_optional=True,
        placeholder=t("{value} by default", value=count(sizes[-1])) if sizes and listed is None else "",
        disabled=scenario.enforce_eager,
        help=labels.help_of(FLAGS[LARGEST], t, _engine()),
    )
    if listed is not None and not scenario.enforce_eager:
        shown = ", ".join(map(str, listed[:LISTED_SIZES])) + (", …" if len(listed) > LISTED_SIZES else "")
        st.caption(t("A list of sizes is captured: {sizes}. A maximum replaces the list.", sizes=shown))


def graph_mode(plan: Plan | None, t: Words) -> None:
    """The mode of the graphs, where the release has the flag."""
    scenario = state.scenario()
    if not offers.takes_flag(scenario, MODE) and scenario.cudagraph_mode is None:
        return
    now = scenario.cudagraph_mode or AUTO
    options = (AUTO, *CudagraphMode)
    key = seed(MODE, now)
    used = plan.resolved.cudagraph_mode if plan is not None else "-"
    st.selectbox(
        labels.label_of(FLAGS[MODE], t, _engine()),
        options,
        index=options.index(now),
        key=key,
        disabled=scenario.enforce_eager,
        help=t(FLAGS[MODE].help, mode=used),
        on_change=net.taking(
            key, lambda value: set_field(MODE, None if value == AUTO else CudagraphMode(value)), options
        ),
    )
