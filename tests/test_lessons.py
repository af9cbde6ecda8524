"""Every step, for every kind of model, in both languages: answers are accepted, slips get their hint."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from kvcore.base.parts import AFTER_POOL, PARTS
from kvcore.base.units import GIB
from kvcore.base.words import Language, words
from kvcore.course import STEPS, StepName, step_of
from kvcore.course.lesson import CLOSE, judgement, prose
from kvcore.course.lesson import part as mark
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.derivation_plans import KINDS, REQUESTS, planned, steps


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


@pytest.mark.parametrize("language", Language)
def test_the_first_step_names_every_part_of_its_drawing(language: Language) -> None:
    t = words(language)
    idea = step_of(planned(KINDS[0]), StepName.PARTS, t).content.idea
    for part in (*PARTS, AFTER_POOL):
        assert mark(part.name) in idea
        assert t(part.label) in prose(idea, t)


@pytest.mark.parametrize("kind", KINDS)
def test_both_languages_say_the_same_numbers(kind: str) -> None:
    for english, chinese in zip(steps(kind), steps(kind, Language.CHINESE), strict=True):
        assert english.content.prediction.answer == chinese.content.prediction.answer
        assert [one.value for one in english.content.equations] == [
            one.value for one in chinese.content.equations
        ]
        assert english.content.question != chinese.content.question


@pytest.mark.parametrize("kind", KINDS)
def test_what_half_the_length_gives_is_what_the_plan_gives(kind: str) -> None:
    base, step = planned(kind), steps(kind)[STEPS.index(StepName.REQUESTS)]
    if base.cache is None or not base.cache.groups or not base.cache.num_blocks:
        assert not step.content.points
        return
    (said,) = step.content.points
    half = base.cache.max_model_len // 2
    # The same memory with half the length, planned from the start.
    halved = plan(
        replace(
            base.scenario,
            max_model_len=half,
            measured=replace(base.scenario.measured, available_kv_gib=base.available_kv_bytes / GIB),
        )
    )
    assert halved.cache is not None
    factor = halved.cache.max_concurrency / base.cache.max_concurrency
    if "about twice" in said:
        # A block that is part empty is all that is between it and twice as many.
        assert factor == pytest.approx(2, rel=0.05)
    elif "no more fit" in said:
        assert factor == pytest.approx(1)
    else:
        assert f"{factor:.2f} times" in said


def test_a_window_takes_the_tokens_in_flight_too() -> None:
    """A window of 1,024 with 16,384 tokens in flight and blocks of 16: ⌈(1,023 + 16,384) / 16⌉ + 1 = 1,089."""
    long = plan(
        scenario_from_request(
            {**REQUESTS["windows"], "max_model_len": 131072, "gpu_memory_utilization": 0.95}
        )
    )
    token, pool = (step_of(long, name, words(Language.ENGLISH)) for name in (StepName.TOKEN, StepName.POOL))
    assert any("takes 1,089 blocks of 16" in said for said in token.content.remarks)
    assert any(
        "room for 10 layers, so 52 layers" in said and "make 6 groups" in said for said in pool.content.points
    )


@pytest.mark.parametrize("kind", ["windows", "hybrid", "chunks", "compressed"])
def test_the_blocks_of_a_request_come_before_the_tokens_of_the_pool(kind: str) -> None:
    pool = steps(kind)[STEPS.index(StepName.POOL)].content
    names = [one.name for one in pool.equations]
    assert names.index("blocks_per_request") < names.index("tokens")
    base = planned(kind)
    assert base.available_kv_bytes is not None
    assert base.cache is not None
    by_tokens = base.available_kv_bytes / base.cache.bytes_per_token
    assert "divided by bytes per token" in judgement(pool.prediction, by_tokens, words(Language.ENGLISH))
