"""The Check page as a person meets it: paste, compare, calibrate, share; upload; phone, dark, Chinese."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, at_rest, metrics, until

pytestmark = pytest.mark.browser

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
PASTE = re.compile("Paste a start-up log|粘贴 vLLM")


def follow(page: Page, name: str) -> None:
    page.locator("[data-testid=stPageLink-NavLink]:visible", has_text=name).first.click()


def go_to_check(page: Page) -> Page:
    follow(page, "Check")
    page.get_by_label(PASTE).wait_for()
    return page


def paste(page: Page, text: str) -> None:
    field = page.get_by_label(PASTE)
    field.fill(text)
    field.press("Control+Enter")
    at_rest(page)


def query(page: Page) -> str:
    return urlsplit(page.url).query


def test_paste_compare_calibrate_share(server: str, open_page: OpenPage) -> None:
    page = go_to_check(open_page(server))
    paste(page, (LOGS / "v1_0.10.2_h100.log").read_text("utf-8"))
    page.locator(".kv-comparison-bar").wait_for()
    table = page.locator(".kv-table table").last
    expect(table).to_contain_text("56.93")
    expect(table).to_contain_text("8.68")

    page.get_by_role("button", name="Plan with these measurements").click()
    page.wait_for_function("location.search.includes('measured.weights_gib=56.9342')")
    at_rest(page)
    expect(page.get_by_text("Measured: System, Framework, Weights").first).to_be_visible()
    follow(page, "Plan")
    page.locator("[data-testid=stMetric]").nth(3).wait_for()
    at_rest(page)
    here = metrics(page)
    assert here["KV cache tokens"] == "94,800"

    shared = open_page(f"{server}/?{query(page)}")
    assert metrics(shared) == here
    expect(shared.get_by_text("Measured: System, Framework, Weights").first).to_be_visible()
    shared.get_by_role("button", name="Back to the estimate").click()
    shared.wait_for_function("!location.search.includes('measured.')")
    at_rest(shared)
    assert metrics(shared) != here


def test_one_back_takes_the_measurements_off(server: str, open_page: OpenPage) -> None:
    page = go_to_check(open_page(server))
    before = parse_qs(query(page))
    page.get_by_role("button", name="A start on two H100").click()
    page.get_by_role("button", name="Plan with these measurements").click()
    page.wait_for_function("location.search.includes('measured.')")
    at_rest(page)
    page.go_back()
    page.wait_for_function("!location.search.includes('measured.')")
    assert parse_qs(query(page)) == before
    expect(page.get_by_text("Predicted and measured").first).to_be_visible()


def test_upload_of_a_large_log_and_of_a_binary(server: str, open_page: OpenPage) -> None:
    page = go_to_check(open_page(server))
    noise = (
        b"INFO 10-05 18:31:40 [loader.py:1] nothing of interest, only some text to fill the file\n" * 40_000
    )
    log = noise + (LOGS / "v1_0.9.2_a100.log").read_bytes()
    chooser = page.locator("[data-testid=stMain] input[type=file]").first
    chooser.set_input_files({"name": "server.log", "mimeType": "text/plain", "buffer": log})
    expect(page.get_by_text("figures found")).to_be_visible()
    at_rest(page)  # the field with its upload has moved below the result
    chooser.set_input_files({"name": "core.log", "mimeType": "text/plain", "buffer": bytes(range(256)) * 64})
    expect(page.get_by_text("This log cannot be read")).to_be_visible()
    expect(page.get_by_text("core.log").last).to_be_visible()


HOLD_UPLOADS = """() => {
  const send = XMLHttpRequest.prototype.send;
  window.__held = [];
  XMLHttpRequest.prototype.send = function (body) {
    if (body instanceof FormData) window.__held.push(() => send.call(this, body));
    else send.call(this, body);
  };
}"""
"""Keeps what is sent up until the test lets it go, as a slow line does."""


def test_the_next_file_arrives_on_a_slow_line(server: str, open_page: OpenPage) -> None:
    page = go_to_check(open_page(server))
    chooser = page.locator("[data-testid=stMain] input[type=file]").first
    chooser.set_input_files(LOGS / "v1_0.9.2_a100.log")
    expect(page.get_by_text("figures found")).to_be_visible()
    at_rest(page)
    page.evaluate(HOLD_UPLOADS)
    chooser.set_input_files(LOGS / "v1_0.10.2_h100.log")
    until(page, "() => window.__held.length")
    at_rest(page)  # a run that knows of no file: the one before was taken away
    page.evaluate("window.__held[0]()")
    expect(page.locator(".st-key-check-source")).to_contain_text("v1_0.10.2_h100.log")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_down(server: str, open_page: OpenPage, scheme: str) -> None:
    page = open_page(server, width=390, height=844, scheme=scheme, locale="zh-CN")
    page.goto(f"{server}/check")
    at_rest(page)
    page.get_by_role("button", name="两张 H100 上的一次启动").click()
    expect(page.get_by_text("预测与实测").first).to_be_visible()
    at_rest(page)
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_accuracy_page_draws_every_start(server: str, open_page: OpenPage) -> None:
    page = open_page(server)
    follow(page, "Accuracy")
    page.get_by_text("How far off is it?").wait_for()
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    at_rest(page)
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .point').length > 50")
