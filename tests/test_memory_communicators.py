"""HCCL's communicators: what published starts print, and which groups a profile run uses."""

from typing import Any

import pytest

from kvcore.base.units import GIB, MIB, gib
from kvcore.engine.protocol import Setting
from kvcore.engine.records import Taken
from kvcore.engines.vllm_ascend.engine import AscendEngine
from kvcore.memory.framework import non_torch_bytes
from tests.engine_examples import LLAMA_8B, QWEN3_30B_A3B, setting_for

A2 = {"memory_gib": 60.96, "vendor": "huawei", "name": "Ascend 910B 64GB"}
A3 = {"memory_gib": 61.27, "vendor": "huawei", "name": "Ascend 910C 64GB"}
DUO = {"memory_gib": 42.67, "vendor": "huawei", "name": "Ascend 310P3 (Atlas 300I Duo, one chip)"}
OWN = 0.09
"""GiB that a communicator takes in addition to its buffers."""


def ascend(config: dict[str, Any] = QWEN3_30B_A3B, **fields: Any) -> Setting:
    return setting_for(
        config, **{"engine": "vllm-ascend", "engine_version": "0.23.0", "accelerator": A3, **fields}
    )


def taken_by(setting: Setting) -> Taken:
    return setting.engine.communicators(setting)


@pytest.mark.parametrize(
    ("fields", "printed_gib"),
    [
        ({"data_parallel_size": 16}, 2.60),
        ({"tensor_parallel_size": 2, "data_parallel_size": 8}, 3.08),
        ({"tensor_parallel_size": 4, "data_parallel_size": 4}, 3.07),
        ({"tensor_parallel_size": 8, "data_parallel_size": 2, "accelerator": A2, "engine_version": "0.20.2"}, 3.15),
    ],
)  # fmt: skip
def test_printed_non_torch_memory_with_buffers_of_1024_mib(
    fields: dict[str, Any], printed_gib: float
) -> None:
    """DeepSeek-V4-Flash, FlashComm, HCCL_BUFFSIZE 1024: github.com/pajaysi/vllm-ascend-hbm-planner, Mooncake 2827."""
    env = {"HCCL_BUFFSIZE": "1024", "VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}
    found = non_torch_bytes(ascend(enable_expert_parallel=True, env=env, **fields))
    assert gib(found.value) == pytest.approx(printed_gib, abs=0.1)
    assert found.interval is not None
    assert found.interval[0] <= printed_gib * GIB <= found.interval[1]


@pytest.mark.parametrize(
    ("config", "fields", "buffers"),
    [
        (LLAMA_8B, {}, []),
        (LLAMA_8B, {"tensor_parallel_size": 4, "env": {"HCCL_BUFFSIZE": "1024"}}, [200]),
        (LLAMA_8B, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, [200, 200]),
        (QWEN3_30B_A3B, {"tensor_parallel_size": 4}, [200]),
        (QWEN3_30B_A3B, {"tensor_parallel_size": 4, "enable_expert_parallel": True}, [200, 200, 200]),
        (QWEN3_30B_A3B, {"tensor_parallel_size": 4, "enable_expert_parallel": True,
                         "env": {"VLLM_ASCEND_ENABLE_FUSED_MC2": "1"}}, [200, 200]),
        (QWEN3_30B_A3B, {"data_parallel_size": 4, "enable_expert_parallel": True, "accelerator": A2}, [50]),
        (QWEN3_30B_A3B, {"data_parallel_size": 16, "enable_expert_parallel": True, "accelerator": A2,
                         "env": {"HCCL_BUFFSIZE": "512"}}, [512, 50]),
        (QWEN3_30B_A3B, {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True,
                         "accelerator": DUO}, [200, 50]),
        (LLAMA_8B, {"tensor_parallel_size": 4, "engine_version": "0.9.1",
                    "env": {"HCCL_BUFFSIZE": "120"}}, [120]),
        (LLAMA_8B, {"tensor_parallel_size": 4, "engine_version": "0.9.1", "env": {"HCCL_BUFFSIZE": "much"}}, [200]),
    ],
)  # fmt: skip
def test_each_group_has_two_buffers(
    config: dict[str, Any], fields: dict[str, Any], buffers: list[int]
) -> None:
    """By vllm_ascend/utils.py:create_hccl_pg_options and ascend_forward_context.py:select_moe_comm_method (0.23.0)."""
    expected = sum(2 * buffer * MIB for buffer in buffers) + int(len(buffers) * OWN * GIB)
    assert taken_by(ascend(config, **fields))[0] == expected


def test_groups_of_the_same_ranks_shared_a_communicator_for_a_while() -> None:
    """vllm_ascend/patch/worker/_hccl_pg_registry.py: without group names in its key before 0.21.0rc1."""
    taken = {
        version: taken_by(
            ascend(tensor_parallel_size=4, enable_expert_parallel=True, engine_version=version)
        )[0]
        for version in ("0.18.0", "0.20.2", "0.23.0")
    }
    assert taken["0.18.0"] == taken["0.23.0"]
    assert taken["0.18.0"] - taken["0.20.2"] == pytest.approx(400 * MIB + OWN * GIB, abs=2)


def test_how_tokens_pass_is_the_card_s() -> None:
    fields = {"data_parallel_size": 16, "enable_expert_parallel": True}
    ranks = [AscendEngine().rank(ascend(accelerator=card, **fields)) for card in (A2, A3, DUO)]
    assert [rank.exchanges_tokens for rank in ranks] == [
        False,
        True,
        False,
    ]
    assert [rank.dispatches_tokens for rank in ranks] == [
        True,
        True,
        False,
    ]


def test_one_more_group_than_known_may_be_where_experts_are_whole() -> None:
    """GLM-5.1 with TP 8 and DP 2 on two A2 hosts prints 2.07 GiB (vllm-ascend issue 10700), three groups make 1.48."""
    flags: dict[str, Any] = {"tensor_parallel_size": 8, "accelerator": A2}
    dense, split = taken_by(ascend(**flags)), taken_by(ascend(QWEN3_30B_A3B, **flags))
    assert (dense.more, split.more) == (dense.spread, split.spread)
    whole = taken_by(ascend(QWEN3_30B_A3B, **flags, enable_expert_parallel=True))
    assert whole.more - whole.spread == 2 * 200 * MIB + int(OWN * GIB)


def test_other_engines_have_none() -> None:
    assert taken_by(setting_for(tensor_parallel_size=8)) == (0, 0, 0)
