"""Conversations and shared prefixes: figures by hand, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.workload.limits import Conversation, prefix_sharing
from tests import present_plans


def chat(**changed: int) -> Conversation:
    return Conversation(**{"system_tokens": 500, "user_tokens": 100, "answer_tokens": 400, **changed})


def test_history_grows_by_a_question_and_an_answer() -> None:
    """500 + n × (100 + 400): 1,000 after the first turn, 10,500 after the twentieth."""
    assert [chat().taken_tokens(turn) for turn in (1, 2, 20)] == [1000, 1500, 10_500]
    assert [chat().new_tokens(turn) for turn in (1, 2, 20)] == [600, 100, 100]


def test_dropped_turns_bound_the_length_and_lose_the_cache() -> None:
    """Two turns kept: 500 + 3 × 500 = 2,000 for good; from turn four on 2 × 500 + 100 tokens are new."""
    kept = chat(kept_turns=2)
    assert [kept.taken_tokens(turn) for turn in (1, 2, 3, 4, 20)] == [1000, 1500, 2000, 2000, 2000]
    assert [kept.new_tokens(turn) for turn in (1, 3, 4, 20)] == [600, 100, 1100, 1100]


@pytest.mark.parametrize(("limit", "turn"), [(999, 0), (1000, 1), (1999, 2), (2000, 3), (8192, 15)])
def test_the_last_turn_within_a_limit(limit: int, turn: int) -> None:
    assert chat().last_turn_within(limit) == turn


def test_kept_turns_within_the_limit_have_no_last_turn() -> None:
    assert chat(kept_turns=2).last_turn_within(2000) is None
    assert chat(kept_turns=2).last_turn_within(1999) == 2


@given(
    st.integers(0, 5000),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.integers(0, 10),
    st.integers(1, 50_000),
)
def test_the_last_turn_fits_and_the_next_does_not(
    system: int, user: int, answer: int, kept: int, limit: int
) -> None:
    one = Conversation(system_tokens=system, user_tokens=user, answer_tokens=answer, kept_turns=kept)
    last = one.last_turn_within(limit)
    if last is None:
        assert one.taken_tokens(1000) <= limit
    else:
        assert not last or one.taken_tokens(last) <= limit
        assert one.taken_tokens(last + 1) > limit


def test_a_prefix_of_500_tokens_by_hand() -> None:
    """10,240 blocks of 16; 1,000 tokens take 63. 500 tokens are 31 whole blocks, 496 tokens.

    10,240 / 63 = 162.54 without; (10,240 − 31) / (63 − 31) = 319.03 with.
    """
    found = prefix_sharing(present_plans.rule_of_thumb(), 500, 1000)
    assert found is not None
    assert (found.shared_blocks, found.shared_tokens) == (31, 496)
    assert found.request_blocks == pytest.approx(63)
    assert found.requests_without == pytest.approx(10_240 / 63)
    assert found.requests_with == pytest.approx(10_209 / 32)


def test_less_than_a_block_is_not_shared() -> None:
    found = prefix_sharing(present_plans.rule_of_thumb(), 15, 1000)
    assert found is not None
    assert found.shared_blocks == 0
    assert found.requests_with == found.requests_without


def test_without_a_pool_nothing_is_shared() -> None:
    assert prefix_sharing(present_plans.too_big(), 500, 1000) is None


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 5000))
@settings(max_examples=40, deadline=None)
def test_a_longer_prefix_never_fits_fewer_requests(one: int, other: int, request: int) -> None:
    low, high = sorted((one, other))
    short, long = (prefix_sharing(present_plans.rule_of_thumb(), size, request) for size in (low, high))
    assert short is not None
    assert long is not None
    assert short.requests_without <= short.requests_with <= long.requests_with
    assert short.shared_tokens <= low
