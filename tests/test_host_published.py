"""What others published of the host's memory, against the plan of the same start."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError, ScenarioError
from kvcore.base.units import GIB
from kvcore.contract.host import host_part
from kvcore.host.pinned import power_of_two
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}


def host(**asked: Any) -> dict[str, Any]:
    found = host_part(plan(scenario_from_request({"accelerator": "H200-141GB", **asked})))
    assert found is not None
    return found


def lmcache(size: float, version: str | None = None, **asked: Any) -> dict[str, Any]:
    env = {"LMCACHE_MAX_LOCAL_CPU_SIZE": size}
    return host(kv_transfer_config=LMCACHE, env=env, lmcache_version=version, **asked)


@pytest.mark.parametrize(
    ("asked_gib", "pinned_gib"), [(6, 8), (10, 16), (12, 16), (2.25, 4), (1.125, 2), (0.563, 1)]
)
def test_one_allocation_is_pinned_as_a_power_of_two(asked_gib: float, pinned_gib: float) -> None:
    """github.com/vllm-project/vllm/pull/50094; github.com/wtdcode/vllm-backport/pull/67: 2.250 GiB take 4.008."""
    assert power_of_two(int(asked_gib * GIB)) == pinned_gib * GIB


@pytest.mark.parametrize(("model", "ranks"), [("google/gemma-4-E4B-it", 1), ("google/gemma-4-E4B-it", 2)])
def test_four_gib_in_a_small_shared_memory(model: str, ranks: int) -> None:
    """github.com/vllm-project/vllm/pull/52496 (0.28): 4,095 or 4,096 MiB required, 1,405 MiB free."""
    with pytest.raises(EngineRefusalError, match=r"/dev/shm: 409[56] MiB required, 1405 MiB free"):
        host(
            model=model, tensor_parallel_size=ranks, kv_offloading_size=4, engine_version="0.28.0",
            max_model_len=8192, shm_gib=1405 / 1024,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("stored_bytes", "tokens"), [(59_763_793_920, 138_496), (19_111_157_760, 44_288), (1_104_691_200, 2_560)]
)
def test_bytes_that_a_tier_stored_of_glm_5(stored_bytes: int, tokens: int) -> None:
    """github.com/vllm-project/recipes/pull/893, 754: fp8 on eight ranks, whole blocks of 64 tokens."""
    found = host(
        model="zai-org/GLM-5.2-FP8", tensor_parallel_size=8, kv_cache_dtype="fp8", max_model_len=200_000,
        engine_version="0.28.0", kv_offloading_size=100,
    )  # fmt: skip
    assert found["bytes_per_token"] * tokens == stored_bytes
    assert tokens % 64 == 0


@pytest.mark.parametrize(("asked_gib", "taken_gib"), [(4.0, 4), (4.1, 8), (5.0, 8), (8.0, 8)])
def test_older_lmcache_rounds_its_size(asked_gib: float, taken_gib: int) -> None:
    """github.com/LMCache/LMCache/issues/1147."""
    assert lmcache(asked_gib, "0.3.2", model="Qwen/Qwen3-8B")["bytes_per_engine"] == taken_gib * GIB


def test_two_hundred_a_rank_fail_where_a_hundred_start() -> None:
    """github.com/LMCache/LMCache/issues/949: 72B on four ranks, 768 GB of RAM, a release that rounds: 1,024 GiB."""
    asked = {"model": "Qwen/Qwen2.5-72B-Instruct", "tensor_parallel_size": 4, "node_memory_gib": 768e9 / GIB}
    with pytest.raises(ScenarioError, match="1,024"):
        lmcache(200, "0.3.2", **asked)
    assert lmcache(100, "0.3.2", **asked)["bytes_per_engine"] == 512 * GIB


@pytest.mark.parametrize(("ranks", "taken_gib"), [(2, 512), (4, 1024)])
def test_the_size_of_a_rank_taken_for_that_of_the_node(ranks: int, taken_gib: int) -> None:
    """github.com/SemiAnalysisAI/InferenceX/pull/3189: 256 GiB a rank."""
    found = lmcache(256, model="Qwen/Qwen3-32B", tensor_parallel_size=ranks)
    assert found["bytes_per_node"] == taken_gib * GIB


def test_bytes_of_a_rank_on_each_of_two_machines() -> None:
    """github.com/SemiAnalysisAI/InferenceX/pull/2370: 299,875,000,000 a rank, eight ranks a node: 2,399 GB."""
    said = {
        "kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use_per_rank": 299_875_000_000},
    }  # fmt: skip
    found = host(
        model="deepseek-ai/DeepSeek-V3", accelerator="B200-180GB", tensor_parallel_size=8, pipeline_parallel_size=2,
        kv_transfer_config=said, max_model_len=32_768,
    )  # fmt: skip
    assert found["bytes_per_node"] == pytest.approx(2_399e9, rel=1e-4)
    assert found["bytes_per_engine"] == pytest.approx(2 * found["bytes_per_node"])


def test_tables_of_n_grams_stay_in_the_host() -> None:
    """github.com/vllm-project/vllm/issues/57469: 189 GiB of tables; two on four ranks, 22.9 GiB each, pinned as 32."""
    asked = {"model": "deepseek-ai/DeepSeek-V4.1-Flash", "tensor_parallel_size": 4, "max_model_len": 32_768}
    found = host(**asked, accelerator="H20-96GB")
    assert found["parts"][0]["name"] == "host_tables"
    assert found["bytes_per_engine"] == 4 * 2 * (32 + 1) * GIB
    exact = host(
        **asked, accelerator="H20-96GB", env={"PYTORCH_ALLOC_CONF": "pinned_max_round_threshold_mb:1"}
    )
    assert exact["bytes_per_engine"] / GIB == pytest.approx(189, abs=0.5)


def test_shared_memory_of_a_tier_as_a_platform_gives_it() -> None:
    """github.com/kserve/kserve/pull/5949: the tier, and 1 GiB of a leader or 8 GiB of a worker of many ranks."""
    few = host(model="Qwen/Qwen3-8B", kv_offloading_size=40, engine_version="0.33.0")
    many = host(
        model="Qwen/Qwen3-32B", tensor_parallel_size=8, kv_offloading_size=40, engine_version="0.33.0"
    )
    assert few["limits"]["shm_bytes"] == 41 * GIB
    assert many["limits"]["shm_bytes"] == 48 * GIB


def test_states_that_a_tier_keeps_seldom_leave_room_for_more_tokens() -> None:
    """A hybrid of 27B on one card of 32 GB: 1.1 million tokens were told of 44 GB
    (github.com/MirkoCovizzi/ninfer-rtx5090-mobile/issues/3)."""
    found = host(
        model="nvidia/Qwen3.8-27B-NVFP4", accelerator="RTX-5090-32GB", kv_cache_dtype="fp8", max_model_len=32_768,
        kv_offloading_size=44e9 / GIB, engine_version="0.28.0", max_num_seqs=8,
    )  # fmt: skip
    assert found["tokens"] < 1_100_000 < found["most_tokens"]
    plain = host(model="Qwen/Qwen3-8B", kv_offloading_size=44)
    assert plain["tokens"] == plain["most_tokens"]


def test_tables_of_n_grams_pass_through_the_page_cache() -> None:
    """github.com/vllm-project/vllm/issues/57469: a checkpoint of 510 GB, 189 GiB of it tables."""
    found = host(
        model="deepseek-ai/DeepSeek-V4.1-Flash", tensor_parallel_size=4, max_model_len=32_768, accelerator="H20-96GB"
    )  # fmt: skip
    assert found["reclaimable"]["bytes"] == pytest.approx(510e9, rel=0.02)
