"""The host's memory that a start takes: tiers of KV caches by release and connector, and offloaded weights."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError, ScenarioError
from kvcore.base.units import GIB
from kvcore.contract.host import host_part
from kvcore.contract.result import planned_result
from kvcore.host.pinned import pinned_bytes, power_of_two
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

CARD = "H200-141GB"
SIMPLE = {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}
V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def host(**asked: Any) -> dict[str, Any]:
    found = host_part(plan(scenario_from_request({"accelerator": CARD, **asked})))
    assert found is not None
    return found


def test_pinned_tensors_take_the_next_power_of_two() -> None:
    """github.com/vllm-project/vllm/issues/53042: 200 GiB asked of four ranks with 24 tensors of 1,089,536 bytes a block
    each: 2,053 blocks, 384 GiB taken."""
    blocks = 200 * GIB // (1_089_536 * 24 * 4)
    assert blocks == 2053
    assert pinned_bytes(4, ((24, power_of_two(blocks * 1_089_536)),)) == 384 * GIB


@pytest.mark.parametrize(
    ("version", "taken_gib", "shm", "tokens"),
    [("0.23.0", 256, False, 819_200), ("0.26.0", 256, False, 819_200), ("0.27.0", 200, True, 819_200)],
)
def test_the_size_is_rounded_up_until_a_region_is_shared(
    version: str, taken_gib: float, shm: bool, tokens: int
) -> None:
    """Qwen3-32B on four ranks: 262,144 bytes a token in all, one tensor a rank, or one for each layer."""
    asked = {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 4, "kv_offloading_size": 200, "env": V1}
    found = host(**asked, engine_version=version)
    assert found["bytes_per_engine"] == taken_gib * GIB
    assert (found["shm_bytes_per_engine"] > 0) is shm
    assert (found["tokens"], found["bytes_per_token"]) == (tokens, 262_144)


def test_hybrids_pin_a_tensor_for_each_layer_of_the_longest_group() -> None:
    """Qwen3-Next on four ranks: 12 tensors of 278,528 bytes a block, four groups: 16,062 blocks, 8 GiB a tensor."""
    asked = {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "tensor_parallel_size": 4,
        "kv_offloading_size": 200,
    }
    found = host(**asked, engine_version="0.26.0", max_model_len=16_384, env=V1)
    assert (found["blocks"], found["bytes_per_engine"]) == (16_062, 12 * 4 * 8 * GIB)


def test_latent_vectors_with_an_indexer_are_kept_once_since_0_31() -> None:
    """github.com/vllm-project/recipes/pull/893 (0.28.0): 59,763,793,920 bytes for 138,496 tokens on eight ranks."""
    asked = {
        "model": "zai-org/GLM-5.2-FP8", "tensor_parallel_size": 8, "kv_cache_dtype": "fp8", "max_model_len": 200_000,
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": 100_000_000_000},
        },
    }  # fmt: skip
    copied, shared = host(**asked, engine_version="0.28.0"), host(**asked, engine_version="0.31.0")
    assert copied["bytes_per_token"] == 59_763_793_920 / 138_496 == 431_520
    assert copied["tokens"] == pytest.approx(100e9 / 431_520, rel=5e-4)
    assert shared["bytes_per_token"] == 431_520 / 8


def test_plain_latent_vectors_are_kept_once_since_0_27() -> None:
    asked = {"model": "deepseek-ai/DeepSeek-V3", "tensor_parallel_size": 8, "kv_offloading_size": 200}
    before, since = (host(**asked, engine_version=version) for version in ("0.26.0", "0.27.0"))
    assert since["tokens"] == pytest.approx(8 * before["tokens"], rel=2e-3)


def test_every_replica_takes_the_size_again() -> None:
    asked = {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 4, "kv_offloading_size": 100}
    one, two = host(**asked), host(**asked, data_parallel_size=2)
    assert two["bytes_per_engine"] == one["bytes_per_engine"]
    assert two["bytes_per_node"] == 2 * one["bytes_per_node"]
    told = plan(scenario_from_request({**asked, "accelerator": CARD, "data_parallel_size": 2})).notices
    assert {one.code: dict(one.params) for one in told}["offloading-size-per-engine"]["total"] == "200"


def test_the_simple_connector_is_exact() -> None:
    """github.com/SemiAnalysisAI/InferenceX/pull/1358: 528,516 blocks of 1,015,808 bytes in 500 GiB."""
    assert 500 * GIB // 1_015_808 == 528_516
    asked = {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 4, "kv_offloading_size": 120}
    found = host(**asked, engine_version="0.26.0", env=SIMPLE)
    assert (found["blocks"], found["bytes_per_engine"]) == (30_720, 30_720 * 4 * 1_048_576)
    assert found["shm_bytes_per_engine"] == 0


@pytest.mark.parametrize(
    ("card", "is_region"), [(CARD, True), ("MI300X-192GB", False), ("Max-1550-64GB", True)]
)
def test_other_vendors_pin_in_other_releases(card: str, is_region: bool) -> None:
    asked = {
        "model": "Qwen/Qwen3-8B",
        "kv_offloading_size": 50,
        "engine_version": "0.32.0",
        "accelerator": card,
    }
    assert (host(**asked)["shm_bytes_per_engine"] > 0) is is_region


@pytest.mark.parametrize(
    ("version", "more", "words"),
    [
        ("0.13.0", {"disable_hybrid_kv_cache_manager": True}, "num_cpu_blocks must be specified"),
        ("0.20.0", {}, "Connector OffloadingConnector does not support HMA but HMA is enabled"),
        ("0.20.0", {"disable_hybrid_kv_cache_manager": True}, None),
        ("0.21.0", {}, None),
        ("0.33.0", {}, None),
    ],
)
def test_the_flag_is_refused_where_the_release_cannot_start(
    version: str, more: dict[str, Any], words: str | None
) -> None:
    asked = {"model": "Qwen/Qwen3-32B", "kv_offloading_size": 100, "engine_version": version, **more}
    if words is None:
        assert host(**asked)["blocks"] > 0
        return
    with pytest.raises(EngineRefusalError, match=words):
        host(**asked)


@pytest.mark.parametrize(
    ("model", "ranks", "asked_gb", "taken"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 10, 12_449_087_488),
        ("meta-llama/Llama-3.1-8B-Instruct", 2, 8, 16_107_175_936),
        ("meta-llama/Llama-2-13b-hf", 1, 8, 15_703_900_160),
    ],
)
def test_offloaded_weights_are_pinned_one_by_one(model: str, ranks: int, asked_gb: int, taken: int) -> None:
    """What vllm's own offloader pinned of these models on a CPU: 1.15 times the weights, and 1.80."""
    asked = {"model": model, "tensor_parallel_size": ranks, "cpu_offload_gb": asked_gb, "max_model_len": 4096}
    found = host(**asked)
    assert found["bytes_per_engine"] == taken
    exact = host(**asked, env={"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1"})
    assert exact["bytes_per_engine"] < taken


def test_the_size_of_lmcache_is_of_each_rank() -> None:
    """512 GiB on eight ranks are 4 TiB; of latent vectors one rank saves."""
    asked = {
        "kv_transfer_config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        "env": {"LMCACHE_MAX_LOCAL_CPU_SIZE": "512"}, "tensor_parallel_size": 8,
    }  # fmt: skip
    assert host(**asked, model="Qwen/Qwen3-32B")["bytes_per_engine"] == 4096 * GIB
    assert host(**asked, model="deepseek-ai/DeepSeek-V3")["bytes_per_engine"] == 512 * GIB


@pytest.mark.parametrize(
    ("more", "version", "taken_gib"),
    [
        ({}, None, 50),
        ({}, "0.3.3", 50),
        ({}, "0.3.2", 64),
        ({}, "nightly", 50),
        ({"LMCACHE_SAVE_ONLY_FIRST_RANK": False}, None, 400),
        ({"LMCACHE_USE_LAYERWISE": True}, None, 400),
        ({"LMCACHE_FIRST_RANK_MAX_LOCAL_CPU_SIZE": 400}, None, 400),
        ({"LMCACHE_EXTRA_CONFIG": '{"first_rank_max_local_cpu_size": 300}'}, None, 300),
        ({"LMCACHE_EXTRA_CONFIG": '{"save_only_first_rank": false}'}, None, 400),
        ({"LMCACHE_EXTRA_CONFIG": "{"}, None, 50),
        ({"LMCACHE_EXTRA_CONFIG": "[1]"}, None, 50),
    ],
)
def test_the_ranks_of_lmcache_that_save(more: dict[str, Any], version: str | None, taken_gib: int) -> None:
    found = host(
        model="deepseek-ai/DeepSeek-V3", tensor_parallel_size=8, lmcache_version=version,
        kv_transfer_config={"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        env={"LMCACHE_MAX_LOCAL_CPU_SIZE": 50, **more},
    )  # fmt: skip
    assert found["bytes_per_engine"] == taken_gib * GIB


def test_the_rank_that_saves_alone_takes_no_more_than_the_machine_has() -> None:
    """lmcache/v1/storage_backend/local_cpu_backend.py:_calculate_effective_cpu_size: of latent vectors alone."""
    asked: dict[str, Any] = {
        "kv_transfer_config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        "env": {"LMCACHE_MAX_LOCAL_CPU_SIZE": 512, "LMCACHE_RESERVE_LOCAL_CPU_SIZE": 20},
        "tensor_parallel_size": 8, "node_memory_gib": 300,
    }  # fmt: skip
    found = host(**asked, model="deepseek-ai/DeepSeek-V3")
    assert (found["bytes_per_engine"], found["tokens"]) == (280 * GIB, 280 * GIB // 70_272 // 256 * 256)
    with pytest.raises(ScenarioError, match="4,096"):
        host(**asked, model="Qwen/Qwen3-32B")


def test_a_server_of_lmcache_reads_no_size() -> None:
    asked = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": CARD,
        "kv_offloading_size": 100,
        "kv_offloading_backend": "lmcache",
    }
    found = plan(scenario_from_request(asked))
    assert host_part(found) is None
    assert "offloading-size-not-read" in {one.code for one in found.notices}


def test_nothing_is_said_of_the_host_where_nothing_is_asked_of_it() -> None:
    found = planned_result(plan(scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": CARD})))
    assert "host" not in found


def offloading(model: str = "Qwen/Qwen3-8B", **extra: Any) -> dict[str, Any]:
    said = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {"model": model, "kv_transfer_config": said}


@pytest.mark.parametrize("size", ["many", "10GB", -5, 1e300, True])
def test_a_size_that_is_no_number_of_bytes_is_named(size: object) -> None:
    with pytest.raises(ScenarioError) as refused:
        host(**offloading(cpu_bytes_to_use=size))
    assert refused.value.code == "invalid-value"
    assert refused.value.field == "kv_transfer_config.kv_connector_extra_config.cpu_bytes_to_use"


def test_a_connector_without_a_size_is_refused_in_the_engine_s_words() -> None:
    with pytest.raises(
        EngineRefusalError, match="cpu_bytes_to_use must be specified in kv_connector_extra_config"
    ):
        host(**offloading())


def codes(**asked: Any) -> dict[str, dict[str, Any]]:
    found = plan(scenario_from_request({"accelerator": CARD, **asked}))
    return {one.code: dict(one.params) for one in found.notices}


def test_a_size_in_gib_where_bytes_are_meant_holds_nothing() -> None:
    assert codes(**offloading(cpu_bytes_to_use=200))["tier-holds-nothing"]["value"] == "200"
    assert "tier-holds-nothing" not in codes(**offloading(cpu_bytes_to_use=200 * GIB))


def test_the_step_between_releases_is_told() -> None:
    """Of DSA models on eight ranks 0.26 pins rounded tensors, and keeps eight copies until 0.31."""
    asked = {"model": "zai-org/GLM-5.2-FP8", "tensor_parallel_size": 8, "kv_offloading_size": 200}
    old, new = codes(**asked, engine_version="0.26.0"), codes(**asked, engine_version="0.33.0")
    assert {"tier-rounded-up", "tier-keeps-copies"} <= old.keys()
    assert old["tier-keeps-copies"]["copies"] == "8"
    assert not {"tier-rounded-up", "tier-keeps-copies"} & new.keys()
    assert "tier-in-shm" in new
    assert "tier-in-shm" not in old


def test_a_multi_connector_keeps_the_tiers_of_all() -> None:
    inner = [
        {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": 100 * GIB},
        },
    ]  # fmt: skip
    said = {
        "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": inner},
    }  # fmt: skip
    alone = host(**offloading(cpu_bytes_to_use=100 * GIB))
    assert (
        host(model="Qwen/Qwen3-8B", kv_transfer_config=said)["bytes_per_engine"] == alone["bytes_per_engine"]
    )


def test_the_size_takes_the_place_of_another_connector() -> None:
    said = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    found = codes(model="Qwen/Qwen3-8B", kv_transfer_config=said, kv_offloading_size=50)
    assert found["offloading-replaces-connector"]["connector"] == "OffloadingConnector"


def test_buffers_of_nixl_on_the_host_are_the_pool_again() -> None:
    said = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    found = plan(
        scenario_from_request(
            {
                "model": "Qwen/Qwen3-8B",
                "accelerator": CARD,
                "tensor_parallel_size": 2,
                "kv_transfer_config": said,
            }
        )
    )
    assert found.host is not None
    assert found.cache is not None
    assert found.host.bytes_per_engine == 2 * found.cache.num_blocks * found.cache.bytes_per_block


@pytest.mark.parametrize(
    ("settings", "version", "taken_gib"),
    [({}, "0.11.0", 2 * 32), ({"mem_pool_size_gb": 20}, "0.23.0", 2 * 32), ({"mem_pool_size_gb": "8"}, "0.20.0", 2 * 8),
     ({"mem_pool_size_gb": [1]}, "0.20.0", 2 * 32)],
)  # fmt: skip
def test_the_pool_of_p2p_is_pinned_by_every_rank(
    settings: dict[str, Any], version: str, taken_gib: int
) -> None:
    """vllm/distributed/kv_transfer/kv_connector/v1/p2p/tensor_memory_pool.py: the next power of two, 32 GiB by default;
    kv_buffer_size, 10**9 bytes by default, is of the card."""
    said = {
        "kv_connector": "P2pNcclConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": settings,
    }
    asked = {"model": "Qwen/Qwen3-32B", "accelerator": CARD, "tensor_parallel_size": 2, "max_model_len": 8192}
    found = plan(scenario_from_request({**asked, "engine_version": version, "kv_transfer_config": said}))
    part = host_part(found)
    assert part is not None
    assert part["bytes_per_engine"] == taken_gib * GIB
    assert part["tokens"] is None
    assert {one.code: one.params for one in found.notices}["caches-wait-on-card"]["size"] == "0.93 GiB"


def test_the_store_of_mooncake_takes_a_segment_and_a_buffer_of_each_rank() -> None:
    said = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
    found = host(model="Qwen/Qwen3-8B", tensor_parallel_size=2, kv_transfer_config=said)
    assert found["bytes_per_engine"] == 2 * 8 * GIB
    assert found["parts"][0]["grade"] == "assumed"


def test_lmcache_in_the_engine_s_processes_divides_the_size_by_the_ranks() -> None:
    """vllm/config/vllm.py (0.22.0): max_local_cpu_size = size / ranks; from 0.23 on a server has its own size."""
    asked = {
        "model": "Qwen/Qwen3-32B", "tensor_parallel_size": 4, "kv_offloading_size": 100,
        "kv_offloading_backend": "lmcache",
    }  # fmt: skip
    assert host(**asked, engine_version="0.22.0")["bytes_per_engine"] == 100 * GIB


@pytest.mark.parametrize(("version", "is_region"), [("0.21.0", False), ("0.22.0", True), ("0.26.0", True)])
def test_a_tier_above_others_lies_in_shared_memory_earlier(version: str, is_region: bool) -> None:
    asked = offloading(cpu_bytes_to_use=50 * GIB, spec_name="TieringOffloadingSpec")
    assert (host(**asked, engine_version=version)["shm_bytes_per_engine"] > 0) is is_region


@pytest.mark.parametrize(
    ("said", "is_told"),
    [
        ({"kv_connector": "OffloadConnector"}, True),
        ({"kv_connector": "OwnConnector", "kv_connector_module_path": "own.module"}, False),
        ({"kv_connector": "NixlConnector"}, False),
    ],
)
def test_a_connector_that_no_release_has_is_told(said: dict[str, Any], is_told: bool) -> None:
    found = codes(model="Qwen/Qwen3-8B", kv_transfer_config={**said, "kv_role": "kv_both"})
    assert ("connector-unknown" in found) is is_told
