"""The bandwidth bound against arithmetic by hand."""

import pytest

from kvcore.advice.vary import decode_bound, decode_weight_bytes
from kvcore.planning import Plan
from tests import present_plans

HEAD = 151936
# Qwen3-32B: q, k and v, o, the norms of q and k, the MLP, two norms; 64 layers; final norm; lm_head. No embedding.
DENSE = 2 * (
    64 * (5120 * 8192 + 2 * 5120 * 1024 + 8192 * 5120 + 2 * 128 + 3 * 5120 * 25600 + 2 * 5120) + 5120 + HEAD * 5120
)  # fmt: skip
# Qwen3-30B-A3B: the same with 8 of 128 experts of 768 and the router; 48 layers.
SPARSE = 2 * (
    48 * (2048 * 4096 + 2 * 2048 * 512 + 4096 * 2048 + 2 * 128 + 2048 * 128 + 8 * 3 * 2048 * 768 + 2 * 2048)
    + 2048 + HEAD * 2048
)  # fmt: skip
KV_PER_TOKEN = 2 * 64 * 8 * 128 * 2


def planned(**fields: object) -> Plan:
    return present_plans.request(**fields)


def test_weights_of_a_dense_model() -> None:
    assert decode_weight_bytes(planned()) == DENSE


def test_of_experts_only_those_that_a_token_needs() -> None:
    assert decode_weight_bytes(planned(model="Qwen/Qwen3-30B-A3B")) == SPARSE


def test_one_request() -> None:
    bound = decode_bound(planned(), 1, 8192)
    assert bound is not None
    assert bound.kv_bytes == 8192 * KV_PER_TOKEN
    assert bound.seconds_per_token == pytest.approx((DENSE + 8192 * KV_PER_TOKEN) / 3350e9)
    assert bound.tokens_per_second == pytest.approx(1 / bound.seconds_per_token)


def test_many_requests_read_the_weights_once() -> None:
    bound = decode_bound(planned(), 10, 1000)
    assert bound is not None
    assert bound.weight_bytes == DENSE
    assert bound.kv_bytes == 10_000 * KV_PER_TOKEN
    assert bound.tokens_per_second == pytest.approx(10 * 3350e9 / (DENSE + 10_000 * KV_PER_TOKEN))


def test_two_cards_read_half_each() -> None:
    one, two = decode_weight_bytes(planned()), decode_weight_bytes(planned(tensor_parallel_size=2))
    norms = 2 * (64 * (2 * 128 + 2 * 5120) + 5120)
    assert two == (one - norms) // 2 + norms


def test_a_cache_that_is_read_in_part_counts_nothing() -> None:
    plan = planned(model="deepseek-ai/DeepSeek-V3.2", accelerator="H200-141GB", tensor_parallel_size=8)
    bound = decode_bound(plan, 4, 8192)
    assert bound is not None
    assert bound.kv_bytes == 0


def test_a_card_of_unknown_bandwidth_has_no_bound() -> None:
    card = {"memory_gib": 80, "vendor": "nvidia", "name": "?"}
    assert decode_bound(planned(accelerator=card), 1, 100) is None
