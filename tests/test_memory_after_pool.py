"""What a start takes once its KV cache is allocated, and starts that died there."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.advice.fixes import fixes
from kvcore.base.units import GIB, MIB
from kvcore.engine.rank_memory import RankMemory
from kvcore.planning import Plan, Tightness, Verdict, plan
from kvcore.wire.request import scenario_from_request

QWEN3_8B = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": 8192}


def planned(**fields: Any) -> Plan:
    return plan(scenario_from_request(fields))


def memory_of(**fields: Any) -> RankMemory:
    memory = planned(**fields).memory
    assert memory is not None
    return memory


def test_a_t4_that_died_in_the_sampler_s_warm_up_is_tight() -> None:
    """github.com/vllm-project/vllm/issues/30521: 446 MiB tried with 412.75 MiB free, nothing set."""
    found = planned(model="Qwen/Qwen2.5-0.5B-Instruct", accelerator="T4-16GB", engine_version="0.12.0")
    assert (found.verdict, found.tight_by) == (Verdict.TIGHT, Tightness.AFTER_POOL)


def test_the_v2_runner_warms_up_more_than_it_profiled() -> None:
    """github.com/vllm-project/vllm/pull/48601: H100, 1,024 sequences; 14 bytes of each of 1,024 × 151,936 logits are
    2.03 GiB, of which the profile run has seen 1.54."""
    fields = {**QWEN3_8B, "engine_version": "0.26.0", "measured": {"peak_activation_gib": 1.54}}
    own = memory_of(**fields, env={"VLLM_USE_V2_MODEL_RUNNER": "1"}).after_pool
    logits = 1024 * 151_936
    assert own.value == pytest.approx(14 * logits - 1.54 * GIB + 0.18 * GIB, abs=MIB)
    low, high = own.bounds
    assert low < own.value < high
    # Nine bytes are less than what was profiled.
    assert high - own.value >= 5 * logits - MIB
    assert memory_of(**fields, env={"VLLM_USE_V2_MODEL_RUNNER": "0"}).after_pool.value == int(0.18 * GIB)


def test_the_start_that_died_with_4_gib_free_is_tight() -> None:
    """The same report: Qwen3.6-27B-FP8, of this shape, on four H100 (79.11 GiB), with the parts that its log prints."""
    parts = {"weights_gib": 7.39, "peak_activation_gib": 1.54, "non_torch_gib": 0.6, "cuda_graph_gib": 2.04}
    found = planned(
        model="Qwen/Qwen3.5-27B-FP8",
        accelerator={"memory_gib": 79.11, "vendor": "nvidia", "name": "H100 80GB"},
        tensor_parallel_size=4,
        engine_version="0.26.0",
        env={"VLLM_USE_V2_MODEL_RUNNER": "1"},
        measured=parts,
    )
    assert (found.verdict, found.tight_by) == (Verdict.TIGHT, Tightness.AFTER_POOL)


def test_from_0_33_on_the_profile_run_sees_it() -> None:
    assert memory_of(**QWEN3_8B, engine_version="0.33.0").after_pool.value == int(0.18 * GIB)


def test_growing_segments_leave_the_allocator_next_to_nothing() -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    found = memory_of(**QWEN3_8B, engine_version="0.33.0", env=env).after_pool
    assert found.bounds[1] <= 0.05 * GIB


def test_tuned_kernels_of_narrow_formats_take_more_on_workstation_blackwell() -> None:
    """github.com/noonghunna/club-3090/issues/613: an RTX 5090 ran out of memory in the kernels of a prefill."""
    fields = {
        "model": "nvidia/Qwen3.6-27B-NVFP4", "engine_version": "0.24.0", "max_model_len": 131_072, "max_num_seqs": 1,
        "max_num_batched_tokens": 8192, "kv_cache_dtype": "fp8",
    }  # fmt: skip
    found = planned(**fields, accelerator="RTX-5090-32GB")
    assert found.memory is not None
    assert [part.name for part in found.memory.after_pool.inputs] == ["reserve", "tuning"]
    assert (found.verdict, found.tight_by) == (Verdict.TIGHT, Tightness.AFTER_POOL)
    other = memory_of(**fields, accelerator="B200-180GB").after_pool
    assert [part.name for part in other.inputs] == ["reserve"]


def test_it_lies_inside_what_is_unused_and_no_part_of_the_sum() -> None:
    memory = memory_of(**QWEN3_8B, engine_version="0.33.0")
    assert 0 < memory.after_pool.value < memory.unused.value
    assert memory.least_room < memory.unused.value - memory.after_pool.value


def test_less_of_the_card_makes_room_for_it() -> None:
    broken = planned(model="Qwen/Qwen2.5-0.5B-Instruct", accelerator="T4-16GB", engine_version="0.12.0")
    lower = next(fix for fix in fixes(broken) if fix.field == "gpu_memory_utilization")
    assert isinstance(lower.value, float)
    assert 0.6 <= lower.value < 0.9
    assert lower.verdict is Verdict.FITS
