"""Lessons and paths: every step is taught once, in the order of the steps, and paths keep that order."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvcore.base.words import Language, words
from kvcore.course import STEPS, StepName
from kvcore.course.lesson import PICTURES, lesson_after, lesson_before, lesson_with, route_of, routes
from kvcore.explain.reference import published_scores
from kvcore.texts import PATHS, SYLLABUS


def test_every_step_is_in_one_lesson_in_the_order_of_teaching() -> None:
    assert tuple(step for lesson in SYLLABUS.values() for step in lesson.steps) == (*PICTURES, *STEPS)
    assert list(SYLLABUS) == sorted(SYLLABUS)
    assert {lesson_with(step) for step in StepName} == set(SYLLABUS)


@pytest.mark.parametrize("minutes", list(PATHS))
def test_a_path_keeps_the_order_and_ends(minutes: str) -> None:
    steps = route_of(path=minutes).steps
    assert sorted(steps, key=STEPS.index) == list(steps)
    assert len(set(steps)) == len(steps)


def test_a_longer_path_leaves_nothing_of_a_shorter_one_out() -> None:
    by_minutes = [set(PATHS[minutes].steps) for minutes in sorted(PATHS, key=int)]
    assert all(shorter < longer for shorter, longer in pairwise(by_minutes))


def test_each_step_of_a_route_is_found_by_its_number() -> None:
    for route in routes():
        assert [route.at(route.number_of(step)) for step in route.steps] == list(route.steps)
        assert (route.at(0), route.at(10_000)) == (route.steps[0], route.steps[-1])
        assert all(route.title(words(language)) for language in Language)


def test_lessons_follow_each_other_to_the_end() -> None:
    letters = ["0"]
    while following := lesson_after(letters[-1]):
        assert lesson_before(following) == letters[-1]
        letters.append(following)
    assert letters == list(SYLLABUS)
    assert lesson_before("0") == ""


@pytest.mark.parametrize("minutes", list(PATHS))
def test_a_path_ends_with_the_class_itself_and_counts_tokens_before_requests(minutes: str) -> None:
    steps = route_of(path=minutes).steps
    assert steps[-1] is StepName.OWN
    assert steps.index(StepName.POOL) < steps.index(StepName.REQUESTS)


def test_published_scores_name_their_source_and_are_of_one_model_each() -> None:
    for row in published_scores():
        assert row.source.startswith("huggingface.co/")
        # A model card is that of the quantized model: its name begins with the model that it was made of.
        assert row.model in row.source
