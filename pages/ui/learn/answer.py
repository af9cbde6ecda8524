"""The second half of a step: the memory bar so far, and the formula in letters, in numbers and with its result."""

from __future__ import annotations

from html import escape
from typing import Final

import streamlit as st

from kvcore.advice.vary import concurrency_curve
from kvcore.base.numbers import MINUS, gib_text
from kvcore.base.parts import PARTS
from kvcore.base.quantity import Grade, Scope, Unit
from kvcore.base.units import GB, GIB
from kvcore.base.words import Words, listed, msg
from kvcore.charts import curves as charts
from kvcore.charts import summary
from kvcore.charts.figure_html import figure_html
from kvcore.course import Equation, Step, StepName
from kvcore.course.lesson import prose
from kvcore.explain.numbers import SCOPES
from pages.ui.shared import drawings

ALL: Final = slice(None)
CERTAINTY: Final = {
    Grade.EXACT: msg("exact (as the engine's own code counts)"),
    Grade.DERIVED: msg("derived (arithmetic on exact numbers)"),
    Grade.MEASURED: msg("given (your own figure)"),
    Grade.FITTED: msg("fitted (estimated from published start-up logs)"),
    Grade.ASSUMED: msg("assumed (nothing published says it)"),
}
"""How certain a number is, in words for a class."""


def memory(step: Step, is_revealed: bool, t: Words) -> None:
    """One GPU with the parts explained so far; the rest is grey."""
    if step.plan.memory is None:
        return
    explained = step.explained(revealed=is_revealed)
    names = listed(t, (t(part.label) for part in PARTS if part.name in explained))
    drawings.explained_memory(step.plan, explained, names or t("nothing is explained yet"), t)
    if step.name is StepName.PARTS and is_revealed:
        _looks(t)
    drawings.legend(step.plan, t, explained)


def _looks(t: Words) -> None:
    """Colour and pattern of each part in words."""
    text = " · ".join(f"{t(part.label)}: {t(part.look)}" for part in PARTS)
    st.html(f'<div class="kv-soft kv-looks">{escape(text)}</div>')


def equations(step: Step, t: Words) -> None:
    """Each equation with its letters, its result, its grade and its source, and what follows from them."""
    if step.content.missing:
        st.info(step.content.missing, icon=":material/info:")
    formulas(step, t)
    remarks(step, t)


def formulas(step: Step, t: Words, which: slice = ALL) -> None:
    """Equations of a step, two in a row."""
    shown = step.content.equations[which]
    if shown:
        with st.container(key=f"learn_equations_{which.start or 0}"):
            grid = st.grid(min(2, len(shown)), min_column_width=330)
            for one in shown:
                with grid.cell(), st.container(border=True, height="stretch", gap="xsmall"):
                    _equation(one, t)


def remarks(step: Step, t: Words) -> None:
    """What follows from the equations of a step."""
    if step.content.remarks:
        said = "".join(f"<p>{prose(text, t)}</p>" for text in step.content.remarks)
        st.html(f'<div class="kv-lesson kv-remarks">{said}</div>')


def _equation(one: Equation, t: Words) -> None:
    meaning = one.meaning[:1].upper() + one.meaning[1:]
    st.html(f'<div class="kv-meaning">{escape(meaning)}</div>')
    st.latex(one.latex)
    if one.terms:
        st.caption(" · ".join(f"${term.latex}$ {term.meaning}" for term in one.terms))
    st.html(f'<div class="kv-known">{_known(one, t)}</div>')


def _known(one: Equation, t: Words) -> str:
    facts = [t(CERTAINTY[one.grade])]
    if one.unit is not Unit.NONE or one.scope is not Scope.TOTAL:
        facts.insert(0, t(SCOPES[one.scope]))
    if one.unit is Unit.BYTES and abs(one.value) >= GIB:
        facts.insert(0, f"{one.value / GB:,.2f} GB".replace("-", MINUS))
    if one.interval is not None and one.unit is Unit.BYTES and one.interval[1] - one.interval[0] >= GIB / 50:
        low, high = (gib_text(bound) for bound in one.interval)
        facts.append(t("80 % interval {low} to {high}", low=low, high=high))
    first = escape(" · ".join(facts))
    return f'{first}<div class="kv-soft">{escape(one.source)}</div>' if one.source else first


def curve(step: Step, t: Words) -> None:
    """The 1 / length curve, on the step that counts requests."""
    plan = step.plan
    if step.name is not StepName.REQUESTS or step.content.missing:
        return
    curves = [concurrency_curve(plan, charts.curve_lengths(plan))]
    said = t("Requests that fit at once, by context length") + ": " + summary.verdict_sentence(plan, t).text
    figure = charts.concurrency_chart(plan, curves, t)
    st.html(figure_html(figure, said, charts.curve_said(curves, t)))
    axes = t(
        "Both axes are logarithmic: each mark is so many times the one before. What falls as 1 / length is a straight "
        "line there: twice the length, half the requests, everywhere by the same step."
    )
    st.html(f'<div class="kv-lesson kv-axes">{escape(axes)}</div>')
