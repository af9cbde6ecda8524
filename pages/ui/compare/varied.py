"""Compare, first part: one setting of the scenario at several values."""

from __future__ import annotations

import streamlit as st

from kvcore import catalogue
from kvcore.advice.vary import Varied, variants
from kvcore.base.words import Words
from kvcore.catalogue.accelerators import Accelerator
from kvcore.charts.comparison import VARIED_NAMES, first_failures, position_name
from kvcore.charts.engines import why_engines_differ
from pages.ui.compare import table
from pages.ui.shared import state, undo
from pages.ui.shared.parameters import MAX_CARDS


def show(t: Words) -> None:
    """The choice of the setting, the bars, the table, and a button for each value."""
    varied = _varied(t)
    cards = _cards(t) if varied is Varied.ACCELERATOR else ()
    if varied is Varied.SPLIT:
        st.caption(
            t(
                "The same GPUs split in different ways: tensor parallel (TP) ranks share every "
                "layer, data parallel (DP) replicas each have a cache of their own, decode context "
                "parallel (DCP) ranks of an MLA model share each request's tokens. EP distributes "
                "the experts over all ranks."
            )
        )
    if varied is Varied.DATA_PARALLEL:
        st.caption(
            t(
                "Replicas do not share a cache: each has the same capacity, and together they serve "
                "more requests."
            )
        )
    if varied is Varied.ENGINE:
        st.caption(
            t(
                "Engines take their fraction of different things: of the card's whole memory, with graphs and the "
                "largest step inside it, or of what is free before the weights, with graphs and the largest step "
                "beside it. The default fraction, the cache of a token and the limit of requests differ too."
            )
        )
    if varied is Varied.INSTANCES:
        st.caption(
            t(
                "Several engines on the same cards: each has weights and a cache of its own, takes its part of the "
                "utilization, and is shown as the last to start. Figures are of one of them."
            )
        )
    found = variants(state.scenario(), varied, cards)
    named = [(position_name(varied, variant, t), variant) for variant in found]
    table.show(named, "varied", t)
    for sentence in first_failures(named, t):
        st.caption(sentence)
    if varied is Varied.ENGINE:
        for sentence in why_engines_differ(named, t):
            st.caption(sentence)
    if varied is Varied.BATCHED_TOKENS:
        table.show_batches(state.scenario(), t)
    with st.container(horizontal=True, key="use_buttons", gap="small"):
        for index, (name, variant) in enumerate(named):
            if not variant.is_now:
                st.button(
                    t("Use {name}", name=name),
                    key=f"use.{varied}.{index}",
                    on_click=undo.take,
                    args=(variant.scenario,),
                    disabled=variant.plan is None,
                )
    undo.offer(t)


def _varied(t: Words) -> Varied:
    st.segmented_control(
        t("Vary"),
        [varied.value for varied in (Varied.SPLIT, *(one for one in Varied if one is not Varied.SPLIT))],
        format_func=lambda name: t(VARIED_NAMES[Varied(name)]),
        required=True,
        **state.bound("vary", "varied", takes="default"),
    )
    return Varied(state.page_parameter("vary"))


def _cards(t: Words) -> tuple[Accelerator, ...]:
    known = {card.id: card for card in catalogue.load_accelerators()}
    chosen = st.multiselect(
        t("Accelerators to compare with the current one"),
        list(known),
        format_func=lambda name: known[name].name,
        placeholder=t("Choose accelerators"),
        max_selections=MAX_CARDS,
        **state.bound("cards", "vary_cards", takes="default"),
    )
    return tuple(known[name] for name in chosen)
