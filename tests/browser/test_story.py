"""The five-minute story: where can it run, which of two, mend it, copy the flags, fit it to real requests, share it."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, metrics, settled
from tests.browser.test_explore_compare import address, go, query

pytestmark = pytest.mark.browser

MODEL = "v=1&model=Qwen/Qwen3-235B-A22B&max_model_len=32768"
FP8_ON_4_H200 = f"{MODEL}&accelerator=H200-141GB&tensor_parallel_size=4&quantization=fp8"
REQUESTS = "".join(
    json.dumps({"usage": {"prompt_tokens": 800 + n % 401, "completion_tokens": 90}, "max_tokens": 512}) + "\n"
    for n in range(4010)
)


def wait_for_parameter(page: Page, name: str, value: str) -> None:
    page.wait_for_function(
        "([name, value]) => new URLSearchParams(location.search).get(name) === value", arg=[name, value]
    )
    settled(page)


def test_from_the_question_to_a_shared_plan(server: str, open_page: OpenPage) -> None:
    page = open_page(f"{server}/?{FP8_ON_4_H200}")
    go(page, "Explore")
    wanted = page.get_by_test_id("stMain").get_by_label("Requests at once wanted")
    wanted.fill("20")
    wanted.press("Enter")
    expect(page.get_by_text("Smallest for 20 requests of 32,768 tokens")).to_be_visible()

    go(page, "Compare")
    page.get_by_role("button", name="Pin this scenario").click()
    page.wait_for_function("() => new URLSearchParams(location.search).has('pin.1')")
    go(page, "Plan")
    settled(page)
    pinned = query(page)["pin.1"]
    assert "H200" in pinned

    bf16 = (
        address(page)
        .replace("accelerator=H200-141GB", "accelerator=H100-80GB", 1)
        .replace("quantization=fp8&", "", 1)
    )
    bf16 = bf16.replace("&quantization=fp8", "", 1).replace(
        "tensor_parallel_size=4", "tensor_parallel_size=8", 1
    )
    assert "&wanted=20" in bf16
    short = open_page(bf16)
    expect(short.get_by_text("of 20 requests of 32,768 tokens at once").first).to_be_visible()
    bf16 = bf16.replace("&wanted=20", "", 1)
    compared = open_page(bf16)
    go(compared, "Compare")
    bars = compared.locator(".kv-pins .kv-bar-name")
    expect(bars).to_have_count(2)

    broken = open_page(bf16.replace("tensor_parallel_size=8", "tensor_parallel_size=4", 1))
    expect(broken.get_by_text("Does not fit").first).to_be_visible()
    broken.locator(".st-key-fixes").get_by_role("button", name="Tensor parallel size 8").click()
    wait_for_parameter(broken, "tensor_parallel_size", "8")
    expect(broken.get_by_text("Fits:").first).to_be_visible()

    broken.get_by_test_id("stMain").get_by_role("button", name="Command", exact=True).click()
    command = broken.locator("[data-testid=stCode]", has_text="vllm serve")
    expect(command.first).to_contain_text("--tensor-parallel-size 8")
    expect(broken.get_by_role("link", name="Then go live")).to_be_visible()

    broken.keyboard.press("Escape")
    go(broken, "Workload")
    broken.locator("[data-testid=stMain] input[type=file]").first.set_input_files(
        {"name": "requests.jsonl", "mimeType": "application/json", "buffer": REQUESTS.encode()}
    )
    expect(broken.get_by_text("99 % of the requests need 1,708 tokens").first).to_be_visible()
    broken.get_by_role("button", name="Use 1,792").click()
    broken.wait_for_function("() => new URLSearchParams(location.search).get('max_model_len') === '1792'")
    go(broken, "Plan")
    settled(broken)
    broken.wait_for_function(
        """() => {
            const marks = [...document.querySelectorAll('.kv-plot .kv-triangle')];
            return marks.length === 3 && marks.at(-1).textContent === 'P99';
        }"""
    )

    fresh = open_page(address(broken))
    assert metrics(fresh) == metrics(broken)
    assert query(fresh)["max_model_len"] == "1792"
