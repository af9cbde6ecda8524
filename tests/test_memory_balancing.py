"""Buffers of experts that move while an engine serves."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvcore.base.units import GIB, MIB
from kvcore.engine.protocol import Setting
from kvcore.engine.records import Taken
from kvcore.memory.activations import peak_activation_bytes
from kvcore.memory.after_pool import after_pool_bytes
from tests.engine_examples import LLAMA_8B, QWEN3_30B_A3B, setting_for
from tests.test_memory_communicators import A2, A3, OWN

MOVING = {"eplb_config": {"dynamic_eplb": True}}
FORMER = {"dynamic_eplb": True}
ONE_LAYER = 128 // 4 * 3 * 768 * 2048 * 2
"""Of Qwen3-30B-A3B on four ranks: 32 of 128 experts, three matrices of 768 × 2048 in 16 bits."""


def ascend(
    version: str, said: dict[str, Any] | None, config: dict[str, Any] = QWEN3_30B_A3B, **fields: Any
) -> Setting:
    asked = {"tensor_parallel_size": 4, "enable_expert_parallel": True, "accelerator": A3, **fields}
    if said is not None:
        asked["additional_config"] = said
    return setting_for(config, **{"engine": "vllm-ascend", "engine_version": version, **asked})


def taken_by(setting: Setting) -> Taken:
    return setting.engine.communicators(setting)


def test_a_rank_has_a_buffer_for_each_expert_of_a_layer() -> None:
    """vllm_ascend/eplb/adaptor/vllm_adaptor.py: num_buffer_tensor is local_num_experts (0.18.0, 0.23.0)."""
    setting = ascend("0.23.0", MOVING)
    assert setting.engine.profiled_buffers(setting) == ONE_LAYER
    more = {"eplb_config": {"dynamic_eplb": True, "num_redundant_experts": 16}}
    stored = setting.engine.stored_architecture(ascend("0.23.0", more).scenario, setting.architecture)
    assert setting.engine.profiled_buffers(replace(setting, architecture=stored)) == ONE_LAYER // 32 * 36


@pytest.mark.parametrize(
    ("version", "said", "is_profiled"),
    [
        ("0.11.0", FORMER, False),
        ("0.13.0", MOVING, False),
        ("0.14.0rc1", MOVING, True),
        ("0.18.0", MOVING, True),
        ("0.25.1rc1", MOVING, True),
    ],
)
def test_when_the_buffers_come(version: str, said: dict[str, Any], is_profiled: bool) -> None:
    """worker_v1.py:compile_or_warm_up_model (0.11.0), model_runner_v1.py:profile_run (0.13.0, 0.14.0rc1)."""
    still, moving = ascend(version, None), ascend(version, said)
    peaks = [peak_activation_bytes(setting) for setting in (still, moving)]
    assert peaks[1].value - peaks[0].value == (ONE_LAYER if is_profiled else 0)
    after = [after_pool_bytes(setting, peaks[0], 10 * GIB).value for setting in (still, moving)]
    assert after[1] - after[0] == (0 if is_profiled else ONE_LAYER)


@pytest.mark.parametrize(
    ("version", "mib"),
    [("0.13.0", 512), ("0.14.0rc1", 512), ("0.17.0rc1", 1), ("0.18.0", 100), ("0.23.0", 100)],
)
def test_the_group_that_moves_experts_has_buffers_by_release(version: str, mib: int) -> None:
    """vllm_ascend/utils.py:_DYNAMIC_EPLB_BUFFER_SIZE: 1 (0.17.0rc1), 100 (0.18.0, 0.23.0); before: of all ranks."""
    env = {"HCCL_BUFFSIZE": "512"}
    still, moving = (taken_by(ascend(version, said, env=env)).value for said in (None, MOVING))
    assert moving - still == pytest.approx(2 * mib * MIB + OWN * GIB, abs=1)


@pytest.mark.parametrize(
    "setting",
    [
        ascend("0.23.0", MOVING, LLAMA_8B),
        ascend("0.23.0", MOVING, enable_expert_parallel=False),
        ascend("0.23.0", {"eplb_config": {"dynamic_eplb": False}}),
        ascend("0.23.0", FORMER),
    ],
    ids=["dense", "cut experts", "off", "a key that is not read"],
)
def test_nothing_where_no_expert_moves(setting: Setting) -> None:
    same = ascend("0.23.0", None, LLAMA_8B if setting.architecture.moe is None else QWEN3_30B_A3B,
                  enable_expert_parallel=setting.parallel.enable_expert_parallel)  # fmt: skip
    assert peak_activation_bytes(setting).value == peak_activation_bytes(same).value
    assert taken_by(setting) == taken_by(same)


@pytest.mark.parametrize(
    ("card", "env", "groups"),
    [
        (A2, {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}, 1),
        (A3, {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}, 0),
        (A2, {}, 0),
    ],
    ids=["gathers", "exchanges", "whole tokens"],
)
def test_a_router_on_its_own_stream_gathers_in_a_group_of_its_own(
    card: dict[str, Any], env: dict[str, str], groups: int
) -> None:
    """vllm_ascend/ops/fused_moe/prepare_finalize.py:_prepare_with_ep_group, parallel_state.py: fc3_quant_x (0.23.0)."""
    alone, apart = (
        taken_by(ascend("0.23.0", said, accelerator=card, env=env)).value
        for said in (None, {"multistream_overlap_gate": True})
    )
    assert apart - alone == pytest.approx(groups * (2 * 200 * MIB + OWN * GIB), abs=1)
