"""Measured parts under changed settings."""

import pytest
from msgspec.structs import replace

from kvcore.advice.fixes import fixes
from kvcore.advice.vary import tensor_parallel_curves
from kvcore.base.quantity import Grade
from kvcore.base.units import gib
from kvcore.controls.edit import with_field
from kvcore.evidence.carry import carried_over, carried_to_model
from kvcore.planning import Verdict, plan
from kvcore.scenario import Measured, Origin, Scenario
from kvcore.wire.request import scenario_from_request

PARTS = {
    "weights_gib": "weights",
    "peak_activation_gib": "activations",
    "cuda_graph_gib": "cuda_graphs",
    "non_torch_gib": "framework",
    "system_gib": "system",
}


def the_scenario(**fields: object) -> Scenario:
    return scenario_from_request(
        {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "engine_version": "0.19.0", **fields}
    )


def estimate(scenario: Scenario) -> dict[str, float]:
    memory = plan(replace(scenario, measured=Measured())).memory
    assert memory is not None
    return {field: gib(getattr(memory, part).value) for field, part in PARTS.items()}


def with_ranks(scenario: Scenario, size: int) -> Scenario:
    return replace(scenario, parallel=replace(scenario.parallel, tensor_parallel_size=size))


def test_measurements_equal_to_the_estimate_stay_equal_to_it() -> None:
    one = the_scenario()
    here = replace(one, measured=Measured(**estimate(one)))
    there = carried_over(here, with_ranks(here, 4))
    for field, value in estimate(there).items():
        assert getattr(there.measured, field) == pytest.approx(value, abs=1e-3)


def test_weights_keep_their_ratio_and_framework_its_difference() -> None:
    one = the_scenario()
    old, new = estimate(one), estimate(with_ranks(one, 2))
    here = replace(
        one, measured=Measured(weights_gib=1.1 * old["weights_gib"], non_torch_gib=old["non_torch_gib"] + 0.5)
    )
    there = carried_over(here, with_ranks(here, 2)).measured
    assert there.weights_gib == pytest.approx(1.1 * new["weights_gib"], abs=1e-3)
    assert there.non_torch_gib == pytest.approx(new["non_torch_gib"] + 0.5, abs=1e-3)
    assert there.peak_activation_gib is None


def test_a_change_that_moves_no_part_carries_nothing() -> None:
    here = the_scenario(measured={"weights_gib": 61.2345678, "system_gib": 0.7, "non_torch_gib": 0.1})
    assert carried_over(here, replace(here, gpu_memory_utilization=0.8)).measured == here.measured
    assert carried_over(here, replace(here, max_model_len=2048)).measured == here.measured


def test_a_part_that_moved_is_no_longer_measured() -> None:
    here = the_scenario(measured={"weights_gib": 61.0, "system_gib": 0.7, "peak_activation_gib": 5.6})
    there = with_field(here, "tensor_parallel_size", 2)
    assert there.measured.origin("weights_gib") is Origin.CARRIED
    memory = plan(there).memory
    assert memory is not None
    assert memory.weights.interval is not None
    assert memory.weights.grade is Grade.DERIVED
    assert memory.activations.grade is Grade.FITTED
    low, high = memory.weights.interval
    assert (high - low) / 2 == pytest.approx(0.01 * memory.weights.value)
    own = with_field(there, "measured.weights_gib", 30.9)
    assert own.measured.origin("weights_gib") is Origin.MEASURED


def test_a_given_kv_memory_keeps_its_size_and_is_said_to_be_carried() -> None:
    fixed = the_scenario(measured={"available_kv_gib": 8.0})
    there = with_field(fixed, "tensor_parallel_size", 2)
    assert there.measured == Measured(available_kv_gib=8.0, carried=("available_kv_gib",))


def test_a_changed_part_and_a_given_kv_memory_are_left_alone() -> None:
    here = the_scenario(measured={"weights_gib": 61.0})
    changed = replace(here, measured=Measured(weights_gib=30.0))
    assert carried_over(here, changed) == changed
    fixed = the_scenario(measured={"available_kv_gib": 8.0})
    assert carried_over(fixed, with_ranks(fixed, 2)).measured.available_kv_gib == 8.0


def test_nothing_is_carried_without_a_plan() -> None:
    here = the_scenario(measured={"weights_gib": 61.0})
    refused = with_ranks(here, 7)
    assert carried_over(here, refused) == refused


def test_another_model_keeps_measurements_of_the_machine() -> None:
    here = the_scenario(measured={"weights_gib": 61.0, "system_gib": 1.5, "available_kv_gib": 8.0})
    other = the_scenario(model="Qwen/Qwen3-8B", measured={"weights_gib": 61.0, "system_gib": 1.5})
    assert carried_to_model(here, other).measured == Measured(system_gib=1.5)


def test_the_sidebar_the_curves_and_the_fixes_carry_them() -> None:
    # Measured weights of 70 GiB leave one H100 nothing; half of them fit on each of two.
    broken = plan(the_scenario(measured={"weights_gib": 75.0}))
    assert broken.verdict is Verdict.WEIGHTS_DO_NOT_FIT
    assert [fix.value for fix in fixes(broken) if fix.field == "tensor_parallel_size"] == [2]
    curves = {curve.tensor_parallel_size: curve for curve in tensor_parallel_curves(broken, (8192,))}
    assert curves[1].concurrency == (0.0,)
    assert curves[2].concurrency[0] > 1
    wider = with_field(broken.scenario, "tensor_parallel_size", 2)
    assert wider.measured.weights_gib == pytest.approx(75 / 2, rel=0.01)
