"""The page in a real Chromium: from a key press to the settled page, the first visit, bytes on the wire.

Baselines: a Streamlit page with one slider and one line of text, and one with two small Plotly charts as well, served
by the same Python on the same machine in the same run, measured turn by turn with the Plan page. A page is settled when
its script has stopped and the browser has nothing left to draw: charts are drawn after the script.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from pages.ui.shared.shell import PAGES
from tests.browser.test_proxy import proxy
from tools.programs import find_browser, find_proxy
from tools.server import Server, running_server
from tools.shift import shift_of

EMPTY_PAGE = 'import streamlit as st\nvalue = st.slider("value", 0, 100, 50, key="value")\nst.write(f"value {value}")\n'
CHARTS_PAGE = (
    EMPTY_PAGE
    + """
st.plotly_chart({"data": [{"type": "bar", "x": [value, 9], "y": ["a", "b"], "orientation": "h"}]}, key="bar")
st.plotly_chart({"data": [{"type": "scatter", "x": [1, 2, 4], "y": [value, 50, 9]}]}, key="curve")
"""
)
FIGURES = "figures"
NAMES = {
    "empty": "empty Streamlit page",
    "charts": "the same, two charts",
    "plan": "Plan page",
    FIGURES: "its figures",
}
PRESSES = 30
VISITS = 3
LINK = "/?model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&gpu_memory_utilization=0.7"
BARE_SLIDER = '[role="slider"], input[type="range"]'
PLAN_SLIDER = '[class*="st-key-gpu_memory_utilization-slider"] input[type="range"]'
CHARTS = {"empty": 0, "charts": 2, "plan": 0}
"""Plotly charts of each page."""
COUNT_CHANGES = """() => {
    window.__changes = 0;
    const main = document.querySelector('[data-testid="stMain"]');
    new MutationObserver(() => window.__changes++).observe(
        main, {subtree: true, childList: true, characterData: true});
}"""
WATCH_FIGURES = """() => {
    addEventListener('keydown', () => { window.__pressed = performance.now(); window.__figures = 0; }, true);
    const figures = '.st-key-verdict, .stMetric, .kv-memory-bar, .kv-request, .kv-plot, .stHtml';
    const at = (node) => (node.nodeType === 1 ? node : node.parentElement)?.closest(figures);
    new MutationObserver((changes) => {
        if (changes.some((change) => at(change.target))) window.__figures = performance.now();
    }).observe(document.querySelector('[data-testid="stMain"]'), {subtree: true, childList: true, characterData: true});
}"""
"""Notes when verdict, cards, bar or curve changed last."""
ANSWER = (
    "[data-testid=stMain] "
    ":is(.stAlert, .stMetric, .kv-stack, .kv-table, .kv-parameter, .kv-lesson, .stFileUploader)"
)
"""What comes first on the pages: a verdict, a figure, a drawing, a table, a lesson's text, or the field for a file."""
COUNT_ELEMENTS = """() => {
    const all = [...document.querySelectorAll('*')];
    const seen = all.filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width && box.height && box.bottom > 0 && box.top < innerHeight;
    });
    return [all.length, seen.length];
}"""
STOPPED = (
    """() => document.querySelector('[data-testid="stApp"]')?.dataset.testScriptState === 'notRunning'"""
)
IDLE = """() => new Promise((done) => {
    requestAnimationFrame(() => requestIdleCallback(() => done(true), {timeout: 20000}));
})"""
"""Idle after a frame: a page with nothing to draw may not be asked. With a limit: one behind another is never idle."""
STANDS = "() => document.getElementById('kv-loading')?.disabled !== false"
"""The rules for a page that comes are out of force (pages/ui/shared/shell.py): a drag is of a page that stands."""
MIB = 1 << 20
STANDS_MS = 3000
"""Waited after a page is settled: charts and grids are drawn by code that comes last."""


def settle(page: Page) -> None:
    """Waits for the end of the script and of the drawing."""
    page.wait_for_function(STOPPED, polling=10, timeout=60_000)
    page.evaluate(IDLE)


def press(page: Page, key: str) -> float:
    """Seconds from a key press on the focused slider to a page that has changed and is settled."""
    before = page.evaluate("() => window.__changes")
    start = time.perf_counter()
    page.keyboard.press(key)
    page.wait_for_function(f"() => window.__changes > {before}", polling=10)
    settle(page)
    return time.perf_counter() - start


def figures_after(page: Page) -> float:
    """Seconds from the last key press to the last change of a figure."""
    return float(page.evaluate("() => (window.__figures - window.__pressed) / 1000"))


def prepare(page: Page, address: str, slider: str) -> None:
    """Opens the page, focuses the slider and counts changes of the text in the main part."""
    page.bring_to_front()
    page.goto(address)
    page.wait_for_selector(slider, timeout=60_000)
    settle(page)
    page.wait_for_function(STANDS)
    page.evaluate(COUNT_CHANGES)
    page.evaluate(WATCH_FIGURES)
    page.locator(slider).first.focus()


def first_visit(browser: Browser, address: str, name: str) -> tuple[float, float]:
    """Seconds until a browser that knows nothing of the page shows all of it, and bytes that came."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    came: list[float] = []
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: came.append(event["encodedDataLength"]))
    session.on(
        "Network.webSocketFrameReceived",
        lambda event: came.append(len(event["response"]["payloadData"]) * 3 / 4),
    )
    start = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(PLAN_SLIDER if name == "plan" else BARE_SLIDER, timeout=60_000)
    if CHARTS[name]:
        page.locator(".js-plotly-plot .main-svg").nth(2 * CHARTS[name] - 1).wait_for(state="attached")
    settle(page)
    seconds = time.perf_counter() - start
    context.close()
    return seconds, sum(came)


@contextmanager
def behind_proxy(server: Server, folder: Path) -> Iterator[str]:
    """The address of the proxy that docs/hosting ships, or of the server itself where there is no Caddy."""
    if find_proxy() is None:
        yield server.address
        return
    with proxy((server,), folder) as address:
        yield address


def key_presses(browser: Browser, scripts: dict[str, str], log: Path) -> dict[str, list[float]]:
    """Seconds of each press by page, turn by turn; under `FIGURES` until the Plan page shows all its figures."""
    times: dict[str, list[float]] = {name: [] for name in (*scripts, FIGURES)}
    with (
        running_server(log, script=scripts["empty"]) as empty,
        running_server(log, script=scripts["charts"]) as charts,
        running_server(log, script=scripts["plan"]) as planner,
    ):
        pages = {name: browser.new_page() for name in scripts}
        prepare(pages["plan"], planner.address + LINK, PLAN_SLIDER)
        prepare(pages["empty"], empty.address, BARE_SLIDER)
        prepare(pages["charts"], charts.address, BARE_SLIDER)
        for turn in range(PRESSES):
            key = "ArrowRight" if turn % 4 < 2 else "ArrowLeft"
            for name, page in pages.items():
                page.bring_to_front()
                times[name].append(press(page, key))
                if name == "plan":
                    times[FIGURES].append(figures_after(page))
    return times


def shapes(browser: Browser, log: Path, script: str = "app.py") -> None:
    """Prints, for a fresh link to each page, its jumps, the seconds to its first answer and to all of it, and how much
    it has: words of the page, elements of the document and in view."""
    print(
        f"page: {'page':14} {'shift':>6} {'answer':>7} {'all':>6} {'words':>6} {'elements':>8} {'in view':>8}"
    )
    with running_server(log, script=script) as server:
        for spec in PAGES:
            context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
            page = context.new_page()
            start = time.perf_counter()
            page.goto(f"{server.address}/{spec.path}{LINK[1:]}")
            page.locator(ANSWER).first.wait_for(state="attached")
            answered = time.perf_counter() - start
            settle(page)
            done = time.perf_counter() - start
            page.wait_for_timeout(STANDS_MS)
            words = len(page.inner_text("[data-testid=stMain]").split())
            elements, in_view = page.evaluate(COUNT_ELEMENTS)
            shift = shift_of(page)
            print(
                f"  {spec.title:16} {shift:6.3f} {answered:7.2f} {done:6.2f} {words:6} {elements:8} {in_view:8}"
            )
            context.close()


def main() -> None:
    """Prints the medians and their ratios."""
    browser_path = find_browser()
    if browser_path is None:
        raise SystemExit("no browser: python tools/programs.py browser --install")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        log = folder / "server.log"
        scripts = {"empty": str(folder / "empty.py"), "charts": str(folder / "charts.py"), "plan": "app.py"}
        Path(scripts["empty"]).write_text(EMPTY_PAGE)
        Path(scripts["charts"]).write_text(CHARTS_PAGE)
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        times = key_presses(browser, scripts, log)
        print(f"page: median of {PRESSES} key presses, key press to settled page")
        _print({page: statistics.median(found) for page, found in times.items()})
        visits: dict[str, list[tuple[float, float]]] = {page: [] for page in scripts}
        for _ in range(VISITS):
            for page, script in scripts.items():
                with running_server(log, script=script) as server, behind_proxy(server, folder) as address:
                    visits[page].append(
                        first_visit(browser, address + (LINK if page == "plan" else ""), page)
                    )
        shapes(browser, log)
        browser.close()
    way = "behind the proxy" if find_proxy() else "without a proxy, uncompressed"
    print(f"page: median of {VISITS} first visits, each on a fresh server, {way}")
    _print({page: statistics.median(seconds for seconds, _ in found) for page, found in visits.items()})
    for page, found in visits.items():
        print(f"  {NAMES[page]:22} {max(size for _, size in found) / MIB:6.2f} MiB on the wire")


def _print(seconds: dict[str, float]) -> None:
    for page, found in seconds.items():
        ratios = "".join(
            f"  {found / seconds[other]:5.2f} × {words}"
            for other, words in (("empty", "empty"), ("charts", "two charts"))
            if page != other
        )
        print(f"  {NAMES[page]:22} {found * 1000:6.0f} ms{ratios}")


if __name__ == "__main__":
    main()
