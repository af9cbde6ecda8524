"""Which engine holds more of Qwen3-235B on four H100, and why; its command, and the log of its start."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from kvcore.base.words import Language, words
from tests.browser.conftest import OpenPage, at_rest, settled, until

pytestmark = pytest.mark.browser

ASKED = "model=Qwen/Qwen3-235B-A22B-FP8&accelerator=H100-80GB&tensor_parallel_size=4&max_model_len=32768"
LOG = """
[2026-08-22 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-235B-A22B-FP8', tokenizer_path='Qwen/Qwen3-235B-A22B-FP8', dtype='auto', kv_cache_dtype='auto', context_length=32768, mem_fraction_static=0.93, max_running_requests=None, chunked_prefill_size=8192, tp_size=4, attention_backend='fa3')
[2026-08-22 10:00:20] Load weight begin. avail mem=77.80 GB
[2026-08-22 10:01:29] Load weight end. elapsed=68.86 s, type=Qwen3MoeForCausalLM, avail mem=21.91 GB, mem usage=55.89 GB.
[2026-08-22 10:01:29] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB
[2026-08-22 10:01:29] Memory pool end. avail mem=4.90 GB
[2026-08-22 10:01:41] max_total_num_tokens=367404, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=32768, available_gpu_mem=3.10 GB
"""  # noqa: E501
WORDS = {
    "en-US": (
        "sglang: 0.819 of what is free before",
        "Plan",
        "Command",
        "Check",
        "Paste a start-up log",
        Language.ENGLISH,
    ),
    "zh-CN": ("sglang：加载权重前空闲显存的", "容量规划", "命令", "核对", "粘贴 vLLM", Language.CHINESE),
}


def follow(page: Page, name: str) -> None:
    page.locator("[data-testid=stPageLink-NavLink]:visible", has_text=name).first.click()
    at_rest(page)


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_the_same_gpus_and_two_budgets(server: str, open_page: OpenPage, locale: str) -> None:
    why, plan, command, check, pasting, language = WORDS[locale]
    page = open_page(f"{server}/compare?{ASKED}&vary=engine", locale=locale, wait=at_rest)
    expect(page.get_by_text(why)).to_be_visible()
    page.locator("[class*='st-key-use_buttons'] button").last.click()
    page.wait_for_function("location.search.includes('engine=sglang')")
    at_rest(page)
    follow(page, plan)
    settled(page)
    expect(
        page.get_by_test_id("stSidebar").get_by_text(re.compile("Static memory fraction|静态显存比例")).first
    ).to_be_visible()
    page.get_by_role("button", name=command, exact=False).last.click()
    code = page.locator("code", has_text="sglang.launch_server").first
    expect(code).to_be_visible()
    expect(code).to_contain_text("--tp-size 4")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown = page.get_by_test_id("stCode").filter(has_text="sglang.launch_server").first
    shown.hover()
    shown.get_by_role("button").click()
    until(page, "async () => (await navigator.clipboard.readText()).includes('--tp-size 4')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("python")
    assert "Qwen/Qwen3-235B-A22B-FP8" in copied

    page.keyboard.press("Escape")
    at_rest(page)
    follow(page, check)
    page.wait_for_function("location.pathname.includes('check')")
    field = page.get_by_label(re.compile(pasting))
    field.fill(LOG)
    field.press("Control+Enter")
    at_rest(page)
    main = page.get_by_test_id("stMain")
    expect(main.get_by_test_id("stAlert").first).to_contain_text("367,404")
    expect(main.locator(".kv-comparison-bar").first).to_be_visible()
    expect(main.get_by_text(words(language)("This part of the page failed"))).to_have_count(0)
    main.locator("summary").filter(has_text=re.compile("figures found|个数值")).first.click()
    expect(main.get_by_role("cell", name=words(language)("Free after the weights"))).to_be_visible()
