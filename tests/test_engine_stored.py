"""Shared experts on vllm-ascend: whole on each rank with FlashComm, cut over the ranks without."""

from typing import Any

import pytest

from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

CARD = {"name": "Ascend 910B 64GB", "memory_gib": 60.96, "vendor": "huawei"}
FLASHCOMM = {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}
V2_LITE = 26 * 3 * 2048 * (2 * 1408)
"""Parameters of the shared experts of DeepSeek-V2-Lite: 26 layers, hidden size 2048, two experts of 1408."""
NEXT = 48 * 3 * 2048 * 512
"""Of Qwen3-Next-80B-A3B: 48 layers, one of 512."""


def parameters(model: str, version: str, env: dict[str, str], **fields: Any) -> int:
    request = {
        "model": model, "engine": "vllm-ascend", "engine_version": version, "accelerator": CARD, "env": env,
        "tensor_parallel_size": 4, "data_parallel_size": 2, "enable_expert_parallel": True, "max_model_len": 4096,
    }  # fmt: skip
    return plan(scenario_from_request(request | fields)).parameter_bytes_per_rank


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("version", ["0.11.0", "0.13.0", "0.18.0", "0.23.0"])
def test_each_rank_stores_them_whole_with_flashcomm_alone(version: str, replicas: int) -> None:
    """utils.py:shared_expert_dp_enabled, ops/linear_op.py:get_parallel_op: three quarters more, in 16 bits."""
    model = "deepseek-ai/DeepSeek-V2-Lite"
    whole, cut = (
        parameters(model, version, env, data_parallel_size=replicas, quantization=None)
        for env in (FLASHCOMM, {})
    )
    assert whole - cut == 2 * V2_LITE * 3 // 4


@pytest.mark.parametrize(
    ("version", "is_whole"), [("0.13.0", False), ("0.15.0rc1", False), ("0.16.0rc1", True)]
)
def test_the_name_that_is_looked_for_changed(version: str, is_whole: bool) -> None:
    """`shared_experts` up to 0.15.0rc1, so `shared_expert` of Qwen3-Next was cut; both from 0.16.0rc1 on."""
    model = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    with_it, without = (parameters(model, version, env) for env in (FLASHCOMM, {}))
    assert with_it - without == (2 * NEXT * 3 // 4 if is_whole else 0)


@pytest.mark.parametrize(
    ("version", "is_read"), [("0.13.0", True), ("0.19.1rc1", True), ("0.20.2rc1", False)]
)
def test_the_former_name_of_the_variable_is_read_to_0_19(version: str, is_read: bool) -> None:
    """vllm_ascend/utils.py:enable_sp."""
    model = "deepseek-ai/DeepSeek-V2-Lite"
    former, without = (parameters(model, version, env) for env in ({"VLLM_ASCEND_ENABLE_FLASHCOMM": "1"}, {}))
    assert former - without == (2 * V2_LITE * 3 // 4 if is_read else 0)


def test_before_0_11_it_is_the_rule_of_vllm() -> None:
    model = "deepseek-ai/DeepSeek-V2-Lite"
    assert parameters(model, "0.10.2rc1", FLASHCOMM) == parameters(model, "0.10.2rc1", {})
    assert parameters(model, "0.23.0", FLASHCOMM, tensor_parallel_size=1) == parameters(
        model, "0.23.0", {}, tensor_parallel_size=1
    )
