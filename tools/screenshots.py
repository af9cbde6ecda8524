"""Takes the screenshots of docs/screenshots from a server of its own: `python -m tools.screenshots`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

from tests.browser.conftest import running_server, settled, watched_browser
from tools.programs import BROWSER_ADVICE, find_browser

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
WORKED = (
    "?model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=8&gpu_memory_utilization=0.75"
    "&max_model_len=8192&dtype=float16"
)
TOO_BIG = "?model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=2&max_model_len=8192"
DESKTOP = {"viewport": {"width": 1440, "height": 1000}, "locale": "en-US"}
DARK_CHINESE = {"viewport": {"width": 1440, "height": 1000}, "locale": "zh-CN", "color_scheme": "dark"}
PHONE = {"viewport": {"width": 390, "height": 844}, "locale": "en-US", "device_scale_factor": 2}
LINKS = {
    "explore": "Explore|选型",
    "compare": "Compare|方案对比",
    "workload": "Workload|业务负载",
    "check": "Check|核对",
    "learn": "Learn|原理推导",
    "reference": "Reference|参考",
    "accuracy": "Accuracy|准确度",
}
"""Names of the pages in the navigation, but for Plan, where every visit begins."""
SHOTS = (
    *((f"{page}-{view}", WORKED, options)
      for page in ("plan", *LINKS)
      for view, options in (("en", DESKTOP), ("zh-dark", DARK_CHINESE), ("phone", PHONE))),
    ("plan-does-not-fit", TOO_BIG, DESKTOP),
)  # fmt: skip
"""Name, link, browser. The name begins with the page's path."""
SAMPLE = ".st-key-sample-start button"
REQUESTS = '[class*="st-key-workload-sample"] button'
DRAWN = ".kv-plot, .js-plotly-plot .main-svg, .kv-stack"
UNFOLDED = 2
"""Parameters of the Reference page that are shown with their effect."""


def main() -> int:
    """Exit status 1 without a browser."""
    path = find_browser()
    if path is None:
        print(BROWSER_ADVICE, file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "log") as address,
        watched_browser(path) as browser,
    ):
        for name, query, options in SHOTS:
            page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
            page.goto(f"{address}/{query}")
            settled(page)
            _go(page, name.split("-")[0])
            page.mouse.move(options["viewport"]["width"] / 2, 2)  # over nothing: no hint, no handle
            page.wait_for_timeout(2500)
            page.screenshot(path=FOLDER / f"{name}.png")
            page.context.close()
    return 0


def _go(page: Page, name: str) -> None:
    """From Plan to the page, with something to see on it."""
    if name not in LINKS:
        return
    page.get_by_test_id("stMain").get_by_role("link", name=re.compile(LINKS[name])).first.click()
    if name == "reference":
        parameters = page.locator("details.kv-parameter")
        parameters.nth(UNFOLDED).wait_for()
        for index in range(UNFOLDED):
            parameters.nth(index).locator("summary").click()
    elif name in ("check", "workload"):
        page.locator(SAMPLE if name == "check" else REQUESTS).first.click()
        page.locator(DRAWN).first.wait_for()
    else:
        page.locator(DRAWN).first.wait_for()


if __name__ == "__main__":
    sys.exit(main())
