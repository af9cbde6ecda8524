"""Learn: the plan derived in eight steps, each with a question, a guess, the formula, the numbers, something to try."""

import streamlit as st

from kvcore.errors import KvPlannerError
from kvcore.explain.derivation import step_of
from pages.ui import learn_answer, learn_guess, learn_practice, learn_steps, notes, shell, state, undo

shell.guard()
undo.follow()
t = state.translator()
plan = state.planned()
name = learn_steps.chosen()

notes.repairs(t)
learn_steps.way(name, t)
if isinstance(plan, KvPlannerError):
    notes.refused(plan, t)
    st.caption(
        t("The derivation follows the scenario in the sidebar: it continues as soon as that can be planned.")
    )
    st.stop()

step = step_of(plan, name, t)
notes.scenario_line(plan, t)
st.header(f"{step.number} · {step.content.question}", anchor=False)
is_revealed = learn_guess.is_revealed(step)
learn_answer.memory(step, is_revealed, t)
learn_guess.idea(step.content, t)
learn_guess.ask(step, t)
if is_revealed:
    learn_answer.equations(step, t)
    learn_answer.curve(step, t)
    learn_practice.experiment(step, t)
    learn_practice.exercises(step, t)
    learn_practice.corrections(step, t)
    learn_steps.further(name, t)
learn_steps.ends(t, offers_undo=not is_revealed)
