"""Workspaces of fused all-reduce: sizes by FlashInfer's own formulas, on by default as releases say."""

from typing import Any

import pytest

from kvcore.memory.collectives import fusion_workspace_bytes
from kvcore.memory.framework import FRAMEWORK
from kvcore.units import MIB
from tests.engine_examples import H100, LLAMA_8B, QWEN25_7B, setting_for

PAGE = 2 * MIB


def workspace(link: str = "nvlink", **fields: Any) -> int:
    return fusion_workspace_bytes(FRAMEWORK.load().allreduce_fusion, setting_for(**fields), link)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # 64 MiB, two ranks: 128 + flags + 3 x 128 MiB, each in pages of 512 MiB.
        ({"engine_version": "0.19.0", "tensor_parallel_size": 2}, 3 * 512 * MIB),
        ({"engine_version": "0.17.1", "tensor_parallel_size": 4}, 3 * 512 * MIB),
        # 64 MiB, four ranks: 256 MiB in one page, 768 in two.
        ({"engine_version": "0.19.0", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 4 * 512 * MIB),
        # Pages of 2 MiB, one more for the signals: 2 MiB, four ranks are 8 + 2, flags, 24 + 2.
        ({"engine_version": "0.22.0", "tensor_parallel_size": 4}, (10 + 4 + 26) * MIB),
        # mnnvl: 3 x 2 x 2 MiB and one page, beside the former.
        ({"engine_version": "0.25.1", "tensor_parallel_size": 4}, (12 + 2) * MIB + (10 + 4 + 26) * MIB),
        ({"engine_version": "0.26.0", "tensor_parallel_size": 4}, (12 + 2) * MIB),
        # 3 x 2 x 64 MiB.
        ({"engine_version": "0.26.0", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 386 * MIB),
        ({"engine_version": "0.27.1", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 512 * MIB),
        ({"engine_version": "0.27.1", "tensor_parallel_size": 8}, 512 * MIB),
        # 80 MiB from 0.29 on: 3 x 2 x 80 MiB.
        ({"engine_version": "0.29.0", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 512 * MIB),
        # 128 MiB for eight from 0.33 on: 768 MiB.
        ({"engine_version": "0.33.0", "tensor_parallel_size": 8, "accelerator": "B200-180GB"}, 1024 * MIB),
        # No multicast memory without an NVSwitch: bridges fall back to plain buffers, or to nothing.
        ({"engine_version": "0.19.0", "tensor_parallel_size": 2, "accelerator": "H100-NVL-94GB"}, 0),
        ({"engine_version": "0.27.1", "tensor_parallel_size": 4, "accelerator": "H100-NVL-94GB"}, (10 + 4 + 26) * MIB),
    ],
)  # fmt: skip
def test_sizes_follow_the_source(fields: dict[str, Any], expected: int) -> None:
    """Llama-3.1-8B: 4,096 × 2 bytes a token, so that sizes are whole tokens, and 8,192 tokens a step."""
    assert workspace(**fields) - expected in range(-PAGE + 1, 1)


def test_a_small_batch_needs_less() -> None:
    """Qwen2.5-7B with 1,024 tokens of 7,168 bytes: two ranks, 14 MiB + flags + 42 MiB, in pages of 2 MiB."""
    size = workspace(
        config=QWEN25_7B, engine_version="0.22.0", tensor_parallel_size=2, max_num_batched_tokens=1024
    )
    assert size == (16 + 4 + 44) * MIB


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_version": "0.16.0"},
        {"engine_version": "0.19.0", "tensor_parallel_size": 1},
        {"engine_version": "0.19.0", "link": "pcie"},
        {"engine_version": "0.19.0", "enforce_eager": True},
        {"engine_version": "0.19.0", "fuse_allreduce_rms": False},
        {"engine_version": "0.19.0", "pipeline_parallel_size": 2},
        {"engine_version": "0.19.0", "data_parallel_size": 2},
        {"engine_version": "0.19.0", "accelerator": "A100-80GB"},
        {"engine_version": "0.18.0", "accelerator": "B300-288GB"},
        {"engine_version": "0.29.0", "enforce_eager": True, "env": {"VLLM_ALLREDUCE_USE_FLASHINFER": "0"}},
        {"engine_version": "0.19.0", "accelerator": "MI300X-192GB"},
    ],
)
def test_where_there_is_none(fields: dict[str, Any]) -> None:
    assert workspace(**{"tensor_parallel_size": 2, **fields}) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_version": "0.16.0", "fuse_allreduce_rms": True},
        {"engine_version": "0.22.0", "data_parallel_size": 2},
        {"engine_version": "0.29.0", "enforce_eager": True},
        {"engine_version": "0.19.0", "enforce_eager": True, "env": {"VLLM_ALLREDUCE_USE_FLASHINFER": "1"}},
    ],
)
def test_where_there_is_one(fields: dict[str, Any]) -> None:
    assert workspace(config=LLAMA_8B, accelerator=H100, tensor_parallel_size=2, **fields) > 0
