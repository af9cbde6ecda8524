"""Every step, for every kind of model, in both languages: answers are accepted, slips get their hint."""

from __future__ import annotations

import math

import pytest

from kvcore.explain.derivation.lesson import CLOSE, judgement
from kvcore.texts.words import Language, words
from tests.derivation_plans import KINDS, steps


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_accepted_and_each_slip_gets_its_hint(kind: str, language: Language) -> None:
    t = words(language)
    for step in steps(kind, language):
        asked = step.content.prediction
        assert asked.question
        assert step.content.idea
        if asked.options:
            assert not asked.answer_option or asked.answer_option in {option.name for option in asked.options}
        if asked.answer is None:
            continue
        assert judgement(asked, asked.answer, t) == t("Right.")
        for slip in asked.slips:
            if math.isclose(slip.value, asked.answer, rel_tol=CLOSE):
                continue
            named = [one for one in asked.slips if math.isclose(slip.value, one.value, rel_tol=CLOSE)]
            assert judgement(asked, slip.value, t).endswith(named[0].reason), (step.name, slip)


@pytest.mark.parametrize("kind", KINDS)
def test_both_languages_say_the_same_numbers(kind: str) -> None:
    for english, chinese in zip(steps(kind), steps(kind, Language.CHINESE), strict=True):
        assert english.content.prediction.answer == chinese.content.prediction.answer
        assert [one.value for one in english.content.equations] == [
            one.value for one in chinese.content.equations
        ]
        assert english.content.question != chinese.content.question
