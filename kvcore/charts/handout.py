"""A lesson to print: a handout with questions and room for answers, and the teacher's sheet with the solutions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import answer_text, count
from kvcore.base.parts import PARTS
from kvcore.base.words import Words
from kvcore.charts import summary
from kvcore.charts.plan_report import document, empty_bar_svg, legend, memory_svg, qr_svg
from kvcore.course import Step, step_of
from kvcore.course.lesson import PICTURES, Prediction, Route, prose
from kvcore.course.questions import Asked, questions, variant
from kvcore.planning import Plan

FIGURE: Final = re.compile(r"(\d[\d,]*(?:\.\d+)?) ?([A-Za-z%]+)")
"""A number with its unit in the text of a question."""
SAME: Final = 0.002
"""A figure this near an answer is that answer, rounded."""
SLIPS: Final = 4
"""Most wrong answers of a question that the teacher's sheet explains."""


class Links(Struct, frozen=True, kw_only=True):
    """The links printed on the sheets."""

    students: str
    solutions: str


def handout_html(plan: Plan, route: Route, seed: int, links: Links, t: Words, *, solved: bool) -> str:
    """The steps of a route about `plan` with the questions of `seed`; with solutions where `solved`."""
    title = t("Teacher’s sheet") if solved else t("Handout")
    varied = variant(plan, seed)
    parts = [
        f"<h1>{escape(t('{label}: {value}', label=title, value=route.title(t)))}</h1>",
        "" if solved else _name_line(t),
        _line(plan.scenario.model, *summary.scenario_line(plan, t)),
        _links(links, t, solved=solved),
        memory_svg(plan, t) + legend(plan, t) if solved else _to_draw(plan, t),
    ]
    if seed:
        parts.append(
            _line(
                t(
                    "The first question of each step is about the deployment above, the others about variant {seed} "
                    "of it: {line}",
                    seed=count(seed),
                    line=" · ".join(summary.scenario_line(varied, t)),
                )
            )
        )
    steps = [step_of(plan, name, t) for name in route.steps if name not in PICTURES]
    asked = [questions(varied, step.name, seed, t) for step in steps]
    kept = silent(tuple(step.content.prediction for step in steps), asked)
    for number, (step, few) in enumerate(zip(steps, kept, strict=True), 1):
        parts.append(_step(number, step, few, t, solved=solved))
    return document(f"KV Planner: {title}", "\n".join(filter(None, parts)), t)


def silent(guesses: Sequence[Prediction], asked: Sequence[Sequence[Asked]]) -> list[tuple[Asked, ...]]:
    """The questions of each step without those whose text states the answer of another one on the sheet."""
    answers = [
        (one.answer, one.unit, one.question)
        for one in (*guesses, *(each.prediction for step in asked for each in step))
        if one.answer is not None and one.unit
    ]
    return [tuple(one for one in step if not _gives_away(one.prediction.question, answers)) for step in asked]


def _gives_away(text: str, answers: Sequence[tuple[float, str, str]]) -> bool:
    """Whether a question names a figure that is the answer of another one."""
    stated = [(float(number.replace(",", "")), unit) for number, unit in FIGURE.findall(text)]
    return any(
        unit == stated_unit and text != other and math.isclose(number, answer, rel_tol=SAME)
        for answer, unit, other in answers
        for number, stated_unit in stated
    )


def _name_line(t: Words) -> str:
    blank = '<span class="blank"></span>'
    return f'<p class="name">{escape(t("Name:"))} {blank} {escape(t("Date:"))} {blank}</p>'


def _to_draw(plan: Plan, t: Words) -> str:
    """An empty bar of the GPU, for the parts as they are found."""
    bar = empty_bar_svg(plan, t)
    if not bar:
        return ""
    said = t("Draw the parts of this GPU into the bar as you find them (in GiB):")
    names = " · ".join(t(part.label) for part in PARTS)
    return f"<p>{escape(said)} {escape(names)}</p>{bar}"


def _line(*texts: str) -> str:
    return f'<p class="soft">{escape(" · ".join(texts))}</p>'


def _links(links: Links, t: Words, *, solved: bool) -> str:
    if not solved:
        # The code stands for the link; where it is too long for one, the link is printed.
        code = qr_svg(links.students)
        shown = f'<span class="qr">{code}</span>' if code else _link(links.students)
        return f"<p>{escape(t('To follow along:'))} {shown}</p>"
    return (
        f"<p>{escape(t('For the students (a number after seed= for each of them):'))} "
        f"{_link(links.students)}</p>"
        f"<p>{escape(t('With all solutions:'))} {_link(links.solutions)}</p>"
    )


def _link(address: str) -> str:
    return f'<code class="link">{escape(address)}</code>'


def _step(number: int, step: Step, asked: Sequence[Asked], t: Words, *, solved: bool) -> str:
    content = step.content
    body = [f"<p>{prose(content.idea, t)}</p>"]
    if content.points:
        body.append(f"<ul>{''.join(f'<li>{prose(text, t)}</li>' for text in content.points)}</ul>")
    body += [f"<p>{escape(content.missing)}</p>"] if content.missing else []
    guess = _solution_of(content.prediction) if solved else ""
    items = [_question(content.prediction, guess, t, solved=solved)]
    for one in asked:
        items.append(_question(one.prediction, one.worked if solved else "", t, solved=solved))
        if solved:
            items[-1] += _slips(one, t)
    body.append(f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>")
    if solved:
        body += [f"<p>{prose(text, t)}</p>" for text in content.remarks]
    title = f"{number} · {escape(content.question)}"
    return f'<section class="step"><h2>{title}</h2>{"".join(body)}</section>'


def _question(prediction: Prediction, solution: str, t: Words, *, solved: bool) -> str:
    text = f"<b>{prose(prediction.question, t)}</b>"
    if solved:
        return f"{text}<br>{prose(solution, t)}" if solution else text
    if prediction.options:
        return text + "".join(f"<br>☐ {prose(option.label, t)}" for option in prediction.options)
    return f'{text}<div class="room"></div><span class="blank"></span> {escape(prediction.unit)}'


def _solution_of(prediction: Prediction) -> str:
    if prediction.options:
        return next((one.label for one in prediction.options if one.name == prediction.answer_option), "")
    return "" if prediction.answer is None else f"{answer_text(prediction.answer)} {prediction.unit}"


def _slips(one: Asked, t: Words) -> str:
    """The typical wrong answers with their explanation, each reason once."""
    reasons = {slip.reason: slip for slip in reversed(one.prediction.slips)}
    unit = one.prediction.unit
    said = [
        t("{label}: {value}", label=f"{answer_text(slip.value)} {unit}", value=slip.reason)
        for slip in reversed(reasons.values())
    ]
    return f'<div class="soft">{"<br>".join(prose(one, t) for one in said[:SLIPS])}</div>' if said else ""
