"""Answers cached for all visitors are those computed afresh, and have no word that a visitor wrote."""

from __future__ import annotations

import gc

import pytest
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.checkpoints import as_served
from kvcore.base.kept import LEDGER
from kvcore.controls import edit, offers
from kvcore.scenario import Scenario, cached_answer
from kvcore.wire.request import scenario_from_request

CARDS = ("V100-PCIe-16GB", "A100-SXM-80GB", "H100-80GB", "Ascend-910B3-64GB", "MI300X-192GB")
ASKED = (offers.tensor_parallel_sizes, offers.kv_cache_dtypes, offers.weight_precisions)


def scenarios() -> list[Scenario]:
    models = ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8", "deepseek-ai/DeepSeek-V3", "google/gemma-3-27b-it")
    known = {card.id for card in catalogue.load_accelerators()}
    return [
        scenario_from_request({"model": model, "accelerator": card, "tensor_parallel_size": size})
        for model in models
        for card in CARDS
        if card in known
        for size in (1, 3)
    ]


def test_a_cached_answer_equals_one_computed_afresh() -> None:
    asked = scenarios()
    assert len(asked) >= 32
    for answer in ASKED:
        found = [answer(scenario) for scenario in asked]
        assert found == [answer.__wrapped__(scenario) for scenario in asked]  # type: ignore[attr-defined]
        assert len(set(found)) > 1
    served = {as_served(scenario).quantization for scenario in asked}
    assert served == {None, "ascend"}


def test_the_same_question_is_computed_once() -> None:
    times: list[Scenario] = []

    @cached_answer
    def asked(scenario: Scenario) -> int:
        times.append(scenario)
        return len(times)

    first = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
    again = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
    other = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_num_seqs": 7})
    assert [asked(one) for one in (first, again, other, first)] == [1, 1, 2, 1]


@pytest.mark.parametrize("odd", [1 << 80, "\ud800", object()])
def test_a_scenario_without_a_digest_is_computed_each_time(odd: object) -> None:
    base = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
    times: list[Scenario] = []

    @cached_answer
    def asked(scenario: Scenario) -> int:
        times.append(scenario)
        return len(times)

    scenario = replace(base, kv_transfer_config={"odd": odd})
    assert (asked(scenario), asked(scenario)) == (1, 2)


def test_no_word_of_a_visitor_is_cached_with_a_bundled_model() -> None:
    mark = "a-name-that-nobody-else-has"
    model = catalogue.find_model("Qwen/Qwen3-8B")
    card = catalogue.accelerator_from_facts(48.0, "nvidia", mark)
    asked = {"model": model.id, "tensor_parallel_size": 2}
    scenario = edit.with_card(scenario_from_request(asked), card)
    before = LEDGER.bytes
    for answer in ASKED:
        assert answer(scenario)
    assert LEDGER.bytes > before
    results = model.config._kept
    waiting, seen = [results], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            assert not (isinstance(one, str) and mark in one)
            waiting += [part for part in gc.get_referents(one) if isinstance(part, str | tuple | dict | list)]
