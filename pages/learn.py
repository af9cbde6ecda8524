"""Learn: the plan derived step by step, each with a question, a guess, the formula, the numbers, something to try."""

import streamlit as st

from kvcore.course import step_of
from kvcore.course.lesson import PICTURES
from pages.ui.learn import answer, check, guess, look, own, pictures, practice, slides, steps
from pages.ui.shared import net, notes, shell, state, undo

shell.guard()
undo.follow()
t = state.translator()
planned = state.planned()
name = steps.chosen()

look.present()
notes.repairs(t)
head = st.container(key="learn_head")
plan = steps.taught(planned, t)
if name in PICTURES:
    picture = pictures.picture(plan, name, t)
    scene = pictures.scene_number(picture)
    with head:
        row = steps.way(name, steps.Inner(pictures.SCENE, scene, len(picture.scenes)), t)
    with row:
        steps.class_sheets(plan, t)
    notes.scenario_line(plan, t)
    steps.heading(name, t)
    pictures.show(picture, t)
    if scene == len(picture.scenes) - 1:
        steps.further(name, t)
    steps.ends(t, offers_undo=True)
    net.end_page()

step = step_of(plan, name, t)
is_revealed = guess.is_revealed(step)
if look.is_presented():
    shown = slides.slides(step, is_revealed, t)
    number = slides.number(shown)
    with head:
        row = steps.way(name, steps.Inner(slides.PARAMETER, number, len(shown), first=1), t)
    notes.scenario_line(plan, t)
    steps.heading(name, t)
    slides.show(shown[number], step, is_revealed, t)
    net.end_page()

with head:
    row = steps.way(name, steps.Inner(), t)
with row:
    steps.class_sheets(plan, t)
notes.scenario_line(plan, t)
steps.heading(name, t)
slides.picture(step, is_revealed, t)
guess.idea(step.content, t)
guess.ask(step, t)
if is_revealed:
    own.deployment(step, t)
    answer.equations(step, t)
    look.drawing(step, t)
    answer.curve(step, t)
    practice.experiment(step, t)
    check.step_questions(step, t)
    practice.exercises(step, t)
    practice.corrections(step, t)
    steps.further(name, t)
steps.ends(t, offers_undo=not is_revealed)
