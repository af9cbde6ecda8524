"""Little's law; expected values computed by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvcore.workload.limits import Arrivals, fleet_for
from tests import present_plans

CHAT = Arrivals(
    per_second=2, prompt_tokens=1000, answer_tokens=400, first_token_seconds=1, tokens_per_second=20
)


def test_requests_at_once_are_arrivals_times_time() -> None:
    # 1 s to the first token, 400 / 20 = 20 s for the answer; 2 a second
    assert CHAT.seconds_in_system == 21
    assert CHAT.requests_at_once == 42


def test_the_post_mortem_contradicts_itself() -> None:
    """50 a second, answers of 512 tokens at 15 a second: not 10 to 15 at once."""
    arrivals = Arrivals(
        per_second=50, prompt_tokens=1200, answer_tokens=512, first_token_seconds=0, tokens_per_second=15
    )
    assert arrivals.requests_at_once == 1707


def test_there_is_at_least_one_request_at_once() -> None:
    assert replace(CHAT, per_second=0.001).requests_at_once == 1


def test_the_fleet_fits_all_requests() -> None:
    # Two cards of a replica; 1,400 tokens are 88 blocks of 16.
    plan = present_plans.request(tensor_parallel_size=2)
    assert plan.cache is not None
    held = min(plan.cache.num_blocks // 88, plan.resolved.max_num_seqs)
    busy = replace(CHAT, per_second=100)
    fleet = fleet_for(plan, busy)
    assert fleet is not None
    assert fleet.requests_per_replica == held
    assert (fleet.replicas - 1) * held < busy.requests_at_once <= fleet.replicas * held
    assert fleet.cards == 2 * fleet.replicas
    assert fleet.running <= held


def test_max_num_seqs_limits_too() -> None:
    fleet = fleet_for(present_plans.request(tensor_parallel_size=2, max_num_seqs=3), CHAT)
    assert fleet is not None
    assert (fleet.requests_per_replica, fleet.replicas, fleet.running) == (3, 14, 3)


@pytest.mark.parametrize("fields", [{"max_model_len": 1024}, {"accelerator": "RTX-4090-24GB"}])
def test_no_fleet_if_a_request_does_not_fit(fields: dict[str, object]) -> None:
    assert fleet_for(present_plans.request(**fields), CHAT) is None
