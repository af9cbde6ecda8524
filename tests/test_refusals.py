"""What makes the engine take a deployment that it refuses before it looks at memory."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.advice.fixes import FIXED, refusal_fixes
from kvcore.errors import EngineRefusalError
from kvcore.planning import plan
from kvcore.scenario import edit
from kvcore.scenario.request import scenario_from_request

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
        assert again.verdict in FIXED
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
