"""Data parallel replicas of a mixture: they run its experts together, whole or not."""

import pytest

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import GIB
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

DEEPSEEK = {
    "model": "deepseek-ai/DeepSeek-V3",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": 8,
    "max_model_len": 8192,
}
DENSE = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": 2,
    "max_model_len": 8192,
}


def planned(asked, **fields):
    return plan(scenario_from_request(asked | fields))


def experts_bytes(slices):
    """58 layers of 256 experts of three 7168 × 2048 matrices in 8 bits, with a float32 for each block of 128 × 128."""
    weights = 58 * 256 * 3 * 7168 * 2048 // slices
    return weights + 4 * weights // (128 * 128)


def test_experts_that_are_not_whole_are_cut_over_all_replicas():
    # vllm 0.33.0 fused_moe/config.py:FusedMoEParallelConfig.make: TP = {TP × DP} without expert parallelism.
    one, two = planned(DEEPSEEK), planned(DEEPSEEK, data_parallel_size=2)
    saved = one.weights.parameters - two.weights.parameters
    assert saved == pytest.approx(experts_bytes(8) - experts_bytes(16), rel=1e-6)


def test_whole_experts_are_as_many_bytes():
    cut = planned(DEEPSEEK, data_parallel_size=2)
    whole = planned(DEEPSEEK, data_parallel_size=2, enable_expert_parallel=True)
    # What differs are shared experts, whole beside whole ones, and the map of experts.
    assert abs(cut.weights.parameters - whole.weights.parameters) < 3 * GIB


def test_replicas_of_a_dense_model_are_starts_of_their_own():
    one, two = planned(DENSE), planned(DENSE, data_parallel_size=2)
    assert (one.weights.parameters, one.memory.activations.value, one.memory.framework.value) == (
        two.weights.parameters, two.memory.activations.value, two.memory.framework.value
    )  # fmt: skip


def test_a_published_start_of_two_replicas():
    # dev.jsonl L0cf210b7a2: 0.20.0 on two A100s printed 1,211,392 tokens and 17.38 requests of 131,072 tokens.
    found = planned(
        {
            "model": "openai/gpt-oss-20b", "engine_version": "0.20.0", "data_parallel_size": 2,
            "accelerator": {"memory_gib": 79.25, "vendor": "nvidia", "name": "A100 80GB"},
            "gpu_memory_utilization": 0.85, "max_model_len": 131072, "max_num_batched_tokens": 8192,
        }
    )  # fmt: skip
    assert found.cache.tokens == pytest.approx(1_211_392, rel=0.01)


def test_an_expert_that_replicas_cannot_cut_is_refused_with_the_way_out():
    with pytest.raises(EngineRefusalError) as refused:
        planned(DEEPSEEK, tensor_parallel_size=8, data_parallel_size=3)
    assert (refused.value.code, refused.value.field, refused.value.value) == (
        "size-not-divisible",
        "data_parallel_size",
        3,
    )
