"""What the checklist ticks."""

from kvcore.deploy.checklist import Tick, checklist
from kvcore.deploy.monitoring import Load, default_load, thresholds
from kvcore.texts.words import Language, words
from tests import present_plans

T = words(Language.ENGLISH)


def ticks(plan, load=None) -> dict[str, Tick]:
    load = load or default_load(plan)
    return {item.title: item.tick for item in checklist(plan, load, thresholds(plan, load), T)}


def test_a_plan_that_fits_answers_the_first_four() -> None:
    found = list(ticks(present_plans.request(tensor_parallel_size=2)).values())
    assert found[:4] == [Tick.ANSWERED] * 4
    assert set(found[4:]) == {Tick.OPEN}


def test_a_plan_that_does_not_fit_says_so() -> None:
    found = ticks(present_plans.too_big())
    assert found["The engine starts"] is Tick.FAILS
    assert found["The target fits at once"] is Tick.FAILS
    assert found["Peak memory leaves room"] is Tick.FAILS


def test_a_target_above_what_is_held() -> None:
    plan = present_plans.rule_of_thumb()  # 20 at once
    more = Load(requests=21, prompt_tokens=7680, answer_tokens=512)
    exactly = Load(requests=20, prompt_tokens=7680, answer_tokens=512)
    assert ticks(plan, more)["The target fits at once"] is Tick.FAILS
    assert ticks(plan, exactly)["The target fits at once"] is Tick.ANSWERED


def test_a_target_above_the_seats() -> None:
    plan = present_plans.request(tensor_parallel_size=8, max_num_seqs=4)
    load = Load(requests=5, prompt_tokens=10, answer_tokens=10)
    assert ticks(plan, load)["The target fits at once"] is Tick.FAILS


def test_prompt_and_answer_longer_than_the_context() -> None:
    load = Load(requests=1, prompt_tokens=8000, answer_tokens=193)
    assert ticks(present_plans.fits(), load)["Prompt and answer fit into the context"] is Tick.FAILS


def test_every_item_of_the_post_mortem_is_there() -> None:
    plan = present_plans.fits()
    load = default_load(plan)
    text = " ".join(
        f"{item.title} {item.detail}" for item in checklist(plan, load, thresholds(plan, load), T)
    )
    for word in ("P99", "Peak memory", "150 %", "History of conversations", "Alerts"):
        assert word in text
