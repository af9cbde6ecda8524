"""Learn: the plan derived step by step, each with a question, a guess, the formula, the numbers, something to try."""

from kvcore.course import step_of
from pages.ui.learn import answer, check, guess, look, practice, steps
from pages.ui.shared import notes, shell, state, undo

shell.guard()
undo.follow()
t = state.translator()
planned = state.planned()
name = steps.chosen()

look.present()
notes.repairs(t)
row = steps.way(name, t)
plan = steps.taught(planned, t)
with row:
    steps.class_sheets(plan, t)
step = step_of(plan, name, t)
notes.scenario_line(plan, t)
steps.heading(name, step.content.question, t)
is_revealed = guess.is_revealed(step)
if step.name in look.OF_LOAD:
    look.load(step, is_revealed, t)
elif step.name not in look.WITHOUT_BAR:
    answer.memory(step, is_revealed, t)
if not look.is_crowded(step):
    guess.idea(step.content, t)
guess.ask(step, t)
if is_revealed:
    answer.equations(step, t)
    look.drawing(step, t)
    answer.curve(step, t)
    practice.experiment(step, t)
    check.step_questions(step, t)
    practice.exercises(step, t)
    practice.corrections(step, t)
    steps.further(name, t)
steps.ends(t, offers_undo=not is_revealed)
