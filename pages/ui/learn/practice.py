"""The end of a step: something to try in the sidebar, exercises, and errors of well-known texts."""

from __future__ import annotations

from html import escape

import streamlit as st

from kvcore.base.words import Words
from kvcore.course import Step
from kvcore.course.experiments import IN_MORE_OPTIONS
from kvcore.explain import reference as known_slips
from kvcore.texts import CORRECTIONS, SOURCES
from pages.ui.shared import undo


def experiment(step: Step, t: Words) -> None:
    """One control to move and its effect; a button moves it too, and one takes it back."""
    one = step.experiment
    if one is None:
        undo.offer(t)
        return
    where = t("in the sidebar (More options)") if one.field in IN_MORE_OPTIONS else t("in the sidebar")
    lead = t(
        "Move “{control}” {where} from {before} to {after}. Then:",
        control=one.control,
        where=where,
        before=one.before,
        after=one.after,
    )
    rows = "".join(
        f"<tr><td>{escape(effect.meaning)}</td><td>{escape(effect.before)}</td><td>→</td>"
        f"<td><b>{escape(effect.after)}</b></td></tr>"
        for effect in one.effects
    )
    with st.container(border=True, key="learn_try", gap="small"):
        st.html(
            f'<div class="kv-lesson"><b>{escape(t("Try"))}</b> {escape(lead)}'
            f'<table class="kv-effects">{rows}</table></div>'
        )
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.button(
                t("Move it"),
                key="learn.move",
                icon=":material/tune:",
                on_click=undo.take,
                args=(one.scenario,),
            )
            undo.offer(t)


def exercises(step: Step, t: Words) -> None:
    """Questions about this scenario with folded answers."""
    found = step.content.exercises
    if not found:
        return
    st.subheader(t("Exercises"), anchor=False)
    items = "".join(
        f"<details><summary>{escape(one.question)}</summary><p>{escape(one.answer)}</p></details>"
        for one in found
    )
    st.html(f'<div class="kv-lesson kv-exercises">{items}</div>')


def corrections(step: Step, t: Words) -> None:
    """Claims of the source documents that this step corrects."""
    if not step.corrections:
        return
    facts = known_slips.facts(step.plan)
    items = "".join(
        f"<details><summary>{escape(_claim(t(SOURCES[one.source].name), t(one.claim), t))}</summary>"
        f"<p>{escape(known_slips.truth(one, facts, t))}</p></details>"
        for one in CORRECTIONS.values()
        if one.name in step.corrections
    )
    st.subheader(t("What published guides say about this"), anchor=False)
    st.html(f'<div class="kv-lesson kv-exercises">{items}</div>')


def _claim(source: str, claim: str, t: Words) -> str:
    return t("{source}: {claim}", source=source, claim=claim)
