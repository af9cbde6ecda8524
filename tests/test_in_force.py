"""Settings in force: each is named, and its removal leaves the engine's own."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from kvcore.base.quantity import Quantity
from kvcore.base.words import Language, words
from kvcore.charts import summary
from kvcore.contract.result import result_of
from kvcore.controls.edit import with_field
from kvcore.controls.in_force import assumed_text, settings_in_force
from kvcore.engine.setting import setting_of
from kvcore.flags import fields_of
from kvcore.memory.budget import rank_memory
from kvcore.memory.surroundings import surrounding_terms
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request, with_surroundings
from tests import present_plans

EN = words(Language.ENGLISH)
OF_THE_IMAGE = {"host": "linux", "installation": "image"}
START = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": 8192}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size 2"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel"),
        ({"max_num_seqs": 2048}, "max_num_seqs 2,048"),
        ({"enforce_eager": True}, "enforce_eager"),
        ({"enable_prefix_caching": False}, "no_enable_prefix_caching"),
        ({"quantization": "fp8"}, "quantization fp8"),
        ({"dtype": "float16"}, "dtype float16"),
        ({"runner": "pooling"}, "runner pooling"),
        ({"checkpoint": {"total_size": 16 << 30}}, "checkpoint.total_size 17,179,869,184"),
        ({"cpu_offload_gb": 2.5}, "cpu_offload_gb 2.5"),
        ({"kv_cache_memory_bytes": 1 << 30}, "kv_cache_memory_bytes 1,073,741,824"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "speculative_config ngram × 3"),
        ({"enable_lora": True, "max_loras": 4, "max_lora_rank": 32}, "enable_lora 4 × rank 32"),
        ({"env": {"VLLM_USE_V1": "1"}}, "VLLM_USE_V1=1"),
        ({"surroundings": {"link": "pcie"}}, "Link between cards: PCIe without P2P"),
        ({"surroundings": {"driver": "580.159.03"}}, "Driver: 580.159.03"),
        ({"surroundings": {"driver": "ROCm 7.2"}}, "Driver: ROCm 7.2"),
        ({"surroundings": {"taken_gib": 0.63}}, "Taken before the start (GiB): 0.63"),
        ({"mm_processor_kwargs": {"max_pixels": 262144}}, "mm_processor_kwargs max_pixels 262144"),
        ({"limit_mm_per_prompt": {"image": {"count": 2, "width": 9}}}, "limit_mm_per_prompt image 2, image_width 9"),
        ({"fuse_allreduce_rms": False}, "no_fuse_allreduce_rms"),
        ({"cudagraph_capture_sizes": list(range(1, 10))}, "cudagraph_capture_sizes 1, 2, 3, 4, 5, 6, …"),
    ],
)  # fmt: skip
def test_a_setting_is_named_and_its_removal_gives_the_scenario_without_it(given, text) -> None:
    bare = scenario_from_request(START)
    assert settings_in_force(bare, EN) == ()
    changed = scenario_from_request(START | given)
    (setting,) = settings_in_force(changed, EN)
    assert setting.text == text
    for field, value in setting.removal:
        changed = with_field(changed, field, value)
    assert changed == bare


def test_the_memory_of_a_catalogue_card_is_one_of_them() -> None:
    changed = with_field(scenario_from_request(START), "accelerator.memory_gib", 70)
    (setting,) = settings_in_force(changed, EN)
    assert setting.text == "memory 70 GiB"
    ((field, value),) = setting.removal
    assert with_field(changed, field, value) == scenario_from_request(START)


def test_one_of_several_variables_goes_alone() -> None:
    scenario = scenario_from_request(START | {"env": {"VLLM_USE_V1": "1", "VLLM_PORT": "5"}})
    first, _ = settings_in_force(scenario, EN)
    assert first.removal == (("env", {"VLLM_PORT": "5"}),)


def test_markup_in_a_value_is_not_shown() -> None:
    scenario = scenario_from_request(START | {"env": {"VLLM_X": "[a](http://b.c) :red[x]", "A": "www.b.c"}})
    assert [setting.text for setting in settings_in_force(scenario, EN)] == ["VLLM_X=…", "A=…"]


def test_the_scenario_line_has_them_all() -> None:
    plan = present_plans.request(max_num_seqs=16, enforce_eager=True)
    assert summary.scenario_line(plan, EN)[-2:] == ("max_num_seqs 16", "enforce_eager")
    assert summary.scenario_line(present_plans.rule_of_thumb(), EN)[-1] == "with measured figures"


@pytest.mark.parametrize(
    ("fields", "assumed"),
    [
        ({"tensor_parallel_size": 2, "surroundings": OF_THE_IMAGE}, {"link": "nvlink"}),
        ({"surroundings": {"installation": "image"}}, {"host": "linux"}),
        ({"tensor_parallel_size": 2, "accelerator": "RTX-3090-24GB", "surroundings": OF_THE_IMAGE}, {"link": "pcie"}),
        ({"tensor_parallel_size": 2, "surroundings": {"link": "pcie", "host": "linux", "installation": "pip"}}, {}),
        ({"accelerator": None}, {}),
        ({"measured": {"available_kv_gib": 20}}, {}),
    ],
)  # fmt: skip
def test_only_unknown_surroundings_that_decide_are_assumed(fields, assumed) -> None:
    request = START | {"engine_version": "0.20.2"} | fields
    found = plan(scenario_from_request(request)).surroundings.assumed
    assert found == assumed


def test_figures_are_those_of_the_assumed_surroundings() -> None:
    request = START | {"tensor_parallel_size": 2, "engine_version": "0.20.2"}
    planned = plan(scenario_from_request(request))
    found = planned.surroundings.assumed
    assert found
    said = plan(scenario_from_request(request | {"surroundings": found}))
    assert said.available_kv_bytes == planned.available_kv_bytes
    assert result_of(planned)["assumed_surroundings"] == found
    one = plan(scenario_from_request(request | {"surroundings": OF_THE_IMAGE}))
    said = "Assumed, as nothing else was said: Link between cards: NVLink or another fast link."
    assert assumed_text(one, EN) == said
    assert "卡间互联" in assumed_text(one, words(Language.CHINESE))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 4, "accelerator": "RTX-3090-24GB", "engine_version": "0.11.0"},
        {"accelerator": "RTX-5090-32GB", "engine_version": "0.28.0"},
        {"accelerator": "Jetson-Orin-Nano-8GB", "model": "Qwen/Qwen3-0.6B"},
        {"accelerator": "Ascend-910B4-32GB", "engine": "vllm-ascend", "model": "Qwen/Qwen3-8B"},
        {"engine_version": "0.8.5", "model": "Qwen/Qwen3-8B"},
        {"accelerator": "T4-16GB", "engine_version": "0.12.0", "model": "Qwen/Qwen3-4B"},
    ],
)
def test_surroundings_of_the_same_terms_have_the_same_memory(fields: dict[str, Any]) -> None:
    planned = plan(scenario_from_request(START | fields))
    seen: dict[Hashable, Quantity] = {}
    for key, flag in fields_of("surroundings").items():
        for case in flag.choices:
            scenario = with_surroundings(planned.scenario, {key: case})
            given = planned.architecture, planned.resolved, planned.accelerator
            terms = surrounding_terms(setting_of(scenario, *given, 0))
            kv = rank_memory(
                scenario=scenario, architecture=given[0], resolved=given[1], accelerator=given[2],
                weights=planned.weights, stage=0,
            ).available_kv  # fmt: skip
            assert (kv.value, kv.interval) == (seen.setdefault(terms, kv).value, seen[terms].interval)
    assert len(seen) < sum(len(flag.choices) for flag in fields_of("surroundings").values())
