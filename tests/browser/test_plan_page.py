"""The Plan page as a person meets it: deep link, slider, back, phone, dark, Chinese, reload."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import OpenPage, at_rest, metrics, moved, settled

pytestmark = pytest.mark.browser

WORKED = (
    "?model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=8&gpu_memory_utilization=0.75"
    "&max_model_len=8192&dtype=float16"
)
RULE_OF_THUMB = (
    WORKED + "&accelerator.memory_gib=24&measured.weights_gib=8&measured.non_torch_gib=5"
    "&measured.peak_activation_gib=0&measured.cuda_graph_gib=0"
)
TOO_LONG = "?model=Qwen/Qwen3-32B&accelerator=H100-80GB&max_model_len=40960"


def query(page: Page) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlsplit(page.url).query).items()}


def slider(page: Page, key: str) -> Locator:
    place = f".st-key-{key.replace('.', '-')}"
    return page.locator(f"{place} [role=slider], {place} input[type=range]").first


def wait_for_query(page: Page, **wanted: str) -> None:
    page.wait_for_function(
        "wanted => Object.entries(wanted).every(([k, v]) => new URLSearchParams(location.search).get(k) === v)",
        arg=wanted,
    )
    settled(page)


def scrolls_sideways(page: Page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_the_first_visit_of_a_fresh_server_may_be_a_deep_link(fresh_server: str, open_page: OpenPage) -> None:
    page = open_page(fresh_server + "/" + RULE_OF_THUMB)
    assert metrics(page) == {
        "Requests at once": "20", "KV cache tokens": "163,840", "KV per token": "32 KiB", "Longest request": "40,960",
    }  # fmt: skip
    expect(
        page.locator("[data-testid=stSidebar]").get_by_text("Tensor parallel size", exact=True)
    ).to_be_visible()


def test_the_first_visit_may_be_another_page_and_the_scenario_goes_along(
    fresh_server: str, browser: Browser
) -> None:
    page = browser.new_context(locale="en-US").new_page()
    page.goto(f"{fresh_server}/check{RULE_OF_THUMB}")
    expect(
        page.locator("[data-testid=stSidebar]").get_by_text("Tensor parallel size", exact=True)
    ).to_be_visible()
    entries = page.evaluate("history.length")
    page.locator("[data-testid=stMain]").get_by_role("link", name="Plan").click()
    settled(page)
    assert metrics(page)["Requests at once"] == "20"
    assert query(page)["measured.weights_gib"] == "8"
    assert page.evaluate("history.length") == entries + 1
    page.context.close()


def test_dragging_a_slider_changes_the_numbers(server: str, open_page: OpenPage) -> None:
    page = open_page(server)
    before = metrics(page)
    handle = page.locator(".st-key-gpu_memory_utilization-slider [data-testid=stSlider]")
    area = handle.bounding_box()
    assert area is not None
    # From the value's place to the left third of the track.
    start_x = area["x"] + area["width"] * (0.92 - 0.50) / (0.98 - 0.50)
    y = area["y"] + area["height"] - 12
    page.mouse.move(start_x, y)
    page.mouse.down()
    page.mouse.move(start_x - 30, y, steps=4)
    page.mouse.move(area["x"] + area["width"] * 0.5, y, steps=6)
    page.mouse.up()
    page.wait_for_function("new URLSearchParams(location.search).has('gpu_memory_utilization')")
    page.wait_for_function("Number(new URLSearchParams(location.search).get('gpu_memory_utilization')) < 0.9")
    settled(page)
    assert metrics(page) != before


def test_a_key_on_a_slider_changes_number_field_link_and_cards(server: str, open_page: OpenPage) -> None:
    page = open_page(server)
    before = metrics(page)
    slider(page, "max_model_len.slider").focus()
    page.keyboard.press("ArrowLeft")
    wait_for_query(page, max_model_len="4096", v="1")
    expect(page.get_by_label("Context length (tokens)", exact=True)).to_have_value("4096")
    after = metrics(page)
    assert float(after["Requests at once"]) > float(before["Requests at once"])


def test_back_and_forward_restore_the_scenario(server: str, open_page: OpenPage) -> None:
    page = open_page(server + "/" + RULE_OF_THUMB)
    first = metrics(page)
    slider(page, "tensor_parallel_size.slider").focus()
    page.keyboard.press("ArrowLeft")
    wait_for_query(page, tensor_parallel_size="4")
    second = metrics(page)
    assert second != first
    page.go_back()
    wait_for_query(page, tensor_parallel_size="8")
    expect(page.locator("[data-testid=stMetricValue]").first).to_have_text("20")
    assert metrics(page) == first
    page.go_forward()
    wait_for_query(page, tensor_parallel_size="4")
    expect(page.locator("[data-testid=stMetricValue]").first).to_have_text(second["Requests at once"])
    assert metrics(page) == second


def test_one_change_is_one_step_back(server: str, open_page: OpenPage) -> None:
    page = open_page(server + "/" + TOO_LONG)
    entries = page.evaluate("history.length")
    page.get_by_role("button", name=re.compile("Tensor parallel size 2")).click()
    wait_for_query(page, tensor_parallel_size="2")
    expect(page.get_by_text(re.compile("^Fits: "))).to_be_visible()
    assert page.evaluate("history.length") == entries + 1
    page.go_back()
    expect(page.get_by_text(re.compile("^Context too long"))).to_be_visible()


def test_the_tab_keeps_its_name_and_the_page_its_width(server: str, open_page: OpenPage) -> None:
    page = open_page(server)

    def frame() -> tuple[str, str | None, bool]:
        width = page.locator("[data-testid=stMainBlockContainer]").bounding_box() or {"width": 0}
        return (
            page.title(),
            page.locator("link[rel='shortcut icon']").get_attribute("href"),
            width["width"] > 1000,
        )

    before = frame()
    assert (before[0], before[2]) == ("KV Planner", True)
    for length in ("16384", "32768", "40960"):
        slider(page, "max_model_len.slider").focus()
        page.keyboard.press("ArrowRight")
        wait_for_query(page, max_model_len=length)
        settled(page)
    assert frame() == before
    page.locator("[data-testid=stPageLink-NavLink]:visible", has_text="Learn").first.click()
    page.locator(".kv-lesson").first.wait_for()
    at_rest(page)
    assert frame() == before


def test_reload_restores_everything(server: str, open_page: OpenPage) -> None:
    page = open_page(server)
    slider(page, "max_model_len.slider").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    wait_for_query(page, max_model_len="32768")
    before, address = metrics(page), page.url
    page.reload()
    settled(page)
    assert metrics(page) == before
    assert page.url == address


def test_the_memory_bar_and_a_chart_are_saved_as_pictures(server: str, open_page: OpenPage) -> None:
    page = open_page(server + "/" + RULE_OF_THUMB, locale="zh-CN")
    page.get_by_text("启动与导出", exact=True).click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="显存条图片（SVG）").click()
    assert saved.value.suggested_filename == "kv-memory.svg"
    assert "KV 缓存 5.0 GiB" in Path(saved.value.path()).read_text()
    with page.expect_download() as drawn:
        page.get_by_role("button", name="曲线图片（SVG）").click()
    assert drawn.value.suggested_filename == "kv-curve.svg"
    assert "上下文长度（token）" in Path(drawn.value.path()).read_text()


FIRST_SIX = ("model_search", "accelerator_search", "tensor_parallel_size.slider", "dtype", "max_model_len.slider",
             "gpu_memory_utilization.slider")  # fmt: skip


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("card", ["RTX-4090-24GB", "V100-SXM2-32GB"])
def test_the_first_six_controls_need_no_scrolling(
    server: str, open_page: OpenPage, locale: str, card: str
) -> None:
    """The V100 has a line more: it has no bfloat16."""
    page = open_page(
        f"{server}/{WORKED.replace('RTX-4090-24GB', card)}", width=1280, height=720, locale=locale
    )
    below = 0.0
    for key in FIRST_SIX:
        box = page.locator(f".st-key-{key.replace('.', '-')}").first.bounding_box()
        assert box is not None
        assert below <= box["y"]
        below = box["y"] + box["height"]
        assert below <= 720


def test_the_worked_example_in_chinese_with_four_sliders(server: str, open_page: OpenPage) -> None:
    """From an empty page to the 163,840 tokens and 20 requests of the article, under its own assumptions."""
    page = open_page(server, locale="zh-CN")
    for key, typed, hit in (
        ("model", "qwen3 32b", "Qwen/Qwen3-32B"),
        ("accelerator", "4090", "RTX-4090-24GB"),
    ):
        page.locator(f".st-key-{key}_search input").fill(typed)
        page.locator(f"[class*='st-key-{key}_hit-{hit.replace('/', '-')}'] button").first.click()
        expect(page.locator(f".st-key-{key}_hits button")).to_have_count(0)
        settled(page)
    wait_for_query(page, accelerator="RTX-4090-24GB")
    for field, key, wanted in (
        ("tensor_parallel_size", "tensor_parallel_size.slider", "8"),
        ("dtype", "dtype", "float16"),
        ("max_model_len", "max_model_len.slider", "8192"),
        ("gpu_memory_utilization", "gpu_memory_utilization.slider", "0.75"),
    ):
        step_slider(page, field, key, wanted)
    predicted = int(metrics(page)["KV 缓存 token 数"].replace(",", ""))
    assert predicted > 200_000  # the article's own assumptions leave far less
    page.locator("[data-testid=stSidebar]").get_by_text("更多选项").click()
    for name, own in (
        ("accelerator.memory_gib", "24"),
        ("measured.weights_gib", "8"),
        ("measured.non_torch_gib", "5"),
        ("measured.peak_activation_gib", "0"),
        ("measured.cuda_graph_gib", "0"),
    ):
        field = page.locator(f".st-key-{name.replace('.', '-')} input")
        field.fill(own)
        field.press("Enter")
        wait_for_query(page, **{name: own})
    assert metrics(page) == {
        "并发请求数": "20", "KV 缓存 token 数": "163,840", "每 token KV": "32 KiB", "单请求最长长度": "40,960",
    }  # fmt: skip


def step_slider(page: Page, field: str, key: str, wanted: str) -> None:
    """Presses arrows on a slider until the link says the wanted value."""
    order = ("auto", "bfloat16", "float16", "float32")
    for _ in range(40):
        now = query(page).get(field)
        if now == wanted:
            return
        handle = slider(page, key)
        now = now or handle.get_attribute("aria-valuetext") or handle.get_attribute("aria-valuenow") or ""
        places = (order.index(now), order.index(wanted)) if wanted in order else (amount(now), amount(wanted))
        handle.focus()
        moved(page, "ArrowRight" if places[0] < places[1] else "ArrowLeft")
        settled(page)
    raise AssertionError(f"{field} never becomes {wanted}: {query(page)}")


def amount(text: str) -> float:
    """The number that a slider says: 8K is 8,192."""
    plain = text.replace(",", "")
    return float(plain.removesuffix("K")) * (1024 if plain.endswith("K") else 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_downwards(server: str, open_page: OpenPage, scheme: str) -> None:
    for address in (RULE_OF_THUMB, TOO_LONG):
        page = open_page(f"{server}/{address}", width=390, height=844, scheme=scheme)
        assert not scrolls_sideways(page)
        verdict = page.locator("[data-testid=stAlert]").first.bounding_box()
        assert verdict is not None
        assert verdict["y"] < 844 / 2  # in the upper half of the first screen


def test_verdict_bar_and_cards_stand_above_the_fold(server: str, open_page: OpenPage) -> None:
    page = open_page(server, width=1280, height=720)
    for card in page.locator("[data-testid=stMetric]").all():
        box = card.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 720


def test_dark_is_dark_and_its_text_is_light(server: str, open_page: OpenPage) -> None:
    page = open_page(server, scheme="dark")

    def lightness(selector: str, style: str) -> float:
        color = page.eval_on_selector(selector, f"e => getComputedStyle(e).{style}")
        return sum(float(part) for part in re.findall(r"[\d.]+", color)[:3]) / 3

    assert lightness("[data-testid=stApp]", "backgroundColor") < 60
    for selector in (".kv-legend li", ".kv-request dd", ".kv-axis", ".kv-note", ".kv-plot-x-title"):
        assert lightness(selector, "color") > 180


def test_chinese_from_the_browser_and_switching_keeps_the_selection(server: str, open_page: OpenPage) -> None:
    page = open_page(server + "/" + RULE_OF_THUMB, locale="zh-CN")
    expect(page.get_by_text(re.compile("^可以部署："))).to_be_visible()
    page.wait_for_function("document.documentElement.lang === 'zh-CN'")
    values = list(metrics(page).values())
    page.locator("[data-testid=stSidebar]").get_by_text("English", exact=True).click()
    wait_for_query(page, lang="en", tensor_parallel_size="8")
    expect(page.get_by_text(re.compile("^Fits: "))).to_be_visible()
    page.wait_for_function("document.documentElement.lang === 'en'")
    assert list(metrics(page).values()) == values


def test_charts_are_named_for_those_who_do_not_see_them(server: str, open_page: OpenPage) -> None:
    page = open_page(server + "/" + TOO_LONG)
    expect(page.get_by_role("img", name=re.compile("^Memory of one GPU: Context too long"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Requests that fit at once"))).to_be_visible()


def test_other_ways_are_filled_when_opened_by_key_and_stay_open(server: str, open_page: OpenPage) -> None:
    page = open_page(server)
    settled(page)
    field = page.get_by_role("textbox", name="Model id on the Hugging Face Hub")
    assert page.get_by_test_id("stSelectbox").count() == 0
    page.get_by_role("button", name="Another model").focus()
    page.keyboard.press("Enter")
    expect(field).to_be_visible()
    page.keyboard.press("Escape")
    expect(field).not_to_be_visible()
    page.get_by_role("button", name="Paste a command").focus()
    page.keyboard.press("Enter")
    area = page.get_by_role("textbox", name="Command, docker run, Compose, Kubernetes or YAML")
    area.focus()
    page.keyboard.type("hello")
    page.get_by_role("button", name="Use this command").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile("^No vLLM command found in this text"))).to_be_visible()
    expect(area).to_have_value("hello")
    page.keyboard.press("Escape")
    expect(area).not_to_be_visible()
    settled(page)
    page.get_by_role("button", name="Paste a command").press("Enter")
    expect(area).to_have_value("hello")


def test_the_curve_says_its_figures_under_the_pointer(server: str, open_page: OpenPage) -> None:
    page = open_page(server + "/" + RULE_OF_THUMB)
    settled(page)
    place = page.locator('.kv-pointed[data-said^="4,096 tokens"]')
    place.hover()
    said = place.evaluate("place => getComputedStyle(place, '::after').content")
    assert "TP 8: 40" in said
    assert place.evaluate("place => getComputedStyle(place.nextElementSibling, '::after').content") == "none"


def test_the_curve_is_as_wide_as_its_column(server: str, open_page: OpenPage) -> None:
    page = open_page(server + "/" + RULE_OF_THUMB)
    settled(page)
    fits = """() => {
        const drawn = document.querySelector('.kv-plot')?.getBoundingClientRect().width;
        const room = document.querySelector('.kv-plot')?.closest('.stColumn').getBoundingClientRect().width;
        return Math.abs(drawn - room) < 2 && room;
    }"""
    wide = page.wait_for_function(fits).json_value()
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function(f"() => {{ const room = ({fits})(); return room && room < {wide}; }}")


def test_nothing_is_asked_of_other_hosts(server: str, browser: Browser) -> None:
    context = browser.new_context()
    hosts: set[str] = set()
    context.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or ""))
    page = context.new_page()
    page.goto(server)
    settled(page)
    context.close()
    assert hosts <= {"127.0.0.1", ""}


def test_a_figure_of_ones_own_is_emptied_by_hand(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/{WORKED}&measured.weights_gib=8&max_num_seqs=64")
    before = metrics(page)["Requests at once"]
    page.locator("[data-testid=stSidebar]").get_by_text("More options").click()
    for name in ("measured.weights_gib", "max_num_seqs"):
        field = page.locator(f".st-key-{name.replace('.', '-')} input")
        expect(field).to_have_value(query(page)[name])
        field.fill("")
        field.press("Enter")
        page.wait_for_function("name => !new URLSearchParams(location.search).has(name)", arg=name)
        settled(page)
        expect(field).to_have_value("")
    assert metrics(page)["Requests at once"] != before
    page.reload()
    settled(page)
    assert not {"measured.weights_gib", "max_num_seqs"} & set(query(page))
