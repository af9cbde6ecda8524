"""Changes that fix a plan, alone or in pairs, and those that end a refusal of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.advice.fixes import fix_pairs, fixes, refusal_fixes, surer
from kvcore.base.errors import EngineRefusalError
from kvcore.catalogue.siblings import checkpoints
from kvcore.controls import edit
from kvcore.planning import Plan, Tightness, Verdict, plan
from kvcore.wire.request import scenario_from_request

# Its graphs take more than the few hundred MiB that this length lacks.
BROKEN = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "H100-80GB",
    "engine_version": "0.32.0",
    "max_model_len": 36864,
}


def start(**fields: object) -> Plan:
    return plan(scenario_from_request({**BROKEN, **fields}))


def is_fixed(planned: Plan) -> bool:
    """By the figures it fits, whatever their error."""
    return planned.verdict is Verdict.FITS or planned.tight_by is Tightness.SPARE


def values(broken: Plan) -> dict[str, object]:
    return {fix.field: fix.value for fix in fixes(broken)}


def test_as_many_graphs_as_fit_are_kept() -> None:
    broken = start()
    assert broken.verdict is Verdict.CONTEXT_TOO_LONG
    (fix,) = (fix for fix in fixes(broken) if fix.field == "max_cudagraph_capture_size")
    assert isinstance(fix.value, int)
    assert fix.plan.resolved.cudagraph_capture_sizes[-1] == fix.value < 512
    assert is_fixed(fix.plan)
    assert is_fixed(start(max_cudagraph_capture_size=fix.value))
    if fix.value < 256:
        assert not is_fixed(start(max_cudagraph_capture_size=2 * fix.value))


def test_it_comes_before_no_graphs_at_all() -> None:
    order = list(values(start()))
    assert order.index("max_cudagraph_capture_size") + 1 == order.index("enforce_eager")


@pytest.mark.parametrize(
    "fields",
    [
        {"enforce_eager": True, "max_model_len": 40960},
        {"cudagraph_mode": "NONE", "max_model_len": 40960},
        {"cudagraph_capture_sizes": list(range(1, 81)), "max_model_len": 40960},
        {"max_cudagraph_capture_size": 1, "max_model_len": 40960},
        # Before 0.20 graphs are not counted.
        {"engine_version": "0.19.0", "max_model_len": 40960},
    ],
)
def test_where_graphs_do_not_decide_it_is_not_offered(fields: dict[str, object]) -> None:
    broken = start(**fields)
    assert not is_fixed(broken)
    assert "max_cudagraph_capture_size" not in values(broken)


def test_drafts_leave_whole_requests() -> None:
    broken = start(speculative_config={"method": "ngram", "num_speculative_tokens": 4})
    value = values(broken).get("max_cudagraph_capture_size")
    assert value is None or (isinstance(value, int) and value >= 5)


def test_a_tight_plan_is_mended_by_what_surely_fits() -> None:
    """Qwen3-32B, 40,960 tokens are 10 GiB: what is left may be a little less. The length itself is no fix."""
    asked = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "H100-80GB",
        "engine_version": "0.33.0",
        "max_model_len": 40_960,
        "enforce_eager": True,
        "max_num_seqs": 16,
    }
    broken = plan(scenario_from_request(asked))
    assert broken.verdict is Verdict.TIGHT
    found = {fix.field: fix for fix in fixes(broken)}
    assert all(fix.verdict is Verdict.FITS for fix in found.values())
    length = found["max_model_len"].value
    assert isinstance(length, int)
    assert 32_000 < length < 40_960
    assert plan(scenario_from_request(asked | {"max_model_len": length + 16})).verdict is Verdict.TIGHT


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
        assert is_fixed(mended)
        assert mended.scenario == pair.second.plan.scenario


@pytest.mark.parametrize("request_", HOPELESS, ids=lambda request: request["model"])
def test_neither_half_of_a_pair_does_it_alone(request_) -> None:
    broken = plan(scenario_from_request(request_))
    for pair in fix_pairs(broken):
        assert len({field for field, _ in pair.changes}) == 2
        for field, value in pair.changes:
            assert not is_fixed(plan(edit.with_field(broken.scenario, field, value)))


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
    "engine_version": "0.28.0", "max_num_seqs": 4, "gpu_memory_utilization": 0.85,
}  # fmt: skip


class TestSecondStart:
    """Qwen2.5-7B-AWQ has 0.76 GiB more on a second start: the embedding table's 1.015 less the 0.258 of a layer."""

    def test_it_is_the_first_advice_where_it_is_enough(self) -> None:
        broken = plan(scenario_from_request({**RESTARTS, "max_model_len": 14336}))
        assert not is_fixed(broken)
        first = fixes(broken)[0]
        assert (first.field, first.value, is_fixed(first.plan)) == ("kernels_compiled", True, True)

    def test_not_where_more_is_missing_or_nothing_is_compiled(self) -> None:
        for fields in (
            {"max_model_len": 24576},
            {"enforce_eager": True, "max_model_len": 32768},
        ):
            broken = plan(scenario_from_request({**RESTARTS, **fields}))
            assert not is_fixed(broken)
            assert "kernels_compiled" not in {fix.field for fix in fixes(broken)}


LLAMA = {"model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 4096}
REFUSED = [
    # Experts of 1536 features, blocks of 128; refined since 0.29.
    ({"model": "Qwen/Qwen3-235B-A22B-FP8", "accelerator": "H200-141GB", "engine_version": "0.11.0",
      "tensor_parallel_size": 8, "max_model_len": 4096},
     {"tensor_parallel_size": 4, "enable_expert_parallel": True, "engine_version": "0.29.0"}),
    # 32 heads: both 4 and 8 divide them, and 8 / 6 is less than 6 / 4.
    (LLAMA | {"accelerator": "H100-80GB", "tensor_parallel_size": 6}, {"tensor_parallel_size": 8}),
    (LLAMA | {"accelerator": "T4-16GB", "quantization": "fp8", "engine_version": "0.13.0", "tensor_parallel_size": 4},
     {"engine_version": "0.14.0", "quantization": None}),
    (LLAMA | {"accelerator": "H100-80GB", "block_size": 17}, {"block_size": None}),
    (LLAMA | {"accelerator": "H100-80GB", "kv_cache_dtype": "nvfp4", "engine_version": "0.31.0"},
     {"kv_cache_dtype": "auto", "engine_version": "0.32.0", "accelerator": "B200-180GB"}),
    ({"model": "Qwen/Qwen3.5-4B", "accelerator": "H100-80GB", "engine_version": "0.9.2", "max_model_len": 4096},
     {"engine_version": None}),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "some"), REFUSED, ids=lambda value: value.get("model", "")[-20:])
def test_single_changes(asked: dict[str, Any], some: dict[str, Any]) -> None:
    scenario = scenario_from_request(asked)
    with pytest.raises(EngineRefusalError) as refused:
        plan(scenario)
    found = {one.field: one for one in refusal_fixes(scenario, refused.value)}
    for field, value in some.items():
        if value is not None or field != "engine_version":
            assert found[field].value == value
        assert field in found
    for one in found.values():
        again = plan(edit.with_field(scenario, one.field, one.value))
        assert is_fixed(again) or again.tight_by is Tightness.AFTER_POOL
        assert again.scenario == one.plan.scenario
    if refused.value.field in found:
        assert next(iter(found)) == refused.value.field


def test_what_nothing_mends_has_no_fix() -> None:
    """Sparse latent attention on an Ampere card of which no larger or newer one of 80 GB holds 640 GB on one rank."""
    asked = {"model": "deepseek-ai/DeepSeek-V3.2", "accelerator": "A100-80GB"}
    scenario = scenario_from_request(asked)
    with pytest.raises(EngineRefusalError) as refused:
        plan(scenario)
    assert refusal_fixes(scenario, refused.value) == ()


TWO_4090 = {
    "model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB", "tensor_parallel_size": 2, "max_model_len": 32768,
}  # fmt: skip


def test_weights_that_do_not_fit_are_offered_in_four_bits() -> None:
    """61 GiB of 16-bit weights on 2 × 24 GiB: the publisher's own AWQ takes a third of it, bitsandbytes no more."""
    found = fixes(start(**TWO_4090 | {"engine_version": None}))
    offered = [(fix.field, fix.value) for fix in found]
    assert ("quantization", "bitsandbytes") in offered
    models = [value for field, value in offered if field == "model"]
    assert models[0] == "Qwen/Qwen3-32B-AWQ"
    assert len(models) <= 2
    assert len({fix.key for fix in found}) == len(found)


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3-32B", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-30B-A3B"]
)
@pytest.mark.parametrize("card", ["T4-16GB", "A100-40GB", "RTX-4090-24GB", "H100-80GB"])
def test_a_promised_checkpoint_starts_when_it_is_sent_back(model: str, card: str) -> None:
    asked = {"model": model, "accelerator": card, "max_model_len": 8192, "tensor_parallel_size": 1}
    broken = plan(scenario_from_request(asked))
    for fix in fixes(broken):
        if fix.field == "model":
            again = plan(scenario_from_request(asked | {"model": fix.value}))
            assert again.verdict in (Verdict.FITS, Verdict.TIGHT)
            assert again.loaded_weights.value < broken.loaded_weights.value
            assert edit.with_field(broken.scenario, "model", fix.value) == again.scenario == fix.plan.scenario


def test_another_model_is_no_checkpoint_of_this_one() -> None:
    assert "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8" not in checkpoints("Qwen/Qwen3-30B-A3B")
    assert "Qwen/Qwen2.5-32B-Instruct-AWQ" not in checkpoints("Qwen/Qwen2.5-32B")
    assert checkpoints("no/such-model") == ()


def test_a_config_that_was_changed_has_no_checkpoint_in_the_catalogue() -> None:
    asked = TWO_4090 | {"hf_overrides": '{"rope_theta": 500000}'}
    assert not [fix for fix in fixes(plan(scenario_from_request(asked))) if fix.field == "model"]


TWO_OF_MANY = {
    "model": "Qwen/Qwen3-32B", "accelerator": "L40S-48GB", "engine_version": "0.27.1", "max_model_len": 32768,
    "gpu_memory_utilization": 0.92,
}  # fmt: skip
"""61 GiB of weights: two cards of 48 GB hold them, with little room for the last steps of the start."""


def test_no_more_gpus_than_start_it_are_advised() -> None:
    found = {fix.field: fix for fix in fixes(start(**TWO_OF_MANY))}
    fix = found["tensor_parallel_size"]
    assert (fix.value, fix.verdict) == (2, Verdict.TIGHT)
    assert start(**TWO_OF_MANY | {"tensor_parallel_size": 1}).verdict is Verdict.WEIGHTS_DO_NOT_FIT
    pair = surer(fix)
    assert pair is not None
    assert pair.changes == (("tensor_parallel_size", 2), ("gpu_memory_utilization", 0.91))
    asked = TWO_OF_MANY | dict(pair.changes)
    assert plan(scenario_from_request(asked)).verdict is Verdict.FITS
