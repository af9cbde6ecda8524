"""The Compare page without a browser."""

from __future__ import annotations

import re

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.advice.vary import Varied
from kvcore.base.words import Language, words
from tests.page_app import checked, open_app, params

QWEN = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": "8192"}
PAGE = "pages/compare.py"


def open_page(query: dict[str, str], locale: str = "en-US") -> AppTest:
    return checked(open_app(query, locale).switch_page(PAGE).run())


def bars(app: AppTest) -> list[list[str]]:
    """The names of the bars of each drawing."""
    return [
        re.findall(r'<div class="kv-bar-name">([^<]*)</div>', element.proto.body)
        for element in app.get("html")
        if 'class="kv-stack' in element.proto.body
    ]


def html(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


@pytest.mark.parametrize(("locale", "language"), [("en-US", Language.ENGLISH), ("zh-CN", Language.CHINESE)])
def test_everything_that_varies_has_a_page(locale: str, language: Language) -> None:
    t = words(language)
    app = open_page(QWEN, locale)
    for varied in Varied:
        app = checked(app.segmented_control(key="varied").set_value(varied.value).run())
        assert len(bars(app)[0]) > 1, varied
        assert t("current") in html(app), varied
        assert any((button.key or "").startswith("use.") for button in app.button), varied


def test_the_varied_setting_is_in_the_link() -> None:
    app = open_page(QWEN | {"vary": "kv_cache_dtype"})
    assert app.segmented_control(key="varied").value == "kv_cache_dtype"
    app = checked(app.segmented_control(key="varied").set_value("block_size").run())
    assert params(app)["vary"] == "block_size"
    app = open_page(QWEN | {"vary": "banana"})
    assert app.segmented_control(key="varied").value == "tensor_parallel_size"


def test_use_this_changes_the_scenario_and_undo_takes_it_back() -> None:
    app = open_page(QWEN)
    app = checked(app.button(key="use.tensor_parallel_size.2").click().run())
    assert params(app)["tensor_parallel_size"] == "4"
    app = checked(app.button(key="undo_button").click().run())
    assert params(app)["tensor_parallel_size"] == "1"
    assert not [button for button in app.button if button.key == "undo_button"]


def test_four_pins_travel_in_the_link() -> None:
    app = open_page(QWEN)
    for size in (1, 2, 4, 8):
        app = checked(app.number_input(key="tensor_parallel_size").set_value(size).run())
        app = checked(app.button(key="pin").click().run())
    link = params(app)
    assert sorted(name for name in link if name.startswith("pin.")) == ["pin.1", "pin.2", "pin.3", "pin.4"]
    assert app.button(key="pin").disabled
    fresh = open_page(link)
    assert bars(fresh)[1] == bars(app)[1]
    assert len(bars(fresh)[1]) == 4
    fresh = checked(fresh.button(key="remove_pin.0").click().run())
    assert "tensor_parallel_size=2" in params(fresh)["pin.1"]
    assert "pin.4" not in params(fresh)
    fresh = checked(fresh.button(key="use_pin.0").click().run())
    assert params(fresh)["tensor_parallel_size"] == "2"
    assert "pin.3" in params(fresh)


def test_pins_stay_on_other_pages() -> None:
    app = checked(open_page(QWEN).button(key="pin").click().run())
    app = checked(app.switch_page("pages/plan.py").run())
    app = checked(app.segmented_control(key="kv_cache_dtype").set_value("fp8").run())
    assert "pin.1" in params(app)


def test_a_broken_pin_is_named_and_the_page_goes_on() -> None:
    pins = {"pin.1": "model=Qwen/Qwen3-32B&accelerator=H99-OLD", "pin.2": "banana"}
    app = open_page(QWEN | pins)
    texts = "\n".join(text.value for text in app.text)
    assert "H99-OLD" in texts
    assert "banana" in texts
    assert len(bars(app)[1]) == 2


def test_pins_of_different_engines() -> None:
    app = open_page(QWEN | {"pin.1": "model=Qwen/Qwen3-8B&accelerator=Ascend-910B4-32GB&engine=vllm-ascend"})
    assert len(bars(app)[1]) == 2


def test_a_pair_of_fixes_is_one_button_with_undo() -> None:
    app = open_app({"model": "deepseek-ai/DeepSeek-V3", "accelerator": "RTX-4090-24GB"})
    before = params(app)
    assert not [button for button in app.button if (button.key or "").startswith("fix.")]
    app = checked(app.button(key="fix_pair.0").click().run())
    assert app.success or app.warning
    assert params(app)["accelerator"] != before["accelerator"]
    assert params(app)["tensor_parallel_size"] != before.get("tensor_parallel_size", "1")
    app = checked(app.button(key="undo_button").click().run())
    assert params(app)["accelerator"] == before["accelerator"]
    assert app.error


def test_replicas_have_columns_only_where_there_are_several() -> None:
    t = words(Language.ENGLISH)
    app = open_page(QWEN)
    assert t("Requests at once, all replicas") not in html(app)
    app = checked(app.segmented_control(key="varied").set_value(Varied.DATA_PARALLEL.value).run())
    table = html(app)
    assert t("Requests at once, all replicas") in table
    first = table[table.index("<tbody>") : table.index("</tr>", table.index("<tbody>"))]
    assert first.count("<td") == table.count('<th scope="col">') == 10


@pytest.mark.parametrize("page", ["pages/compare.py", "pages/explore.py"])
def test_the_page_says_which_model_and_card(page: str) -> None:
    app = checked(open_app(QWEN | {"max_num_seqs": "16"}).switch_page(page).run())
    (line,) = [one.value for one in app.caption if "Qwen/Qwen3-32B" in one.value]
    assert "H100 SXM5 80GB (HBM3) × 1" in line
    assert "max_num_seqs 16" in line
    refused = checked(open_app(QWEN | {"quantization": "awq"}).switch_page(page).run())
    (line,) = [one.value for one in refused.caption if "Qwen/Qwen3-32B" in one.value]
    assert "H100 SXM5 80GB (HBM3)" in line


def test_a_row_says_its_gpus_its_target_and_the_bounds_of_decoding() -> None:
    """GPUs, target and speed are of all replicas: 2 × 80 GB read 2 × 3.35 TB a second at most."""
    asked = QWEN | {"tensor_parallel_size": "2", "vary": "tensor_parallel_size", "wanted": "40"}
    rows = re.findall(r"<tr>.*?</tr>", html(open_page(asked)))
    texts = [[re.sub("<[^>]*>", " ", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]
    by_name = {cells[0].split()[1]: cells for cells in texts if cells and cells[0].startswith(" TP")}
    assert "fewer GPUs than now" in by_name["1"][0]
    assert "fewer GPUs than now" not in by_name["2"][0]
    assert "▲ too few" in by_name["2"][1]
    assert "of 40" in by_name["2"][1]
    assert "▲" not in by_name["8"][1]
    assert "serves all 40" in by_name["8"][1]
    times = {name: float(cells[4].split()[1]) for name, cells in by_name.items() if "ms" in cells[4]}
    weights_gb = 32e9 * 2 / 1e9
    assert times["2"] > weights_gb / (2 * 3352) * 1000 * 0.95
    assert times["2"] < 2 * 80 / (2 * 3352) * 1000
