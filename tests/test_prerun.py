"""The pre-run of vllm-mindspore. Numbers are those of its tuning guide, or sums by hand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.errors import ScenarioError
from kvcore.evidence.logs import read_log
from kvcore.evidence.prerun import (
    PreRun,
    PreRunResult,
    documented_bytes_per_token,
    out_of_memory_remedies,
    prerun_from_log,
)
from kvcore.plan import plan
from kvcore.request import scenario_from_request

LOG = (Path(__file__).parent / "data" / "logs" / "mindspore_prerun.log").read_text("utf-8")
DEEPSEEK_BYTES = 70272


def the_result(**fields: float) -> PreRunResult:
    values = {"prerun": PreRun(), "peak_gb": 29614 / 1024, "bytes_per_token": DEEPSEEK_BYTES, **fields}
    return PreRunResult(**values)  # type: ignore[arg-type]


def test_the_guide_to_the_digit() -> None:
    peak = read_log(LOG).worst_rank.peak_used_gib
    assert peak is not None
    result = the_result(peak_gb=peak.value)
    shown = (result.prerun.kv_gb, result.peak_gb, result.model_gb, result.prerun.budget_gb, result.kv_gb)
    assert [f"{number:.1f}" for number in shown] == ["7.6", "28.9", "21.3", "57.6", "36.3"]


def test_settings_are_read_from_the_log() -> None:
    found = prerun_from_log(read_log(LOG), PreRun(total_gb=32, model_gb=20, max_model_len=4096))
    assert found == PreRun(total_gb=64, model_gb=50, gpu_memory_utilization=0.9, max_model_len=16384)


def test_commands_of_the_pre_run() -> None:
    assert PreRun().exports == {
        "GLOG_v": "1",
        "ASCEND_TOTAL_MEMORY_GB": "64",
        "vLLM_MODEL_MEMORY_USE_GB": "50",
    }
    assert PreRun().flags == {
        "--gpu-memory-utilization": "0.9",
        "--max-num-seqs": "1",
        "--max-model-len": "16384",
        "--max-num-batched-tokens": "16384",
    }


def test_final_settings() -> None:
    # 57.6 - 22 = 35.6 GB; 35.6 x 2**30 / 70,272 = 543,960 tokens; / 16,384 = 33.2
    result = the_result()
    assert result.exports == {"ASCEND_TOTAL_MEMORY_GB": "64", "vLLM_MODEL_MEMORY_USE_GB": "22"}
    assert result.final_tokens == 543_960
    assert (result.max_num_seqs, result.max_num_batched_tokens) == (33, 33 * 16384)


def test_the_engine_computes_the_same_tokens_from_the_final_settings() -> None:
    result = the_result()
    planned = plan(
        scenario_from_request(
            {
                "model": "deepseek-ai/DeepSeek-V3",
                "engine": "vllm-mindspore",
                "accelerator": {"memory_gib": 64, "vendor": "huawei"},
                "gpu_memory_utilization": 0.9,
                "max_model_len": 16384,
                "env": dict(result.exports),
            }
        )
    )
    assert planned.cache is not None
    assert planned.cache.bytes_per_token == DEEPSEEK_BYTES
    assert 0 <= result.final_tokens - planned.cache.tokens < 128


@pytest.mark.parametrize("model_gb", [57.6, 58, 64])
def test_a_model_share_above_the_budget_is_refused(model_gb: float) -> None:
    with pytest.raises(ScenarioError, match="negative number of blocks") as raised:
        PreRun(model_gb=model_gb)
    assert (raised.value.code, raised.value.field) == ("prerun-model-share", "vLLM_MODEL_MEMORY_USE_GB")


def test_a_peak_that_cannot_be() -> None:
    with pytest.raises(ScenarioError) as raised:
        the_result(peak_gb=7.0)
    assert raised.value.code == "prerun-peak-below-kv"
    with pytest.raises(ScenarioError) as raised:
        the_result(peak_gb=7.6 + 57.2)
    assert raised.value.code == "prerun-no-kv"


def test_what_system_and_driver_take_has_to_fit_beside_the_budget() -> None:
    assert PreRun().notices == ()  # 6.4 GB stay
    tight = PreRun(
        total_gb=32, model_gb=20, gpu_memory_utilization=0.95
    )  # 1.6 GB stay of the 3 that are taken
    assert [notice.params["share"] for notice in tight.notices] == ["0.9"]


def test_remedies_come_in_the_guide_s_order() -> None:
    remedies = out_of_memory_remedies(PreRun(), 8)
    assert [(remedy.field, remedy.values) for remedy in remedies] == [
        ("vLLM_MODEL_MEMORY_USE_GB", ("51", "52", "54")),
        ("gpu_memory_utilization", ("0.87", "0.85", "0.8")),
        ("max_model_len", ("8192", "4096")),
        ("tensor_parallel_size", ("16",)),
    ]


def test_no_remedy_makes_the_pre_run_impossible() -> None:
    tight = PreRun(model_gb=56, max_model_len=8192)
    share, utilization, length, _ = out_of_memory_remedies(tight, 8)
    assert share.values == ("57",)
    assert utilization.values == ()
    assert length.values == ("4096",)


def test_note_on_latent_attention() -> None:
    documented = documented_bytes_per_token(61, 128, 128)
    assert documented == 1_998_848
    assert f"{documented / DEEPSEEK_BYTES:.1f}" == "28.4"


@given(
    total=st.floats(8, 256),
    utilization=st.floats(0.3, 1.0),
    model=st.floats(1, 250),
    peak=st.floats(0.1, 300),
    size=st.floats(100, 1e7),
    length=st.integers(1, 1 << 20),
)
def test_final_settings_keep_every_rule(
    total: float, utilization: float, model: float, peak: float, size: float, length: int
) -> None:
    try:
        prerun = PreRun(
            total_gb=total, model_gb=model, gpu_memory_utilization=utilization, max_model_len=length
        )
        result = PreRunResult(prerun=prerun, peak_gb=peak, bytes_per_token=size)
    except ScenarioError:
        return
    assert result.model_gb <= result.final_model_gb + 1e-6
    assert 0 < result.final_kv_gb <= result.kv_gb + 1e-6
    if result.max_num_seqs:
        assert result.max_num_seqs * length <= result.max_num_batched_tokens < result.final_tokens
