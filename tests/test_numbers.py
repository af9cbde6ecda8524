"""Numbers alone are those of the plan, and a batch plans what `plan` plans."""

from collections.abc import Callable
from typing import Any

import pytest

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.planning import Batch, plan
from kvcore.planning.numbers import Numbers, OnCards, numbers, numbers_of
from kvcore.planning.verdict import HIGH, LOW, stage_kv_bytes
from kvcore.scenario import Scenario
from kvcore.wire.request import scenario_from_request

MODELS = (
    "Qwen/Qwen3-8B",
    "deepseek-ai/DeepSeek-V2-Lite",
    "google/gemma-3-27b-it",
    "Qwen/Qwen2-VL-7B-Instruct",
    "tiiuae/falcon-mamba-7b",
)
FLAGS: tuple[dict[str, Any], ...] = (
    {},
    {"max_model_len": 4096},
    {"max_model_len": "auto"},
    {"gpu_memory_utilization": 0.99, "tensor_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"kv_cache_memory_bytes": 2 << 30},
    {"measured": {"weights_gib": 14.0}},
    {"accelerator": None},
    {"accelerator": "Ascend-910B4-32GB"},
    {"engine_version": "0.8.5"},
)


def asked(model: str, flags: dict[str, Any]) -> Scenario:
    request = {"model": model, "accelerator": "L40S-48GB"} | flags
    return scenario_from_request({name: value for name, value in request.items() if value is not None})


def facts(found: Numbers) -> tuple[object, ...]:
    pool = found.pool
    figures = None if pool is None else (pool.num_blocks, pool.tokens, pool.max_concurrency, pool.fits)
    ends = [stage_kv_bytes(found.stage_kv, end) for end in (None, LOW, HIGH)] if figures else []
    return found.verdict, found.tight_by, found.weights_bytes, figures, ends


def outcome(work: Callable[[], Numbers]) -> object:
    """The facts, or the code of a refusal."""
    try:
        return facts(work())
    except KvPlannerError as refused:
        return refused.code


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_numbers_are_those_of_the_plan(model: str, flags: dict[str, Any]) -> None:
    scenario = asked(model, flags)
    assert outcome(lambda: numbers(scenario)) == outcome(lambda: numbers_of(plan(scenario)))


def test_one_scenario_on_many_cards_is_planned_as_on_each() -> None:
    on_cards = OnCards(asked("Qwen/Qwen3-8B", {"tensor_parallel_size": 2}))
    for card in catalogue.load_accelerators():
        if card.vendor.value == "nvidia":
            alone = asked("Qwen/Qwen3-8B", {"tensor_parallel_size": 2, "accelerator": card.id})
            assert facts(on_cards.numbers(card)) == facts(numbers_of(plan(alone))), card.id


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_plans_each_length_as_alone(model: str) -> None:
    batch = Batch()
    for length in (1024, 8192, 4096):
        for size in (1, 2):
            scenario = asked(model, {"max_model_len": length, "tensor_parallel_size": size})
            assert batch.plan(scenario).memory == plan(scenario).memory
            assert facts(numbers_of(batch.plan(scenario))) == facts(numbers_of(plan(scenario)))


def test_a_batch_keeps_at_most_so_many_models() -> None:
    batch = Batch(most=2)
    for size in (1, 2, 4, 8):
        batch.plan(asked("Qwen/Qwen3-8B", {"tensor_parallel_size": size}))
        assert len(batch._loaded) <= 2
