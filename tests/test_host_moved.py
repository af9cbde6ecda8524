"""What a request moves between a pool of servers for prompts and one for answers."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.contract.result import planned_result
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request


def result(role: str = "kv_producer", **asked: Any) -> dict[str, Any]:
    said = {"kv_connector": "NixlConnector", "kv_role": role}
    base = {"model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", "kv_transfer_config": said}
    return planned_result(plan(scenario_from_request({**base, **asked})))


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_each_rank_moves_its_heads(role: str) -> None:
    """Qwen3-32B: 64 layers × 2 × 8 heads × 128 × 2 bytes a token, 32,768 tokens, on two ranks: 4 GiB each."""
    moved = result(role, tensor_parallel_size=2, max_model_len=32_768, link_gb_s=50)["transfer"]
    assert moved["bytes_in_all"] == 64 * 2 * 8 * 128 * 2 * 32_768
    assert moved["bytes_per_rank"] == moved["bytes_in_all"] // 2
    assert moved["seconds"] == pytest.approx(moved["bytes_per_rank"] / 50e9)
    assert moved["role"] == role


def test_latent_vectors_are_moved_for_each_rank() -> None:
    moved = result(model="deepseek-ai/DeepSeek-V3", tensor_parallel_size=8, max_model_len=32_768)["transfer"]
    assert moved["bytes_per_rank"] == 61 * 576 * 2 * 32_768
    assert moved["bytes_in_all"] == 8 * moved["bytes_per_rank"]
    assert moved["seconds"] is None


def test_a_server_of_both_parts_moves_nothing() -> None:
    assert "transfer" not in result("kv_both")


def test_the_time_is_told_where_the_link_is_known() -> None:
    told = {one["code"] for one in result(max_model_len=32_768, link_gb_s=50)["warnings"]}
    assert "request-moves-for" in told
    assert "request-moves" in {one["code"] for one in result(max_model_len=32_768)["warnings"]}
