"""The start-up check of each version, by hand: 32 layers of 8 heads of 128 take 131,072 bytes a token."""

from __future__ import annotations

import pytest

from kvcore.base.units import GIB
from kvcore.cache.capacity import CachePlan, plan_cache
from kvcore.cache.fit import FitCheck
from kvcore.cache.spec import LayerSpec, demand_of
from kvcore.scenario import Parallel
from tests.cache_examples import flags, full, window

BLOCK = 32 * 65_536


def planned(version: str, available: int = 16 * GIB, **changes: object) -> CachePlan:
    return plan_cache(((full(32),),), (available,), flags(version, **changes), Parallel())


@pytest.mark.parametrize("version", ["0.8.5", "0.9.2", "0.13.0", "0.16.0", "0.18.1", "0.28.0"])
def test_a_cache_of_exactly_one_request_passes_to_0_28(version: str) -> None:
    assert planned(version).fits
    assert planned(version).needed_bytes == 16 * GIB
    assert not planned(version, 16 * GIB - 1).fits


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0", "0.33.0"])
def test_the_null_block_is_kept_back_from_0_29(version: str) -> None:
    plan = planned(version)
    assert not plan.fits
    assert plan.longest_request_tokens == 131_056
    assert planned(version, 16 * GIB + BLOCK).fits


def test_the_estimate_is_not_rounded_to_blocks_where_ranks_share_tokens() -> None:
    parallel = Parallel(tensor_parallel_size=16, decode_context_parallel_size=2)
    plan = plan_cache(((full(32),),), (GIB,), flags("0.28.0"), parallel)
    assert plan.longest_request_tokens == 512 * 16 * 2


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("0.13.0", 26 * 65_536 * 577 + 5 * 65_536 * 8192),
        # The first group alone: five or six windows in the widest group of the whole model.
        ("0.16.0", 10 * 65_536 * 577),
        ("0.18.1", 5 * 65_536 * 577),
        ("0.19.1", 5 * 65_536 * (6 * 577 + 8192)),
        ("0.28.0", 5 * 65_536 * (6 * 1089 + 8192)),
    ],
)
def test_what_counts_as_needed_on_two_stages(version: str, needed: int) -> None:
    stage: tuple[LayerSpec, ...] = (window(26, 1024), full(5))
    parallel = Parallel(pipeline_parallel_size=2)
    plan = plan_cache((stage, stage), (20 * GIB, 20 * GIB), flags(version), parallel)
    assert plan.needed_bytes == needed


def test_the_rank_with_least_to_spare_decides() -> None:
    stages = ((full(16),), (full(16),))
    plan = plan_cache(stages, (20 * GIB, 4 * GIB), flags("0.28.0"), Parallel(pipeline_parallel_size=2))
    assert not plan.fits
    assert plan.longest_request_tokens == 65_536
    assert plan.num_blocks == 4096


@pytest.mark.parametrize(("version", "fits"), [("0.19.1", True), ("0.20.2", False)])
def test_an_override_counts_in_the_check_from_0_20(version: str, fits: bool) -> None:
    plan = planned(version, num_gpu_blocks_override=512)
    assert plan.num_blocks == 512
    assert plan.fits is fits
    if not fits:
        assert plan.longest_request_tokens == 8192


def test_auto_shrinks_to_what_fits() -> None:
    plan = planned("0.32.0", 4 * GIB, max_model_len_auto=True)
    assert plan.fits
    assert plan.max_model_len == plan.longest_request_tokens == 4 * GIB // 131_072 - 16
    assert plan.max_concurrency == 2048 / 2047
    whole = planned("0.32.0", 40 * GIB, max_model_len_auto=True)
    assert whole.max_model_len == 131_072


def test_auto_with_room_for_nothing_does_not_fit() -> None:
    plan = planned("0.32.0", BLOCK, max_model_len_auto=True)
    assert (plan.fits, plan.longest_request_tokens) == (False, 0)


def test_the_longest_length_goes_up_to_the_models_own() -> None:
    plan = planned("0.28.0", 16 * GIB, max_model_len=8192, derived_max_model_len=131_072)
    assert plan.fits
    assert plan.longest_request_tokens == 131_072
    smaller = planned("0.28.0", 8 * GIB, max_model_len=8192, derived_max_model_len=131_072)
    assert smaller.longest_request_tokens == 65_536


def test_longest_is_the_last_length_that_passes() -> None:
    demand = demand_of(flags("0.28.0"), Parallel())
    check = FitCheck(terms=(((full(1),), 3), ((window(1, 1024),), 2)), budget_bytes=2600)
    longest = check.longest(131_072, demand)
    needed_bytes = check.needed_by_length(demand)
    assert needed_bytes(longest) <= 2600 < needed_bytes(longest + 1)
    # Up to the window n blocks cost 3n + 2(n + 1): 519 blocks of 16.
    assert longest == 8304
