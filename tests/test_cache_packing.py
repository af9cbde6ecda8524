"""Packed groups: DeepSeek-V4-Flash as vLLM 0.32.0 itself plans it (43 layers, TP 4, 20 GiB)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.units import GIB
from kvcore.cache.capacity import CachePlan, plan_cache
from kvcore.cache.packing import Bucket, distributed, is_packed, least_padding, packed_groups
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.scenario import Parallel
from tests.cache_examples import flags, latent, window


def latent_window(layers: int, size: int, block_size: int, page: int) -> LayerSpec:
    return LayerSpec(
        kind=CacheKind.SLIDING_WINDOW_MLA,
        layers=layers,
        block_size=block_size,
        page_size_bytes=page,
        sliding_window=size,
    )


DEEPSEEK_V4_FLASH = (
    latent_window(43, 128, 64, 37_440),
    latent(21, page=37_440, block_size=256),
    latent(21, page=8640, block_size=256),
    latent_window(21, 8, 4, 32_832),
    latent_window(21, 8, 4, 8640),
    latent(20, page=1728, block_size=256),
    latent_window(20, 128, 8, 32_832),
)


def planned(version: str, **changes: object) -> CachePlan:
    resolved = flags(version, max_model_len=1_048_576, block_size=256, **changes)
    return plan_cache((DEEPSEEK_V4_FLASH,), (20 * GIB,), resolved, Parallel(tensor_parallel_size=4))


def test_plan_of_0_32() -> None:
    plan = planned("0.32.0")
    assert plan.bytes_per_block == 1_002_240
    assert plan.num_blocks == 21_426
    assert plan.tokens == 2_084_504
    assert f"{plan.max_concurrency:.2f}" == "1.99"
    assert sorted(group.layers for group in plan.groups) == [20, 21, 22, 42, 62]


def test_layer_tuples_of_0_28_make_the_same_groups_and_check_for_more() -> None:
    plan = planned("0.28.0")
    assert plan.num_blocks == 21_426
    assert [group.layers for group in plan.groups] == [62, 22, 21, 42, 20]
    blocks = sum(group.blocks_per_request for group in plan.groups)
    # One page of each size of the first group, 22 times.
    assert plan.needed_bytes == blocks * 22 * (37_440 + 8640 + 1728)


# What the planners of these releases answer themselves on the specs above (2026-11-21, flags as below): blocks, tokens,
# concurrency; then, in 4 GiB, the estimated longest request.
RELEASES = [
    ("0.20.2", 32.08, 262_144, 32_749, 2_150_000, 8.20160280490859, 186_624),
    ("0.22.1", 37.93, 256_000, 38_722, 2_497_564, 9.756109851347947, 186_624),
    ("0.23.0", 32.08, 262_144, 33_130, 2_175_013, 8.29701978462309, 186_624),
    ("0.25.1", 37.93, 256_000, 39_172, 2_526_589, 9.869488536155202, 186_624),
    ("0.26.0", 32.08, 262_144, 33_130, 1_251_236, 4.773087451375883, 9_940),
    ("0.27.1", 37.93, 256_000, 40_636, 1_354_180, 5.289768289507941, 9_940),
]


@pytest.mark.parametrize(("version", "gib", "length", "blocks", "tokens", "concurrency", "longest"), RELEASES)
def test_releases(
    version: str, gib: float, length: int, blocks: int, tokens: int, concurrency: float, longest: int
) -> None:
    def plan(gib: float) -> CachePlan:
        resolved = flags(
            version,
            max_model_len=length,
            derived_max_model_len=length,
            block_size=256,
            max_num_batched_tokens=8192,
            max_concurrent_batches=2,
        )
        return plan_cache((DEEPSEEK_V4_FLASH,), (int(gib * GIB),), resolved, Parallel(tensor_parallel_size=8))

    found = plan(gib)
    assert (found.num_blocks, found.tokens) == (blocks, tokens)
    assert found.max_concurrency == pytest.approx(concurrency)
    assert plan(4).longest_request_tokens == longest


def test_0_20_0_groups_as_0_20_2_and_reports_tokens_as_0_19() -> None:
    """Same planner but for num_gpu_blocks_override; its _report_kv_cache_config prints blocks // groups × the smallest
    block, which is 4 tokens of a group."""

    def found(version: str) -> CachePlan:
        resolved = flags(version, max_model_len=262_144, block_size=256, max_num_batched_tokens=8192)
        memory = (int(32.08 * GIB),)
        return plan_cache((DEEPSEEK_V4_FLASH,), memory, resolved, Parallel(tensor_parallel_size=8))

    first, later = found("0.20.0"), found("0.20.2")
    assert (first.num_blocks, first.groups) == (later.num_blocks, later.groups)
    assert first.max_concurrency == later.max_concurrency
    assert first.tokens == first.num_blocks // len(first.groups) * 4


def test_published_starts() -> None:
    """DeepSeek-V4-Flash on 2 × H200, 0.23.0: 32.08 GiB hold 2,175,276 tokens, 8.30 requests of 262,144; on 8 × RTX PRO
    5000, 0.22.1rc1: 37.93 GiB, 2,497,693 tokens, 9.76 of 256,000. Both found in public repositories on 2026-11-21;
    the memory is printed to two places, which is 0.02 %."""
    for version, gib, length, tokens, concurrency in (
        ("0.23.0", 32.08, 262_144, 2_175_276, "8.30"),
        ("0.22.1", 37.93, 256_000, 2_497_693, "9.76"),
    ):
        resolved = flags(version, max_model_len=length, block_size=256, max_num_batched_tokens=8192)
        parallel = Parallel(tensor_parallel_size=8)
        found = plan_cache((DEEPSEEK_V4_FLASH,), (int(gib * GIB),), resolved, parallel)
        assert found.tokens == pytest.approx(tokens, rel=2e-4)
        assert f"{found.max_concurrency:.2f}" == concurrency


def test_only_latent_windows_of_several_page_sizes_are_packed() -> None:
    assert is_packed(DEEPSEEK_V4_FLASH)
    assert not is_packed((latent_window(4, 128, 64, 37_440), latent(4, page=37_440)))
    assert not is_packed((window(4, 128), latent(4)))


def test_without_a_repeating_pattern_windows_are_cut_to_what_a_block_holds() -> None:
    whole = Bucket(
        specs=(latent(1, page=4000, block_size=64), latent_window(1, 128, 64, 1000)), counts=((2,), (20,))
    )
    groups = packed_groups(whole, "pattern-repeats")
    # 2 x 4000 bytes hold 8 windows: 20 windows in 3 groups.
    assert [group.counts for group in groups] == [((2,),), ((7,),), ((7,),), ((6,),)]


def test_least_padding_prefers_the_larger_of_equals() -> None:
    assert least_padding([43, 21, 20], at_least=21) == 22
    assert least_padding([4, 8], at_least=1) == 4
    assert least_padding([5], at_least=9) == 9


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4).map(tuple),
    number=st.integers(1, 7),
)
def test_dealing_out_loses_no_layer(counts: tuple[int, ...], number: int) -> None:
    hands = [distributed(counts, number, index) for index in range(number)]
    assert tuple(map(sum, zip(*hands, strict=True))) == counts
    for stage in zip(*hands, strict=True):
        assert max(stage) - min(stage) <= 1
