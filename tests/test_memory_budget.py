"""The budget of one rank: identities of published starts, measured parts, and laws."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.base.parts import SUMMED
from kvcore.base.quantity import Grade, Quantity, Unit
from kvcore.base.units import GIB, MIB, gib
from kvcore.engine.rank_memory import RankMemory
from kvcore.memory.budget import rank_memories, rank_memory
from kvcore.memory.weights import WeightBytes
from tests.engine_examples import ASCEND, L40S, LLAMA_8B, QWEN3_14B, RTX_3090, memory_with, setting_for


def memory_of(config: dict[str, Any] = LLAMA_8B, weights_gib: float = 14.9889, **fields: Any) -> RankMemory:
    return memory_with(setting_for(config, **fields), weights_gib)


@pytest.mark.parametrize(
    ("fields", "measured", "printed_gib"),
    [
        ({"engine_version": "0.19.0", "gpu_memory_utilization": 0.95},
         {"weights_gib": 14.25, "peak_activation_gib": 2.21, "non_torch_gib": 0.24}, 58.53),
        ({"engine_version": "0.10.2", "gpu_memory_utilization": 0.9,
          "accelerator": {"memory_gib": 79.18, "vendor": "nvidia", "name": "H100 80GB"}},
         {"weights_gib": 56.9342, "peak_activation_gib": 5.58, "non_torch_gib": 0.07}, 8.68),
        ({"engine_version": "0.8.5", "gpu_memory_utilization": 0.93, "tensor_parallel_size": 4,
          "accelerator": {"memory_gib": 21.48, "vendor": "nvidia", "name": "22 GB card"},
          "env": {"VLLM_USE_V1": "0"}, "max_model_len": 8192},
         {"weights_gib": 3.85, "peak_activation_gib": 1.45, "non_torch_gib": 0.2}, 14.49),
        ({"engine_version": "0.26.0", "gpu_memory_utilization": 0.92, "tensor_parallel_size": 4,
          "accelerator": {"memory_gib": 184.31, "vendor": "nvidia", "name": "B200"}},
         {"weights_gib": 106.69, "peak_activation_gib": 6.31, "non_torch_gib": 0.95, "cuda_graph_gib": 4.99}, 50.62),
    ],
)  # fmt: skip
def test_the_budget_equation_of_published_starts(
    fields: dict[str, Any], measured: dict[str, float], printed_gib: float
) -> None:
    """Printed weights, activations and non-torch memory give the printed KV memory, to the decimals of the log."""
    given_v1 = {"env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}} if "env" not in fields else {}
    memory = memory_of(**fields, **given_v1, measured=measured)
    assert gib(memory.available_kv.value) == pytest.approx(printed_gib, abs=0.02)
    assert memory.activations.grade is Grade.MEASURED


@pytest.mark.parametrize(
    ("config", "weights_gib", "fields", "printed_gib"),
    [
        (LLAMA_8B, 14.9889, {"engine_version": "0.12.0", "accelerator": RTX_3090, "gpu_memory_utilization": 0.95,
                             "max_model_len": 31800, "max_num_seqs": 64, "max_num_batched_tokens": 2048}, 6.95),
        (LLAMA_8B, 14.99, {"engine_version": "0.17.1", "accelerator": RTX_3090, "max_model_len": 8192,
                           "kernels_compiled": True}, 5.68),
        (QWEN3_14B, 27.52, {"engine_version": "0.28.0", "accelerator": L40S}, 11.57),
        (QWEN3_14B, 27.52, {"engine_version": "0.29.0", "accelerator": L40S}, 11.06),
        (QWEN3_14B, 27.52, {"engine_version": "0.15.0", "gpu_memory_utilization": 0.95}, 41.94),
    ],
)  # fmt: skip
def test_predicted_kv_memory_of_published_starts(
    config: dict[str, Any], weights_gib: float, fields: dict[str, Any], printed_gib: float
) -> None:
    memory = memory_of(config, weights_gib, **fields)
    assert gib(memory.available_kv.value) == pytest.approx(printed_gib, rel=0.013)
    interval = memory.available_kv.interval
    assert interval is not None
    assert interval[0] <= printed_gib * GIB <= interval[1]


def test_the_budget_is_rounded_up_from_0_14_1_on() -> None:
    assert (
        memory_of(engine_version="0.19.0").budget.value - memory_of(engine_version="0.13.0").budget.value == 1
    )


def test_kv_cache_memory_bytes_is_the_memory_where_the_flag_exists() -> None:
    fixed = 5 * GIB
    assert memory_of(engine_version="0.19.0", kv_cache_memory_bytes=fixed).available_kv.value == fixed
    assert memory_of(engine_version="0.9.2", kv_cache_memory_bytes=fixed).available_kv.value != fixed


def test_graphs_after_the_budget_can_overrun_the_card() -> None:
    memory = memory_of(engine_version="0.19.0", gpu_memory_utilization=0.99)
    blocks = int(memory.available_kv.value) // MIB
    pool = Quantity(name="kv_cache", value=blocks * MIB, unit=Unit.BYTES)
    overrun = memory.with_cache(pool, memory.available_kv.value)
    assert overrun.unused.value < 0
    assert [notice.code for notice in overrun.notices] == ["memory-overrun"]


def test_too_little_free_memory_is_said_in_the_engines_words() -> None:
    memory = memory_of(
        engine_version="0.19.0", accelerator=RTX_3090, gpu_memory_utilization=0.99, max_model_len=1024,
        kernels_compiled=True,
    )  # fmt: skip
    assert [notice.code for notice in memory.notices] == ["free-memory-below-utilization"]
    assert memory.notices[0].message.startswith("Free memory on device (")


def test_ascend_follows_the_same_equation() -> None:
    """Qwen3-1.7B on a 910B1, vllm-ascend 0.11.0rc1: 44.34 GiB of 0.8 × 60.957 with 3.2153 GiB of weights."""
    config = {**QWEN3_14B, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
              "num_attention_heads": 16}  # fmt: skip
    memory = memory_of(
        config, 3.2153, engine="vllm-ascend", engine_version="0.11.0rc1.dev209", gpu_memory_utilization=0.8,
        accelerator={**ASCEND, "memory_gib": 60.957}, enforce_eager=True,
    )  # fmt: skip
    assert gib(memory.available_kv.value) == pytest.approx(44.34, rel=0.01)


@settings(deadline=None)
@given(
    version=st.sampled_from(["0.6.6", "0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.19.0", "0.26.0", "0.33.0"]),
    utilization=st.floats(0.05, 1.0),
    weights_gib=st.floats(0, 200),
    ranks=st.sampled_from([1, 2, 4, 8]),
    sequences=st.integers(1, 2048),
)
def test_parts_sum_to_the_total_exactly(
    version: str, utilization: float, weights_gib: float, ranks: int, sequences: int
) -> None:
    memory = memory_of(
        weights_gib=weights_gib,
        engine_version=version,
        gpu_memory_utilization=utilization,
        tensor_parallel_size=ranks,
        max_num_seqs=sequences,
        max_num_batched_tokens=8192,
        max_model_len=8192,
    )
    for view in (memory, memory.with_cache(None, memory.available_kv.value)):
        assert sum(getattr(view, name).value for name in SUMMED) == view.total.value
        assert all(float(getattr(view, name).value).is_integer() for name in SUMMED)


@given(st.floats(0.1, 0.98), st.floats(0.001, 0.02))
def test_more_utilization_gives_more_kv_memory(utilization: float, step: float) -> None:
    low = memory_of(gpu_memory_utilization=utilization).available_kv.value
    high = memory_of(gpu_memory_utilization=utilization + step).available_kv.value
    assert high > low


def test_measured_parts_narrow_the_interval() -> None:
    predicted = memory_of(engine_version="0.19.0").available_kv.interval
    known = memory_of(
        engine_version="0.19.0",
        measured={"weights_gib": 14.99, "peak_activation_gib": 1.89, "non_torch_gib": 0.25},
    ).available_kv.interval
    assert predicted is not None
    assert known is not None
    assert known[1] - known[0] < 0.03 * GIB < predicted[1] - predicted[0]


def test_an_assumed_total_widens_the_interval() -> None:
    setting = setting_for(engine_version="0.19.0")
    card = replace(setting.accelerator, memory_grade=Grade.ASSUMED)
    exact = memory_of(engine_version="0.19.0").available_kv.interval
    assumed = rank_memory(
        scenario=setting.scenario,
        architecture=setting.architecture,
        resolved=setting.resolved,
        accelerator=card,
        weights=WeightBytes(parameters=GIB, buffers=0, loading=0),
        stage=0,
    ).available_kv.interval
    assert exact is not None
    assert assumed is not None
    assert assumed[1] - assumed[0] > exact[1] - exact[0]


class TestRestart:
    """Qwen3-14B on an L40S, 0.28.0: compiling holds 1.449 GiB, the next phase (a layer of 2048 tokens) 0.258."""

    def test_a_first_start_says_what_a_restart_gains(self) -> None:
        (notice,) = memory_of(QWEN3_14B, 27.5, engine_version="0.28.0", accelerator=L40S).notices
        assert notice.code == "restart-leaves-more"
        assert notice.params == {"gain": "1.19"}
        assert "1.19 GiB" in notice.message

    @pytest.mark.parametrize(
        "fields",
        [
            {"enforce_eager": True},
            {"kernels_compiled": True},
            {"kv_cache_memory_bytes": 8 * GIB},
            {"measured": {"peak_activation_gib": 0.3}},
            {"max_num_batched_tokens": 16384},
        ],
    )
    def test_nothing_is_gained_where_compiling_does_not_set_the_peak(self, fields: dict[str, Any]) -> None:
        memory = memory_of(QWEN3_14B, 27.5, engine_version="0.28.0", accelerator=L40S, **fields)
        assert memory.notices == ()


def test_stages_alike_have_the_memory_that_each_has_by_itself() -> None:
    setting = setting_for(pipeline_parallel_size=5)
    stored = [WeightBytes(parameters=size * GIB, buffers=0, loading=0) for size in (4, 3, 3, 2, 4)]
    given = setting.scenario, setting.architecture, setting.resolved, setting.accelerator
    for stage, (found, weights) in enumerate(zip(rank_memories(*given, stored), stored, strict=True)):
        scenario, architecture, resolved, accelerator = given
        assert found == rank_memory(
            scenario=scenario, architecture=architecture, resolved=resolved, accelerator=accelerator,
            weights=weights, stage=stage,
        )  # fmt: skip
    assert len({found.activations.value for found in rank_memories(*given, stored)}) > 1
