"""Capacity in the steady state, compared with the replay of vLLM's scheduler on eight mixes and all cache kinds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.cache.capacity import CacheGroup
from kvcore.cache.spec import CacheKind
from kvcore.workload.held import Holding
from kvcore.workload.recall import Recall, recall_of
from kvcore.workload.steady import EARNED, PREEMPTED, steady_state
from tests.traffic_mixes import MIXES, MODELS, cell

HOPEFUL = 0.02
REPRESENTATIVE = (
    ("gpt-oss-120b", "lognormal"),
    ("Nemotron-Nano-9B-v2", "exponential"),
    ("Qwen3-8B", "heavy-tailed"),
    ("gemma-3-27b", "ten-percent-long"),
    ("gemma-3-27b", "constant"),
    ("Qwen3.5-35B-A3B", "summarise"),
    ("gpt-oss-120b", "chat"),
    ("DeepSeek-V2-Lite", "agents"),
    ("Llama-4-Scout", "summarise"),
)
"""Each mix and each model at least once; all of them: `python -m benchmarks.steady`."""


def test_all_mixes_and_models_are_represented() -> None:
    assert {model for model, _ in REPRESENTATIVE} == set(MODELS)
    assert {mix for _, mix in REPRESENTATIVE} == set(MIXES)


@pytest.mark.parametrize(("model", "mix"), REPRESENTATIVE)
def test_as_many_requests_run_as_in_the_replay(model: str, mix: str) -> None:
    found = cell(model, mix, 32_768)
    assert -EARNED <= found.error <= HOPEFUL
    assert found.preempted is not None
    assert found.preempted <= PREEMPTED


def group(kind: CacheKind, size: int = 16, window: int = 0, most: int = 1 << 20) -> CacheGroup:
    return CacheGroup(
        kind=kind, layers=1, block_size=size, block_tokens=size, page_size_bytes=1, blocks_per_request=most,
        window_tokens=window,
    )  # fmt: skip


FULL = group(CacheKind.FULL_ATTENTION)


def pool_of(blocks: int, *groups: CacheGroup, batch_tokens: int = 8192, is_async: bool = True) -> Holding:
    """A pool of so many blocks, with one group of full attention unless others are given."""
    return Holding(blocks=blocks, groups=groups or (FULL,), batch_tokens=batch_tokens, is_async=is_async)


def test_by_hand() -> None:
    # 16-token blocks; 10 prompt tokens and 4 answers: 10 to 13 tokens, always 1 block of 20.
    found = steady_state([(10, 4, 3)], pool_of(20, batch_tokens=13, is_async=False), 4096)
    assert found is not None
    assert found.mean_share == pytest.approx(1 / 20)
    assert (found.growth, found.spread) == (0, 0)
    assert found.most_seats() is None
    assert found.running(3) == 3
    # 4 steps a request put 10 + 3 tokens into the steps.
    assert found.step_tokens == pytest.approx(13 / 4)
    assert found.running(100) == pytest.approx(4)


def test_long_answers_dominate_the_running_requests() -> None:
    # One of two requests runs for 1 step, the other for 99: of 100 moments 99 belong to the long one.
    single = group(CacheKind.FULL_ATTENTION, size=1)
    found = steady_state([(1, 1, 1), (1000, 99, 1)], pool_of(1_000_000, single, is_async=False), 4096)
    assert found is not None
    assert found.mean_share * 1e6 == pytest.approx((1 + 99 * 1049) / 100, rel=1e-3)


def test_no_steady_state() -> None:
    assert steady_state([], pool_of(9), 64) is None
    assert steady_state([(100, 5, 1)], pool_of(9), 64) is None
    assert steady_state([(40, 5, 1)], pool_of(2), 64, shared_tokens=32) is None


def test_a_window_is_needed_whole_and_held_for_its_tokens() -> None:
    # A prompt of 1,000 tokens is 63 blocks; a window of 129 tokens keeps 9 of them.
    pool = pool_of(999, FULL, group(CacheKind.SLIDING_WINDOW, window=129))
    assert pool.admission(1000).needed == 63 + 63
    assert pool.admission(1000).kept == pool.decoding(1000) == 63 + 9
    # Admission counts no more than a request ever has at once.
    capped = pool_of(999, FULL, group(CacheKind.SLIDING_WINDOW, window=129, most=40))
    assert capped.admission(1000).needed == 63 + 40


def test_a_chunk_and_a_state_are_held_once() -> None:
    chunks = pool_of(999, group(CacheKind.CHUNKED_LOCAL_ATTENTION, window=512))
    assert [chunks.decoding(tokens) for tokens in (500, 512, 600)] == [32, 32, 6]
    states = pool_of(999, group(CacheKind.MAMBA, size=4096, most=1), FULL)
    assert [states.decoding(tokens) for tokens in (16, 1600)] == [2, 101]


def test_a_shared_prefix_is_stored_once_while_a_window_reaches_it() -> None:
    pool = pool_of(999, FULL, group(CacheKind.SLIDING_WINDOW, window=129))
    assert pool.stored_once(64) == 8
    assert pool.decoding(100) - pool.own(100, 64) == 4 + 4
    assert pool.decoding(1000) - pool.own(1000, 64) == 4


def test_drafts_write_ahead() -> None:
    drafted = Holding(blocks=999, groups=(FULL,), batch_tokens=64, drafts=4, ahead_tokens=8)
    assert [drafted.decoding(tokens) for tokens in (8, 9)] == [1, 2]


def test_answers_of_one_length_end_together() -> None:
    # 640 tokens at the end: 100 such requests fill 4,000 blocks; on average they have 576.
    alike, unlike = (
        steady_state(cells, pool_of(4000), 4096)
        for cells in ([(512, 128, 9)], [(512, 28, 3), (512, 128, 3), (512, 228, 3)])
    )
    assert alike is not None
    assert unlike is not None
    assert 100 <= (alike.most_seats() or 0) <= 105
    assert alike.in_step == 1
    assert unlike.in_step == 0


def recalling(ago: int, tokens: int) -> Recall:
    """Prompts that all begin with so many tokens of the one so many requests before them."""
    return Recall(prompts=(((ago, tokens),),) * 20)


def test_a_history_that_the_pool_still_has_makes_room_in_the_steps() -> None:
    # 100 blocks of a request: beside 2 that run, what 62 have left stays in the cache.
    cells, pool = [(1600, 10, 20)], pool_of(6400, batch_tokens=200, is_async=False)
    cold = steady_state(cells, pool, 4096)
    assert cold is not None
    assert cold.found_tokens(1) == 0
    near, far = (steady_state(cells, pool, 4096, recall=recalling(ago, 800)) for ago in (20, 500))
    assert near is not None
    assert far is not None
    assert far.running(256) == pytest.approx(cold.running(256), rel=1e-6)
    # Half of a prompt is computed: 1,609 tokens become 809 in as many steps as before.
    assert near.running(256) / cold.running(256) == pytest.approx(1609 / 809, rel=0.01)
    assert near.found_tokens(near.running(256)) == 800
    # As many as run and as the rest of the pool holds may come in between, and no more.
    limits = [cold.found_tokens(2), *(
        one.found_tokens(2)
        for ago in (63, 66)
        if (one := steady_state(cells, pool, 4096, recall=recalling(ago, 800)))
    )]  # fmt: skip
    assert limits == [0, 800, 0]


def test_what_prompts_share_is_known_by_how_long_ago() -> None:
    prompts = [(1, 2, 3), (1, 9), (1, 2, 3, 4), (1, 9, 8)]
    found = recall_of(zip(prompts, prompts, strict=True), 512)
    assert found.prompts == ((), ((1, 512),), ((1, 512), (2, 1536)), ((1, 512), (2, 1024)))
    # A cache of 1,024 tokens a block gives the whole ones.
    assert found.found(lambda tokens: tokens // 1024 * 1024) == ((1, 0.0), (2, 512.0))
    answers = [(1, 7), (1, 7, 5)]
    assert recall_of([(answers[0][:1], answers[0]), (answers[1], answers[1])], 16).prompts == ((), ((1, 32),))


CELLS = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(1, 2000), st.integers(1, 5)), min_size=1, max_size=8
)


@given(CELLS, st.integers(400, 5000))
def test_more_seats_never_preempt_less_and_a_larger_pool_never_has_fewer(
    cells: list[tuple[int, int, int]], blocks: int
) -> None:
    small, large = (steady_state(cells, pool_of(size), 8192) for size in (blocks, 2 * blocks))
    assert small is not None
    assert large is not None
    assert large.running(1000) >= small.running(1000) * (1 - 1e-9)
    rates = [small.preemptions(seats) for seats in range(1, 60)]
    assert all(now <= after + 1e-6 for now, after in pairwise(rates))
    assert all(large.preemptions(seats) <= rate + 1e-6 for seats, rate in enumerate(rates, start=1))
