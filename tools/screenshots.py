"""Takes the screenshots of docs/screenshots from a server of its own: `python -m tools.screenshots`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import running_server, settled
from tools.browser import ADVICE, find_browser

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
WORKED = (
    "?model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=8&gpu_memory_utilization=0.75"
    "&max_model_len=8192&dtype=float16"
)
TOO_BIG = "?model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=2&max_model_len=8192"
SHOTS = (
    ("plan-en", WORKED, {"viewport": {"width": 1440, "height": 1000}, "locale": "en-US"}),
    ("plan-zh-dark", WORKED, {"viewport": {"width": 1440, "height": 1000}, "locale": "zh-CN", "color_scheme": "dark"}),
    ("plan-does-not-fit", TOO_BIG, {"viewport": {"width": 1440, "height": 1000}, "locale": "en-US"}),
    ("plan-phone", WORKED, {"viewport": {"width": 390, "height": 844}, "locale": "en-US", "device_scale_factor": 2}),
    ("reference-en", WORKED, {"viewport": {"width": 1440, "height": 1000}, "locale": "en-US"}),
    ("reference-zh-dark", WORKED,
     {"viewport": {"width": 1440, "height": 1000}, "locale": "zh-CN", "color_scheme": "dark"}),
    ("reference-phone", WORKED,
     {"viewport": {"width": 390, "height": 844}, "locale": "en-US", "device_scale_factor": 2}),
)  # fmt: skip
"""Name, link, browser. The name begins with the page's path; every visit begins on Plan."""
REFERENCE = "Reference|参考"
UNFOLDED = 2
"""Parameters of the Reference page that are shown with their effect."""


def main() -> int:
    """Exit status 1 without a browser."""
    path = find_browser()
    if path is None:
        print(ADVICE, file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "log") as address,
        sync_playwright() as p,
    ):
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, query, options in SHOTS:
            page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
            page.goto(f"{address}/{query}")
            settled(page)
            if name.startswith("reference"):
                _reference(page)
            page.wait_for_timeout(1000)
            page.screenshot(path=FOLDER / f"{name}.png")
        browser.close()
    return 0


def _reference(page: Page) -> None:
    page.get_by_test_id("stMain").get_by_role("link", name=re.compile(REFERENCE)).click()
    parameters = page.locator("details.kv-parameter")
    parameters.nth(UNFOLDED).wait_for()
    for index in range(UNFOLDED):
        parameters.nth(index).locator("summary").click()


if __name__ == "__main__":
    sys.exit(main())
