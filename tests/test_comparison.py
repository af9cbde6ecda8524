"""Bars and words of the Compare page."""

import re

import pytest

from kvcore import catalogue
from kvcore.advice.vary import Varied, best_of, variants
from kvcore.base.numbers import DASH
from kvcore.base.words import Language, words
from kvcore.charts.comparison import (
    FIGURE_LABELS,
    VARIED_NAMES,
    figures_of,
    first_failures,
    limit_note,
    position_name,
    split_name,
    verdict_word,
)
from kvcore.charts.memory_bar import small_multiples
from kvcore.charts.stack import MISSING
from kvcore.evidence.log.line_formats import FORMATS
from kvcore.planning import Verdict
from kvcore.scenario import Parallel
from kvcore.wire.request import scenario_from_request

T = words(Language.ENGLISH)
CARDS = [catalogue.find_accelerator(name) for name in ("L4-24GB", "H200-141GB")]


def base(**fields):
    return scenario_from_request(
        {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 8192, **fields}
    )


def named(varied: Varied, **fields):
    return [(position_name(varied, one, T), one) for one in variants(base(**fields), varied, CARDS)]


@pytest.mark.parametrize("varied", Varied)
def test_positions_have_names_of_their_own(varied: Varied) -> None:
    names = [name for name, _ in named(varied)]
    assert len(set(names)) == len(names)
    assert all(names)
    assert VARIED_NAMES[varied]


def test_all_bars_share_one_axis_and_sum_to_their_cards() -> None:
    rows = named(Varied.ACCELERATOR, tensor_parallel_size=4)
    figure = small_multiples(rows, T)
    for bar, (_, variant) in zip(figure.bars, rows, strict=True):
        parts = [piece.size for piece in bar.pieces if piece.look != MISSING]
        assert variant.plan is not None
        assert sum(parts) == pytest.approx(variant.plan.memory.total.value / 2**30, rel=1e-6)
    assert figure.end >= max(line.start for bar in figure.bars for line in bar.across)


def test_a_deployment_that_does_not_fit_exceeds_its_line_and_says_so() -> None:
    rows = named(Varied.ACCELERATOR)
    figure = small_multiples(rows, T)
    small = next(bar for bar, (name, _) in zip(figure.bars, rows, strict=True) if name == "L4")
    (missing,) = [piece for piece in small.pieces if piece.look == MISSING]
    assert missing.end > small.across[0].start
    assert [note.text.split()[0] for note in small.above] == ["OOM"]


def test_a_start_within_the_error_is_not_called_out_of_memory() -> None:
    fields = {"accelerator": "RTX-4090-24GB", "gpu_memory_utilization": 0.75, "max_model_len": 8192}
    rows = named(Varied.TENSOR_PARALLEL, model="Qwen/Qwen3-32B", dtype="float16", **fields)
    (tight,) = (
        row for row, (_, variant) in enumerate(rows) if variant.plan and variant.plan.verdict is Verdict.TIGHT
    )
    (note,) = small_multiples(rows, T).bars[tight].above
    assert re.fullmatch(r"\N{MINUS SIGN}0\.\d\d GiB", note.text)


def test_labels_of_shortages_stand_clear_of_names_and_sizes() -> None:
    # Weights of one of four H100 are 109.6 GiB: the hatching covers what lies behind the budget.
    rows = named(Varied.TENSOR_PARALLEL, model="Qwen/Qwen3-235B-A22B", tensor_parallel_size=8)
    figure = small_multiples(rows, T)
    assert any(bar.above for bar in figure.bars)
    assert not any(bar.notes for bar in figure.bars if bar.pieces)
    weights = [piece for piece in figure.bars[2].pieces if piece.look == "kv-weights"]
    assert [piece.said for piece in weights] == [("109.6 GiB",), ()]
    (hatched,) = [piece for piece in figure.bars[2].pieces if piece.look == MISSING]
    assert weights[0].end == weights[1].start == hatched.start
    html = figure.html("kv-comparison-bar", "")
    assert html.index('class="kv-note-row"') < html.index('class="kv-stack-bar"')


def test_a_refused_position_is_a_row_with_words() -> None:
    rows = named(Varied.TENSOR_PARALLEL, model="Qwen/Qwen3-14B", tensor_parallel_size=16)
    figure = small_multiples(rows, T)
    assert [bar.name for bar in figure.bars] == [name for name, _ in rows]
    assert ["refused by the engine"] in [[note.text for note in bar.notes] for bar in figure.bars]
    refused = next(variant for name, variant in rows if name == "TP 16")
    assert verdict_word(refused, T) == "✖ refused"
    assert figures_of(refused)[0] == DASH


def test_splits_are_named_by_what_they_cut() -> None:
    assert split_name(Parallel(tensor_parallel_size=8)) == "TP 8"
    cut = Parallel(
        tensor_parallel_size=4,
        data_parallel_size=2,
        decode_context_parallel_size=2,
        enable_expert_parallel=True,
    )
    assert split_name(cut) == "TP 4 × DP 2, DCP 2, EP"


def test_no_rows_are_a_figure() -> None:
    assert small_multiples([], T).bars == ()


LARGE = {"model": "Qwen/Qwen3-235B-A22B-FP8", "accelerator": "H200-141GB", "tensor_parallel_size": 4}


def test_a_card_that_is_too_small_fails_by_its_memory_and_not_by_its_graphs() -> None:
    large, small = (catalogue.find_accelerator(name) for name in ("H200-141GB", "L40S-48GB"))
    found = variants(scenario_from_request(LARGE | {"max_model_len": 32768}), Varied.ACCELERATOR, [small])
    (said,) = first_failures([(position_name(Varied.ACCELERATOR, one, T), one) for one in found], T)
    less = large.memory_gib - small.memory_gib
    assert f"memory of the card \N{MINUS SIGN}{less:.2f} GiB" in said
    assert "the weights alone take 55.5 GiB" in said
    assert "CUDA graphs" not in said


def test_a_length_that_is_too_long_fails_by_what_a_request_keeps() -> None:
    said = list(first_failures(named(Varied.LENGTH), T))
    assert said, "32,768 tokens do not fit next to 61 GiB of weights"
    assert all("KV cache of one request +" in one and "memory of the card" not in one for one in said)


def test_requests_per_gpu_are_those_that_run() -> None:
    """PP 8: the cache has room for more than 1,024 requests, and max_num_seqs runs 1,024 on 32 GPUs."""
    base = scenario_from_request(LARGE | {"kv_cache_dtype": "fp8", "max_model_len": 32768})
    found = variants(base, Varied.PIPELINE_PARALLEL)
    cut = next(one for one in found if one.value == 8)
    assert cut.max_concurrency > 1024
    assert figures_of(cut)[-3] == "32"
    assert limit_note(cut, T) == "limited by max_num_seqs"
    most = max(found, key=lambda one: one.requests_per_gpu)
    assert best_of(found)[1] is most
    assert limit_note(most, T) == ""


def test_every_figure_that_a_log_can_give_has_a_name() -> None:
    assert FORMATS.load().figure.keys() <= FIGURE_LABELS.keys()
