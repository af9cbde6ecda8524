"""The texts and drawings of a sweep on the Explore page."""

import pytest
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.sweep import sweep
from kvcore.advice.sweep_cell import Cell, Cost, cost_of, smallest
from kvcore.base.numbers import DASH
from kvcore.base.words import Language, words
from kvcore.catalogue.accelerators import Interconnect
from kvcore.charts.heat import (
    FAINT,
    MET,
    NOT_MET,
    cell_sentence,
    cell_word,
    column_names,
    head_html,
    heat_map,
    short_name,
    short_names,
)
from kvcore.charts.matrix import (
    MEMORY_BANDS,
    MOST_ROWS,
    Filters,
    Order,
    Target,
    cheapest_answer,
    chosen_cards,
    first_rows,
    matrix_rows,
    model_row,
    own_answer,
    smallest_answer,
)
from kvcore.planning import Verdict
from kvcore.wire.request import scenario_from_request

CARDS = catalogue.load_accelerators()
BY_ID = {card.id: card for card in CARDS}
T = words(Language.ENGLISH)
SIZES = (1, 2, 4, 8)
TEN = Target(wanted=10)


def swept(**fields):
    base = scenario_from_request({"model": "Qwen/Qwen3-32B", "max_model_len": 8192, **fields})
    (found,) = sweep(base, [catalogue.find_model("Qwen/Qwen3-32B")], CARDS, SIZES)
    return found


def cell(card: str, gpus: int, requests: float, verdict: Verdict = Verdict.FITS) -> Cell:
    return Cell(card, gpus, verdict, gpus=gpus, max_concurrency=requests)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (cell("H100-80GB", 1, 12.34), "12"),
        (cell("H100-80GB", 1, 1.2, Verdict.TIGHT), "1.2 tight"),
        (cell("H100-80GB", 1, 0.5, Verdict.CONTEXT_TOO_LONG), "context too long"),
        (cell("H100-80GB", 1, 0, Verdict.NO_KV_MEMORY), "too big"),
        (cell("H100-80GB", 1, 0, Verdict.WEIGHTS_DO_NOT_FIT), "too big"),
        (Cell("H100-80GB", 3, refusal="heads-not-divisible"), "refused: heads"),
        (Cell("H100-80GB", 3, refusal="cache-pages-not-unifiable"), "refused"),
    ],
)
def test_every_cell_has_a_word(found: Cell, word: str) -> None:
    assert cell_word(found, T) == word
    assert BY_ID["H100-80GB"].name in cell_sentence(found, BY_ID["H100-80GB"], T)


def test_words_of_a_cell_fit_a_phone() -> None:
    """A cell is 52 px wide at 390 px: eight letters at 12 px."""
    rows = matrix_rows(swept(max_model_len=40_960).cells, CARDS, SIZES, Filters(with_all=True), TEN)
    texts = {
        text for trace in heat_map(rows, TEN, T)["data"] for text in trace.get("text", ()) if text[:1] != "<"
    }
    assert any("context<br>too long" in text for text in texts)
    assert max(len(line) for text in texts for line in text.split("<br>")) <= 8


def test_chinese_words_of_a_cell_fit_a_phone() -> None:
    """A Chinese character is as wide as two letters."""
    rows = matrix_rows(swept(max_model_len=40_960).cells, CARDS, SIZES, Filters(with_all=True), TEN)
    traces = heat_map(rows, TEN, words(Language.CHINESE))["data"]
    texts = {text for trace in traces for text in trace.get("text", ()) if text[:1] != "<"}
    assert any("上下文<br>过长" in text for text in texts)
    lines = [line for text in texts if "上" in text for line in text.split("<br>")]
    assert max(map(len, lines)) <= 4


def test_cards_that_stand_alone_are_explained_where_several_would_do() -> None:
    """GH200: one to a machine. Eight of them store ten requests, and are not outlined."""
    alone = next(card for card in CARDS if card.interconnect is Interconnect.NONE)
    linked = BY_ID["H100-80GB"]
    assert TEN.misses_alone([(alone, (cell(alone.id, 1, 9.0), cell(alone.id, 2, 20.0)))])
    assert not TEN.misses_alone([(alone, (cell(alone.id, 1, 20.0),)), (linked, (cell(linked.id, 2, 20.0),))])
    assert not TEN.misses_alone([(alone, (cell(alone.id, 2, 9.0),))])


def cells_drawn(figure):
    return [trace for trace in figure["data"] if "meta" in trace]


def test_the_map_draws_every_cell_once_and_outlines_what_serves() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(with_all=True), TEN)
    figure = heat_map(rows, TEN, T)
    by_place = {(card.id, one.tensor_parallel_size): one for card, cells in rows for one in cells}
    drawn = [tuple(pair) for trace in cells_drawn(figure) for pair in trace["customdata"]]
    assert sorted(drawn) == sorted(by_place)
    for trace in cells_drawn(figure):
        assert all(trace["text"])
        for place in trace["customdata"]:
            one, card = by_place[tuple(place)], BY_ID[place[0]]
            is_possible = one.gpus == 1 or card.interconnect is not Interconnect.NONE
            serves = one.starts and one.max_concurrency >= 10 and is_possible
            assert (trace["meta"] == MET) == serves
        assert (trace["marker"]["line"]["width"] > 0) == (trace["meta"] == MET)
    assert figure["layout"]["yaxis"]["ticktext"] == short_names([card for card, _ in rows])


def test_no_text_is_struck_through() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(with_all=True), TEN)
    assert not any("pattern" in trace.get("marker", {}) for trace in heat_map(rows, TEN, T)["data"])


def test_every_text_stands_in_its_row_and_column() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(with_all=True), TEN)
    figure = heat_map(rows, TEN, T)
    written = {
        (card, x): text
        for trace in figure["data"]
        if trace["type"] == "scatter"
        for card, x, text in zip(trace["y"], trace["x"], trace["text"], strict=True)
    }
    for trace in cells_drawn(figure):
        for (card, size), text in zip(trace["customdata"], trace["text"], strict=True):
            assert trace["meta"] == MET or written[card, 1 + SIZES.index(size) + 0.5] == text


def test_the_fewest_gpus_stand_in_front() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(), TEN)
    fewest = heat_map(rows, TEN, T)["data"][1]
    for (_, cells), text in zip(rows, fewest["text"], strict=True):
        serving = [one.gpus for one in cells if TEN.is_met(one, BY_ID[one.accelerator])]
        assert text == (f"<b>{min(serving)}</b>" if serving else DASH)


def test_vendors_have_a_line_of_their_own_unless_sorted_otherwise() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(), TEN)
    layout = heat_map(rows, TEN, T)["layout"]
    heads = [note["y"] for note in layout["annotations"]]
    lines = layout["yaxis"]["categoryarray"]
    assert heads == [line for line in lines if line.startswith("vendor:")]
    for card, _ in rows:
        above = [line for line in lines[: lines.index(card.id)] if line in heads]
        assert above[-1] == f"vendor:{card.vendor.value}"
    assert heat_map(rows, TEN, T, is_grouped=False)["layout"]["annotations"] == []


def test_the_head_has_the_columns_of_the_figure() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(), TEN)
    for target in (TEN, Target(wanted=10, prices={"H100-80GB": 2.0})):
        names = column_names(rows, target, T)
        assert heat_map(rows, target, T)["layout"]["xaxis"]["range"] == [0, len(names)]
        assert head_html(rows, target, T).count("<span>") == len(names) + 1
        assert names[-len(SIZES) :] == ("TP 1", "TP 2", "TP 4", "TP 8")


def test_the_cost_of_a_deployment() -> None:
    target = Target(wanted=20, prices={"H100-80GB": 3.0, "L40S-48GB": 1.0}, max_num_seqs=25)
    h100 = (
        BY_ID["H100-80GB"],
        (cell("H100-80GB", 1, 10), cell("H100-80GB", 2, 50), cell("H100-80GB", 4, 110)),
    )
    l40s = (BY_ID["L40S-48GB"], (cell("L40S-48GB", 4, 20),))
    h200 = (BY_ID["H200-141GB"], (cell("H200-141GB", 1, 40),))
    assert target.cost(h100) == Cost(per_hour=6.0, per_slot_hour=6.0 / 25)
    assert target.cost(l40s) == Cost(per_hour=4.0, per_slot_hour=4.0 / 20)
    assert target.cost(h200) is None
    cheapest = cheapest_answer((h100, l40s, h200), BY_ID, target, T)
    assert cheapest is not None
    shown = cheapest.text.replace("\N{NO-BREAK SPACE}", " ")
    assert shown == "Cheapest at your prices: 4 × L40S, 4.00 per hour, 0.2 per request slot and hour"
    assert cheapest_answer((h200,), BY_ID, target, T) is None


def test_rows_are_sorted_by_cost_and_by_the_fewest_gpus() -> None:
    prices = {"H100-80GB": 2.0, "L40S-48GB": 1.5, "MI300X-192GB": 2.5, "A100-80GB": 0.5}
    target = Target(wanted=10, prices=prices)
    found = swept().cells
    for order, figure in (
        (Order.COST, lambda row: target.cost(row).per_hour),
        (Order.COST_PER_SLOT, lambda row: target.cost(row).per_slot_hour),
    ):
        rows = matrix_rows(found, CARDS, SIZES, Filters(order=order), target)
        priced = [row for row in rows if target.cost(row) is not None]
        assert {row[0].id for row in priced} == set(prices)
        assert list(rows[: len(priced)]) == priced
        assert list(map(figure, priced)) == sorted(map(figure, priced))
    gpus = [
        target.smallest(row)
        for row in matrix_rows(found, CARDS, SIZES, Filters(order=Order.FEWEST_GPUS), target)
    ]
    known = [one.gpus for one in gpus if one is not None]
    assert known == sorted(known)
    assert None not in gpus[: len(known)]


def test_an_empty_map_is_a_figure() -> None:
    assert heat_map((), TEN, T)["data"] == []


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
    shown = matrix_rows(found.cells, CARDS, SIZES, Filters(), TEN)
    assert all(any(one.starts for one in cells) for _, cells in shown)
    # 61 GiB of weights over eight cards of 8 GB are 7.6 GiB each, more than 92 % of 8 GB leaves.
    assert "Jetson-Orin-Nano-8GB" not in {card.id for card, _ in shown}
    assert len(matrix_rows(found.cells, CARDS, SIZES, Filters(with_all=True), TEN)) == len(CARDS)


def test_the_first_rows_are_some_of_each_vendor_the_kept_ones_and_the_fewest_gpus() -> None:
    filters = Filters(vendors=("nvidia", "amd"))
    cards = chosen_cards(CARDS, filters)
    serving = matrix_rows(swept().cells, cards, SIZES, filters, TEN)
    far = serving[-1][0].id
    shown = first_rows(serving, (far,), filters, TEN)
    assert [row for row in serving if row in shown] == list(shown)
    assert len(shown) == MOST_ROWS + 1 < len(serving)
    assert far in {card.id for card, _ in shown}
    assert {card.vendor.value for card, _ in shown} == {"nvidia", "amd"}
    fewest = {row[0].id: TEN.smallest(row).gpus for row in serving}
    for vendor in ("nvidia", "amd"):
        of_it = [card.id for card, _ in serving if card.vendor.value == vendor]
        first = [card.id for card, _ in shown if card.vendor.value == vendor and card.id != far]
        assert max(fewest[card] for card in first) <= min(fewest[card] for card in of_it if card not in first)
    assert first_rows(serving, (), Filters(with_all=True), TEN) == serving


def test_order() -> None:
    by_memory = [
        card
        for card, _ in matrix_rows(swept().cells, CARDS, SIZES, Filters(), TEN)
        if card.vendor.value == "nvidia"
    ]
    assert [card.memory_gib for card in by_memory] == sorted(
        (card.memory_gib for card in by_memory), reverse=True
    )
    requests = [
        max(one.max_concurrency for one in cells if one.starts)
        for _, cells in matrix_rows(swept().cells, CARDS, SIZES, Filters(order=Order.REQUESTS), TEN)
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
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(), TEN)
    answer = smallest_answer(rows, BY_ID, TEN, 8192, T)
    assert answer.text.startswith(
        "Smallest for 10 requests of 8,192 tokens: 1\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}"
    )
    assert all(one.max_concurrency >= 10 for one in answer.cells)
    none = smallest_answer(rows, BY_ID, Target(wanted=10**6), 8192, T)
    assert none.cells == ()
    assert none.text.startswith("None of these fits 1,000,000 requests")


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


def test_every_replica_counts_where_a_mixture_of_experts_is_cut_over_them() -> None:
    """DP 8 with expert parallelism starts on 8 ranks or not at all, and serves on all of them."""
    model = "deepseek-ai/DeepSeek-V4-Flash"
    asked = {"model": model, "data_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 8192}
    base = scenario_from_request(asked)
    (found,) = sweep(base, [catalogue.find_model(model)], CARDS, SIZES)
    for one in found.cells:
        if one.verdict is not None:
            assert (one.gpus, one.replicas) == (8 * one.tensor_parallel_size, 8)
    answer = smallest(found.cells, BY_ID, 20).fewest_gpus
    assert answer is not None
    assert answer.gpus >= 8
    assert BY_ID[answer.accelerator].interconnect is not Interconnect.NONE


def test_replicas_serve_and_cost_together() -> None:
    two = replace(cell("H100-80GB", 1, 12), replicas=2, gpus=2)
    assert (two.requests, two.requests_per_gpu) == (24, 12)
    assert smallest([two], BY_ID, 20).fewest_gpus == two
    assert cost_of(two, 2.5, max_num_seqs=8) == Cost(per_hour=5.0, per_slot_hour=5.0 / 16)


def test_the_own_card_answers_first_and_names_its_layout() -> None:
    short, enough = cell("H100-80GB", 1, 3.9), cell("H100-80GB", 4, 12.0)
    row = (BY_ID["H100-80GB"], (short, enough))
    found = own_answer(row, TEN, T)
    assert (found.text.replace("\N{NO-BREAK SPACE}", " "), found.cells) == (
        "Your card: 4 × H100 SXM5 80GB (HBM3), TP 4, room for 12",
        (enough,),
    )
    shared = replace(short, replicas=2, gpus=2, max_concurrency=6.0)
    spread = Target(wanted=10, spreads={"H100-80GB": shared})
    assert own_answer(row, spread, T).text.endswith("TP 1 × 2 replicas, EP, room for 12")
    fewer = own_answer((row[0], (short,)), TEN, T)
    assert (fewer.is_met, fewer.text.split(", ")[-1]) == (False, "serve 3.9 of 10")
    nothing = own_answer((row[0], (Cell("H100-80GB", 1, Verdict.WEIGHTS_DO_NOT_FIT),)), TEN, T)
    assert nothing.cells == ()


def test_cards_that_cannot_serve_are_folded_but_the_own_and_priced_ones() -> None:
    found = swept()
    serving = matrix_rows(found.cells, CARDS, SIZES, Filters(), Target(wanted=300))
    assert serving
    assert all(Target(wanted=300).smallest(row) is not None for row in serving)
    missing = next(card.id for card in CARDS if card.id not in {one.id for one, _ in serving})
    kept = matrix_rows(found.cells, CARDS, SIZES, Filters(kept=(missing,)), Target(wanted=300))
    assert missing in {card.id for card, _ in kept}


def test_nothing_below_the_target_is_green() -> None:
    rows = matrix_rows(swept().cells, CARDS, SIZES, Filters(with_all=True), TEN)
    figure = heat_map(rows, TEN, T)
    below = [trace for trace in figure["data"] if trace.get("meta") == NOT_MET]
    assert below
    assert {colour for trace in below for colour in trace["marker"]["color"]} == {FAINT}
