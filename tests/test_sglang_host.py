"""HiCache: what SGLang's pools in the host's memory take, by the rules of its releases."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError, ScenarioError
from kvcore.base.units import GIB
from kvcore.contract.host import host_part
from kvcore.deploy.launch_files import Artefact, artefact
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request
from tests.test_sglang import planned

LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 5,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
SPARSE = LATENT | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}


def with_cache(version: str = "0.5.18", *, page: int = 64, **own: Any) -> Plan:
    """36 layers of 8 heads of 128: 147,456 bytes a token; 100,032 tokens are 1,563 pages of 64."""
    asked = {"enable_hierarchical_cache": True, "page_size": page, "max_total_tokens": 100_032}
    fields = {name: own.pop(name) for name in ("tensor_parallel_size", "node_memory_gib") if name in own}
    return planned(version, server_args=asked | own, **fields)


def latent(config: dict[str, Any], version: str, **fields: Any) -> Plan:
    asked = {"enable_hierarchical_cache": True, "page_size": 64, "max_total_tokens": 64_000}
    request = {"model": "own/latent", "config": config, "engine": "sglang", "engine_version": version}
    own = fields.pop("server_args", {})
    return plan(
        scenario_from_request(request | {"accelerator": "H200-141GB", "server_args": asked | own} | fields)
    )


def taken(found: Plan) -> tuple[int, int]:
    """Tokens of the tier, and the bytes of all ranks."""
    assert found.host is not None
    assert found.host.tier is not None
    return found.host.tier.tokens, found.host.bytes_per_engine


@pytest.mark.parametrize(
    ("version", "own", "tokens", "size"),
    [
        # 2 x 100,032 = 200,064 = 3,126 pages, and one for padding: 3,127 x 64.
        ("0.5.18", {}, 200_128, 200_128 * 147_456),
        ("0.5.6.post2", {}, 200_128, 200_128 * 147_456),
        # 2.5 x 100,032 = 250,080 = 3,907.5 pages: 3,907 + 1.
        ("0.5.9", {"hicache_ratio": 2.5}, 250_112, 250_112 * 147_456),
        # 100 x 10^9 // 147,456 = 678,168 = 10,596.4 pages: 10,596 + 1.
        ("0.5.23", {"hicache_size": 100}, 678_208, 678_208 * 147_456),
        # A size goes before a ratio; the releases before padded nothing, and torch pinned 92.99 GiB as 128.
        ("0.5.3.post3", {"hicache_size": 100, "hicache_ratio": 4.0}, 678_144, 128 * GIB),
        # 3,126 pages without one more: 200,064 x 147,456 = 27.47 GiB, pinned as 32.
        ("0.4.10", {}, 200_064, 32 * GIB),
    ],
)
def test_a_pool_is_as_large_as_the_release_makes_it(
    version: str, own: dict[str, Any], tokens: int, size: int
) -> None:
    assert taken(with_cache(version, **own)) == (tokens, size)


def test_a_size_is_each_rank_s() -> None:
    """Of 2 ranks a token is 73,728 bytes: 10^11 // 73,728 = 1,356,336 tokens = 21,192.75 pages, 21,193 with padding."""
    found = with_cache(tensor_parallel_size=2, hicache_size=100)
    assert taken(found) == (21_193 * 64, 2 * 21_193 * 64 * 73_728)
    said = {one.code: one.message for one in found.notices}
    assert "2 ranks take 200 GB" in said["hicache-size-per-rank"]


def test_the_pools_on_the_card_stay_as_they_are() -> None:
    plain = planned(server_args={"page_size": 64, "max_total_tokens": 100_032})
    mirrored = with_cache()
    assert plain.host is None
    assert plain.cache is not None
    assert mirrored.cache is not None
    assert mirrored.cache.tokens == plain.cache.tokens == 100_032
    assert plain.memory is not None
    assert mirrored.memory is not None
    assert mirrored.memory.cuda_graphs.value == plain.memory.cuda_graphs.value


def test_up_to_0_5_13_a_pool_must_be_larger_than_the_card_s() -> None:
    """1 x 100,032 tokens and a page of padding are more; a ratio of a half is less."""
    assert taken(with_cache("0.5.13", hicache_ratio=1.0))[0] == 100_096
    with pytest.raises(EngineRefusalError, match="host memory should be larger than the device memory"):
        with_cache("0.5.13", hicache_ratio=0.5)
    assert taken(with_cache("0.5.18", hicache_ratio=0.5))[0] == 50_048


def test_every_rank_keeps_its_own_latent_vectors() -> None:
    """5 layers of (512 + 64) x 2 bytes: 5,760 a token on each of 8 ranks; 128,000 tokens and a page of 64."""
    found = latent(LATENT, "0.5.18", tensor_parallel_size=8)
    assert taken(found) == (128_064, 8 * 128_064 * 5_760)
    assert found.host is not None
    assert found.host.tier is not None
    assert found.host.tier.copies == 8


@pytest.mark.parametrize(
    ("version", "tokens"),
    [
        # With keys to pick by 5 x (1,152 + 132) = 6,420 bytes: 10^9 // 6,420 = 155,763 = 2,433.8 pages, 2,434.
        ("0.5.9", 2_434 * 64),
        # They are a pool beside: 10^9 // 5,760 = 173,611 = 2,712.7 pages, 2,713.
        ("0.5.13", 2_713 * 64),
        ("0.5.23", 2_713 * 64),
    ],
)
def test_keys_to_pick_by_are_a_part_of_the_pool_or_come_on_top(version: str, tokens: int) -> None:
    found = latent(SPARSE, version, server_args={"hicache_size": 1}, tensor_parallel_size=1)
    assert taken(found) == (tokens, tokens * 6_420)


def test_stages_hold_as_many_tokens_as_the_least_of_them() -> None:
    """Layers 2 + 3 of 1,152 bytes: a GB is 434,027 tokens of the first, 289,351 of the second: 4,521.1 pages, 4,522."""
    own = {"hicache_size": 1}
    found = latent(LATENT, "0.5.18", server_args=own, tensor_parallel_size=1, pipeline_parallel_size=2)
    assert taken(found) == (4_522 * 64, 4_522 * 64 * 5 * 1_152)
    apart = latent(LATENT, "0.5.13", server_args=own, tensor_parallel_size=1, pipeline_parallel_size=2)
    assert taken(apart) == (4_522 * 64, 6_782 * 64 * 2_304 + 4_522 * 64 * 3_456)


def test_what_is_not_counted_is_said() -> None:
    """A named draft has pools in the host's memory too; a size without the switch is read by nothing."""
    draft = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "own/draft"}
    asked = planned(server_args={"enable_hierarchical_cache": True} | draft)
    assert asked.host is None
    assert "hicache-not-counted" in {one.code for one in asked.notices}
    off = planned(server_args={"hicache_size": 100})
    assert off.host is None
    assert "hicache-not-asked" in {one.code for one in off.notices}


def test_without_a_radix_cache_it_is_refused() -> None:
    with pytest.raises(EngineRefusalError, match="mutually exclusive"):
        with_cache(disable_radix_cache=True)


def test_a_machine_needs_ten_gib_more_than_the_pools() -> None:
    """678,208 x 147,456 bytes are 93.14 GiB; with 10 GiB kept free they are 103.14, and the processes come on top."""
    report = host_part(with_cache(hicache_size=100))
    assert report is not None
    assert (
        report["limits"]["memory_bytes_least"] == (93 + 10 + 6 + 1) * GIB
    )  # a worker 4, a server 2, rounded up
    assert report["shm_bytes_per_engine"] == 0
    with pytest.raises(
        ScenarioError, match=r"103\.1 GiB of the host's memory, and the machine has 100\.0 GiB"
    ):
        with_cache(hicache_size=100, node_memory_gib=100)
    assert with_cache(hicache_size=100, node_memory_gib=128).host is not None


def test_from_0_5_21_the_default_follows_the_machine() -> None:
    """Of 30 GiB 20 may go: x 0.8 x 0.95 = 15.2 GiB, and the pool of 100,032 tokens and a page is 13.75: 1.105 times."""
    tokens, _ = taken(with_cache("0.5.23", node_memory_gib=30))
    ratio = 15.2 * GIB / (100_096 * 147_456)
    assert tokens == (int(100_032 * ratio) // 64 + 1) * 64
    with pytest.raises(ScenarioError, match=r"37\.5 GiB of the host's memory"):
        with_cache("0.5.18", node_memory_gib=30)
    with pytest.raises(EngineRefusalError, match="after the 10 GiB reserve"):
        with_cache("0.5.23", node_memory_gib=8)


def test_launch_files_have_limits_for_it() -> None:
    found = with_cache(hicache_size=100)
    docker = artefact(Artefact.DOCKER, found)
    assert found.host is not None
    assert f"--memory={found.host.limit_bounds[1] // GIB}g" in docker
    assert "--shm-size=1g" in docker
    assert "--enable-hierarchical-cache" in docker
    assert "--hicache-size 100" in docker
