"""Blocks, tokens and concurrency: published starts, special cases, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import GIB
from kvcore.cache.capacity import CachePlan, check_state_blocks, max_concurrency_at, plan_cache
from kvcore.cache.groups import StageSpecs
from kvcore.cache.spec import CacheKind
from kvcore.scenario import Parallel
from tests.cache_examples import flags, full, latent, recurrent, window

VERSIONS = (
    "0.9.2",
    "0.10.2",
    "0.11.0",
    "0.12.0",
    "0.16.0",
    "0.19.1",
    "0.20.2",
    "0.26.0",
    "0.28.0",
    "0.33.0",
)


@pytest.mark.parametrize(
    ("gib", "num_blocks", "tokens", "printed"),
    [(5.98, 299, 567_978, "4.33"), (6.01, 300, 569_878, "4.35")],
)
def test_published_starts_of_a_hybrid(gib: float, num_blocks: int, tokens: int, printed: str) -> None:
    """Qwen3.6-35B-A3B, fp8 cache, vLLM 0.24.0: club-3090 issues 612 and 652."""
    page = 2096 * 2 * 512
    specs = (recurrent(30, page=page, block_size=2096), full(10, page=page, block_size=2096))
    resolved = flags("0.24.0", max_model_len=131_072, mamba_cache_mode="align", block_size=2096)
    plan = plan_cache((specs,), (int(gib * GIB),), resolved, Parallel())
    assert (plan.num_blocks, plan.tokens) == (num_blocks, tokens)
    assert f"{plan.max_concurrency:.2f}" == printed
    assert sum(group.blocks_per_request for group in plan.groups) == 69


def test_slope_and_fixed_part_of_windows() -> None:
    """Gemma 3 27B: 10 of 62 layers grow, in blocks of 10 layers; the windows of six groups are bounded."""
    plan = plan_cache(
        ((window(52, 1024, page=131_072), full(10, page=131_072)),), (20 * GIB,), flags(), Parallel()
    )
    assert plan.bytes_per_token == 10 * 131_072 / 16
    assert plan.request_fixed_bytes == 6 * 1089 * 10 * 131_072


def test_slope_of_latent_vectors_shared_by_context_ranks() -> None:
    parallel = Parallel(tensor_parallel_size=8, decode_context_parallel_size=8)
    plan = plan_cache(((latent(61),),), (20 * GIB,), flags(block_size=64), parallel)
    assert plan.bytes_per_token == 61 * 1152 / 8
    assert plan.request_fixed_bytes == 0


@pytest.mark.parametrize(("version", "shares"), [("0.12.0", 2), ("0.26.0", 2), ("0.27.1", 1), ("0.33.0", 1)])
def test_ranks_that_share_a_prompt_share_the_cache_before_0_27(version: str, shares: int) -> None:
    parallel = Parallel(tensor_parallel_size=8, prefill_context_parallel_size=2)
    plan = plan_cache(((latent(61),),), (20 * GIB,), flags(version, block_size=64), parallel)
    assert plan.bytes_per_token == 61 * 1152 / shares


def test_a_pure_state_model_takes_no_more_for_longer_requests() -> None:
    specs = ((recurrent(64, page=2**20, block_size=131_072),),)
    plan = plan_cache(specs, (20 * GIB,), flags(), Parallel())
    assert (plan.num_blocks, plan.max_concurrency, plan.bytes_per_token) == (320, 320.0, 0.0)
    assert plan.request_fixed_bytes == 64 * 2**20
    assert max_concurrency_at(specs, 20 * GIB, flags(), Parallel(), (1, 10**6)) == (320.0, 320.0)


def test_a_model_without_a_cache_has_the_null_block_alone() -> None:
    plan = plan_cache(((),), (20 * GIB,), flags(), Parallel())
    assert (plan.num_blocks, plan.fits, plan.groups) == (1, True, ())
    assert max_concurrency_at(((),), 20 * GIB, flags(), Parallel(), (512,)) == (float("inf"),)


def test_no_memory_no_blocks() -> None:
    plan = plan_cache(((full(32),),), (-1,), flags(), Parallel())
    assert (plan.num_blocks, plan.tokens, plan.fits, plan.longest_request_tokens) == (0, 0, False, 0)


def test_v0_has_one_pool_of_whole_blocks() -> None:
    """Llama-3-8B in the V0 engine: 131,072 bytes a token; windows are allocated in full."""
    resolved = flags("0.8.5", is_v0=True, max_model_len=8192)
    plan = plan_cache(((window(16, 1024), full(16)),), (4 * GIB,), resolved, Parallel())
    assert (plan.num_blocks, plan.tokens, plan.max_concurrency) == (2048, 32_768, 4.0)
    assert (plan.bytes_per_token, plan.request_fixed_bytes) == (131_072, 0)
    assert plan.fits
    assert max_concurrency_at(((full(32),),), 4 * GIB, resolved, Parallel(), (8192, 16_384)) == (4.0, 2.0)


def test_v0_checks_the_tokens_of_the_pool() -> None:
    resolved = flags("0.8.5", is_v0=True, max_model_len=32_769, derived_max_model_len=131_072)
    plan = plan_cache(((full(32),),), (4 * GIB,), resolved, Parallel())
    assert (plan.fits, plan.longest_request_tokens) == (False, 32_768)
    assert plan.needed_bytes == 2049 * 32 * 65_536


def test_v0_keeps_states_outside_the_pool() -> None:
    resolved = flags("0.8.5", is_v0=True, max_model_len=8192)
    specs = (full(4), recurrent(28, page=10**6, block_size=8192))
    assert plan_cache((specs,), (GIB,), resolved, Parallel()).num_blocks == 4096
    assert plan_cache((specs[1:],), (GIB,), resolved, Parallel()).num_blocks == 1


def test_v0_smallest_stage_and_override() -> None:
    stages = ((full(16),), (full(15),))
    parallel = Parallel(pipeline_parallel_size=2)
    resolved = flags("0.8.5", is_v0=True, max_model_len=8192)
    assert plan_cache(stages, (GIB, GIB), resolved, parallel).num_blocks == 1024
    assert (
        plan_cache(stages, (GIB, GIB), replace(resolved, num_gpu_blocks_override=7), parallel).num_blocks == 7
    )


@pytest.mark.parametrize(
    ("version", "modes", "refused"),
    [("0.32.0", ("FULL",), True), ("0.32.0", ("PIECEWISE",), False), ("0.19.1", ("FULL",), False)],
)
def test_full_graphs_need_a_state_block_a_sequence(
    version: str, modes: tuple[str, ...], refused: bool
) -> None:
    specs = (recurrent(36, page=65_536, block_size=16), full(12))
    resolved = flags(version, cudagraph_modes=modes, max_num_seqs=1024)
    plan = plan_cache((specs,), (1000 * 12 * 65_536,), resolved, Parallel())
    if refused:
        with pytest.raises(EngineRefusalError, match=r"max_num_seqs \(1024\) exceeds .* blocks \(1000\)"):
            check_state_blocks(plan, resolved)
    else:
        check_state_blocks(plan, resolved)
    check_state_blocks(plan, replace(resolved, max_num_seqs=1000))
    without_states = plan_cache(((full(12),),), (1000 * 12 * 65_536,), resolved, Parallel())
    check_state_blocks(without_states, resolved)


models = st.builds(
    lambda fulls, windows, states: tuple(
        spec
        for spec in (
            window(windows, 1024) if windows else None,
            recurrent(states, page=65_536, block_size=16, num_checkpoint_blocks=1) if states else None,
            full(fulls),
        )
        if spec is not None
    ),
    st.integers(1, 48),
    st.integers(0, 48),
    st.integers(0, 48),
)
lengths = st.integers(1, 2**20)
memory = st.integers(1, 2**38)
modes = st.sampled_from(["none", "align"])


def planned(specs: StageSpecs, available: int, version: str, length: int, mode: str) -> CachePlan:
    resolved = flags(version, max_model_len=length, mamba_cache_mode=mode)
    parallel = Parallel(pipeline_parallel_size=len(specs))
    return plan_cache(specs, (available,) * len(specs), resolved, parallel)


@given(models, memory, st.sampled_from(VERSIONS), st.tuples(lengths, lengths), modes)
def test_longer_contexts_never_run_more_requests(
    specs: tuple, available: int, version: str, pair: tuple[int, int], mode: str
) -> None:
    shorter, longer = sorted(pair)
    plans = [planned((specs,), available, version, length, mode) for length in (shorter, longer)]
    assert plans[0].num_blocks == plans[1].num_blocks
    assert plans[0].max_concurrency >= plans[1].max_concurrency
    resolved = flags(version, mamba_cache_mode=mode)
    at = max_concurrency_at((specs,), available, resolved, Parallel(), (shorter, longer))
    assert at == (plans[0].max_concurrency, plans[1].max_concurrency)


@given(models, st.tuples(memory, memory), st.sampled_from(VERSIONS), lengths, modes)
def test_more_memory_never_holds_less(
    specs: tuple, pair: tuple[int, int], version: str, length: int, mode: str
) -> None:
    less, more = (planned((specs,), available, version, length, mode) for available in sorted(pair))
    assert less.num_blocks <= more.num_blocks
    assert less.longest_request_tokens <= more.longest_request_tokens
    assert less.fits <= more.fits
    assert less.fits == (less.longest_request_tokens >= length)


@given(models, memory, st.sampled_from(VERSIONS), lengths, modes)
def test_parts_of_a_plan_agree(specs: tuple, available: int, version: str, length: int, mode: str) -> None:
    plan = planned((specs,), available, version, length, mode)
    assert plan.num_blocks == available // plan.bytes_per_block
    assert sum(group.layers for group in plan.groups) == sum(spec.layers for spec in specs)
    assert max(group.layers * group.page_size_bytes for group in plan.groups) == plan.bytes_per_block
    taken = plan.bytes_per_block * sum(group.blocks_per_request for group in plan.groups)
    linear = plan.request_fixed_bytes + plan.bytes_per_token * length
    growing = [group for group in plan.groups if group.kind is CacheKind.FULL_ATTENTION]
    assert linear <= taken < linear + plan.bytes_per_block * len(growing) + 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stage_without_caches_limits_nothing(version: str) -> None:
    parallel = Parallel(pipeline_parallel_size=2)
    plan = plan_cache(((), (full(16),)), (GIB, 4 * GIB), flags(version, max_model_len=8192), parallel)
    assert plan.num_blocks == 4096
    assert plan.max_concurrency == 8.0
    assert plan.fits
