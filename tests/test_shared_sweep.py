"""The sweeps of a server are those of `sweep`, shared by who asks the same and by nobody else."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.sweep import SWEEPS, SweepRequest, Swept, bytes_of, sweep, sweep_of_cards, sweep_of_models
from kvcore.catalogue.models import ModelEntry
from kvcore.model.config import ModelConfig
from kvcore.scenario import Scenario
from kvcore.wire.request import scenario_from_request

H100 = catalogue.find_accelerator("H100-80GB")
CARDS = catalogue.load_accelerators()
SIZES = (1, 2, 4, 8, 16)


def base(**flags: object) -> Scenario:
    return scenario_from_request({"model": "Qwen/Qwen3-32B", "max_model_len": 8192, **flags})


def found(request: SweepRequest) -> Swept:
    with SWEEPS.asked(request.key, request.work, is_kept=request.is_shared) as asked:
        return asked.result()


def entry(scenario: Scenario) -> ModelEntry:
    return ModelEntry(
        id=scenario.model, config=scenario.config, checkpoint=scenario.checkpoint, source="", checked=""
    )


def own_config() -> ModelConfig:
    return ModelConfig.from_mapping(
        {**catalogue.find_model("Qwen/Qwen3-8B").config.raw, "secret": "of a visitor"}
    )


@pytest.mark.parametrize(
    "flags", [{}, {"kv_cache_dtype": "fp8", "env": {"VLLM_USE_V1": "1"}}, {"max_num_seqs": 16}]
)
def test_the_cards_are_those_of_a_sweep(flags: dict[str, object]) -> None:
    scenario = base(**flags)
    expected = tuple(sweep(scenario, [entry(scenario)], CARDS, SIZES))
    assert found(sweep_of_cards(scenario, entry(scenario), CARDS, SIZES, "me")) == expected


@pytest.mark.parametrize("flags", [{}, {"max_model_len": 100_000}, {"runner": "generate"}])
def test_the_models_are_those_of_a_sweep(flags: dict[str, object]) -> None:
    scenario = base(**flags)
    swept = found(sweep_of_models(scenario, H100, (1, 8), "me"))
    names = random_models()
    expected = sweep(scenario, [catalogue.find_model(name) for name in names], [H100], (1, 8))
    by_name = {model.model: model for model in swept}
    assert [by_name[name] for name in names] == list(expected)
    assert list(by_name) == list(catalogue.model_ids())


def random_models() -> list[str]:
    return [name for name in catalogue.model_ids()[::9] if name != "Qwen/Qwen3-32B"]


def test_who_asks_the_same_has_the_same_key_and_who_does_not_has_another() -> None:
    scenario = base()
    same = base(accelerator="A100-80GB", tensor_parallel_size=4, measured={"weights_gib": 20.0})
    others = [
        base(max_model_len=4096),
        base(kv_cache_dtype="fp8"),
        base(env={"VLLM_USE_V1": "0"}),
        base(max_num_seqs=9),
    ]

    def key(asked: Scenario) -> str:
        return sweep_of_cards(asked, entry(asked), CARDS, SIZES, "me").key

    assert key(scenario) == key(same)
    assert len({key(scenario), *map(key, others)}) == 1 + len(others)
    assert sweep_of_cards(scenario, entry(scenario), CARDS[1:], SIZES, "me").key != key(scenario)
    assert (
        sweep_of_models(scenario, H100, SIZES, "me").key
        == sweep_of_models(
            base(model="Qwen/Qwen3-8B", runner="generate", mamba_cache_dtype="float32"), H100, SIZES, "you"
        ).key
    )


def test_nothing_of_a_visitor_is_shared_or_kept() -> None:
    config = own_config()
    scenario = replace(base(), model="own/model", config=config)
    mine = sweep_of_cards(scenario, entry(scenario), CARDS, (1,), "me")
    before = SWEEPS.bytes_kept
    assert found(mine)
    assert SWEEPS.bytes_kept == before
    assert not mine.is_shared
    assert mine.key != sweep_of_cards(scenario, entry(scenario), CARDS, (1,), "you").key
    card = dataclasses.replace(H100, memory_gib=300.0)
    assert not sweep_of_models(base(), card, (1,), "me").is_shared
    assert sweep_of_models(scenario, H100, (1,), "me").is_shared
    disguised = replace(scenario, model="Qwen/Qwen3-8B")
    assert not sweep_of_cards(disguised, entry(disguised), CARDS, (1,), "me").is_shared
    draft = base(
        speculative_config={"method": "draft_model", "model": "own/draft", "config": dict(config.raw)}
    )
    assert not sweep_of_models(draft, H100, (1,), "me").is_shared


def test_the_size_of_what_is_kept_is_close_to_what_it_takes() -> None:
    scenario = base()
    swept = tuple(sweep(scenario, [entry(scenario)], CARDS, SIZES))
    cells = swept[0].cells
    own = sum(sys.getsizeof(cell) for cell in cells)
    assert own < bytes_of(swept) < 4 * own
