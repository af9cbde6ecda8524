"""Explore and Compare as a person meets them: a cell to Plan, a row to Plan, pins in a fresh browser, a phone."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, at_rest, metrics, settled

pytestmark = pytest.mark.browser

STORY = "v=1&model=Qwen/Qwen3-235B-A22B&accelerator=H100-80GB&tensor_parallel_size=8&max_model_len=32768"


def address(page: Page) -> str:
    """Where the browser stands, changes by the page's own script included."""
    return page.evaluate("location.href")


def on_plan(page: Page) -> None:
    page.wait_for_function("() => location.pathname === '/'")
    page.locator(".kv-memory-bar").wait_for()  # what Explore drew may still stand until then
    settled(page)


def query(page: Page) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlsplit(address(page)).query).items()}


def go(page: Page, name: str) -> None:
    at_rest(page)  # the links follow the address
    page.get_by_test_id("stMain").get_by_role("link", name=name, exact=True).click()
    at_rest(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_charts_are_not_of_streamlit_s_light_grey(
    server: str, open_page: OpenPage, scheme: str
) -> None:
    """Axe does not judge what Plotly draws; tests/test_charts.py has the contrast of what stands in its place."""
    page = open_page(f"{server}/explore?{STORY}", scheme=scheme, wait=at_rest)
    page.locator(".js-plotly-plot .textpoint text").first.wait_for()
    fills = "texts => [...new Set(texts.map(text => getComputedStyle(text).fill))].sort()"
    shown = page.locator(".js-plotly-plot :is(.textpoint, .ytick, .annotation-text-g) text").evaluate_all(
        fills
    )
    assert shown == ["rgb(74, 81, 92)" if scheme == "light" else "rgb(230, 234, 241)"]


def test_a_cell_goes_to_plan_and_the_numbers_agree(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/?{STORY}")
    go(page, "Explore")
    chart = page.locator(".st-key-explore_matrix .js-plotly-plot")
    chart.wait_for()
    cell = chart.evaluate(
        """plot => { const trace = plot.data.find(one => one.meta === 'met' && one.customdata[0][1] === 8);
        return {card: trace.customdata[0][0], text: trace.text[0]}; }"""
    )
    text = chart.locator(".bartext", has_text=cell["text"]).first
    text.scroll_into_view_if_needed()
    box = text.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    on_plan(page)
    assert query(page)["accelerator"] == cell["card"]
    planned = float(metrics(page)["Requests at once"].replace(",", ""))
    shown = float(cell["text"].replace(",", ""))
    assert 0 <= planned - shown < (1 if shown >= 10 else 0.01)
    page.get_by_role("button", name="Undo the last change").click()
    page.wait_for_function("() => new URLSearchParams(location.search).get('accelerator') === 'H100-80GB'")


def test_the_smallest_deployment_for_twenty_requests(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/?{STORY}")
    go(page, "Explore")
    field = page.get_by_test_id("stMain").get_by_label("Requests at once wanted")
    field.fill("20")
    field.press("Enter")
    expect(page.get_by_text("Smallest for 20 requests of 32,768 tokens")).to_be_visible()
    page.locator(".st-key-explore_answer button").last.click()
    on_plan(page)
    assert float(metrics(page)["Requests at once"]) >= 20


def test_pins_open_in_a_fresh_browser(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/?{STORY}")
    go(page, "Compare")
    page.get_by_role("button", name="Pin this scenario").click()
    page.wait_for_function("() => new URLSearchParams(location.search).has('pin.1')")
    go(page, "Plan")
    on_plan(page)
    assert "pin.1" in query(page)
    link = address(page).replace("accelerator=H100-80GB", "accelerator=H200-141GB", 1)
    other = open_page(link)
    go(other, "Compare")
    bars = other.locator(".kv-pins .kv-bar-name")
    expect(bars).to_have_count(2)


@pytest.mark.parametrize("name", ["Explore", "Compare"])
def test_a_phone_does_not_scroll_sideways(server: str, open_page: OpenPage, name: str) -> None:
    page = open_page(f"{server}/?{STORY}", width=390, height=844)
    go(page, name)
    page.locator(".js-plotly-plot .main-svg, .kv-stack").first.wait_for()
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
