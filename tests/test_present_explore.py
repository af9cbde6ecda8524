"""What the Explore page says and draws of a sweep."""

import pytest

from kvcore import catalogue
from kvcore.advice.smallest import smallest
from kvcore.advice.sweep import sweep
from kvcore.advice.sweep_cell import Cell
from kvcore.plan import Verdict
from kvcore.present.heat import cell_sentence, cell_word, heat_map, short_name, short_names
from kvcore.present.matrix import (
    MEMORY_BANDS,
    Filters,
    Order,
    chosen_cards,
    matrix_rows,
    model_row,
    smallest_answer,
)
from kvcore.present.text import Language, words
from kvcore.request import scenario_from_request

CARDS = catalogue.load_accelerators()
BY_ID = {card.id: card for card in CARDS}
T = words(Language.ENGLISH)
SIZES = (1, 2, 4, 8)


def swept(**fields):
    base = scenario_from_request({"model": "Qwen/Qwen3-32B", "max_model_len": 8192, **fields})
    (found,) = sweep(base, [catalogue.find_model("Qwen/Qwen3-32B")], CARDS, SIZES)
    return found


def cell(card: str, gpus: int, requests: float, verdict: Verdict = Verdict.FITS) -> Cell:
    return Cell(card, gpus, verdict, gpus=gpus, max_concurrency=requests)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (cell("H100-80GB", 1, 12.34), "12.34"),
        (cell("H100-80GB", 1, 1.2, Verdict.TIGHT), "1.2 tight"),
        (cell("H100-80GB", 1, 0.5, Verdict.CONTEXT_TOO_LONG), "too short"),
        (cell("H100-80GB", 1, 0, Verdict.NO_KV_MEMORY), "too big"),
        (cell("H100-80GB", 1, 0, Verdict.WEIGHTS_DO_NOT_FIT), "too big"),
        (Cell("H100-80GB", 3, refusal="heads-not-divisible"), "refused: heads"),
        (Cell("H100-80GB", 3, refusal="cache-pages-not-unifiable"), "refused"),
    ],
)
def test_every_cell_has_a_word(found: Cell, word: str) -> None:
    assert cell_word(found, T) == word
    assert BY_ID["H100-80GB"].name in cell_sentence(found, BY_ID["H100-80GB"], T)


def test_the_map_draws_every_cell_once_and_hatches_what_fails() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(with_failing=True))
    figure = heat_map(rows, T)
    drawn = [tuple(pair) for trace in figure["data"] for pair in trace["customdata"]]
    assert sorted(drawn) == sorted((card.id, size) for card in CARDS for size in SIZES)
    for trace in figure["data"]:
        assert all(trace["text"])
        fails = any(
            text in ("too big", "too<br>short", "too short") or "refused" in text for text in trace["text"]
        )
        assert fails <= ("pattern" in trace["marker"])
    assert figure["layout"]["yaxis"]["ticktext"] == short_names([card for card, _ in rows])


def test_an_empty_map_is_a_figure() -> None:
    assert heat_map((), T)["data"] == []


def test_names_take_two_short_lines() -> None:
    for card in CARDS:
        lines = short_name(card).split("<br>")
        assert 1 <= len(lines) <= 2
        assert len(lines[0]) <= 20


def test_no_two_rows_are_named_alike() -> None:
    names = short_names(CARDS)
    assert len(set(names)) == len(CARDS)
    assert all(name.count("<br>") <= 1 for name in names)


def test_filters() -> None:
    amd = chosen_cards(CARDS, Filters(vendors=("amd",)))
    assert {card.vendor.value for card in amd} == {"amd"}
    large = chosen_cards(CARDS, Filters(memory_bands=("above-96",)))
    assert BY_ID["H200-141GB"] in large
    assert BY_ID["H100-80GB"] not in large
    assert chosen_cards(CARDS, Filters()) == CARDS
    assert len(
        [card for band in MEMORY_BANDS for card in chosen_cards(CARDS, Filters(memory_bands=(band,)))]
    ) == len(CARDS)


def test_rows_without_a_start_show_only_when_asked_for() -> None:
    found = swept()
    shown = matrix_rows(found.cells, CARDS, SIZES, Filters())
    assert all(any(one.starts for one in cells) for _, cells in shown)
    # 61 GiB of weights over eight cards of 8 GB are 7.6 GiB each, more than 92 % of 8 GB leaves.
    assert "Jetson-Orin-Nano-8GB" not in {card.id for card, _ in shown}
    assert len(matrix_rows(found.cells, CARDS, SIZES, Filters(with_failing=True))) == len(CARDS)


def test_order() -> None:
    by_memory = [
        card
        for card, _ in matrix_rows(swept().cells, CARDS, SIZES, Filters())
        if card.vendor.value == "nvidia"
    ]
    assert [card.memory_gib for card in by_memory] == sorted(
        (card.memory_gib for card in by_memory), reverse=True
    )
    requests = [
        max(one.max_concurrency for one in cells if one.starts)
        for _, cells in matrix_rows(swept().cells, CARDS, SIZES, Filters(order=Order.REQUESTS))
    ]
    assert requests == sorted(requests, reverse=True)


def test_the_smallest_by_number_and_by_memory() -> None:
    cells = [
        cell("H200-141GB", 1, 30),
        cell("RTX-4090-24GB", 4, 21),
        cell("L4-24GB", 2, 9),
        cell("H100-80GB", 2, 50),
    ]
    found = smallest(cells, BY_ID, 20)
    assert found.fewest_gpus == cells[0]
    assert found.least_memory == cells[1]
    assert smallest(cells, BY_ID, 51).fewest_gpus is None
    assert smallest([cell("GB10-128GB", 2, 99)], BY_ID, 20).fewest_gpus is None


def test_the_sentence_names_both_or_says_that_there_is_none() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters())
    answer = smallest_answer(rows, BY_ID, 10, 8192, T)
    assert answer.text.startswith("Smallest for 10 requests of 8,192 tokens: 1 × ")
    assert all(one.max_concurrency >= 10 for one in answer.cells)
    none = smallest_answer(rows, BY_ID, 10**6, 8192, T)
    assert none.cells == ()
    assert none.text.startswith("None of these holds 1,000,000 requests")


def test_a_model_takes_the_fewest_gpus_that_serve() -> None:
    base = scenario_from_request({"model": "Qwen/Qwen3-32B", "max_model_len": 8192})
    (found,) = sweep(base, [catalogue.find_model("Qwen/Qwen3-32B")], [BY_ID["H100-80GB"]], SIZES)
    few, many = model_row(found, SIZES, 1), model_row(found, SIZES, 100)
    assert few is not None
    assert many is not None
    assert few.cell.gpus == 1
    assert many.cell.gpus == next(one.gpus for one in found.cells if one.max_concurrency >= 100)
    most = model_row(found, SIZES, 10**9)
    assert most is not None
    assert most.cell.gpus == 8
    (none,) = sweep(base, [catalogue.find_model("deepseek-ai/DeepSeek-V3")], [BY_ID["T4-16GB"]], SIZES)
    assert model_row(none, SIZES, 1) is None
