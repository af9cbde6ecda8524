"""The sheets of a class: all questions on both, solutions on the teacher's alone, nothing that runs."""

from __future__ import annotations

from html import escape

import pytest
from msgspec.structs import replace

from kvcore.base.words import Language, words
from kvcore.charts.handout import Links, handout_html
from kvcore.course.lesson import Route, route_of, routes
from kvcore.course.questions import questions, variant
from kvcore.planning import plan
from tests.derivation_plans import KINDS, planned

LINKS = Links(
    students="https://kv.example/learn?seed=7", solutions="https://kv.example/learn?seed=7&reveal=1"
)


def sheet(
    kind: str, route: Route, *, solved: bool, seed: int = 7, language: Language = Language.ENGLISH
) -> str:
    return handout_html(planned(kind), route, seed, LINKS, words(language), solved=solved)


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("kind", KINDS)
def test_both_have_every_question_and_one_has_the_solutions(kind: str, language: Language) -> None:
    route = route_of(path="45")
    handout, teacher = (sheet(kind, route, solved=solved, language=language) for solved in (False, True))
    for step in route.steps:
        for one in questions(variant(planned(kind), 7), step, 7, words(language)):
            assert escape(one.prediction.question) in handout
            assert escape(one.prediction.question) in teacher
            assert escape(one.worked) in teacher
            assert escape(one.worked) not in handout
    assert "reveal=1" in teacher
    assert "reveal=1" not in handout
    assert handout.count('class="blank"') > len(route.steps)
    assert 'class="blank"' not in teacher


@pytest.mark.parametrize("solved", [False, True])
def test_every_route_has_its_steps(solved: bool) -> None:
    for route in routes():
        assert sheet("dense", route, solved=solved).count("<h2>") == len(route.steps)


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
