"""The table of all numbers and one request's share say what the plan says."""

import csv
import io
from itertools import pairwise

import pytest

from kvcore.base.units import GIB
from kvcore.base.words import Language, words
from kvcore.controls.in_force import override_steps
from kvcore.explain import numbers as explain
from tests import present_plans

EN = words(Language.ENGLISH)
PLANS = [present_plans.fits, present_plans.too_long, present_plans.too_big, present_plans.rule_of_thumb]


def test_bytes_per_token_by_hand() -> None:
    # 2 (K and V) × 64 layers × 8 KV heads × 128 × 2 bytes = 262,144 on one card; an eighth of it on each of eight.
    assert present_plans.fits().cache.figures.bytes_per_token.value == 262_144
    assert present_plans.rule_of_thumb().cache.figures.bytes_per_token.value == 32_768


def test_bytes_per_token_are_known_without_a_pool() -> None:
    plan = present_plans.too_big()
    assert plan.cache is None
    assert explain.any_cache(plan).figures.bytes_per_token.value == 262_144


@pytest.mark.parametrize("make", PLANS)
def test_rows_have_value_grade_and_unique_names(make) -> None:
    plan = make()
    rows = explain.number_rows(plan, EN)
    assert len({row.label for row in rows}) == len(rows)
    for row in rows:
        assert row.value
        assert row.grade
        assert "{" not in row.formula + row.substituted


@pytest.mark.parametrize("make", PLANS)
def test_the_spreadsheet_holds_the_same_numbers(make) -> None:
    plan = make()
    table = list(csv.DictReader(io.StringIO(explain.numbers_csv(plan, EN))))
    rows = explain.number_rows(plan, EN)
    assert [line["label"] for line in table] == [row.label for row in rows]
    parts = {line["name"]: float(line["value"]) for line in table}
    names = ("system", "framework", "weights", "activations", "cuda_graphs", "kv_cache", "unused")
    assert sum(parts[name] for name in names) == pytest.approx(parts["total"])


def test_one_request_and_its_fixed_part_are_derived_by_hand() -> None:
    # 512 blocks of 64 layers × 8 KiB (16 tokens × 2 × 128 × 2 bytes) are 256 MiB: all of it grows with the length.
    figures = present_plans.rule_of_thumb().cache.figures
    assert figures.bytes_per_block.substituted == "64 × 8.00 KiB"
    assert figures.needed.substituted == "512 blocks × 512.00 KiB"
    assert figures.needed.value == 256 * 2**20
    assert figures.request_fixed.substituted == "0 blocks × 512.00 KiB"
    assert figures.request_fixed.value == 0


@pytest.mark.parametrize("make", PLANS)
def test_every_number_has_a_formula_or_a_source(make) -> None:
    plan = make()
    for row in explain.number_rows(plan, EN):
        assert row.formula or row.source or row.grade == "given" or row.value == "0 bytes", row.label


def test_gigabytes_stand_beside_sizes_that_are_bought_in_gigabytes() -> None:
    plan = present_plans.fits()
    rows = {row.label: row for row in explain.number_rows(plan, EN)}
    assert rows["KV cache"].gigabytes
    assert rows["KV per token"].gigabytes == ""


def test_an_interval_without_a_width_is_not_said() -> None:
    """51.2 MiB to 0.05 GiB: the reserve of a card whose allocator gives segments back."""
    plan = present_plans.request(model="Qwen/Qwen3-8B", accelerator="Ascend-910B3-64GB")
    assert plan.memory is not None
    low, high = plan.memory.after_pool.bounds
    assert high - low < 1
    (row,) = (row for row in explain.number_rows(plan, EN) if row.label == "Taken after the KV cache")
    assert (row.value, row.interval) == ("51.20 MiB", "")


def test_concurrency_is_derived_from_blocks() -> None:
    figures = present_plans.rule_of_thumb().cache.figures
    assert figures.concurrency.formula == "blocks / blocks_per_request"
    assert figures.concurrency.substituted == "10,240 blocks / 512 blocks"
    assert figures.tokens.substituted == "⌊10,240 blocks / 512 blocks × 8,192 tokens⌋"


def test_one_request_of_the_worked_example() -> None:
    share = explain.request_share(present_plans.rule_of_thumb())
    assert (share.blocks, share.block_size, share.last_block_tokens) == (512, 16, 16)
    assert share.needed_bytes == 8192 * 32_768 == GIB // 4
    assert (share.concurrency, share.ranks) == (20.0, 8)


def test_the_last_block_of_an_odd_length_is_not_full() -> None:
    share = explain.request_share(present_plans.request(max_model_len=1001))
    assert (share.blocks, share.last_block_tokens) == (63, 9)


def test_a_published_70b_example_by_hand() -> None:
    # Llama-2-70B: 80 layers, 8 KV heads of 128, fp16, four cards: 2 × 80 × 2 × 128 × 2 bytes × 8192 = 0.625 GiB each.
    plan = present_plans.request(
        model="meta-llama/Llama-2-70b-chat-hf",
        accelerator="A100-80GB",
        tensor_parallel_size=4,
        dtype="float16",
    )
    share = explain.request_share(plan)
    assert plan.architecture.num_layers == 80
    assert share.needed_bytes == 0.625 * GIB


def test_all_ranks_together_hold_every_layer_once() -> None:
    # 64 layers over 4 stages of 2 ranks: the whole model's 262,144 bytes per token, wherever the layers are.
    plan = present_plans.request(tensor_parallel_size=2, pipeline_parallel_size=4)
    assert explain.bytes_per_token_in_all(plan).value == 262_144
    assert explain.needed_bytes_in_all(plan) == 262_144 * 8192


def test_copies_of_kv_heads_are_counted() -> None:
    # 8 KV heads over 16 ranks: every head twice.
    assert explain.bytes_per_token_in_all(present_plans.request(tensor_parallel_size=16)).value == 2 * 262_144


class TestOverrides:
    def test_each_step_begins_where_the_last_ended(self) -> None:
        plan = present_plans.rule_of_thumb()
        steps = override_steps(plan)
        # The card is one of the person's own: there is no estimate that its memory could replace.
        assert [step.field.removeprefix("measured.") for step in steps] == [
            "weights_gib", "non_torch_gib", "peak_activation_gib", "cuda_graph_gib",
        ]  # fmt: skip
        for before, after in pairwise(steps):
            assert before.tokens_after == after.tokens_before
        assert steps[-1].tokens_after == plan.cache.tokens == 163_840

    def test_a_plan_without_overrides_has_no_steps(self) -> None:
        assert override_steps(present_plans.fits()) == ()


def test_the_head_that_is_dropped_has_a_line_of_its_own() -> None:
    pooling = present_plans.request(model="Qwen/Qwen3-Embedding-8B")
    rows = {row.label: row for row in explain.number_rows(pooling, EN)}
    assert rows["Output head that the pooling runner drops"].value == "1.16 GiB"
    assert rows["Weights"].formula == "parameters + buffers + loading − dropped_head"
    generating = present_plans.request(model="Qwen/Qwen3-Embedding-8B", runner="generate")
    labels = [row.label for row in explain.number_rows(generating, EN)]
    assert "Output head that the pooling runner drops" not in labels
