"""Logs from an empty browser to the answer, in both languages, with the number of clicks; a dropped file is none."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, at_rest
from tests.browser.test_check_page import follow

pytestmark = pytest.mark.browser

GATEWAY = b"".join(
    json.dumps(
        {
            "created": 1_760_000_000 + at // 2,
            "model": "m",
            "usage": {"prompt_tokens": 700 + 11 * (at % 50), "completion_tokens": 60 + at % 90},
            "max_tokens": 512,
        }
    ).encode()
    + b"\n"
    for at in range(400)
)
"""400 requests over 199 seconds, two a second, with their times: P99 of the context needed 1,239 + 512."""
FOREIGN = b"when,in_ms,tokIn,tokOut\n" + b"".join(
    b"%d,%d,%d,%d\n" % (1_760_000_000 + at, 5 + at, 300 + at % 90, 40 + at % 50) for at in range(200)
)
SAMPLER = """\
(EngineCore pid=9) INFO 06-22 08:14:21 [core.py:107] Initializing a V1 LLM engine (v0.23.0) with config: \
model='Qwen/Qwen3-32B', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=4, enforce_eager=False
(APIServer pid=1) INFO 06-22 08:14:02 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-32B', \
'max_model_len': 32768, 'tensor_parallel_size': 4, 'gpu_memory_utilization': 0.97, 'max_num_seqs': 1024}
(Worker_TP0 pid=21) INFO 06-22 08:15:22 [gpu_model_runner.py:4900] Model loading took 15.39 GiB memory and 38.2 seconds
(Worker_TP0 pid=21) INFO 06-22 08:16:05 [gpu_worker.py:460] Available KV cache memory: 25.31 GiB
(EngineCore pid=9) INFO 06-22 08:16:06 [kv_cache_utils.py:1319] GPU KV cache size: 414,672 tokens
(Worker_TP0 pid=21) INFO 06-22 08:16:40 [gpu_model_runner.py:6046] Graph capturing finished in 31 secs, took 1.02 GiB
(Worker_TP2 pid=23) ERROR 06-22 08:16:44 [multiproc_executor.py:870] torch.OutOfMemoryError: CUDA out of memory. \
Tried to allocate 594.00 MiB. GPU 2 has a total capacity of 44.39 GiB of which 212.31 MiB is free.
(Worker_TP2 pid=23) ERROR 06-22 08:16:44 [multiproc_executor.py:870] RuntimeError: CUDA out of memory occurred when \
warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
"""Four cards of 44.39 GiB that no line names; the sidebar has an H100."""


@dataclass
class Person:
    """A page, and the clicks made on it."""

    page: Page
    clicks: int = 0

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()
        self.clicks += 1
        at_rest(self.page)

    def go(self, name: str) -> None:
        follow(self.page, name)
        self.clicks += 1
        at_rest(self.page)

    def drop(self, name: str, content: bytes) -> None:
        self.page.locator("[data-testid=stMain] input[type=file]").first.set_input_files(
            {"name": name, "mimeType": "text/plain", "buffer": content}
        )

    def sees(self, *texts: str) -> None:
        for text in texts:
            expect(self.page.get_by_text(text).first).to_be_visible()


def arrive(open_page: OpenPage, address: str, locale: str) -> Person:
    return Person(open_page(address, locale=locale))


@pytest.mark.parametrize(
    ("locale", "tab", "read", "replay", "verdict", "unknown"),
    [
        ("en-US", "Workload", ("99 % of the requests need 1,751 tokens", "Busiest minute (120 requests)",
         "400 requests over 3.32 minutes, 2.01 a second"), "Replay", "of the KV cache is in use: one replica carries",
         "unknown"),
        ("zh-CN", "业务负载", ("99% 的请求不超过 1,751 token", "最繁忙的一分钟（120 个请求）",
         "400 个请求，历时 3.32 分钟，每秒 2.01 个"), "重放", "单个副本可承载", "未知"),
    ],
)  # fmt: skip
def test_one_upload_gives_the_verdict_and_its_replay(
    server: str,
    open_page: OpenPage,
    locale: str,
    tab: str,
    read: tuple[str, ...],
    replay: str,
    verdict: str,
    unknown: str,
) -> None:
    """2 clicks: Workload, Replay."""
    person = arrive(open_page, server, locale)
    person.go(tab)
    person.drop("gw.jsonl", GATEWAY)
    person.sees(*read)
    at_rest(person.page)
    person.click(replay)
    person.sees(verdict, unknown)
    assert person.clicks == 2


@pytest.mark.parametrize(
    ("locale", "tab", "asked", "take", "read"),
    [
        ("en-US", "Workload", "Which columns have the lengths, in tokens?", "Read with these columns",
         ("foreign.csv: 200 requests", "99 % of the requests need")),
        ("zh-CN", "业务负载", "哪些列是以 token 计的长度", "按这些列读取",
         ("foreign.csv：200 个请求", "99% 的请求不超过")),
    ],
)  # fmt: skip
def test_foreign_columns_are_chosen_from_two_menus(
    server: str, open_page: OpenPage, locale: str, tab: str, asked: str, take: str, read: tuple[str, ...]
) -> None:
    """2 clicks: Workload, Read; both columns are guessed, beside one with milliseconds."""
    person = arrive(open_page, server, locale)
    person.go(tab)
    person.drop("foreign.csv", FOREIGN)
    person.sees(asked)
    at_rest(person.page)
    menus = person.page.locator("[class*=st-key-workload-columns-ask] [role=combobox]")
    assert [menu.input_value() for menu in menus.all()] == ["tokIn", "tokOut"]
    person.click(take)
    person.sees(*read)
    assert person.clicks == 2


@pytest.mark.parametrize(
    ("locale", "tab", "seen", "never"),
    [
        ("en-US", "Check", ("This start failed in the warm-up after graph capture, on GPU 2.", "L40S × 4",
         "The sampler's warm-up with 1024 sequences ran out of memory"), "34.68"),
        ("zh-CN", "核对", ("GPU 2", "L40S × 4", "1024"), "34.68"),
    ],
)  # fmt: skip
def test_a_failed_start_on_four_l40s_is_not_held_against_the_sidebars_card(
    server: str, open_page: OpenPage, locale: str, tab: str, seen: tuple[str, ...], never: str
) -> None:
    """1 click: Check."""
    person = arrive(open_page, server, locale)
    person.go(tab)
    person.drop("start.log", SAMPLER.encode())
    person.sees(*seen)
    at_rest(person.page)
    # The cause stands on the first screen, above the folded text.
    cause = person.page.get_by_text(seen[0]).first.bounding_box()
    assert cause is not None
    assert cause["y"] < 400
    assert never not in person.page.inner_text("[data-testid=stMain]")
    assert person.clicks == 1
