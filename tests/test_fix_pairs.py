"""Two changes where one is not enough."""

import pytest

from kvcore.advice.fixes import FIXED, fix_pairs, fixes
from kvcore.planning import plan
from kvcore.scenario import edit
from kvcore.scenario.request import scenario_from_request

HOPELESS = (
    {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "RTX-4090-24GB"},
    {"model": "Qwen/Qwen3-235B-A22B", "accelerator": "L4-24GB", "max_model_len": 32768},
    {"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB", "max_model_len": 1_000_000},
)
"""More than one knob away from a start: hundreds of GiB of weights, or 244 GiB of keys and values, on small cards."""


@pytest.mark.parametrize("request_", HOPELESS, ids=lambda request: request["model"])
def test_pairs_mend_what_no_single_change_does(request_) -> None:
    broken = plan(scenario_from_request(request_))
    assert fixes(broken) == ()
    pairs = fix_pairs(broken)
    assert pairs
    for pair in pairs:
        scenario = broken.scenario
        for field, value in pair.changes:
            scenario = edit.with_field(scenario, field, value)
        mended = plan(scenario)
        assert mended.verdict in FIXED
        assert mended.scenario == pair.second.plan.scenario


@pytest.mark.parametrize("request_", HOPELESS, ids=lambda request: request["model"])
def test_neither_half_of_a_pair_does_it_alone(request_) -> None:
    broken = plan(scenario_from_request(request_))
    for pair in fix_pairs(broken):
        assert len({field for field, _ in pair.changes}) == 2
        for field, value in pair.changes:
            assert plan(edit.with_field(broken.scenario, field, value)).verdict not in FIXED


def test_no_card_that_stands_alone_is_advised_for_several() -> None:
    for request in HOPELESS:
        for pair in fix_pairs(plan(scenario_from_request(request))):
            planned = pair.second.plan
            several = planned.scenario.parallel.ranks_per_replica > 1
            assert not (several and planned.accelerator.interconnect == "none")


def test_nothing_is_advised_where_two_changes_are_not_enough() -> None:
    # 1,026 × 10⁹ parameters in fp8 are over 950 GiB; eight of the largest cards of these vendors have 768.
    broken = plan(
        scenario_from_request({"model": "moonshotai/Kimi-K2-Instruct", "accelerator": "BI-V150-32GB"})
    )
    assert fixes(broken) == fix_pairs(broken) == ()


RESTARTS = {
    "model": "Qwen/Qwen2.5-7B-Instruct-AWQ", "accelerator": {"memory_gib": 8.0, "vendor": "nvidia", "name": "RTX"},
    "engine_version": "0.28.0", "max_num_seqs": 4, "gpu_memory_utilization": 0.95,
}  # fmt: skip


class TestSecondStart:
    """Qwen2.5-7B-AWQ has 0.76 GiB more on a second start: the embedding table's 1.015 less the 0.258 of a layer."""

    def test_it_is_the_first_advice_where_it_is_enough(self) -> None:
        broken = plan(scenario_from_request({**RESTARTS, "max_model_len": 24576}))
        assert broken.verdict not in FIXED
        first = fixes(broken)[0]
        assert (first.field, first.value, first.verdict in FIXED) == ("kernels_compiled", True, True)

    def test_not_where_more_is_missing_or_nothing_is_compiled(self) -> None:
        for fields in (
            {"gpu_memory_utilization": 0.85},
            {"enforce_eager": True, "gpu_memory_utilization": 0.85},
        ):
            broken = plan(scenario_from_request({**RESTARTS, "max_model_len": 24576, **fields}))
            assert broken.verdict not in FIXED
            assert "kernels_compiled" not in {fix.field for fix in fixes(broken)}
