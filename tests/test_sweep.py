"""A sweep answers what planning each cell answers."""

import json
import random

import pytest

from kvcore import catalogue
from kvcore.advice.sweep import SIZES, cell_scenario, plan_cell, sweep, sweep_of_cards
from kvcore.catalogue.accelerators import Vendor
from kvcore.charts.matrix import json_lines, table_lines
from kvcore.cli import main
from kvcore.engines.registry import with_accelerator
from kvcore.planning import Verdict
from kvcore.wire.request import scenario_from_request

CARDS = catalogue.load_accelerators()
KINDS = (
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-V3.2",
    "google/gemma-3-27b-it",
    "Qwen/Qwen2-VL-7B-Instruct",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "tiiuae/falcon-mamba-7b",
    "openai/gpt-oss-120b",
)
"""Plain, experts, sparse MLA, windows, vision, hybrid, attention-free, sinks."""


def base(**flags):
    return scenario_from_request({"model": "Qwen/Qwen3-32B", **flags})


def entries():
    return [catalogue.find_model(name) for name in KINDS]


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.8},
        {"quantization": "fp8", "max_model_len": 65536},
        {"engine_version": "0.19.0", "max_model_len": 40000},
        {"engine_version": "0.11.0", "enforce_eager": True},
        {"engine_version": "0.8.5"},
        {"max_model_len": "auto"},
        {"pipeline_parallel_size": 2},
        {"decode_context_parallel_size": 2},
        {"max_num_seqs": 16, "block_size": 32},
        {"gpu_memory_utilization": 0.98},
        {"gpu_memory_utilization": 1.0},
    ],
    ids=lambda flags: ",".join(flags) or "defaults",
)
def test_every_kind_of_model_equals_its_plan(flags) -> None:
    chosen = random.Random(str(flags))
    cards = chosen.sample(CARDS, 12)
    scenario = base(**flags)
    for entry, swept in zip(entries(), sweep(scenario, entries(), cards), strict=True):
        alone = [plan_cell(scenario, entry, card, size) for card in cards for size in SIZES]
        assert swept.cells == tuple(alone), entry.id


def test_the_whole_catalogue_equals_its_plans_on_a_sample() -> None:
    chosen = random.Random(5)
    models = catalogue.load_models()
    scenario = base()
    swept = list(sweep(scenario, models, CARDS))
    assert sum(len(one.cells) for one in swept) == len(models) * len(CARDS) * len(SIZES)
    for _ in range(600):
        at, card, size = (
            chosen.randrange(len(models)),
            chosen.randrange(len(CARDS)),
            chosen.randrange(len(SIZES)),
        )
        cell = swept[at].cells[card * len(SIZES) + size]
        assert cell == plan_cell(scenario, models[at], CARDS[card], SIZES[size])


def test_a_dense_model_does_not_stand_for_experts_on_a_card() -> None:
    # Cards that are alike for the first model exchange the tokens of the second one's experts in different ways.
    cards = [card for card in CARDS if card.vendor is Vendor.HUAWEI]
    models = [catalogue.find_model(name) for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B")]
    scenario = base(data_parallel_size=4, enable_expert_parallel=True)
    for entry, swept in zip(models, sweep(scenario, models, cards), strict=True):
        alone = [plan_cell(scenario, entry, card, size) for card in cards for size in SIZES]
        assert swept.cells == tuple(alone), entry.id


def test_a_cell_keeps_the_target_which_no_sweep_depends_on() -> None:
    entry, card = catalogue.find_model("Qwen/Qwen3-8B"), catalogue.find_accelerator("L40S-48GB")
    asked, plain = base(wanted=40), base()
    assert cell_scenario(asked, entry, card, 2).wanted == 40
    assert (
        sweep_of_cards(asked, entry, [card], (2,), "").key
        == sweep_of_cards(plain, entry, [card], (2,), "").key
    )


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B-FP8", "deepseek-ai/DeepSeek-V4-Flash", "Qwen/Qwen3-8B-AWQ"])
def test_a_checkpoint_that_vllm_ascend_does_not_take_gives_way_to_modelslims(name: str) -> None:
    cards = [
        catalogue.find_accelerator(one) for one in ("H100-80GB", "Ascend-910B3-64GB", "Ascend-310P3-24GB")
    ]
    entry = catalogue.find_model(name)
    scenario = base()
    (swept,) = sweep(scenario, [entry], cards)
    assert swept.cells == tuple(plan_cell(scenario, entry, card, size) for card in cards for size in SIZES)
    served = [cell_scenario(scenario, entry, card, 8) for card in cards[:2]]
    assert [one.quantization for one in served] == [None, "ascend"]
    back = with_accelerator(served[1], cards[0])
    assert (back.engine, back.quantization) == ("vllm", None)


def test_weights_too_large_for_a_card_are_a_verdict() -> None:
    # 671 × 10⁹ parameters in fp8 are over 600 GiB; eight cards of 24 GB have less than 192.
    (swept,) = sweep(
        base(),
        [catalogue.find_model("deepseek-ai/DeepSeek-V3")],
        [catalogue.find_accelerator("RTX-4090-24GB")],
    )
    assert {cell.verdict for cell in swept.cells} == {Verdict.WEIGHTS_DO_NOT_FIT}
    assert all(cell.weights_gib > 24 * 0.8 and cell.requests_per_gpu == 0 for cell in swept.cells)


def test_a_refusal_is_a_cell() -> None:
    # 64 heads are not divisible by 3.
    (swept,) = sweep(base(), [catalogue.find_model("Qwen/Qwen3-32B")], CARDS[:2], (3,))
    assert [cell.refusal for cell in swept.cells] == ["heads-not-divisible"] * 2


def test_no_card_and_no_model_are_empty() -> None:
    assert list(sweep(base(), [], CARDS)) == []
    (swept,) = sweep(base(), entries()[:1], [])
    assert swept.cells == ()


def test_ascend_cards_run_their_own_engine() -> None:
    ascend = next(card for card in CARDS if card.vendor.value == "huawei")
    nvidia = catalogue.find_accelerator("H100-80GB")
    entry = catalogue.find_model("Qwen/Qwen3-8B")
    assert cell_scenario(base(engine_version="0.19.0"), entry, ascend, 1).engine == "vllm-ascend"
    assert cell_scenario(base(engine_version="0.19.0"), entry, nvidia, 1).engine_version == "0.19.0"
    assert cell_scenario(base(engine="vllm-mindspore"), entry, ascend, 1).engine == "vllm-mindspore"
    assert cell_scenario(base(engine="vllm-ascend"), entry, nvidia, 1).engine == "vllm"


def test_measurements_of_one_deployment_do_not_count() -> None:
    measured = base(measured={"weights_gib": 1.0}, kv_cache_memory_bytes=1 << 30, num_gpu_blocks_override=7)
    cards = [catalogue.find_accelerator("H100-80GB")]
    assert list(sweep(measured, entries()[:1], cards)) == list(sweep(base(), entries()[:1], cards))


def test_flags_about_states_stay_with_their_own_model() -> None:
    hybrid, plain = (
        catalogue.find_model(name) for name in ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-32B")
    )
    asked = scenario_from_request({"model": hybrid.id, "mamba_cache_mode": "align", "mamba_block_size": 4096,
                                   "enable_prefix_caching": True})  # fmt: skip
    card = catalogue.find_accelerator("H100-80GB")
    own, other = (cell_scenario(asked, entry, card, 4) for entry in (hybrid, plain))
    assert (own.mamba_cache_mode, own.mamba_block_size) == ("align", 4096)
    assert (other.mamba_cache_mode, other.mamba_block_size) == (None, None)


def test_lines_are_the_cells_as_json() -> None:
    cards = [catalogue.find_accelerator("H100-80GB"), catalogue.find_accelerator("RTX-4090-24GB")]
    (swept,) = sweep(base(), [catalogue.find_model("Qwen/Qwen3-32B")], cards, (1, 3))
    rows = [json.loads(line) for line in json_lines(swept)]
    assert [(row["accelerator"], row["tensor_parallel_size"]) for row in rows] == [
        ("H100-80GB", 1), ("H100-80GB", 3), ("RTX-4090-24GB", 1), ("RTX-4090-24GB", 3)
    ]  # fmt: skip
    assert rows[0]["verdict"] == "fits"
    assert rows[0]["max_concurrency"] == swept.cells[0].max_concurrency
    assert rows[1] | {"model": "", "max_model_len": 0} == {
        "model": "", "max_model_len": 0, "accelerator": "H100-80GB", "tensor_parallel_size": 3, "status": "error",
        "code": "heads-not-divisible",
    }  # fmt: skip
    table = "\n".join(table_lines(swept, (1, 3)))
    assert "too big" in table
    assert "refused" in table


def test_the_command_line(capsys) -> None:
    assert (
        main(["sweep", "--models", "qwen/qwen3-32b", "--accelerators", "H100-80GB,L40S-48GB", "--json"]) == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["tensor_parallel_size"] for row in rows] == [1, 2, 4, 8] * 2
    assert {row["model"] for row in rows} == {"Qwen/Qwen3-32B"}
    assert (
        main(["sweep", "--models", "Qwen/Qwen3-8B", "--accelerators", "H100-80GB", "--max-model-len", "4096"])
        == 0
    )
    assert "4,096 tokens" in capsys.readouterr().out
    assert main(["sweep", "--models", "no/such-model"]) == 2
    assert "no/such-model" in capsys.readouterr().err


def test_a_length_above_the_model_is_marked_as_a_plan_marks_it() -> None:
    swept = next(
        sweep(
            scenario_from_request({"model": "Qwen/Qwen3-8B", "max_model_len": 400_000}),
            [catalogue.find_model("Qwen/Qwen3-8B")],
            [catalogue.find_accelerator("H100-80GB")],
            (2,),
        )
    )
    assert swept.model_longest == 40_960
    (line,) = json_lines(swept)
    assert json.loads(line)["warning"] == "max-model-len-above-model"
    assert "above the model's own 40,960" in next(table_lines(swept, (2,)))
