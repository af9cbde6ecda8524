"""One setting at each of its values, and the bandwidth bound against arithmetic by hand."""

import pytest

from kvcore import catalogue
from kvcore.advice.roofline import decode_bound, decode_weight_bytes
from kvcore.advice.vary import Varied, best_of, pinned, splits, variants
from kvcore.base.errors import EngineRefusalError
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request
from tests import present_plans

CARDS = [catalogue.find_accelerator(name) for name in ("L40S-48GB", "H200-141GB")]


def base(**fields):
    request = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "H100-80GB",
        "tensor_parallel_size": 2,
        "max_model_len": 8192,
    }
    return scenario_from_request(request | fields)


@pytest.mark.parametrize("varied", Varied)
def test_every_position_is_the_plan_of_its_scenario(varied: Varied) -> None:
    found = variants(base(), varied, CARDS)
    assert len(found) > 1
    assert sum(variant.is_now for variant in found) == 1
    for variant in found:
        assert variant.error is not None or variant.plan == plan(variant.scenario)


@pytest.mark.parametrize(
    "varied", [varied for varied in Varied if varied not in (Varied.SPLIT, Varied.INSTANCES)]
)
def test_only_what_is_varied_changes(varied: Varied) -> None:
    start = base()
    for variant in variants(start, varied, CARDS):
        changed = {
            name
            for name in ("model", "config", "accelerator", "parallel", "kv_cache_dtype", "quantization",
                         "gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "block_size",
                         "enforce_eager", "speculative_config")
            if getattr(variant.scenario, name) != getattr(start, name)
        }  # fmt: skip
        assert changed <= {"parallel" if str(varied).endswith("parallel_size") else str(varied)}


def test_each_card_is_planned_with_the_engine_that_runs_on_it() -> None:
    ascend = catalogue.find_accelerator("Ascend-910B3-64GB")
    found = variants(base(), Varied.ACCELERATOR, [*CARDS, ascend])
    assert {one.value: one.scenario.engine for one in found} == {
        "H100-80GB": "vllm", "L40S-48GB": "vllm", "H200-141GB": "vllm", "Ascend-910B3-64GB": "vllm-ascend",
    }  # fmt: skip


def test_a_refused_position_keeps_its_reason() -> None:
    # 40 attention heads cannot be cut in 16; Qwen3-14B.
    found = variants(base(model="Qwen/Qwen3-14B", tensor_parallel_size=16), Varied.TENSOR_PARALLEL)
    refused = next(variant for variant in found if variant.value == 16)
    assert isinstance(refused.error, EngineRefusalError)
    assert refused.max_concurrency == refused.requests_per_gpu == 0


def test_tensor_parallel_goes_as_far_as_the_sidebar() -> None:
    # 235B in BF16 is 438 GiB: it fits on no eight H100, and on sixteen.
    large = base(model="Qwen/Qwen3-235B-A22B", tensor_parallel_size=8)
    found = {one.value: one for one in variants(large, Varied.TENSOR_PARALLEL)}
    assert list(found) == [1, 2, 4, 8, 16]
    assert found[16].starts
    assert [one.value for one in variants(large, Varied.PIPELINE_PARALLEL)] == [1, 2, 4, 8]


def test_splits_use_the_same_gpus() -> None:
    architecture = read_architecture(catalogue.find_model("deepseek-ai/DeepSeek-V3").config)
    start = base(model="deepseek-ai/DeepSeek-V3", tensor_parallel_size=8).parallel
    found = splits(start, architecture)
    assert {one.tensor_parallel_size * one.data_parallel_size for one in found} == {8}
    assert {one.decode_context_parallel_size for one in found} == {1, 2, 4, 8}
    assert all(one.enable_expert_parallel for one in found if one.data_parallel_size > 1)
    plain = read_architecture(catalogue.find_model("Qwen/Qwen3-32B").config)
    assert {one.decode_context_parallel_size for one in splits(start, plain)} == {1}


def test_context_parallel_ranks_share_the_tokens_of_mla() -> None:
    # MLA keeps one latent vector for all heads: TP copies it, DCP 8 divides it by 8.
    found = variants(
        base(model="deepseek-ai/DeepSeek-V3", accelerator="H200-141GB", tensor_parallel_size=8), Varied.SPLIT
    )
    by_size = {
        variant.scenario.parallel.decode_context_parallel_size: variant
        for variant in found
        if variant.scenario.parallel.tensor_parallel_size == 8
    }
    assert by_size[8].max_concurrency == pytest.approx(8 * by_size[1].max_concurrency, rel=0.02)


def test_replicas_hold_more_together() -> None:
    found = variants(base(), Varied.DATA_PARALLEL)
    one, two = found[0], found[1]
    assert (one.replicas, two.replicas) == (1, 2)
    assert two.all_requests == 2 * two.max_concurrency


def test_the_engines_default_is_the_position_as_it_stands() -> None:
    now = [variant for variant in variants(base(), Varied.UTILIZATION) if variant.is_now]
    assert [variant.value for variant in now] == [plan(base()).resolved.gpu_memory_utilization]


def test_the_best_is_named_once() -> None:
    found = variants(base(), Varied.TENSOR_PARALLEL)
    most, densest = best_of(found)
    assert most is not None
    assert densest is not None
    assert most.all_requests == max(variant.all_requests for variant in found)
    assert densest.requests_per_gpu == max(variant.requests_per_gpu for variant in found)
    assert best_of(found[:1]) == (None, None)
    assert best_of([]) == (None, None)
    assert best_of(pinned([base(), base()], base())) == (None, None)


def test_nothing_that_does_not_start_is_best() -> None:
    found = variants(base(accelerator="T4-16GB", tensor_parallel_size=1), Varied.EAGER)
    assert best_of(found) == (None, None)


def test_what_max_num_seqs_does_not_let_run_makes_no_variant_the_best() -> None:
    """Eight cards at 2,048 tokens: TP 8 holds the most, and runs 16; every further replica runs 16 more."""
    found = [one for one in variants(base(max_num_seqs=16, max_model_len=2048), Varied.SPLIT) if one.starts]
    assert all(variant.max_concurrency > 16 for variant in found)
    most, _ = best_of(found)
    assert most is not None
    assert most.replicas == max(variant.replicas for variant in found)
    assert most.max_concurrency < max(variant.max_concurrency for variant in found)
    assert all(variant.all_requests == 16 * variant.replicas for variant in found)


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
