"""The questions of every step, for every kind of model, in both languages, with numbers of several students."""

from __future__ import annotations

import hashlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.term import as_term
from kvcore.base.words import Language, words
from kvcore.course import StepName
from kvcore.course.answers import ANSWERS, Facts
from kvcore.course.lesson import judgement
from kvcore.course.questions import (
    ASKED,
    AT_ONCE,
    LATER,
    LETTERS,
    OPEN,
    QUESTIONED,
    SCALES,
    SHOWN,
    Asked,
    drawn,
    facts,
    marks,
    questions,
    right,
    variant,
    with_mark,
)
from kvcore.planning import Plan
from kvcore.texts import LESSONS, QUESTIONS
from kvcore.texts import LETTERS as SYMBOLS
from tests.derivation_plans import KINDS, planned
from tests.formulas import value_of
from tests.test_derivation import evaluated as drawn_value

SEEDS = (0, 7, 31_415)


def asked(
    plan: Plan, step: StepName, seed: int = 0, language: Language = Language.ENGLISH
) -> tuple[Asked, ...]:
    return questions(plan, step, seed, words(language))


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_asks_three_and_takes_the_answer_and_knows_the_slips(kind: str, language: Language) -> None:
    t = words(language)
    for seed in SEEDS:
        base = variant(planned(kind), seed)
        for step in QUESTIONED:
            found = asked(base, step, seed, language)
            # A block of a model with states alone may be longer than what requests share.
            assert len(found) == ASKED or (kind == "recurrent" and step is StepName.BLOCKS), (step, seed)
            for one in found:
                answer = one.prediction.answer
                assert answer is not None
                assert "{" not in one.prediction.question
                assert one.prediction.unit
                assert one.is_right(answer)
                assert judgement(one.prediction, answer, t) == t("Right.")
                for slip in one.prediction.slips:
                    assert not one.is_right(slip.value), (one.name, slip)
                    assert judgement(one.prediction, slip.value, t).endswith(slip.reason)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_answer_is_what_its_formula_gives(kind: str, seed: int) -> None:
    base = planned(kind)
    known = facts(base, seed)
    for key, one in QUESTIONS.items():
        term = ANSWERS[key].term
        if not set(term.names) <= known.keys():
            continue
        by_term = float(value_of(term, {name: known[name].value for name in term.names}))
        shown = [found for found in asked(base, StepName(one.step), seed) if found.name == key]
        for found in shown:
            assert found.prediction.answer == pytest.approx(by_term / SCALES.get(one.unit, 1))
            assert found.solution.value == pytest.approx(by_term)
            # As it is drawn, fractions and all: a sum has only its last term above a line.
            assert drawn_value(found.solution.substituted) == pytest.approx(by_term, rel=0.005), (
                found.solution.latex
            )


def test_every_rule_names_letters_and_hints_that_there_are() -> None:
    assert ANSWERS.keys() == QUESTIONS.keys()
    for key, one in ANSWERS.items():
        terms = (one.term, *(as_term(slip.rule(Facts())) for slip in one.slips))
        assert {name for term in terms for name in term.names} <= SYMBOLS.keys(), key
        assert {slip.reason for slip in one.slips} <= LESSONS.keys(), key
    for step in QUESTIONED:
        assert sum(one.step == step for one in QUESTIONS.values()) >= ASKED, step


def test_a_published_card_by_hand() -> None:
    """A token of 64 layers with 8 heads of 128 numbers of 2 bytes takes 256 KiB; 1,000 tokens are 63 blocks of 16."""
    facts = Facts({"example_layers": 64, "example_heads": 8, "example_dim": 128})
    assert ANSWERS["token-model"].rule(facts) == 256 * 1024
    assert ANSWERS["blocks-request"].rule(Facts({"example_tokens": 1000, "block_size": 16})) == 63
    assert ANSWERS["cards-heads"].rule(Facts({"example_heads": 4, "example_ranks": 8})) == 1


class TestSlips:
    def reason(self, step: StepName, name: str, wrong: float) -> str:
        one = next(one for one in asked(planned("dense"), step) if one.name == name)
        return judgement(one.prediction, wrong, words(Language.ENGLISH))

    def right(self, step: StepName, name: str) -> float:
        one = next(one for one in asked(planned("dense"), step) if one.name == name)
        assert one.prediction.answer is not None
        return one.prediction.answer

    def test_gigabytes_for_gib(self) -> None:
        answer = self.right(StepName.PARTS, "parts-rest")
        assert "GB of 10⁹ bytes" in self.reason(StepName.PARTS, "parts-rest", answer * 1.073741824)

    def test_a_unit(self) -> None:
        answer = self.right(StepName.TOKEN, "token-several")
        assert "factor of 1,024" in self.reason(StepName.TOKEN, "token-several", answer / 1024)

    def test_query_heads_for_kv_heads(self) -> None:
        known = facts(planned("dense"), 0)
        factor = known["example_query_heads"].value / known["example_heads"].value
        answer = self.right(StepName.TOKEN, "token-model")
        assert "query heads" in self.reason(StepName.TOKEN, "token-model", answer * factor)

    def test_the_cards_forgotten(self) -> None:
        answer = self.right(StepName.WEIGHTS, "weights-bits")
        assert "One card, or all 2?" in self.reason(StepName.WEIGHTS, "weights-bits", answer * 2)


class TestVariants:
    def test_the_same_seed_is_the_same_student(self) -> None:
        one, again, other = (variant(planned("dense"), seed) for seed in (11, 11, 12))
        assert one.scenario == again.scenario
        assert one.scenario != other.scenario
        first, second = (asked(one, StepName.TOKEN, seed) for seed in (11, 11))
        assert [each.prediction for each in first] == [each.prediction for each in second]

    def test_seeds_ask_different_numbers(self) -> None:
        found = {
            tuple(each.prediction.answer for each in asked(planned("dense"), StepName.TOKEN, seed))
            for seed in range(1, 31)
        }
        assert len(found) > 20

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_variant_plans_and_comes_to_the_same_verdict(self, kind: str) -> None:
        base = planned(kind)
        assert variant(base, 0) is base
        for seed in (1, 2, 3):
            assert variant(base, seed).verdict is base.verdict

    def test_what_is_drawn_is_one_of_the_options(self) -> None:
        # The first eight bytes of the digest as a number, modulo 3.
        at = int(hashlib.sha256(b"5/x").hexdigest()[:16], 16) % 3
        assert drawn(5, "x", "abc") == "abc"[at]


class TestScore:
    MARKED = st.lists(
        st.tuples(
            st.sampled_from(QUESTIONED), st.integers(0, ASKED - 1), st.sampled_from((AT_ONCE, LATER, SHOWN))
        )
    )

    @given(MARKED)
    def test_a_mark_stays_as_it_was_first_given(self, given_marks: list[tuple[StepName, int, int]]) -> None:
        score, first = "", {}
        for step, question, mark in given_marks:
            score = with_mark(score, step, question, mark)
            first.setdefault((step, question), mark)
        for step in QUESTIONED:
            for question, mark in enumerate(marks(score, step)):
                assert mark == first.get((step, question), OPEN)
        by_hand = [mark for mark in first.values() if mark != SHOWN]
        assert right(score) == (len(by_hand), by_hand.count(AT_ONCE))
        assert len(score) <= len(QUESTIONED)
        assert set(score) <= set(LETTERS)

    @given(st.text(max_size=40))
    def test_any_text_has_marks(self, text: str) -> None:
        for step in QUESTIONED:
            assert all(mark in range(4) for mark in marks(text, step))


def test_no_question_asks_what_comes_to_nothing() -> None:
    for kind in KINDS:
        for step in QUESTIONED:
            for one in asked(planned(kind), step):
                assert one.prediction.answer is not None
                assert one.prediction.answer > 0
                assert math.isfinite(one.prediction.answer)
