"""A start whose release nobody states: its range is that of all releases that may be meant."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from kvcore import catalogue
from kvcore.advice.sweep import plan_cell, sweep
from kvcore.base.units import GIB
from kvcore.deploy.server_start import image
from kvcore.engines.registry import engine_of
from kvcore.planning import Plan, Verdict, plan
from kvcore.wire.request import scenario_from_request

ASCEND = {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend", "accelerator": "Ascend-910B4-32GB"}


def planned(**fields: Any) -> Plan:
    return plan(scenario_from_request(ASCEND | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gpu_memory_utilization": 0.8, "enforce_eager": True},
        {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 4, "accelerator": "Ascend-910B3-64GB"},
        {"model": "Qwen/Qwen3-30B-A3B", "tensor_parallel_size": 2, "enable_expert_parallel": True,
         "accelerator": "Ascend-910C-64GB"},
        {"accelerator": "Ascend-310P3-Duo-48GB", "max_model_len": 4096, "dtype": "float16"},
    ],
)  # fmt: skip
def test_the_range_is_that_of_every_release_planned_by_itself(fields: dict[str, Any]) -> None:
    open_ended = planned(**fields)
    releases = [
        planned(**fields, engine_version=version) for version in ("0.11.0", "0.13.0", "0.18.0", "0.23.0")
    ]
    lows, highs = zip(*(one.stage_kv[0].bounds for one in releases), strict=True)
    found = open_ended.stage_kv[0]
    # Tables that a release copies are weights: those stay the newest release's.
    assert found.bounds == pytest.approx((min(lows), max(highs)), abs=0.05 * GIB)
    assert found.value == releases[-1].stage_kv[0].value
    assert [notice.code for notice in open_ended.notices if notice.field == "engine_version"] == [
        "release-not-stated"
    ]


def test_a_release_that_is_named_has_its_own_range() -> None:
    named = planned(engine_version="0.23.0")
    low, high = named.stage_kv[0].bounds
    assert high - low < 0.7 * GIB
    assert all(notice.code != "release-not-stated" for notice in named.notices)


def others(request: dict[str, str]) -> tuple[Version, ...]:
    scenario = scenario_from_request(request)
    return engine_of(scenario).other_versions(scenario)


def test_releases_without_the_model_are_not_meant() -> None:
    asked = {"model": "deepseek-ai/DeepSeek-V4-Flash", "engine": "vllm-ascend"}
    assert others(asked) == ()
    # Of vLLM itself a start without a release is planned as the newest.
    assert others({"model": "Qwen/Qwen3-8B"}) == ()


def test_a_published_start_without_a_release_has_no_memory_left() -> None:
    # github.com/vllm-project/vllm-ascend/issues/9372: Qwen3-14B on a vNPU of 30.48 GiB, weights 27.5376 GB, "Available
    # KV cache memory: -0.87 GiB"; the report names no release.
    found = planned(
        model="Qwen/Qwen3-14B",
        accelerator={"memory_gib": 30.48, "vendor": "huawei", "name": "Ascend vNPU"},
        max_model_len=4096,
        enforce_eager=True,
    )
    low, high = found.stage_kv[0].bounds
    assert low < -0.87 * GIB < high
    assert found.verdict is Verdict.NO_KV_MEMORY


def test_what_starts_on_some_releases_alone_is_tight() -> None:
    asked = {"model": "Qwen/Qwen3-14B", "enforce_eager": True, "max_model_len": 1024}
    card = {"memory_gib": 30.48, "vendor": "huawei", "name": "Ascend vNPU"}
    newest = planned(**asked, accelerator=card, engine_version="0.23.0")
    former = planned(**asked, accelerator=card, engine_version="0.18.0")
    assert (newest.verdict is Verdict.TIGHT, former.verdict is Verdict.WEIGHTS_DO_NOT_FIT) == (True, True)
    roomy = planned(**asked, accelerator=card, gpu_memory_utilization=0.94, engine_version="0.23.0")
    assert roomy.verdict is Verdict.FITS
    assert planned(**asked, accelerator=card, gpu_memory_utilization=0.94).verdict is Verdict.TIGHT


def test_a_sweep_has_the_cells_of_the_plan() -> None:
    base = scenario_from_request({"model": "Qwen/Qwen3-8B", "max_model_len": 32768})
    cards = [card for card in catalogue.load_accelerators() if card.vendor.value == "huawei"]
    models = [catalogue.find_model(name) for name in ("Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B")]
    for entry, swept in zip(models, sweep(base, models, cards, (1, 2)), strict=True):
        cells = iter(swept.cells)
        for card in cards:
            for size in (1, 2):
                assert next(cells) == plan_cell(base, entry, card, size), (entry.id, card.id, size)


def test_a_release_that_nobody_states_has_one_name() -> None:
    """The note, the plan and the image: 0.23.0.post1 repairs 0.23.0, and runs on the same vLLM."""
    asked = {"model": "Qwen/Qwen3-32B", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend"}
    known = plan(scenario_from_request(asked | {"tensor_parallel_size": 2, "max_model_len": 32768}))
    (said,) = [one for one in known.notices if one.code == "release-not-stated"]
    assert said.params["used"] == known.resolved.engine_version
    assert image(known).endswith(f":v{known.resolved.engine_version}")
