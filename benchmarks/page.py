"""Key press to settled page, in a real Chromium.

Baseline: a Streamlit page with one slider and one line of text, served by the same Python on the same machine in the
same run, measured turn by turn with the Plan page.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tools.programs import find_browser
from tools.server import running_server

EMPTY_PAGE = 'import streamlit as st\nvalue = st.slider("value", 0, 100, 50, key="value")\nst.write(f"value {value}")\n'
PRESSES = 30
COUNT_CHANGES = """() => {
    window.__changes = 0;
    const main = document.querySelector('[data-testid="stMain"]');
    new MutationObserver(() => window.__changes++).observe(
        main, {subtree: true, childList: true, characterData: true});
}"""
PLAN_SLIDER = '[class*="st-key-gpu_memory_utilization-slider"] input[type="range"]'
SETTLED = """() => document.querySelector('[data-testid="stApp"]').dataset.testScriptState === 'notRunning'"""


def press(page: Page, key: str) -> float:
    """Seconds from a key press on the focused slider to a page whose script has run and stopped."""
    before = page.evaluate("() => window.__changes")
    start = time.perf_counter()
    page.keyboard.press(key)
    page.wait_for_function(f"() => window.__changes > {before}", polling=10)
    page.wait_for_function(SETTLED, polling=10)
    return time.perf_counter() - start


def prepare(page: Page, address: str, slider: str) -> None:
    """Opens the page, focuses the slider and counts changes of the text in the main part."""
    page.goto(address)
    page.wait_for_selector(slider, timeout=60_000)
    page.wait_for_function(SETTLED, timeout=60_000)
    page.evaluate(COUNT_CHANGES)
    page.locator(slider).first.focus()


def main() -> None:
    """Prints both medians and their ratio."""
    browser_path = find_browser()
    if browser_path is None:
        raise SystemExit("no browser: python tools/programs.py browser --install")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY_PAGE)
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        link = (
            "/?model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&gpu_memory_utilization=0.7"
        )
        log = Path(folder) / "server.log"
        with running_server(log) as planner, running_server(log, script=empty) as bare:
            plan_page, empty_page = browser.new_page(), browser.new_page()
            prepare(plan_page, planner.address + link, PLAN_SLIDER)
            prepare(empty_page, bare.address, '[role="slider"], input[type="range"]')
            times: dict[str, list[float]] = {"plan": [], "empty": []}
            for turn in range(PRESSES):
                key = "ArrowRight" if turn % 4 < 2 else "ArrowLeft"
                empty_page.bring_to_front()
                times["empty"].append(press(empty_page, key))
                plan_page.bring_to_front()
                times["plan"].append(press(plan_page, key))
        browser.close()
    plan, base = statistics.median(times["plan"]), statistics.median(times["empty"])
    print(f"page: median of {PRESSES} key presses, key press to settled page")
    print(f"  empty Streamlit page   {base * 1000:6.0f} ms")
    print(f"  Plan page              {plan * 1000:6.0f} ms  {plan / base:4.1f} × the empty page")


if __name__ == "__main__":
    main()
