"""Fewer CUDA graphs as the change that mends a plan."""

import pytest

from kvcore.advice.fixes import FIXED, fixes
from kvcore.planning import Plan, Verdict, plan
from kvcore.scenario.request import scenario_from_request

# Its graphs take more than the few hundred MiB that this length lacks.
BROKEN = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "H100-80GB",
    "engine_version": "0.32.0",
    "max_model_len": 32768,
}


def start(**fields: object) -> Plan:
    return plan(scenario_from_request({**BROKEN, **fields}))


def values(broken: Plan) -> dict[str, object]:
    return {fix.field: fix.value for fix in fixes(broken)}


def test_as_many_graphs_as_fit_are_kept() -> None:
    broken = start()
    assert broken.verdict is Verdict.CONTEXT_TOO_LONG
    (fix,) = (fix for fix in fixes(broken) if fix.field == "max_cudagraph_capture_size")
    assert isinstance(fix.value, int)
    assert fix.plan.resolved.cudagraph_capture_sizes[-1] == fix.value < 512
    assert fix.verdict in FIXED
    assert start(max_cudagraph_capture_size=fix.value).verdict in FIXED
    if fix.value < 256:
        assert start(max_cudagraph_capture_size=2 * fix.value).verdict not in FIXED


def test_it_comes_before_no_graphs_at_all() -> None:
    order = list(values(start()))
    assert order.index("max_cudagraph_capture_size") + 1 == order.index("enforce_eager")


@pytest.mark.parametrize(
    "fields",
    [
        {"enforce_eager": True, "max_model_len": 40960},
        {"cudagraph_mode": "NONE", "max_model_len": 40960},
        {"cudagraph_capture_sizes": list(range(1, 81))},
        {"max_cudagraph_capture_size": 1, "max_model_len": 40960},
        # Before 0.20 graphs are not counted.
        {"engine_version": "0.19.0", "max_model_len": 40960},
    ],
)
def test_where_graphs_do_not_decide_it_is_not_offered(fields: dict[str, object]) -> None:
    broken = start(**fields)
    assert broken.verdict not in FIXED
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
    assert 40_000 < length < 40_960
    assert plan(scenario_from_request(asked | {"max_model_len": length + 16})).verdict is Verdict.TIGHT
