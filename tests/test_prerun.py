"""The pre-run of vllm-mindspore. Numbers are those of its tuning guide, or sums by hand."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import ScenarioError
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.prerun import (
    PreRun,
    PreRunResult,
    documented_bytes_per_token,
    out_of_memory_remedies,
    prerun_from_log,
)
from kvcore.planning import plan
from kvcore.scenario import Parallel
from kvcore.wire.request import scenario_from_request

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
    assert found.step_tokens == 16384


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


def test_settings_of_the_final_start() -> None:
    # 57.6 - 22 = 35.6 GB; 35.6 x 2**30 / 70,272 = 543,960 tokens; / 16,384 = 33.2
    result = the_result()
    assert result.exports == {"ASCEND_TOTAL_MEMORY_GB": "64", "vLLM_MODEL_MEMORY_USE_GB": "22"}
    assert result.final_tokens == 543_960
    assert (result.max_num_seqs, result.max_num_batched_tokens) == (33, 16384)


def test_the_final_start_is_one_that_was_measured() -> None:
    """The peak is that of a step of 16,384 tokens; the activations of 33 x 16,384 were not measured."""
    result = the_result()
    assert result.flags["--max-num-batched-tokens"] == result.prerun.flags["--max-num-batched-tokens"]
    wide = the_result(prerun=PreRun(batched_tokens=65536))
    assert wide.prerun.flags["--max-num-seqs"] == "4"
    assert wide.flags["--max-num-batched-tokens"] == wide.prerun.flags["--max-num-batched-tokens"] == "65536"


def test_a_step_of_the_log_is_the_step_of_the_final_start() -> None:
    log = read_log(LOG.replace("--max-num-batched-tokens=16384", "--max-num-batched-tokens=4096"))
    found = prerun_from_log(log, PreRun())
    assert found.step_tokens == 4096
    assert the_result(prerun=found).flags["--max-num-batched-tokens"] == "4096"


def mindspore(**fields: Any) -> list[str]:
    request = {
        "model": "deepseek-ai/DeepSeek-V3",
        "engine": "vllm-mindspore",
        "accelerator": {"memory_gib": 64, "vendor": "huawei"},
        "max_model_len": 16384,
        "max_num_seqs": 28,
        "env": {"vLLM_MODEL_MEMORY_USE_GB": "22"},
    }
    return [notice.code for notice in plan(scenario_from_request({**request, **fields})).notices]


def test_plan_warns_of_a_step_that_the_pre_run_did_not_compute() -> None:
    code = "model-share-of-smaller-batch"
    assert code in mindspore(max_num_batched_tokens=458752)
    assert code not in mindspore(max_num_batched_tokens=16384)
    measured = {"batched_tokens": 458752}
    assert code not in mindspore(max_num_batched_tokens=458752, measured=measured)
    assert code in mindspore(max_num_batched_tokens=65536, measured={"batched_tokens": 16384})


def test_plan_warns_where_measured_activations_are_of_a_smaller_step() -> None:
    measured = {"peak_activation_gib": 5.6, "batched_tokens": 8192}
    request = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "H100-80GB",
        "max_model_len": 8192,
        "measured": measured,
    }
    for batched, is_told in ((16384, True), (8192, False), (2048, False)):
        planned = plan(scenario_from_request({**request, "max_num_batched_tokens": batched}))
        codes = [notice.code for notice in planned.notices]
        assert ("activations-of-smaller-batch" in codes) is is_told


def test_the_engine_computes_the_same_tokens_from_the_final_settings() -> None:
    result = the_result()
    planned = plan(
        scenario_from_request(
            {
                "model": "deepseek-ai/DeepSeek-V3",
                "engine": "vllm-mindspore",
                "accelerator": {"memory_gib": 64, "vendor": "huawei"},
                "tensor_parallel_size": 32,
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


def test_a_peak_below_the_weights_is_refused_with_its_next_step() -> None:
    """DeepSeek-V3 on 16 NPUs keeps 40.3 GB of weights on each; the guide's peak leaves 21.3."""
    with pytest.raises(
        ScenarioError, match=r"21\.3 GB, and the weights of the model alone take 40\.3 GB"
    ) as raised:
        the_result(weights_gb=40.3)
    assert (raised.value.code, raised.value.field) == ("prerun-peak-below-weights", "peak_used_gib")
    assert "repeat the pre-run with this model" in raised.value.next_step
    assert the_result(weights_gb=15.3).final_model_gb == 22


def test_the_request_runs_as_a_command() -> None:
    command = PreRun(max_model_len=512, batched_tokens=1024).request_command("a/b'c", 8000)
    written = command.partition(" \\\n  | curl")[0]
    body = json.loads(subprocess.run(["bash", "-c", written], capture_output=True, check=True).stdout)
    assert (body["model"], body["max_tokens"]) == ("a/b'c", 1)
    assert [len(prompt) for prompt in body["prompt"]] == [511, 511]
    assert body["prompt"][0] != body["prompt"][1]


def test_system_and_driver_must_fit_beside_the_budget() -> None:
    assert PreRun().notices == ()  # 6.4 GB stay
    tight = PreRun(
        total_gb=32, model_gb=20, gpu_memory_utilization=0.95
    )  # 1.6 GB stay of the 3 that are taken
    assert [notice.params["share"] for notice in tight.notices] == ["0.9"]


def test_remedies_come_in_the_guide_s_order() -> None:
    remedies = out_of_memory_remedies(PreRun(), Parallel(tensor_parallel_size=8))
    assert [(remedy.field, remedy.values) for remedy in remedies] == [
        ("vLLM_MODEL_MEMORY_USE_GB", ("51", "52", "54")),
        ("gpu_memory_utilization", ("0.87", "0.85", "0.8")),
        ("max_model_len", ("8192", "4096")),
        ("tensor_parallel_size", ("16",)),
    ]
    experts = out_of_memory_remedies(PreRun(), Parallel(tensor_parallel_size=8), has_experts=True)
    assert [(remedy.field, remedy.values) for remedy in experts[4:]] == [("data_parallel_size", ("2",))]


def test_spreading_the_experts_lowers_the_weights_of_a_card() -> None:
    request = {
        "model": "deepseek-ai/DeepSeek-V3",
        "accelerator": "Ascend-910B1-64GB",
        "tensor_parallel_size": 16,
        "quantization": "ascend",
    }
    alone = plan(scenario_from_request(request)).loaded_weights.value
    spread = {"data_parallel_size": 2, "enable_expert_parallel": True}
    assert plan(scenario_from_request({**request, **spread})).loaded_weights.value < 0.6 * alone


def test_no_remedy_makes_the_pre_run_impossible() -> None:
    tight = PreRun(model_gb=56, max_model_len=8192)
    share, utilization, length, _ = out_of_memory_remedies(tight, Parallel(tensor_parallel_size=8))
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
    assert result.flags["--max-num-batched-tokens"] == prerun.flags["--max-num-batched-tokens"]
    if result.max_num_seqs:
        assert result.max_num_seqs * length < result.final_tokens
        assert result.max_num_seqs <= result.max_num_batched_tokens
