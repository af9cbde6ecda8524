"""The sheets of a class: all questions on both, solutions on the teacher's alone, nothing that runs."""

from __future__ import annotations

from html import escape

import pytest
from msgspec.structs import replace

from kvcore.base.words import Language, words
from kvcore.charts.handout import Links, handout_html, silent
from kvcore.course import step_of
from kvcore.course.lesson import PICTURES, Route, prose, route_of, routes
from kvcore.course.questions import Asked, questions, variant
from kvcore.planning import plan
from tests.derivation_plans import KINDS, planned

LINKS = Links(
    students="https://kv.example/learn?seed=7", solutions="https://kv.example/learn?seed=7&reveal=1"
)


def sheet(
    kind: str, route: Route, *, solved: bool, seed: int = 7, language: Language = Language.ENGLISH
) -> str:
    return handout_html(planned(kind), route, seed, LINKS, words(language), solved=solved)


def asked(
    kind: str, route: Route, language: Language = Language.ENGLISH, seed: int = 7
) -> list[tuple[Asked, ...]]:
    """The questions that the sheets have of each step."""
    t, varied = words(language), variant(planned(kind), seed)
    found = [questions(varied, step, seed, t) for step in route.steps]
    guesses = tuple(step_of(planned(kind), step, t).content.prediction for step in route.steps)
    return silent(guesses, found)


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("kind", KINDS)
def test_both_have_every_question_and_one_has_the_solutions(kind: str, language: Language) -> None:
    route, t = route_of(path="45"), words(language)
    handout, teacher = (sheet(kind, route, solved=solved, language=language) for solved in (False, True))
    for one in (one for few in asked(kind, route, language) for one in few):
        assert prose(one.prediction.question, t) in handout
        assert prose(one.prediction.question, t) in teacher
        assert escape(one.worked) in teacher
        assert escape(one.worked) not in handout
    assert "reveal=1" in teacher
    assert "reveal=1" not in handout
    assert handout.count('class="blank"') > len(route.steps)
    assert 'class="blank"' not in teacher


@pytest.mark.parametrize("solved", [False, True])
def test_every_route_has_its_steps(solved: bool) -> None:
    for route in routes():
        shown = [step for step in route.steps if step not in PICTURES]
        assert sheet("dense", route, solved=solved).count("<h2>") == len(shown)


def test_a_model_name_from_a_link_does_not_run() -> None:
    named = plan(replace(planned("dense").scenario, model="<script>alert(1)</script>"))
    found = handout_html(named, route_of(path="20"), 0, LINKS, words(Language.ENGLISH), solved=True)
    assert "<script" not in found
    assert "default-src 'none'" in found


def test_a_typical_slip_is_named_once_to_the_teacher() -> None:
    teacher = sheet("dense", route_of(lesson="a"), solved=True)
    handout = sheet("dense", route_of(lesson="a"), solved=False)
    assert "GB of 10⁹ bytes" in teacher
    assert "GB of 10⁹ bytes" not in handout
    first = teacher.split("<li>")[4]
    assert first.count("factor of 1,024") <= 1


@pytest.mark.parametrize("seed", [0, 7, 31_415])
def test_no_question_states_the_answer_of_another(seed: int) -> None:
    """The share of the weights may not be asked with their size where that is a question too."""
    for kind in ("dense", "windows", "hybrid", "experts"):
        route = route_of(path="20")
        left = [one for few in asked(kind, route, seed=seed) for one in few]
        guesses = [
            step_of(planned(kind), step, words(Language.ENGLISH)).content.prediction for step in route.steps
        ]
        weights = next(one.answer for one in guesses if one.unit == "GiB" and "store" in one.question)
        assert weights is not None
        assert all(f"{weights:.2f}" not in one.prediction.question for one in left)
        assert all(f"{weights:.3f}" not in one.prediction.question for one in left)
        assert len(left) >= 2 * (len(route.steps) - 1)


def test_a_handout_has_a_name_a_code_a_bar_to_draw_into_and_room_to_work() -> None:
    handout, teacher = (sheet("dense", route_of(path="20"), solved=solved) for solved in (False, True))
    assert "Name:" in handout
    assert LINKS.students not in handout  # the code stands for it
    assert handout.count("<svg") == 2
    assert "30.6 GiB" not in handout
    assert "30.6 GiB" in teacher
    assert handout.count('class="room"') == handout.count('class="blank"') - 2


def test_a_link_too_long_for_a_code_is_printed() -> None:
    long = Links(students="https://kv.example/learn?config=" + "x" * 3000, solutions=LINKS.solutions)
    found = handout_html(
        planned("dense"), route_of(path="20"), 7, long, words(Language.ENGLISH), solved=False
    )
    assert long.students in found


def test_the_sheets_end_with_three_things_to_remember() -> None:
    handout = sheet("dense", route_of(path="20"), solved=False)
    assert handout.rpartition("<h2>")[2].partition("</ul>")[0].count("<li>") == 3
    assert "The next one waits" in handout
