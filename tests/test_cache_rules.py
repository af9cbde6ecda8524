"""planner.toml is read strictly and gives each version its own behaviour."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import CatalogueError, EngineRefusalError
from kvcore.base.units import GIB
from kvcore.cache.capacity import plan_cache
from kvcore.cache.kv_formats import state_tensor_bytes
from kvcore.cache.rules import KERNEL_BLOCKS, PLANNER, hybrid_block_size, planner_rules, smallest_kernel_block
from kvcore.cache.states import aligned_block_size, rank_layer_specs
from kvcore.engine.protocol import Resolved
from kvcore.model.architecture import Architecture
from kvcore.model.caches import RecurrentState, StateShape
from kvcore.scenario import Parallel
from tests.cache_examples import architecture, flags, full_layer, layer


def raw_tables() -> dict[str, Any]:
    return deepcopy(dict(PLANNER.raw()))


def test_a_rule_holds_from_its_version_on() -> None:
    slack = [
        planner_rules(Version(v)).group_size_slack for v in ("0.11.2", "0.12.0", "0.17.1", "0.18.1", "0.33.0")
    ]
    assert slack == [1.0, 1.25, 1.25, 1.5, 1.5]


def test_the_null_block_counts_from_0_29() -> None:
    assert planner_rules(Version("0.28.0")).fit_check == "groups"
    assert planner_rules(Version("0.29.0")).fit_check == "groups-and-null-block"


def test_unknown_and_missing_rules_are_named() -> None:
    raw = raw_tables()
    with pytest.raises(CatalogueError, match="colour"):
        PLANNER.read(raw | {"rules": raw["rules"] | {"colour": {"source": "x", "0.0": 1}}})
    del raw["rules"]["fit_check"]
    with pytest.raises(CatalogueError, match="fit_check"):
        PLANNER.read(raw)


@pytest.mark.parametrize("missing", ["source", "0.0"])
def test_a_rule_needs_source_and_first_value(missing: str) -> None:
    raw = raw_tables()
    del raw["rules"]["fit_check"][missing]
    with pytest.raises(CatalogueError, match=rf"fit_check.*{missing}"):
        PLANNER.read(raw)


def delta_net_state(heads: int = 32, ssm_dtype: str = "") -> RecurrentState:
    """Qwen3-Next: 16 key heads and `heads` value heads of 128, convolution over 4 tokens."""
    row = 2 * 16 * 128 + heads * 128
    return RecurrentState(
        kind="gdn_attention",
        heads=heads,
        shapes=(
            StateShape(sharded=3 * row, replicated=1, sharded_per_speculative_token=row),
            StateShape(sharded=heads, replicated=128 * 128, dtype=ssm_dtype),
        ),
    )


def mamba2_state(heads: int, groups: int, state_size: int) -> RecurrentState:
    """Nemotron-H: heads of 64, convolution over 4 tokens, the recurrence in float32."""
    width = heads * 64 + 2 * groups * state_size
    return RecurrentState(
        kind="mamba2",
        heads=heads,
        replicable_groups=groups,
        shapes=(
            StateShape(sharded=3 * width, replicated=1, sharded_per_group=3 * 2 * state_size),
            StateShape(sharded=heads, replicated=64 * state_size, dtype="float32"),
        ),
    )


def chunked(heads: int) -> RecurrentState:
    """Nemotron 3: 8 groups, states of 128, chunks of 128."""
    return replace(mamba2_state(heads, 8, 128), chunk_size=128)


def hybrid(state: RecurrentState, kv_heads: int, head_size: int, *, per_attention: int = 4) -> Architecture:
    keeps, recurs = full_layer(kv_heads, head_size), layer(state)
    layers = [keeps if index % per_attention == per_attention - 1 else recurs for index in range(48)]
    return architecture(layers, num_kv_heads=kv_heads, head_dim=head_size)


QWEN3_NEXT = hybrid(delta_net_state(), 2, 256)
NEMOTRON_H_8B = hybrid(mamba2_state(128, 8, 128), 8, 128)
JAMBA = hybrid(
    RecurrentState(
        kind="mamba1",
        heads=8192,
        shapes=(StateShape(sharded=8192, replicated=3), StateShape(sharded=8192, replicated=16)),
    ),
    8,
    128,
)


@pytest.mark.parametrize(
    ("model", "ranks", "speculative_tokens", "block_size", "page"),
    [
        (QWEN3_NEXT, 1, 0, 544, 1_114_112),
        (QWEN3_NEXT, 2, 2, 560, 573_440),
        (QWEN3_NEXT, 2, 0, 544, 557_056),
        (QWEN3_NEXT, 4, 0, 272, 278_528),
        (NEMOTRON_H_8B, 1, 0, 1040, 4_259_840),
        (JAMBA, 2, 0, 80, 163_840),
    ],
)
def test_block_and_page(
    model: Architecture, ranks: int, speculative_tokens: int, block_size: int, page: int
) -> None:
    parallel = Parallel(tensor_parallel_size=ranks)
    resolved = flags("0.32.0", mamba_cache_mode="align", num_speculative_tokens=speculative_tokens)
    assert aligned_block_size(model, parallel, resolved) == block_size
    specs = rank_layer_specs(model, parallel, resolved, 0)
    assert {spec.page_size_bytes for spec in specs} == {page}
    assert {spec.block_size for spec in specs} == {block_size}
    assert {spec.layers for spec in specs} == {36, 12}


def test_states_of_a_whole_request_have_one_long_block() -> None:
    specs = rank_layer_specs(QWEN3_NEXT, Parallel(), flags("0.32.0", max_model_len=262_144), 0)
    assert [spec.block_size for spec in specs] == [262_144, 544]


def test_a_larger_asked_block_stays() -> None:
    assert aligned_block_size(QWEN3_NEXT, Parallel(), flags("0.19.0", block_size=1024)) == 1024
    # From 0.20 blocks are a multiple of the asked size.
    assert aligned_block_size(QWEN3_NEXT, Parallel(), flags("0.32.0", block_size=128)) == 640


def test_published_start_with_fp8_and_mtp() -> None:
    """Qwen3.6-27B, TP 2, three speculative tokens, fp8 cache: "Setting attention block size to 1600"."""
    state = RecurrentState(
        kind="gdn_attention",
        heads=48,
        shapes=(
            StateShape(sharded=3 * 10_240, replicated=1, sharded_per_speculative_token=10_240),
            StateShape(sharded=48, replicated=128 * 128, dtype="float32"),
        ),
    )
    resolved = flags("0.24.0", kv_cache_dtype="fp8", num_speculative_tokens=3, mamba_cache_mode="align")
    assert aligned_block_size(hybrid(state, 4, 256), Parallel(tensor_parallel_size=2), resolved) == 1600


@pytest.mark.parametrize(("mode", "expected"), [("all", 512), ("align", 400), ("none", 400)])
def test_a_cached_state_starts_at_a_chunk(mode: str, expected: int) -> None:
    """The example of vllm pull request 25752: a state of 788 kB, 2 kB a token, chunks of 256 tokens."""
    resolved = flags("0.11.2", mamba_cache_mode=mode)
    block_size = hybrid_block_size(
        state_bytes=788_000, token_bytes=2048, is_mla=False, resolved=resolved, chunk_size=256
    )
    assert block_size == expected


@pytest.mark.parametrize(
    ("model", "kv_cache_dtype", "mode", "expected"),
    [
        # github.com/vllm-project/vllm/issues/48401: Nemotron 3 Super 120B yields 8320.
        (hybrid(chunked(128), 2, 128), "fp8", "all", 8320),
        # github.com/vllm-project/vllm/issues/53749: Nemotron 3.5 Lightning 30B with --mamba-cache-mode align, 2096.
        (hybrid(chunked(64), 2, 128), "bfloat16", "align", 2096),
        # The same 2084 tokens of 1024 bytes in chunks of 128.
        (hybrid(chunked(64), 2, 128), "bfloat16", "all", 2176),
    ],
)
def test_published_blocks_of_nemotron(
    model: Architecture, kv_cache_dtype: str, mode: str, expected: int
) -> None:
    resolved = flags("0.27.1", kv_cache_dtype=kv_cache_dtype, mamba_cache_mode=mode)
    assert aligned_block_size(model, Parallel(), resolved) == expected
    assert {spec.block_size for spec in rank_layer_specs(model, Parallel(), resolved, 0)} == {expected}


def ascend(version: str, **changes: Any) -> Resolved:
    return flags(version, engine="vllm-ascend", attention_backend="ASCEND", block_size=128, **changes)


def test_published_start_of_a_hybrid_model_on_ascend() -> None:
    """Qwen3-Next-80B on four NPUs, 0.13 (github.com/vllm-project/vllm-ascend/issues/6250).

    9.11406 GiB print 198,912 tokens and 23.29 requests of 32,768: 2073 blocks of 12 layers × 384 tokens × 1024
    bytes, 2073 // 4 × 384, and 2073 / (86 + 3).
    """
    resolved = ascend("0.13.0", max_model_len=32_768)
    parallel = Parallel(tensor_parallel_size=4)
    specs = rank_layer_specs(QWEN3_NEXT, parallel, resolved, 0)
    assert [(spec.block_size, spec.page_size_bytes) for spec in specs] == [(384, 393_216), (32_768, 393_216)]
    plan = plan_cache((specs,), (int(9.11406 * GIB),), resolved, parallel)
    assert (plan.num_blocks, plan.tokens) == (2073, 198_912)
    assert round(plan.max_concurrency, 2) == 23.29


def test_another_published_start_of_a_hybrid_model_on_ascend() -> None:
    """The same model and ranks on 0.12.0rc1 (github.com/vllm-project/vllm-ascend/issues/5020).

    "GPU KV cache size: 282,240 tokens", 210.07 requests of 4096: 735 blocks of 384 in each of four groups, and
    2941 / (11 + 3).
    """
    resolved = ascend("0.12.0", max_model_len=4096, num_gpu_blocks_override=2941)
    parallel = Parallel(tensor_parallel_size=4)
    specs = rank_layer_specs(QWEN3_NEXT, parallel, resolved, 0)
    plan = plan_cache((specs,), (0,), resolved, parallel)
    assert (plan.tokens, round(plan.max_concurrency, 2)) == (282_240, 210.07)


@pytest.mark.parametrize("ranks", [1, 4])
def test_published_block_of_a_quantized_hybrid_on_ascend(ranks: int) -> None:
    """A 27B of W8A8 whose patch_mamba_config.py sets the attention block to 1536: 48 heads in float32, 4 of keys."""
    model = hybrid(delta_net_state(48, ssm_dtype="float32"), 4, 256)
    parallel = Parallel(tensor_parallel_size=ranks)
    assert aligned_block_size(model, parallel, ascend("0.18.0")) == 1536
    assert aligned_block_size(model, parallel, ascend("0.15.0")) == 896


def test_keys_on_ascend_are_as_large_as_a_state() -> None:
    """Qwen3.5-35B-A3B on two NPUs: "the block_size is adjusted to 2048" (vllm-ascend pull request 7103).

    16 heads of 128 × 128 in float32 are 1 MiB, as the keys of 2048 tokens of one head of 256 are; a page has the
    values and 3 rows of 4096 behind.
    """
    model = hybrid(delta_net_state(ssm_dtype="float32"), 2, 256)
    resolved = ascend("0.17.0", mamba_cache_mode="align")
    specs = rank_layer_specs(model, Parallel(tensor_parallel_size=2), resolved, 0)
    assert {spec.block_size for spec in specs} == {2048}
    assert {spec.page_size_bytes for spec in specs} == {2 * 2**20 + 3 * 4096 * 2}


@pytest.mark.parametrize(
    ("version", "backend", "expected"),
    [
        ("0.10.2", "", 16),
        ("0.11.2", "", 64),
        ("0.11.2", "CUTLASS_MLA", 128),
        ("0.20.2", "FLASHMLA", 64),
        ("0.20.2", "FLASH_ATTN_MLA", 16),
        ("0.27.1", "FLASH_ATTN_MLA", 128),
    ],
)
def test_alignment_of_latent_vectors_by_version(version: str, backend: str, expected: int) -> None:
    resolved = flags(version, attention_backend=backend)
    assert hybrid_block_size(state_bytes=1, token_bytes=1152, is_mla=True, resolved=resolved) == expected


def test_groups_that_do_not_divide_are_replicated() -> None:
    """2 groups on 4 ranks: each rank keeps one."""
    state = mamba2_state(heads=64, groups=2, state_size=128)
    convolution = 3 * (64 * 64 // 4 + 2 * 128) * 2
    assert sum(state_tensor_bytes(state, 4, "bfloat16", 0)) == convolution + 16 * 64 * 128 * 4


def test_heads_must_divide() -> None:
    with pytest.raises(EngineRefusalError) as refusal:
        aligned_block_size(QWEN3_NEXT, Parallel(tensor_parallel_size=3), flags())
    assert refusal.value.code == "state-heads-not-divisible"


def test_models_without_states_keep_their_block_size() -> None:
    assert aligned_block_size(architecture([full_layer()] * 4), Parallel(), flags(block_size=32)) == 32
    assert aligned_block_size(architecture([layer(delta_net_state())] * 4), Parallel(), flags()) == 16


def test_unlisted_backends_read_blocks_of_16() -> None:
    assert smallest_kernel_block("SOMETHING_NEW") == 16
    assert smallest_kernel_block("FLASHINFER_MLA") == 32


@pytest.mark.parametrize(
    "raw", [{}, {"source": "x", "smallest_kernel_block": {"A": "16"}}, {"source": "x", "other": {}}]
)
def test_wrong_backend_tables_are_named(raw: dict[str, object]) -> None:
    with pytest.raises(CatalogueError, match=r"backends\.toml"):
        KERNEL_BLOCKS.read(raw)
