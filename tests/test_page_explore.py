"""The Explore page without a browser."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.base.words import Language, words
from kvcore.catalogue.accelerators import Vendor, load_accelerators
from kvcore.charts.heat import REFUSAL_WORDS
from kvcore.charts.matrix import FAILURE_WORDS, MEMORY_BANDS, VENDOR_NAMES, Filters, chosen_cards
from tests.page_app import checked, open_app, params

QWEN = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": "8192"}
PAGE = "pages/explore.py"


def open_page(query: dict[str, str], locale: str = "en-US") -> AppTest:
    return checked(open_app(query, locale).switch_page(PAGE).run())


def matrix(app: AppTest) -> dict:
    return json.loads(app.get("plotly_chart")[0].proto.spec)


def cells(app: AppTest) -> list[dict]:
    """The traces of cells: each has a word and a place."""
    return [trace for trace in matrix(app)["data"] if "meta" in trace]


def cards_of(app: AppTest) -> set[str]:
    return {pair[0] for trace in cells(app) for pair in trace["customdata"]}


@pytest.mark.parametrize(("locale", "language"), [("en-US", Language.ENGLISH), ("zh-CN", Language.CHINESE)])
def test_both_questions_in_both_languages(locale: str, language: Language) -> None:
    t = words(language)
    app = open_page(QWEN | {"failing": "true"}, locale)
    assert t("Where this model runs") in app.segmented_control(key="explore_view").options
    assert "10" in app.success[0].value
    assert t("too big") in {text for trace in cells(app) for text in trace["text"]}
    app = checked(app.segmented_control(key="explore_view").set_value("models").run())
    assert t("Model") in app.dataframe[0].value.columns
    assert "Qwen/Qwen3-32B" in list(app.dataframe[0].value[t("Model")])


@pytest.mark.parametrize(("locale", "language"), [("en-US", Language.ENGLISH), ("zh-CN", Language.CHINESE)])
def test_the_legend_has_the_words_of_the_cells(locale: str, language: Language) -> None:
    t = words(language)
    legend = "".join(text.value for text in open_page(QWEN, locale).caption)
    for word in (*FAILURE_WORDS.values(), REFUSAL_WORDS["other"]):
        said = t(word)
        assert said[:1].upper() + said[1:] + (": " if language is Language.ENGLISH else "：") in legend


def test_the_smallest_deployment_goes_to_plan_and_back() -> None:
    app = open_page(QWEN)
    app = checked(app.number_input(key="explore_wanted").set_value(100).run())
    take = next(button for button in app.button if (button.key or "").startswith("take."))
    card, size = take.key.split(".")[1:3]
    app = checked(take.click().run())
    assert params(app)["accelerator"] == card
    assert params(app)["tensor_parallel_size"] == size
    assert app.metric[0].label == "Requests at once"
    assert float(app.metric[0].value.replace(",", "")) >= 100
    app = checked(app.button(key="undo_button").click().run())
    assert params(app)["accelerator"] == "H100-80GB"
    assert params(app)["tensor_parallel_size"] == "1"


def test_filters_narrow_the_matrix() -> None:
    app = open_page(QWEN | {"failing": "true"})
    vendors = {card.id: card.vendor for card in load_accelerators()}
    assert {vendors[card] for card in cards_of(app)} == {Vendor.NVIDIA, Vendor.AMD}
    app = checked(app.pills(key="explore_vendors").set_value(["amd"]).run())
    some = cards_of(app)
    assert {vendors[card] for card in some - {"H100-80GB"}} == {Vendor.AMD}
    assert {"MI300X-192GB", "H100-80GB"} <= some
    app = checked(app.segmented_control(key="explore_gpus").set_value(2).run())
    assert {pair[1] for trace in cells(app) for pair in trace["customdata"]} == {1, 2}


def test_the_own_card_stays_whatever_the_filters() -> None:
    vendor, band = next(
        (vendor.value, band)
        for vendor in VENDOR_NAMES
        for band in MEMORY_BANDS
        if not chosen_cards(load_accelerators(), Filters(vendors=(vendor,), memory_bands=(band,)))
    )
    app = open_page(QWEN)
    app = checked(app.pills(key="explore_vendors").set_value([vendor]).run())
    app = checked(app.pills(key="explore_memory").set_value([band]).run())
    assert cards_of(app) == {"H100-80GB"}
    app = checked(app.pills(key="explore_memory").set_value([]).run())
    assert len(cards_of(app)) > 1


def test_a_model_that_fits_nowhere_still_has_a_page() -> None:
    app = open_page({"model": "moonshotai/Kimi-K2-Instruct", "accelerator": "T4-16GB"})
    app = checked(app.segmented_control(key="explore_gpus").set_value(1).run())
    assert app.warning[0].value == "Your card: nothing starts on this many T4"
    assert app.warning[1].value.startswith("None of these fits")
    app = checked(app.pills(key="explore_vendors").set_value([vendor.value for vendor in Vendor]).run())
    app = checked(app.toggle(key="explore_failing").set_value(True).run())
    texts = {text for trace in cells(app) for text in trace["text"]}
    assert texts == {"too big", "refused:<br>weights", "refused:<br>attention", "refused:<br>card"}


def test_a_model_that_most_cards_refuse_has_words_in_its_cells() -> None:
    app = open_page(QWEN | {"kv_cache_dtype": "fp8"})
    app = checked(app.toggle(key="explore_failing").set_value(True).run())
    texts = {text for trace in cells(app) for text in trace["text"]}
    assert any(text.startswith("refused") for text in texts)


def test_a_card_with_given_memory_is_in_the_matrix() -> None:
    app = open_page(QWEN | {"accelerator.memory_gib": "300"})
    hover = {
        card: text
        for trace in cells(app)
        for (card, size), text in zip(trace["customdata"], trace["text"], strict=True)
        if size == 1
    }
    assert float(hover["H100-80GB"]) > 80


def test_search_finds_and_says_when_it_does_not() -> None:
    app = open_page(QWEN)
    app = checked(app.segmented_control(key="explore_view").set_value("models").run())
    app = checked(app.text_input(key="explore_search").set_value("deepseek").run())
    assert all("deepseek" in name.lower() for name in app.dataframe[0].value["Model"])
    app = checked(app.text_input(key="explore_search").set_value("70b llama-3.3").run())
    assert next(iter(app.dataframe[0].value["Model"])) == "meta-llama/Llama-3.3-70B-Instruct"
    app = checked(app.text_input(key="explore_search").set_value("no such thing").run())
    assert app.info
    assert not app.dataframe


def test_prices_are_in_the_link_and_count() -> None:
    app = open_page(QWEN | {"prices": "H100-80GB:2.5", "sort": "cost", "wanted": "20"})
    assert [one.value.split(":")[0] for one in app.success] == [
        "Your card", "Cheapest at your prices", "Smallest for 20 requests of 8,192 tokens",
    ]  # fmt: skip
    first = matrix(app)["layout"]["yaxis"]["categoryarray"][0]
    assert first == "H100-80GB"
    app.session_state["explore_prices"] = True
    app = checked(app.run())
    app = checked(app.multiselect(key="explore_priced").set_value(["H100-80GB", "L40S-48GB"]).run())
    app = checked(app.number_input(key="price.L40S-48GB").set_value(0.4).run())
    assert params(app)["prices"] == "H100-80GB:2.5,L40S-48GB:0.4"
    app = checked(app.multiselect(key="explore_priced").set_value(["L40S-48GB"]).run())
    assert params(app)["prices"] == "L40S-48GB:0.4"


def test_an_invalid_price_is_reported() -> None:
    app = open_page(QWEN | {"prices": "H100-80GB:-2"})
    assert any("prices" in text.value for text in app.text)


FLASH = {
    "model": "deepseek-ai/DeepSeek-V4-Flash",
    "accelerator": "Ascend-910B1-64GB",
    "max_model_len": "1048576",
}


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_the_fewest_cards_of_a_mixture_are_the_same_in_every_answer(locale: str) -> None:
    """Also those that only replicas with shared experts come to; in ModelSlim's checkpoint, as vllm-ascend asks."""
    t = words(Language.CHINESE if locale == "zh-CN" else Language.ENGLISH)
    for tensor, vendors in (("8", "huawei"), ("1", "huawei")):
        app = open_page(
            FLASH
            | {"engine": "vllm-ascend", "tensor_parallel_size": tensor, "wanted": "4", "vendors": vendors},
            locale,
        )
        for name in ("explore_as_table", "explore_spread"):
            app.session_state[f"{name}.{t.language.value}"] = True
        app = checked(app.run())
        tables = [frame.value for frame in app.dataframe]
        by_size, shared = (table.set_index(t("Accelerator"))[t("Fewest GPUs")] for table in tables)
        assert shared["Ascend 910B1"] == by_size["Ascend 910B1"] == 8
        assert any("ModelSlim" in caption.value for caption in app.caption)
        answers = [one.value for one in app.warning]
        tight = t("{finding}. Tight: within the estimate's error", finding="")
        assert sum(text.endswith(tight) for text in answers) == 2
        assert not app.success
    take = next(button for button in app.button if (button.key or "").startswith("take."))
    app = checked(take.click().run())
    assert params(app)["quantization"] == "ascend"
    assert int(params(app).get("tensor_parallel_size", "1")) * int(params(app)["data_parallel_size"]) == 8


def test_models_that_serve_come_first_the_largest_first_and_by_task() -> None:
    app = open_page(QWEN)
    app = checked(app.segmented_control(key="explore_view").set_value("models").run())
    table = app.dataframe[0].value
    (serves,) = (name for name in table if name.startswith("Serves "))
    serving = list(table[serves])
    assert serving == sorted(serving, key=lambda word: word != "yes")
    models = list(table["Model"])
    assert models.index("Qwen/Qwen3-32B") < models.index("Qwen/Qwen3-8B") < models.index("Qwen/Qwen3-0.6B")
    app = checked(app.segmented_control(key="explore_task").set_value("pooling").run())
    embedders = app.dataframe[0].value
    assert "Qwen/Qwen3-Embedding-8B" in set(embedders["Model"])
    assert "Qwen/Qwen3-8B" not in set(embedders["Model"])
    assert not [each for each in embedders["Requests at once"] if each == 0]
    assert params(app)["task"] == "pooling"
