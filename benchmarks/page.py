"""Key press to settled page, in a real Chromium.

Baselines: a Streamlit page with one slider and one line of text, and one with two small Plotly charts as well, served
by the same Python on the same machine in the same run, measured turn by turn with the Plan page.
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
CHARTS_PAGE = (
    EMPTY_PAGE
    + """
st.plotly_chart({"data": [{"type": "bar", "x": [value, 9], "y": ["a", "b"], "orientation": "h"}]}, key="bar")
st.plotly_chart({"data": [{"type": "scatter", "x": [1, 2, 4], "y": [value, 50, 9]}]}, key="curve")
"""
)
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
    """Prints the medians and their ratios."""
    browser_path = find_browser()
    if browser_path is None:
        raise SystemExit("no browser: python tools/programs.py browser --install")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY_PAGE)
        charts = Path(folder) / "charts.py"
        charts.write_text(CHARTS_PAGE)
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        link = (
            "/?model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&gpu_memory_utilization=0.7"
        )
        log = Path(folder) / "server.log"
        with (
            running_server(log) as planner,
            running_server(log, script=empty) as bare,
            running_server(log, script=charts) as drawing,
        ):
            pages = {name: browser.new_page() for name in ("empty", "charts", "plan")}
            prepare(pages["plan"], planner.address + link, PLAN_SLIDER)
            for name, server in {"empty": bare, "charts": drawing}.items():
                prepare(pages[name], server.address, '[role="slider"], input[type="range"]')
            times: dict[str, list[float]] = {name: [] for name in pages}
            for turn in range(PRESSES):
                key = "ArrowRight" if turn % 4 < 2 else "ArrowLeft"
                for name, page in pages.items():
                    page.bring_to_front()
                    times[name].append(press(page, key))
        browser.close()
    empty_page, charts_page, plan_page = (statistics.median(found) for found in times.values())
    print(f"page: median of {PRESSES} key presses, key press to settled page")
    print(f"  empty Streamlit page   {empty_page * 1000:6.0f} ms")
    print(f"  the same, two charts   {charts_page * 1000:6.0f} ms")
    print(
        f"  Plan page              {plan_page * 1000:6.0f} ms  {plan_page / empty_page:4.1f} × the empty page, "
        f"{plan_page / charts_page:4.2f} × that with two charts"
    )


if __name__ == "__main__":
    main()
