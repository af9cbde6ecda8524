"""Published starts of hybrid models: the KV memory that the engine printed, and what it made of it."""

import pytest

from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

ORIN = (
    "a published start of vLLM 0.27.1 on a Jetson AGX Orin with 64 GB, 25 August 2026, with --mamba-ssm-cache-dtype "
    "float16 --mamba-cache-mode align"
)
LIGHTNING = {
    "model": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",
    "accelerator": {"name": "Jetson AGX Orin 64GB", "memory_gib": 61.34},
    "engine_version": "0.27.1",
    "kv_cache_dtype": "bfloat16",
    "max_model_len": 128_000,
    "max_num_batched_tokens": 16_384,
    "enable_prefix_caching": True,
    "mamba_cache_mode": "align",
    "mamba_ssm_cache_dtype": "float16",
}


@pytest.mark.parametrize(
    ("source", "request_fields", "available_gib", "tokens", "concurrency"),
    [
        (
            "github.com/noonghunna/club-3090, models/qwen3.6-27b/vllm/compose/dual/nvfp4/mtp.yml, vLLM 0.25.1 by its "
            "BENCHMARKS.md: 565 blocks, of which a request takes 164 and 3 × 4",
            {
                "model": "nvidia/Qwen3.6-27B-NVFP4",
                "accelerator": {"name": "RTX 5090", "memory_gib": 31.36, "vendor": "nvidia"},
                "engine_version": "0.25.1",
                "tensor_parallel_size": 2,
                "kv_cache_dtype": "fp8",
                "max_model_len": 262_144,
                "max_num_batched_tokens": 8192,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
            },
            14.68,
            841_541,
            3.21,
        ),
        (
            "a development build of August 2026, whose log says \"Mamba cache mode is set to 'align'\": 153 blocks, of "
            "which a request takes 126 and 3 × 2",
            {
                "model": "Qwen/Qwen3.6-27B",
                "accelerator": {"name": "RTX 5090", "memory_gib": 31.36, "vendor": "nvidia"},
                "engine_version": "0.26.1rc1.dev1108+gda329cc30",
                "kv_cache_dtype": "fp8",
                "max_model_len": 196_608,
                "max_num_batched_tokens": 2048,
                "max_num_seqs": 1,
            },
            7.33,
            227_886,
            1.16,
        ),
        (
            "github.com/mitchross/talos-argocd-proxmox, benchmarks/ai-realworld-load/README.md, which reports 96 % "
            "prefix cache hits: 135 blocks, of which a request takes 115 and 3 × 2",
            {
                "model": "Qwen/Qwen3.6-27B",
                "accelerator": {"name": "RTX 3090", "memory_gib": 23.57, "vendor": "nvidia"},
                "engine_version": "0.27.1",
                "kv_cache_dtype": "fp8_e4m3",
                "max_model_len": 180_000,
                "max_num_batched_tokens": 2048,
                "max_num_seqs": 3,
                "enable_prefix_caching": True,
            },
            6.5,
            200_826,
            1.12,
        ),
        (
            f"{ORIN}, solo without drafter: 3806 blocks, of which a request takes 120 and 4 × 2",
            LIGHTNING,
            23.35,
            3_806_000,
            29.73,
        ),
        (
            f"{ORIN}, beside other services: 1524 blocks, of which a request takes 120 and 4 × 2",
            LIGHTNING,
            9.35,
            1_524_000,
            11.91,
        ),
    ],
    ids=[
        "mtp-without-prefix-caching",
        "development-build",
        "prefix-caching-asked-for",
        "lightning-alone",
        "lightning-beside-others",
    ],
)
def test_tokens_of_the_printed_memory(
    source: str, request_fields: dict[str, object], available_gib: float, tokens: int, concurrency: float
) -> None:
    planned = plan(
        scenario_from_request({**request_fields, "measured": {"available_kv_gib": available_gib}})
    ).cache
    assert planned is not None
    assert planned.tokens == tokens, source
    assert round(planned.max_concurrency, 2) == concurrency


@pytest.mark.parametrize(
    ("version", "speculates", "mode"),
    [
        ("0.11.0", False, "none"),
        ("0.14.1", False, "all"),
        ("0.20.2", False, "all"),
        ("0.20.2", True, "align"),
        ("0.27.1", True, "all"),
        ("0.28.0", False, "align"),
    ],
)
def test_how_states_of_nemotron_are_cached(version: str, speculates: bool, mode: str) -> None:
    """Source: vllm/model_executor/models/config.py:MambaModelConfig of each of these releases."""
    request: dict[str, object] = {
        "model": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        "accelerator": "H200",
        "tensor_parallel_size": 8,
        "engine_version": version,
        "enable_prefix_caching": True,
    }
    if speculates:
        request["speculative_config"] = {"method": "mtp", "num_speculative_tokens": 3}
    assert plan(scenario_from_request(request)).resolved.mamba_cache_mode == mode


@pytest.mark.parametrize(("version", "mode"), [("0.14.1", "none"), ("0.27.1", "align")])
def test_how_states_of_delta_nets_are_cached(version: str, mode: str) -> None:
    """Only Mamba keeps every state; before 0.15 other models went without prefix caching."""
    request = {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "accelerator": "H200",
        "tensor_parallel_size": 4,
        "engine_version": version,
        "enable_prefix_caching": True,
    }
    assert plan(scenario_from_request(request)).resolved.mamba_cache_mode == mode


def test_blocks_of_lightning_by_hand() -> None:
    """A state in float16: 64 heads × 64 × 128 × 2 bytes, and 3 rows of 4096 + 2 × 8 × 128 channels × 2 bytes are
    1,085,440; a token of one attention layer takes 2 × 2 × 128 × 2 = 1024, so it fits in a block of 16 × 67 = 1072.

    Without the flags the state is float32 (4 × 524,288 + 36,864 bytes, 2084 tokens), kept at each of blocks of
    128 × 17 = 2176, and a request of 128,000 takes 59 blocks in each of five groups.
    """
    planned = plan(scenario_from_request({**LIGHTNING, "measured": {"available_kv_gib": 9.35}}))
    assert planned.cache is not None
    assert [group.block_size for group in planned.cache.groups] == [1072] * 5
    assert sorted(group.blocks_per_request for group in planned.cache.groups) == [2, 2, 2, 2, 120]
    bare = {name: value for name, value in LIGHTNING.items() if not name.startswith("mamba")}
    default = plan(scenario_from_request({**bare, "measured": {"available_kv_gib": 9.35}}))
    assert default.cache is not None
    assert [(group.block_size, group.blocks_per_request) for group in default.cache.groups] == [
        (2176, 59)
    ] * 5
    assert [notice.code for notice in default.notices if notice.field == "mamba_cache_mode"] == [
        "every-state-cached"
    ]
