"""What an Ascend person asks, in Chinese from an empty page: how many cards serve DeepSeek-V4, and which command."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, at_rest, metrics, settled

pytestmark = pytest.mark.browser

MILLION = "1048576"
PATIENCE_SECONDS = 120
PARSERS = {
    row["release"]: frozenset(row["flags"])
    for row in map(json.loads, Path("tests/data/serve_flags.jsonl").read_text("utf-8").splitlines())
}
CARD = "Ascend 910B4 32GB"
FEWEST = re.compile(r"最少需要 (\d+) 张（.*），TP (\d+)( × DP (\d+))?, EP")


def choose(page: Page, kind: str, field: str, words: str, name: str) -> None:
    """Types into a search field of the sidebar and takes what it finds."""
    page.get_by_test_id("stSidebar").get_by_label(field, exact=True).fill(words)
    page.locator(f".st-key-{kind}_hits").get_by_role("button", name=name).first.click()
    at_rest(page)


def ask_for_a_million(page: Page, model: str, words: str, typed: str, card: str) -> None:
    choose(page, "model", "模型", words, model)
    choose(page, "accelerator", "加速卡", typed, card)
    length = page.get_by_test_id("stSidebar").get_by_label("上下文长度（token）", exact=True)
    length.fill(MILLION)
    length.press("Enter")
    at_rest(page)


def explore(page: Page) -> None:
    page.get_by_test_id("stMain").get_by_role("link", name="选型", exact=True).click()
    at_rest(page)
    wanted = page.get_by_test_id("stMain").get_by_label("目标并发请求数")
    wanted.fill("1")
    wanted.press("Enter")
    at_rest(page)


def test_how_many_cards_serve_deepseek_v4_at_a_million(server: str, open_page: OpenPage) -> None:
    page = open_page(server, locale="zh-CN")
    started = time.monotonic()
    ask_for_a_million(page, "DeepSeek-V4-Flash", "deepseek v4 flash", "910B4", CARD)
    sidebar = page.get_by_test_id("stSidebar")
    expect(sidebar.get_by_text("数据并行数（DP）", exact=True)).to_be_visible()
    expect(sidebar.get_by_text("专家并行", exact=False).first).to_be_visible()
    explore(page)
    answer = page.get_by_text(FEWEST)
    expect(answer).to_be_visible()
    found = FEWEST.search(answer.inner_text())
    assert found is not None
    cards, size, replicas = int(found[1]), int(found[2]), int(found[4] or 1)
    assert cards == size * replicas

    page.locator(".st-key-machines\\.take button, [class*='st-key-machines-take'] button").first.click()
    page.wait_for_function("() => location.pathname === '/'")
    page.locator(".kv-memory-bar").wait_for()
    settled(page)
    assert float(next(iter(metrics(page).values())).replace(",", "")) >= 1

    page.get_by_text("启动与导出", exact=True).click()
    command = page.locator("[data-testid=stCode]", has_text="vllm serve").first
    expect(command).to_contain_text(f"--tensor-parallel-size {size}" if size > 1 else "--max-model-len")
    assert time.monotonic() - started < PATIENCE_SECONDS
    text = command.inner_text().replace("\\\n", " ")
    starts = [shlex.split(line) for line in text.splitlines() if line.startswith("vllm ")]
    assert starts
    release = max(PARSERS, key=lambda version: tuple(map(int, version.split("."))))
    for words in starts:
        flags = {word for word in words if word.startswith("--")}
        assert {"--max-model-len", "--enable-expert-parallel"} <= flags <= PARSERS[release]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_the_answer_does_not_scroll_sideways(
    server: str, open_page: OpenPage, scheme: str
) -> None:
    link = f"v=1&model=deepseek-ai/DeepSeek-V4-Pro&accelerator=Ascend-910B4-32GB&max_model_len={MILLION}"
    # Plan refuses the checkpoint as published, so there are no cards and no bar to wait for.
    page = open_page(f"{server}/?{link}", wait=at_rest, width=390, height=844, locale="zh-CN", scheme=scheme)
    page.get_by_test_id("stMain").get_by_role("link", name="选型", exact=True).click()
    at_rest(page)
    page.get_by_text("专家分摊到各副本时").click()
    page.get_by_text("数据并行副本把专家分摊到所有卡上").wait_for()
    at_rest(page)
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_from_the_story_of_the_pre_run_to_a_start_that_fits(server: str, open_page: OpenPage) -> None:
    """The tuning guide for Ascend: 64 × 0.9 − 50 = 7.6, 28.9 − 7.6 = 21.3, 57.6 − 21.3 = 36.3 GB."""
    story = "reference?v=1&section=stories&story=ascend-tuning"
    settings = open_page(f"{server}/{story}&story_step=2", wait=at_rest, locale="zh-CN")
    settings.get_by_test_id("stMain").get_by_role("link", name="在“容量规划”页打开此方案").click()
    settings.wait_for_function("() => location.pathname === '/'")
    expect(settings.get_by_text("无法部署：权重大于分给模型的显存").first).to_be_visible()
    expect(settings.get_by_text("还差 14.9 GiB").first).to_be_visible()

    page = open_page(f"{server}/{story}&story_step=3", wait=at_rest, locale="zh-CN")
    page.get_by_test_id("stMain").get_by_role("link", name="在“核对”页打开此方案").click()
    page.wait_for_function("() => new URLSearchParams(location.search).get('check') === 'pre-run'")
    example = page.get_by_role("button", name="指南中的例子")
    expect(example).to_be_visible()
    request = page.locator("[data-testid=stCode]", has_text="/v1/completions").first
    expect(request).to_contain_text("* 16383 for n in range(1)")
    example.click()
    for sum_by_hand in ("64 × 0.9 − 50 = 7.6", "28.9 − 7.6 = 21.3", "57.6 − 21.3 = 36.3"):
        expect(page.get_by_text(sum_by_hand).first).to_be_visible()
    page.get_by_role("button", name="使用此方案").click()
    page.wait_for_function(
        "() => new URLSearchParams(location.search).get('env.vLLM_MODEL_MEMORY_USE_GB') === '22'"
    )
    at_rest(page)
    page.get_by_test_id("stMain").get_by_role("link", name="容量规划", exact=True).click()
    page.wait_for_function("() => location.pathname === '/'")
    page.locator(".kv-memory-bar").wait_for()
    settled(page)
    expect(page.get_by_text("可以部署：").first).to_be_visible()
    page.get_by_text("启动与导出", exact=True).click()
    command = page.locator("[data-testid=stCode]", has_text="vllm-mindspore serve").first
    expect(command).to_contain_text("Qwen/Qwen3-8B")
    expect(command).to_contain_text("--max-num-seqs 15")
    expect(command).to_contain_text("vLLM_MODEL_MEMORY_USE_GB=22")
