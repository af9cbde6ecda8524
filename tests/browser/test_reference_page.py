"""The Reference page in Chromium: effects unfold, nothing overflows, the example loads, the report stands alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kvcore.base.words import Language, words
from kvcore.charts.stories import steps_of
from kvcore.texts import Source
from tests.browser.conftest import OpenPage, at_rest, metrics, moved, settled

pytestmark = pytest.mark.browser

QUERY = "v=1&model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=8192"


def go(page: Page) -> None:
    page.get_by_test_id("stMain").get_by_role("link", name="Reference", exact=True).click()
    page.locator("details.kv-parameter").first.wait_for()
    at_rest(page)


def test_a_parameter_unfolds_to_its_effect_here(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/?{QUERY}")
    go(page)
    length = page.locator("details.kv-parameter", has_text="--max-model-len").first
    expect(length.locator(".kv-bars")).to_be_hidden()
    length.locator("summary").click()
    now = length.locator("tr.kv-now")
    expect(now).to_contain_text("8,192 (now)")
    widths = length.locator(".kv-bar span").evaluate_all(
        "bars => bars.map(bar => bar.getBoundingClientRect().width)"
    )
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.05)  # 2,048 tokens against 4,096


def test_nothing_is_wider_than_a_phone(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/?{QUERY}", width=390, height=844)
    go(page)
    page.locator("details.kv-parameter").evaluate_all("all => all.forEach(one => { one.open = true; })")
    wide = page.locator("details.kv-parameter").evaluate_all(
        "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText.slice(0, 60))"
    )
    assert wide == []


def test_the_worked_example_goes_to_plan(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/?{QUERY}")
    go(page)
    page.get_by_role("button", name="Load Qwen3-32B").click()
    page.wait_for_function("() => location.pathname === '/'")
    settled(page)
    assert metrics(page)["KV cache tokens"] == "163,840"


def test_the_report_opens_without_the_app(server: str, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(f"{server}/?{QUERY}")
    settled(page)
    page.get_by_text("Launch and export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Printable report").click()
    target = tmp_path / "plan.html"
    download.value.save_as(target)
    asked: list[str] = []
    report = page.context.new_page()
    report.on("request", lambda request: asked.append(request.url))
    report.goto(target.as_uri())
    expect(report.locator("h1")).to_have_text("Qwen/Qwen3-32B")
    assert asked == [target.as_uri()]
    assert report.locator("svg polyline").count() == 1
    shown = page.get_by_test_id("stMetricValue").first.inner_text()
    expect(report.locator(".cards b").first).to_have_text(shown)


def test_a_story_is_walked_with_the_arrow_keys_in_chinese(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/reference?lang=zh&section=stories&story=ascend-tuning", wait=at_rest)
    titles = [step.title for step in steps_of(Source.ASCEND_TUNING)]
    zh = words(Language.CHINESE)
    for number, title in enumerate(titles, 1):
        expect(page.get_by_role("heading", name=f"{number} · {zh(title)}")).to_be_visible()
        at_rest(page)
        if number < len(titles):
            moved(page, "ArrowRight")
    page.keyboard.press("ArrowRight")
    at_rest(page)
    expect(page.get_by_role("heading", name=zh(titles[-1]))).to_be_visible()
    moved(page, "ArrowLeft")
    expect(page.get_by_role("heading", name=zh(titles[-2]))).to_be_visible()
    page.wait_for_function("step => location.search.includes(`story_step=${step}`)", arg=len(titles) - 1)


def test_no_step_of_a_story_is_wider_than_a_phone(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/reference?section=stories&story_step=4", wait=at_rest, width=390, height=844)
    page.locator(".kv-story").wait_for()
    wide = "one => one.scrollWidth > one.clientWidth + 1"
    assert page.locator(".kv-story").evaluate(wide) is False
    assert page.locator("[data-testid=stMain]").evaluate(wide) is False


def test_the_start_of_a_step_opens_on_plan(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/reference?section=stories&story_step=4", wait=at_rest)
    page.get_by_role("link", name="Open this start on the Plan page").click()
    page.wait_for_function("() => location.pathname === '/'")
    settled(page)
    assert metrics(page)["KV cache tokens"] == "163,840"
    assert "story_step=4" in page.url
