"""Capacity in the steady state, compared with the replay of vLLM's scheduler on eight mixes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.workload.steady import EARNED, PREEMPTED, Shares, Steady, steady_state
from tests.traffic_mixes import BLOCK, MAX_MODEL_LEN, MIXES, SYSTEM, cells_of, saturated

BLOCKS = 4000
BATCHED = 8192


def steady_of(mix: str) -> Steady:
    """The steady state of a mix; what all prompts begin with is stored once."""
    shared = SYSTEM.get(mix, 0) // BLOCK
    found = steady_state(
        cells_of(mix),
        lambda lengths: [(math.ceil(length / BLOCK) - shared) / (BLOCKS - shared) for length in lengths],
        MAX_MODEL_LEN, is_async=True, shared_tokens=SYSTEM.get(mix, 0),
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.parametrize("mix", MIXES)
def test_as_many_requests_run_as_in_the_replay(mix: str) -> None:
    found = steady_of(mix).running(4 * BLOCKS, BATCHED)
    assert found == pytest.approx(saturated(mix, BLOCKS, 4 * BLOCKS).running, rel=EARNED)


@pytest.mark.parametrize("mix", MIXES)
def test_beyond_these_seats_the_replay_preempts(mix: str) -> None:
    seats = steady_of(mix).most_seats()
    if seats is None:
        assert saturated(mix, BLOCKS, 4 * BLOCKS).preempted <= PREEMPTED
        return
    low, high = math.floor(seats * (1 - EARNED)), math.ceil(seats * (1 + EARNED))
    assert saturated(mix, BLOCKS, low).preempted <= PREEMPTED
    assert saturated(mix, BLOCKS, high).preempted >= PREEMPTED


def shares_of(blocks: int) -> Shares:
    """The steady state of a pool of so many blocks of 16 tokens, with one group of full attention."""
    return lambda lengths: [math.ceil(length / 16) / blocks for length in lengths]


def test_by_hand() -> None:
    # 16-token blocks; 10 prompt tokens and 4 answers: 10 to 13 tokens, always 1 block of 20.
    found = steady_state([(10, 4, 3)], shares_of(20), 4096, is_async=False)
    assert found is not None
    assert found.mean_share == pytest.approx(1 / 20)
    assert (found.growth, found.spread) == (0, 0)
    assert found.most_seats() is None
    assert found.running(8, 8192) == 8
    # 4 steps a request put 10 + 3 tokens into the steps.
    assert found.step_tokens == pytest.approx(13 / 4)
    assert found.running(100, 13) == pytest.approx(4)


def test_long_answers_dominate_the_running_requests() -> None:
    # One of two requests runs for 1 step, the other for 99: of 100 moments 99 belong to the long one.
    found = steady_state([(1, 1, 1), (1000, 99, 1)], lambda lengths: [length / 1e6 for length in lengths], 4096,
                         is_async=False)  # fmt: skip
    assert found is not None
    assert found.mean_share * 1e6 == pytest.approx((1 + 99 * 1049) / 100, rel=1e-3)


def test_no_steady_state() -> None:
    assert steady_state([], shares_of(9), 64, is_async=False) is None
    assert steady_state([(100, 5, 1)], shares_of(9), 64, is_async=False) is None
    assert steady_state([(10, 5, 1)], lambda lengths: [0.0] * len(lengths), 64, is_async=False) is None


CELLS = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(1, 2000), st.integers(1, 5)), min_size=1, max_size=8
)


@given(CELLS, st.integers(400, 5000))
def test_more_seats_never_preempt_less_and_a_larger_pool_never_has_fewer(
    cells: list[tuple[int, int, int]], blocks: int
) -> None:
    small, large = (
        steady_state(cells, shares_of(size), 8192, is_async=True) for size in (blocks, 2 * blocks)
    )
    assert small is not None
    assert large is not None
    assert large.running(1000, 8192) >= small.running(1000, 8192) * (1 - 1e-9)
    rates = [small.preemptions(seats) for seats in range(1, 60)]
    assert all(now <= after + 1e-6 for now, after in pairwise(rates))
    assert all(large.preemptions(seats) <= rate + 1e-6 for seats, rate in enumerate(rates, start=1))
