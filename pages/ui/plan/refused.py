"""Below a refusal: what is known of the model, and the plan that the first change gives."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvcore import catalogue
from kvcore.advice.fixes import Fix
from kvcore.advice.vary import concurrency_curve
from kvcore.base.numbers import gib_text
from kvcore.base.words import Words
from kvcore.charts import catalogue_rows, summary
from kvcore.charts import curves as charts
from kvcore.scenario import Scenario
from pages.ui.shared import drawings, elements


def known(scenario: Scenario, found: Sequence[Fix], t: Words) -> None:
    """The model's size and length, and the memory and figures with the first of the changes, marked as such."""
    entry = catalogue.bundled_model(scenario.model)
    is_bundled = entry is not None and entry.config == scenario.config
    license_name = catalogue.license_of(scenario.model) if is_bundled else ""
    facts = catalogue_rows.model_facts(scenario.config, scenario.checkpoint, license_name, t)
    if scenario.checkpoint.total_size is not None:
        size = gib_text(scenario.checkpoint.total_size)
        facts = t("{facts} · {size} of weight files", facts=facts, size=size)
    if facts:
        st.caption(t("The model itself: {facts}", facts=facts))
    if not found:
        return
    first = found[0]
    st.html(drawings.head(t("With this change: {change}", change=summary.accepted_label(first, t))))
    sentence = summary.verdict_sentence(first.plan, t)
    with st.container(key="refused_plan", gap="small"):
        st.text(sentence.text)
        drawings.memory(first.plan, sentence.text, t)
        curve = concurrency_curve(first.plan, charts.curve_lengths(first.plan))
        elements.card_row("refused", summary.cards(first.plan, curve, t))
