"""The Workload page as a person meets it: sample, sentence, Use, Plan, Undo, link; a large upload; phone, dark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, at_rest, metrics, settled, until
from tests.browser.test_check_page import follow

pytestmark = pytest.mark.browser

SAMPLE = Path(__file__).resolve().parents[2] / "pages" / "ui" / "samples" / "requests.jsonl"
REPLAYED = {"KV use at most", "Running on average", "Preemptions", "Prefix hit rate"}
TRACE = b"".join(
    json.dumps(
        {"timestamp": at * 250, "input_length": 520 + 8 * (at % 60), "output_length": 40 + at % 90,
         "hash_ids": [0, 1 + at]}
    ).encode() + b"\n"
    for at in range(300)
)  # fmt: skip
"""As Mooncake's: 300 requests, four a second, that share their first 512 tokens."""
SENTENCE = re.compile(r"99 % of the requests need 1,690 tokens")


def go_to_workload(page: Page) -> Page:
    follow(page, "Workload")
    page.get_by_text("Which context length do your requests need?", exact=True).wait_for()
    at_rest(page)
    return page


def to_plan(page: Page) -> None:
    follow(page, "Plan")
    page.wait_for_function("document.querySelectorAll('[data-testid=stMetric]').length === 4")
    settled(page)


def query(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_sample_sentence_use_plan_undo_link(server: str, open_page: OpenPage) -> None:
    page = go_to_workload(open_page(server))
    page.get_by_role("button", name="Customer service").click()
    expect(page.get_by_text(SENTENCE).first).to_be_visible()
    expect(page.get_by_text("your 8,192 fits").first).to_be_visible()
    page.locator(".st-key-workload_histogram .main-svg").first.wait_for()

    page.get_by_role("button", name="Use 1,792").click()
    page.wait_for_function("location.search.includes('max_model_len=1792')")
    at_rest(page)
    expect(page.get_by_text("your 1,792 is right").first).to_be_visible()

    to_plan(page)
    expect(page.get_by_text("1,792 tokens · utilization").first).to_be_visible()
    page.get_by_role("button", name="Undo the last change").click()
    page.wait_for_function("location.search.includes('max_model_len=8192')")
    expect(page.get_by_text("8,192 tokens · utilization").first).to_be_visible()
    at_rest(page)
    before = metrics(page)

    go_to_workload(page)
    expect(page.get_by_text("599 requests").first).to_be_visible()
    shared = open_page_at_rest(open_page, page.url, server)
    expect(shared.get_by_text(SENTENCE).first).to_be_visible()
    expect(shared.get_by_text("Lengths from a link: 599 requests").first).to_be_visible()
    assert query(shared)["traffic"] == query(page)["traffic"]
    to_plan(shared)
    assert metrics(shared) == before


def drop(page: Page, name: str, content: bytes) -> None:
    """A log dropped on the page."""
    page.locator("[data-testid=stMain] input[type=file]").first.set_input_files(
        {"name": name, "mimeType": "application/json", "buffer": content}
    )


def test_the_post_mortems_log_gives_one_length_on_page_and_command_line(
    server: str, open_page: OpenPage
) -> None:
    """In Chinese, from a dropped log: P99 of the prompts 1,178 and max_tokens 512 in each line, 1,690."""
    start = (
        "model=meta-llama/Llama-2-70b-chat-hf&accelerator=A100-80GB&tensor_parallel_size=4&max_model_len=2048"
    )
    page = open_page(f"{server}/workload?lang=zh&{start}", wait=at_rest)
    drop(page, SAMPLE.name, SAMPLE.read_bytes())
    expect(page.get_by_text("99% 的请求不超过 1,690 token").first).to_be_visible()
    expect(page.get_by_text("未写明 max_tokens")).to_have_count(0)
    printed = subprocess.run(
        [sys.executable, "-m", "kvcore", "workload", str(SAMPLE)], capture_output=True, text=True, check=True
    )
    assert "--max-model-len 1690 " in printed.stdout
    assert "rounds it up to 1792" in printed.stdout
    page.get_by_role("button", name="改用 1,792").click()
    page.wait_for_function("location.search.includes('max_model_len=1792')")
    at_rest(page)


def test_lines_without_max_tokens_are_said(server: str, open_page: OpenPage) -> None:
    """Every second line of the log states none: what counts in its place is said, in Chinese too."""
    records = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines() if line.endswith("}")]
    half = [record if at % 2 else {**record, "max_tokens": None} for at, record in enumerate(records)]
    page = open_page(f"{server}/workload?lang=zh", wait=at_rest)
    drop(page, "half.jsonl", "".join(json.dumps(record) + "\n" for record in half).encode())
    missing, every = (len(records) + 1) // 2, len(records)
    expect(page.get_by_text(f"未写明 max_tokens 的请求：{every} 条中有 {missing} 条")).to_be_visible()


def replayed_cards(page: Page) -> dict[str, str]:
    """The figures of the last replay."""
    page.locator(".st-key-workload_replay .main-svg").first.wait_for()
    at_rest(page)
    return {
        name: value for name, value in metrics(page).items() if name in REPLAYED or name.endswith(", P95")
    }


def test_a_dropped_trace_is_taken_replayed_and_shared(server: str, open_page: OpenPage) -> None:
    """A trace as a log, its length taken, the Plan with it, the replay at its times; the link has the lengths alone."""
    page = go_to_workload(open_page(server))
    page.locator("[data-testid=stMain] input[type=file]").first.set_input_files(
        {"name": "trace.jsonl", "mimeType": "text/plain", "buffer": TRACE}
    )
    expect(page.get_by_text("trace.jsonl: 300 requests", exact=True)).to_be_visible()
    at_rest(page)
    to_plan(page)
    before = metrics(page)
    go_to_workload(page)
    page.get_by_role("button", name=re.compile("^Use [0-9,]+$")).first.click()
    until(
        page,
        "() => !location.search.includes('max_model_len=8192') && location.search.includes('max_model_len=')",
    )
    at_rest(page)
    to_plan(page)
    after = metrics(page)
    assert after["Requests at once"] != before["Requests at once"]

    go_to_workload(page)
    page.get_by_role("button", name="Replay", exact=True).click()
    shown = replayed_cards(page)
    assert set(shown) == REPLAYED
    assert shown["Prefix hit rate"].endswith("%")
    shared = open_page_at_rest(open_page, page.url, server)
    expect(shared.get_by_text("Lengths from a link: 300 requests")).to_be_visible()
    shared.get_by_role("button", name="Replay", exact=True).click()
    random = replayed_cards(shared)
    assert set(random) == REPLAYED
    assert random["Prefix hit rate"] == "unknown"
    to_plan(shared)
    assert metrics(shared) == after


def open_page_at_rest(open_page: OpenPage, address: str, server: str) -> Page:
    """The fixture waits for the Plan page; from there to the address."""
    page = open_page(server)
    page.goto(address)
    page.get_by_text("What each limit means").wait_for()
    at_rest(page)
    return page


def test_back_takes_the_lengths_off_and_one_press_brings_them_again(server: str, open_page: OpenPage) -> None:
    page = go_to_workload(open_page(server))
    page.get_by_role("button", name="Chat and documents").click()
    page.wait_for_function("location.search.includes('traffic=')")
    at_rest(page)
    page.go_back()
    page.wait_for_function("!location.search.includes('traffic=')")
    page.get_by_role("button", name="Back to the log that was read last").click()
    expect(page.get_by_text("500 requests").first).to_be_visible()


def test_upload_of_a_large_log_then_of_a_binary(server: str, open_page: OpenPage) -> None:
    page = go_to_workload(open_page(server))
    chooser = page.locator("[data-testid=stMain] input[type=file]").first
    chooser.set_input_files(
        {"name": "core.log", "mimeType": "text/plain", "buffer": b"\x00" + bytes(range(256)) * 64}
    )
    expect(page.get_by_text("This log cannot be read")).to_be_visible()
    expect(page.get_by_text("The request log is not text")).to_be_visible()
    page.reload()
    page.get_by_role("button", name="Customer service").wait_for()
    at_rest(page)
    line = json.dumps(
        {"usage": {"prompt_tokens": 900, "completion_tokens": 90}, "max_tokens": 512, "pad": "x" * 400}
    )
    page.locator("[data-testid=stMain] input[type=file]").first.set_input_files(
        {"name": "large.jsonl", "mimeType": "text/plain", "buffer": (line + "\n").encode() * 40_000}
    )
    expect(page.get_by_text("large.jsonl: 40,000 requests")).to_be_visible()
    expect(page.get_by_text("99 % of the requests need 1,412 tokens").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_down(server: str, open_page: OpenPage, scheme: str) -> None:
    page = open_page(server, width=390, height=844, scheme=scheme, locale="zh-CN")
    page.goto(f"{server}/workload")
    at_rest(page)
    page.get_by_role("button", name="客服问答").click()
    expect(page.get_by_text("99% 的请求不超过 1,690 token").first).to_be_visible()
    at_rest(page)
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_a_gateway_log_gets_the_replicas_of_a_goal_and_the_link_carries_them(
    server: str, open_page: OpenPage
) -> None:
    """Dropped, a goal answered with own rates, replayed at its own times; whoever opens the link sees the same."""
    lines = (
        {"created": 1_760_000_000 + at / 6, "model": "m", "usage": {"prompt_tokens": 700 + at % 90,
                                                                    "completion_tokens": 60 + at % 40}}
        for at in range(240)
    )  # fmt: skip
    log = "\n".join(map(json.dumps, lines)).encode()
    page = go_to_workload(open_page(server))
    page.locator("[data-testid=stMain] input[type=file]").first.set_input_files(
        {"name": "gateway.jsonl", "mimeType": "text/plain", "buffer": log}
    )
    expect(page.get_by_text("gateway.jsonl: 240 requests", exact=True)).to_be_visible()
    at_rest(page)
    page.get_by_role("radio", name="My own rates").or_(
        page.get_by_text("My own rates", exact=True)
    ).first.click()
    at_rest(page)
    page.get_by_role("button", name="How many replicas?").click()
    until(page, "() => location.search.includes('goal=')")
    at_rest(page)
    answered = goal_figures(page)
    assert set(answered) == GOAL_FIGURES
    before = running_at_once(page)

    page.get_by_role("button", name="Replay", exact=True).click()
    until(page, "() => location.search.includes('replayed=')")
    replayed = replayed_cards(page)
    assert set(replayed) == REPLAYED | {"TTFT, P95", "TPOT, P95"}
    shared = open_page_at_rest(open_page, page.url, server)
    assert goal_figures(shared) == answered
    assert {name: metrics(shared)[name] for name in replayed} == replayed
    assert running_at_once(shared) == before
    expect(shared.get_by_text("From the link: a replay of a log")).to_be_visible()


GOAL_FIGURES = {"Replicas for this goal", "GPUs", "Headroom", "P95 TTFT"}


def goal_figures(page: Page) -> dict[str, str]:
    return {name: value for name, value in metrics(page).items() if name in GOAL_FIGURES}


def running_at_once(page: Page) -> str:
    return metrics(page)["Running at once"]
