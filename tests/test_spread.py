"""Replicas that share out experts, engines that share cards, and the largest step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.fixes import fixes
from kvcore.advice.spread import REPLICAS, fewest_cards, longest_request, spread_scenario
from kvcore.advice.sweep import cell_scenario, sweep_of_spreads
from kvcore.advice.sweep_cell import Cell
from kvcore.advice.vary import BATCH_STEP, LARGEST_BATCH, STARTS, largest_batches, sharing
from kvcore.controls import offers
from kvcore.planning import Verdict, plan
from kvcore.wire.request import scenario_from_request

V4 = "deepseek-ai/DeepSeek-V4-Flash"
A2 = catalogue.find_accelerator("Ascend-910B4-32GB")
MILLION = {"model": V4, "accelerator": A2.id, "max_model_len": 1_048_576}


def cell(size: int, held: float, verdict: Verdict = Verdict.FITS, *, replicas: int = 1) -> Cell:
    return Cell(A2.id, size, verdict, gpus=size * replicas, replicas=replicas, max_concurrency=held)


def test_each_replica_holds_a_request_and_tensor_parallelism_stays_in_a_machine() -> None:
    found = fewest_cards(
        [*(cell(size, held, replicas=4) for size, held in ((2, 0.9), (4, 1.1), (16, 9))), cell(16, 9)], A2, 2
    )
    assert found is not None
    assert (found.replicas, found.cell.tensor_parallel_size, found.cards, found.machines(A2)) == (4, 4, 16, 2)


def test_of_as_many_cards_the_layout_with_most_room() -> None:
    found = fewest_cards(
        [cell(4, 1.5, replicas=2), cell(2, 1.2, replicas=4), cell(1, 0.5, replicas=8)], A2, 1
    )
    assert found is not None
    assert (found.replicas, found.requests) == (4, 4.8)


def test_what_does_not_start_or_is_too_much_does_not_count() -> None:
    assert fewest_cards([cell(8, 2, replicas=16), cell(8, 5, Verdict.NO_KV_MEMORY)], A2, 1) is None


def test_the_longest_request_where_the_length_does_not_fit() -> None:
    short = replace(cell(4, 0.4, Verdict.CONTEXT_TOO_LONG), longest_request_tokens=400_000)
    longer = replace(short, replicas=2, gpus=8, longest_request_tokens=900_000)
    cells = [short, longer, replace(longer, replicas=32, gpus=128, longest_request_tokens=1_000_000)]
    found = longest_request(cells, A2)
    assert found is not None
    assert (found.replicas, found.cell.longest_request_tokens) == (2, 900_000)
    assert longest_request([cell(4, 0, Verdict.WEIGHTS_DO_NOT_FIT)], A2) is None


def test_a_sweep_says_what_the_plan_of_its_row_says() -> None:
    card = catalogue.find_accelerator("Ascend-910B3-64GB")
    base = scenario_from_request(MILLION | {"accelerator": card.id})
    entry = catalogue.find_model(V4)
    work = sweep_of_spreads(base, entry, [card], (4, 8), REPLICAS, "me").work()
    while True:
        try:
            next(work)
        except StopIteration as end:
            swept = end.value
            break
    found = fewest_cards([cell for one in swept for cell in one.cells], card, 1)
    assert found is not None
    row = cell_scenario(spread_scenario(base, found.replicas), entry, card, found.cell.tensor_parallel_size)
    planned = plan(row)
    assert planned.cache is not None
    assert planned.cache.max_concurrency == found.cell.max_concurrency
    assert row.parallel.enable_expert_parallel
    assert planned.verdict in STARTS


def test_replicas_that_share_out_experts_are_among_the_fixes() -> None:
    """470 GB of weights, nearly all experts: a quarter of them is too much for a card of 64 GB, a sixteenth is not."""
    asked = {
        "model": "Qwen/Qwen3-235B-A22B",
        "accelerator": "Ascend-910B3-64GB",
        "tensor_parallel_size": 4,
        "max_model_len": 8192,
    }
    apart = plan(scenario_from_request(asked))
    assert apart.verdict is Verdict.WEIGHTS_DO_NOT_FIT
    shared = plan(scenario_from_request(asked | {"enable_expert_parallel": True}))
    for one in (apart, shared):  # whole or cut, replicas run a mixture's experts together
        [fix] = [fix for fix in fixes(one) if fix.field == "data_parallel_size"]
        assert fix.value in (2, 4)
        assert fix.verdict in STARTS


def test_a_smaller_step_is_among_the_fixes_where_activations_are_too_much() -> None:
    asked = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "Ascend-910B4-32GB",
        "tensor_parallel_size": 4,
        "max_model_len": 16_384,
        "gpu_memory_utilization": 0.7,
        "max_num_batched_tokens": 262_144,
    }
    broken = plan(scenario_from_request(asked))
    assert broken.verdict not in STARTS
    [fix] = [fix for fix in fixes(broken) if fix.field == "max_num_batched_tokens"]
    assert isinstance(fix.value, int)
    assert fix.value % BATCH_STEP == 0
    assert fix.verdict in STARTS


def test_the_largest_step_starts_and_the_next_does_not() -> None:
    asked = {"model": "Qwen/Qwen3-32B", "accelerator": "Ascend-910B4-32GB", "tensor_parallel_size": 4}
    base = scenario_from_request(asked | {"max_model_len": 16_384, "gpu_memory_utilization": 0.7})
    [found] = largest_batches(base, [base.parallel], [16_384])
    assert 0 < found.tokens < LARGEST_BATCH
    assert plan(found.scenario).verdict in STARTS
    more = replace(found.scenario, max_num_batched_tokens=found.tokens + BATCH_STEP)
    assert plan(more).verdict not in STARTS


def test_where_nothing_starts_no_step_does() -> None:
    base = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "Ascend-910B4-32GB"})
    [found] = largest_batches(base, [base.parallel], [16_384])
    assert (found.tokens, found.is_tight) == (0, False)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_engines_that_share_a_card_stay_within_the_whole_share(count: int) -> None:
    base = scenario_from_request({"model": "Qwen/Qwen3-0.6B", "accelerator": "Ascend-910B3-64GB"})
    last = sharing(base, count)
    share, taken = last.gpu_memory_utilization, last.surroundings.taken_gib
    assert share is not None
    assert taken is not None
    whole = plan(base).resolved.gpu_memory_utilization
    assert share * count <= whole + 1e-9
    assert taken == pytest.approx((count - 1) * share * 60.96, abs=0.01)
    held, alone = plan(last).cache, plan(base).cache
    assert held is not None
    assert alone is not None
    assert held.tokens < alone.tokens / count


def test_dp_and_ep_are_main_controls_of_a_mixture_of_experts_on_ascend_alone() -> None:
    names = ("data_parallel_size", "enable_expert_parallel")
    assert offers.main_flags(scenario_from_request(MILLION)) == names
    dense = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": A2.id})
    cuda = scenario_from_request({"model": V4, "accelerator": "H200-141GB"})
    assert offers.main_flags(dense) == offers.main_flags(cuda) == ()
